"""Archives that mean harm are refused: with the entry and the rule, in little memory, and nothing is left."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives import unpacking
from holdfast.pipelines.conf_archives.archive import HEAD_BYTES, ArchiveLimits, kind_of, members
from hostile_archives import (
    CONF,
    HOSTILE,
    Zipped,
    good_tar,
    good_zip,
    many_zip,
    nested,
    pax,
    tar,
    tar_entry,
    tar_header,
    tgz,
    xz,
    zeros_packed,
    zip_of,
)


def read(data: bytes, name: str, limits: ArchiveLimits | None = None) -> list[str]:
    """The paths of all files but those of many. Whatever happens, the spool is empty afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path, spool = Path(folder, "upload"), Path(folder, "spool")
        path.write_bytes(data)
        spool.mkdir()
        try:
            kind = kind_of(name, data[:HEAD_BYTES])
            found = members(path, kind, limits or ArchiveLimits(), lambda path: not path[0].isdigit(), spool)
            return [member.path for member in found if member.file.read() is not None]
        finally:
            assert list(spool.iterdir()) == []


WORDS = {
    # Names
    "absolute.tar": "Entry '/etc/app.conf' has an absolute name",
    "absolute-backslash.tar": r"Entry '\\etc\\app.conf' has an absolute name",
    "drive.tar": r"Entry 'C:\\app.conf' has an absolute name",
    "host.tar": "Entry '//host/app.conf' has an absolute name",
    "dots.tar": "Entry 'a/../../app.conf' has a '..' in its name",
    "dots-backslash.tar": r"Entry 'a\\..\\..\\app.conf' has a '..' in its name",
    "dots-pax.tar": "Entry '../app.conf' has a '..'",
    "dots-long-name.tar": "d/d/d/app.conf' has a '..' in its name",
    "nul-pax.tar": r"Entry 'a\x00b.conf' has a control character",
    "icon-folder.tar": r"Entry 'Icon\r/a.conf' has a control character",
    "another-icon.tar": r"Entry 'a/BigIcon\r' has a control character",
    "control-icon.tar": r"Entry 'a\r/Icon\r' has a control character",
    "control.tar": r"Entry 'a\x1b[2J.conf' has a control character",
    "empty-name.tar": "Entry '' has an empty name",
    "root-file.tar": "Entry '.' has a name without a file in it",
    "long-name.tar": "longer than 1,000 characters",
    "deep-name.tar": "deeper than 50 folders",
    "twice.tar": "Entry 'a/b.conf' is there twice, both times as a file",
    "file-and-folder.tar": "Entry 'a' is there twice, as a file and as a folder",
    "below-file.tar": "Entry 'a/b.conf' lies below 'a', which is a file",
    "file-on-folder.tar": "Entry 'a' is there twice, as a folder and as a file",
    # Links and what is no file
    "link-absolute.tar": "Entry 'a' is a link that leads out of the archive, to '/etc/passwd'",
    "link-above.tar": "Entry 'd/a' is a link that leads out of the archive, to '../../passwd'",
    "hard-link-above.tar": "Entry 'd/a' is a link that leads out of the archive, to '../passwd'",
    "link-root.tar": "Entry './' is a link in the place of the archive's root",
    "below-link.tar": "Entry 'a/x.conf' lies below 'a', which is a link",
    "character-device.tar": "Entry 'null' is a character device",
    "block-device.tar": "Entry 'disk' is a block device",
    "fifo.tar": "Entry 'pipe' is a FIFO",
    "unknown-type.tar": "Entry 'a.conf' is of the unknown type b'Z'",
    "sparse.tar": "Entry 'a.conf' is a sparse file",
    "sparse-pax.tar": "has a sparse file, which is not read: it is announced by 'PaxHeader/x'",
    # Headers
    "garbage.tar": "is called an archive, and its bytes are none",
    "checksum.tar": "after entry 'a.conf': its checksum is wrong",
    "cut-data.tar": "ends in the middle of entry 'a.conf'",
    "cut-header.tar": "ends in the middle of a header, after entry 'a.conf'",
    "cut-after-pax.tar": "ends without the zeros that end a tar, after entry 'PaxHeader/x'",
    "lone-zeros.tar": "has an empty header, after entry 'a.conf'",
    "negative-size.tar": "Entry 'a.conf' has a size that is no number",
    "size-words.tar": "Entry 'a.conf' has a size that is no number",
    "pax-size-words.tar": "Entry 'a.conf' has a size that is no number",
    "huge-size.tgz": "unpacks to more than 4,294,967,296 bytes; the limit is passed by entry 'a.conf'",
    "huge-pax.tar": "of 1,073,741,824 bytes; the limit is 1,048,576",
    "huge-long-name.tar": "of 65,537 bytes; the limit is 65,536",
    "pax-words.tar": "'PaxHeader/x', that is not made of records",
    "many-pax.tar": "has more than 8 extended headers in a row",
    "folder-data.tar": "Entry 'a/' is a folder with data of its own",
    # Packing
    "cut.tgz": "ends in the middle of entry 'a.conf': its packed data is cut off",
    "cut.tar.bz2": "ends before its first entry: its packed data is cut off",
    "cut.tar.xz": "ends in the middle of entry 'a.conf': its packed data is cut off",
    "checksum.tgz": "incorrect data check",
    "no-tar.tgz": "The archive has no tar in it",
    "nothing.tgz": "The archive has no tar in it",
    "memory.tar.xz": "The archive needs more memory",
    # Bombs
    "zeros.tgz": "more than 200 times its",
    "zeros.tar.bz2": "more than 200 times its",
    "zeros.tar.xz": "more than 200 times its",
    "zeros.zip": "more than 200 times its",
    "many.tgz": "more than 100,000 entries; '100000.conf' is one too many",
    "many.zip": "more than 100,000 entries: 100,001 are announced",
    "deep.tgz": "Entry 'inner.tgz/inner.tgz/inner.tgz' is an archive in archives deeper than the 3 levels",
    "deep.zip": "Entry 'inner.zip/inner.zip/inner.zip' is an archive in archives deeper than the 3 levels",
    "nested-dots.zip": "Entry 'in.tgz/../app.conf' has a '..'",
    "nested-link.zip": "Entry 'in.tgz/a' is a link that leads out of the archive, to '../b'",
    "nested-twice.zip": "Entry 'in.tgz/a.conf' is there twice",
    "nested-zeros.tar": "the limit is passed by entry 'in.tgz/zeros.conf'",
    "nested-cut.tar": "The archive 'in.tgz' inside the archive ends in the middle of entry 'in.tgz/a.conf'",
    "nested-checksum.tar": "The archive 'in.tgz' inside the archive is damaged before its first entry",
    "nested-header.tar": "The archive 'in.tar' inside the archive has something else in the place of",
    # Zips
    "absolute.zip": "Entry '/etc/app.conf' has an absolute name",
    "drive.zip": r"Entry 'C:\\app.conf' has an absolute name",
    "dots.zip": r"Entry 'a\\..\\..\\app.conf' has a '..' in its name",
    "nul.zip": r"Entry 'a.conf\x00.txt' has a control character",
    "empty-name.zip": "Entry '' has an empty name",
    "twice.zip": "Entry 'a/b.conf' is there twice, both times as a file",
    "below-link.zip": "Entry 'a/x.conf' lies below 'a', which is a link",
    "link-above.zip": "Entry 'a' is a link that leads out of the archive, to '../b'",
    "link-long.zip": "Entry 'a' is a link to a name of 65,537 bytes; the limit is 65,536",
    "fifo.zip": "Entry 'pipe' is a device, a FIFO or a socket",
    "folder-data.zip": "Entry 'a/' is a folder with data of its own",
    "encrypted.zip": "Entry 'a.conf' is encrypted",
    "method.zip": "Entry 'a.conf' is packed with method 98 (PPMd)",
    "local-name.zip": "Entry 'a.conf' calls itself 'b.conf'",
    "local-method.zip": "Entry 'a.conf' is packed in another way than the directory says",
    "local-size.zip": "Entry 'a.conf' has another size or checksum than the directory says",
    "overlap.zip": "Entries 'a.conf' and 'b.conf' overlap",
    "same-offset.zip": "Entries 'a/' and 'a/' overlap",
    "offset.zip": "Entry 'a.conf' is not where the directory says, at 10,000",
    "offset-inside.zip": "Entry 'a.conf' is not where the directory says, at 7",
    "more-than-said.zip": "Entry 'a.conf' unpacks to more than the 10 bytes",
    "less-than-said.zip": "Entry 'a.conf' is damaged: its size or its checksum is not as said",
    "stored-sizes.zip": "Entry 'a.conf' is stored as it is, and has two sizes: 10 and 23 bytes",
    "checksum.zip": "Entry 'a.conf' is damaged: its size or its checksum is not as said",
    "broken-deflate.zip": "Entry 'a.conf' is damaged: Error -3",
    "cut-deflate.zip": "Entry 'a.conf' is damaged: its packed data is cut off",
    "behind-deflate.zip": "Entry 'a.conf' has bytes behind its packed data",
    "data-into-directory.zip": "Entry 'a.conf' is said to have more bytes than there are",
    "cut.zip": "the end of the zip is missing",
    "before-first.zip": "has 64 bytes at 0 that belong to no entry",
    "between.zip": "has 64 bytes at 59 that belong to no entry",
    "before-directory.zip": "has 64 bytes at 59 that belong to no entry",
    "hidden-behind-sizes.zip": "has 80 bytes at 59 that belong to no entry",
    "sizes-nobody-announced.zip": "has 16 bytes at 59 that belong to no entry",
    "sizes-too-long.zip": "has 17 bytes at 59 that belong to no entry",
    "prepended.zip": "bytes are missing, or something was put in",
    "appended.zip": "the end of the zip is missing",
    "huge-directory.zip": "a directory that is said to be at 59, with 2,147,483,648 bytes, and to end at 111",
    "many-said.zip": "announces 60,000 entries in 52 bytes",
    "fewer-said.zip": "has more in its directory than 1 entries",
    "one-more-said.zip": "has no record of entry 3 where it belongs",
    "directory-words.zip": "has no record of entry 1 where it belongs",
    "several-parts.zip": "is one part of several",
    "other-part.zip": "Entry 'a.conf' is in another part of a zip of several",
    "zip64-missing.zip": "Entry 'a.conf' has no zip64 sizes",
    "zip64-nowhere.zip": "has no zip64 end where it is said to be, at 1,099,511,627,776",
    "zip64-size.zip": "has a zip64 end of another size than it says",
}

# What its owner can do, where it is not to pack the same files again.
GUIDANCE = {
    "twice.tar": "Leave one of the two out",
    "control.tar": "Rename the file",
    "link-absolute.tar": "Pack what the link leads to (tar -h), or leave the link out, and upload",
    "link-above.zip": "Pack what the link leads to (tar -h), or leave the link out, and upload",
    "sparse.tar": "without --sparse",
    "sparse-pax.tar": "without --sparse",
    "encrypted.zip": "without a password",
    "memory.tar.xz": "`xz -6`",
    "zeros.zip": "in several smaller archives",
}


def test_each_of_them_is_there_for_one_rule() -> None:
    assert list(WORDS) == list(HOSTILE)


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_with_the_entry_and_the_rule(name: str) -> None:
    with pytest.raises(PermanentError, match=re.escape(WORDS[name])) as refused:
        read(HOSTILE[name](), name)
    expected = "encrypted_file" if name == "encrypted.zip" else "malformed_archive"
    assert refused.value.error_type == expected
    assert refused.value.user_message and refused.value.guidance
    assert GUIDANCE.get(name, "") in refused.value.guidance
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


# Limits, one by one


@pytest.mark.parametrize(
    ("data", "name", "limits", "words"),
    [
        (
            good_tar(files={"a": bytes(600), "b": bytes(600)}),
            "a.tar",
            ArchiveLimits(total_bytes_max=1000),
            "1,000 bytes",
        ),
        (
            good_zip(files={"a": bytes(600), "b": bytes(600)}),
            "a.zip",
            ArchiveLimits(total_bytes_max=1000),
            "'b'",
        ),
        (nested(2), "a.tgz", ArchiveLimits(entries_max=1), "more than 1 entries"),
        (nested(2, "zip"), "a.zip", ArchiveLimits(depth_max=1), "'inner.zip' is an archive .* the 1 levels"),
        (
            tar(tar_entry("a/b/c/d.conf")),
            "a.tar",
            ArchiveLimits(entries_max=2),
            "2 folders that it does not list",
        ),
        (
            tgz(tar_entry("in.tgz", tgz(tar_entry("n" * 9)))),
            "a.tgz",
            ArchiveLimits(path_chars_max=12),
            "than 12",
        ),
        (
            tgz(tar_entry("in.tgz", tgz(tar_entry("a/b")))),
            "a.tgz",
            ArchiveLimits(path_depth_max=1),
            "than 1 f",
        ),
    ],
)
def test_a_limit_is_told_with_its_number(data: bytes, name: str, limits: ArchiveLimits, words: str) -> None:
    with pytest.raises(PermanentError, match=words) as refused:
        read(data, name, limits)
    assert refused.value.error_type == "malformed_archive"


def test_what_is_just_within_the_limits_is_read() -> None:
    limits = ArchiveLimits(
        total_bytes_max=2 * len(CONF), entries_max=2, depth_max=1, path_depth_max=2, path_chars_max=8
    )
    assert read(tar(tar_entry("a/b.conf"), tar_entry("a/c.conf")), "a.tar", limits) == [
        "a/b.conf",
        "a/c.conf",
    ]


def test_zeros_below_sixteen_megabytes_are_no_bomb() -> None:
    assert read(zeros_packed(15 * 1024**2), "a.tgz") == ["zeros.conf"]


def test_more_streams_than_any_packer_makes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_STREAMS_MAX", 50)
    with pytest.raises(PermanentError, match="more than 50 packed streams"):
        read(gzip.compress(b"") * 51 + tgz(tar_entry("a.conf")), "a.tgz")


def test_what_is_packed_behind_the_end_is_unpacked_only_a_little_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_FINISH_BYTES_MAX", 1024**2)
    packed = gzip.compress(tar(tar_entry("a.conf")) + bytes(8 * 1024**2))
    assert read(packed[:-4], "a.tgz") == ["a.conf"]


def test_a_second_xz_that_needs_more_memory_than_the_first_is_refused() -> None:
    data = tar(tar_entry("a.conf", CONF * 100))
    with pytest.raises(PermanentError, match="needs more memory"):
        read(xz(data[:600], 1) + xz(data[600:], 32), "a.txz")


def test_a_pax_header_is_padded_with_nothing_else_than_nul() -> None:
    padded = tar_header("PaxHeader/x", 30, b"x") + b"15 path=b.conf\n".ljust(512, b"\0")
    assert read(tar(padded, tar_entry("a.conf")), "a.tar") == ["b.conf"]


def test_an_extended_header_that_is_cut_off_is_told() -> None:
    for cut in (1024, 700, 520):
        with pytest.raises(PermanentError, match="ends in the middle of entry 'PaxHeader/x'"):
            read(pax({"path": b"b" * 600})[:cut], "a.tar")


def test_a_tar_without_padding_at_its_end_is_cut_off() -> None:
    with pytest.raises(PermanentError, match=r"ends in the middle of entry 'a\.conf'"):
        read(gzip.compress(tar_entry("a.conf")[: 512 + len(CONF)]), "a.tgz")
    with pytest.raises(PermanentError, match=r"ends in the middle of entry 'a\.conf'"):
        read(gzip.compress(tar_entry("a.conf", CONF * 99)[:900]), "a.tgz")


# Whatever comes


GOOD = {
    "a.tar": good_tar(files={"a/b.conf": CONF, "a/" + "n" * 150: CONF}),
    "a.tgz": good_tar("w:gz", files={"a/b.conf": CONF, "in.zip": good_zip()}),
    "a.tbz2": good_tar("w:bz2"),
    "a.txz": good_tar("w:xz"),
    "a.zip": good_zip(files={"a/b.conf": CONF * 9, "in.tgz": good_tar("w:gz")}),
    "b.zip": zip_of(Zipped(b"a.conf"), Zipped(b"b.conf", CONF, 12), comment=b"hello"),
}


def read_or_refuse(data: bytes, name: str) -> None:
    try:
        read(data, name, ArchiveLimits(total_bytes_max=1024**2))
    except PermanentError as refused:
        assert refused.error_type in (
            "malformed_archive",
            "encrypted_file",
            "empty_file",
            "unsupported_format",
        )


@given(
    st.binary(max_size=2000), st.sampled_from([b"", b"PK\3\4", b"\x1f\x8b\x08", b"BZh91AY&SY", b"\xfd7zXZ\0"])
)
@settings(max_examples=200)
def test_random_bytes_are_read_or_refused(data: bytes, magic: bytes) -> None:
    read_or_refuse(magic + data, "a.tar")


@given(st.sampled_from(sorted(GOOD)), st.floats(0, 1))
@settings(max_examples=200)
def test_an_archive_that_is_cut_anywhere_is_read_or_refused(name: str, where: float) -> None:
    read_or_refuse(GOOD[name][: int(where * len(GOOD[name]))], name)


@given(
    st.sampled_from(sorted(GOOD)), st.lists(st.tuples(st.floats(0, 0.9999), st.integers(1, 255)), min_size=1)
)
@settings(max_examples=400)
def test_an_archive_with_other_bytes_in_it_is_read_or_refused(
    name: str, flips: list[tuple[float, int]]
) -> None:
    data = bytearray(GOOD[name])
    for where, bits in flips:
        data[int(where * len(data))] ^= bits
    read_or_refuse(bytes(data), name)


@given(st.data())
@settings(max_examples=200)
def test_a_tar_header_with_other_bytes_and_a_right_checksum_is_read_or_refused(data: st.DataObject) -> None:
    block = bytearray(tar_header("a.conf", 10))
    for at in data.draw(st.lists(st.integers(0, 511), max_size=6)):
        block[at] = data.draw(st.integers(0, 255))
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + 256 + sum(block[156:]))
    read_or_refuse(bytes(block) + bytes(512) + tar_entry("b.conf") + bytes(1024), "a.tar")


# Memory


# The peak of this process alone: getrusage would begin with that of the process that started it.
MEASURE = """
import sys
from pathlib import Path
from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives.archive import ArchiveLimits, kind_of, members

def peak():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

path, spool, ballast = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
before, seen = peak(), 0
held = b"x" * ballast
try:
    with path.open("rb") as file:
        kind = kind_of(path.name, file.read(512))
    limits = ArchiveLimits(ratio_max=1e9)
    for member in members(path, kind, limits, lambda name: name.endswith(("9.conf", "zeros.conf")), spool):
        seen += 1
except PermanentError:
    pass
print((peak() - before) / 1e6, seen)
"""


WIDE = "\N{GRINNING FACE}".encode() * 262_000  # a character of it takes four bytes wherever it is

GREEDY: dict[str, tuple[Callable[[], bytes], int]] = {
    "zeros.tgz": (HOSTILE["zeros.tgz"], 1),
    "zeros.tar.bz2": (HOSTILE["zeros.tar.bz2"], 1),
    "zeros.tar.xz": (HOSTILE["zeros.tar.xz"], 1),
    "many.tgz": (HOSTILE["many.tgz"], 10_000),  # the last one is refused
    "many.zip": (lambda: many_zip(100_000, lambda number: b"%d/%d.conf" % (number, number)), 10_000),
    "huge-pax.tar": (lambda: tar(*[pax({"linkpath": WIDE})] * 7, tar_entry("9.conf")), 1),
    "huge-directory.zip": (
        lambda: zip_of(*[Zipped(b"%d9.conf" % number, extra=bytes(65_000)) for number in range(500)]),
        500,
    ),
}


@pytest.mark.parametrize("name", GREEDY)
def test_forty_megabytes_are_enough_for_any_of_them(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    build, count = GREEDY[name]
    path.write_bytes(build())
    megabytes, seen = measured(path)
    assert seen == count
    assert megabytes < 40


FOLDERS = [b"%d/%d.conf" % (number, number) for number in range(99_900)]


@pytest.mark.parametrize(
    "entries",
    [
        lambda: (tar_header(name) for name in FOLDERS),
        lambda: [tar_entry("in.zip", many_zip(len(FOLDERS), FOLDERS.__getitem__))],
    ],
    ids=["tar", "zip"],
)
def test_seventy_five_megabytes_are_enough_for_the_greediest_xz(
    tmp_path: Path, entries: Callable[[], Iterable[bytes]]
) -> None:
    """With what the rest of the step needs that is less than a hundred. What fills the window comes first,
    and something is left in it until the end."""
    filling = random.Random(1).randbytes(8 * 1024**2)
    path = tmp_path / "a.tar.xz"
    packer = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 * 1024**2}])
    with path.open("wb") as file:
        for number in range(9):
            file.write(packer.compress(tar_entry(f"filling{number}", filling)))
        for entry in entries():
            file.write(packer.compress(entry))
        file.write(packer.compress(tar(tar_entry("last", filling))) + packer.flush())
    megabytes, seen = measured(path)
    assert seen == len(FOLDERS) // 10
    assert 60 < megabytes < 75


def test_what_is_measured_is_there() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tar")
        path.write_bytes(tar(tar_entry("9.conf")))
        megabytes, seen = measured(path, ballast=50_000_000)
        assert seen == 1
        assert 50 < megabytes < 60


def measured(path: Path, ballast: int = 0) -> tuple[float, int]:
    """Megabytes, and how many members were seen."""
    spool = path.parent / "spool"
    spool.mkdir()
    command = [sys.executable, "-c", MEASURE, str(path), str(spool), str(ballast)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    megabytes, seen = done.stdout.split()
    return float(megabytes), int(seen)


def test_a_broken_bzip2_is_no_fault_of_the_disk() -> None:
    broken = bytearray(bz2.compress(tar(tar_entry("a.conf", CONF * 50))))
    broken[10] ^= 0xFF  # in the checksum of the first block
    with pytest.raises(PermanentError, match="is damaged"):
        read(bytes(broken), "a.tbz2")
