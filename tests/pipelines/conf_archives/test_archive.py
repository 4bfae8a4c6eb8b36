"""What archives are, and what is read from good ones."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives.archive import HEAD_BYTES, ArchiveLimits, Kind, kind_of, members
from hostile_archives import (
    CONF,
    TAR_END,
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
    zip64_of,
    zip_of,
)

FILES = {"app/default/app.conf": CONF, "app/README.txt": b"hello", "app/" + "n" * 90 + ".conf": CONF * 30_000}
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


Read = Callable[..., dict[str, bytes]]


@pytest.fixture
def read(tmp_path: Path, spool: Path) -> Read:
    def read(
        data: bytes,
        name: str,
        wanted: Callable[[str], bool] = lambda _: True,
        limits: ArchiveLimits | None = None,
    ) -> dict[str, bytes]:
        path = tmp_path / "upload"
        path.write_bytes(data)
        kind = kind_of(name, data[:HEAD_BYTES])
        found = {}
        for member in members(path, kind, limits or ArchiveLimits(), wanted, spool):
            found[member.path] = member.file.read()
            assert len(found[member.path]) == member.size
        assert list(spool.iterdir()) == []
        return found

    return read


# Kinds


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.tar", good_tar(), Kind.TAR),
        ("a.TGZ", good_tar("w:gz"), Kind.TAR_GZ),
        ("a.spl", good_tar("w:gz"), Kind.TAR_GZ),
        ("a.tar.bz2", good_tar("w:bz2"), Kind.TAR_BZ2),
        ("a.tbz2", bz2.compress(b""), Kind.TAR_BZ2),
        ("a.txz", good_tar("w:xz"), Kind.TAR_XZ),
        ("a.zip", good_zip(), Kind.ZIP),
        ("a.zip", zip_of(), Kind.ZIP),
        ("a.conf", CONF, Kind.CONF),
        ("local.meta", b"BZh9 is how this text begins", Kind.CONF),
        ("a.tgz", good_zip(), Kind.ZIP),
        ("a.conf", good_tar("w:gz"), Kind.TAR_GZ),
        ("a.zip", tar_header("old", magic=b"") + TAR_END, Kind.TAR),
        ("a.tar", TAR_END, Kind.TAR),
        ("a.conf", TAR_END, Kind.CONF),
    ],
)
def test_a_file_is_what_its_bytes_say_and_then_what_its_name_says(name: str, data: bytes, kind: Kind) -> None:
    assert kind_of(name, data[:HEAD_BYTES]) is kind


@pytest.mark.parametrize(
    ("name", "head", "error_type", "words"),
    [
        ("a.tgz", b"", "empty_file", "'a.tgz' is empty"),
        ("a.exe", b"MZ", "unsupported_format", "has a name that none of the accepted formats has"),
        ("a.docx", good_zip(), "unsupported_format", "'a.docx'"),
        ("a.zip", b"7z\xbc\xaf\x27\x1c...", "unsupported_format", "a 7-Zip archive"),
        ("a.conf", b"\x28\xb5\x2f\xfd...", "unsupported_format", "Zstandard"),
        ("a.tgz", CONF, "malformed_archive", "its bytes are none"),
    ],
)
def test_what_is_no_archive_is_told_with_its_name(
    name: str, head: bytes, error_type: str, words: str
) -> None:
    with pytest.raises(PermanentError, match=words) as refused:
        kind_of(name, head)
    assert refused.value.error_type == error_type
    assert refused.value.user_message and refused.value.guidance
    if error_type == "unsupported_format":
        assert ".spl" in refused.value.guidance


def test_a_conf_file_is_not_read_as_an_archive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no archive"):
        members(tmp_path / "x", Kind.CONF, ArchiveLimits(), lambda _: True, tmp_path)


# Good ones


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("mode", "suffix"), [("w", "tar"), ("w:gz", "spl"), ("w:bz2", "tbz2"), ("w:xz", "txz")]
)
def test_every_format_of_tar_in_every_packing_gives_its_files(
    read: Read, format: int, mode: str, suffix: str
) -> None:
    assert read(good_tar(mode, format, FILES), f"a.{suffix}") == FILES


@pytest.mark.parametrize("format", FORMATS[1:])
def test_names_longer_than_a_header_are_read(read: Read, format: int) -> None:
    files = {"d/" * 40 + "ü" * 200 + ".conf": CONF, "short.conf": CONF}
    assert read(good_tar("w:gz", format, files), "a.tgz") == files


def test_a_long_name_of_ustar_is_put_together(read: Read) -> None:
    files = {"p" * 120 + "/" + "n" * 90: CONF}
    assert read(good_tar("w", tarfile.USTAR_FORMAT, files), "a.tar") == files


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_zip_gives_its_files(read: Read, method: int) -> None:
    assert read(good_zip(method, FILES), "a.zip") == FILES


def test_a_zip_that_was_streamed_has_its_sizes_behind_the_data(tmp_path: Path, read: Read) -> None:
    class Pipe:
        """Cannot seek."""

        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            self.data += data
            return len(data)

        def flush(self) -> None:
            pass

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        for name, data in FILES.items():
            archive.writestr(name, data)
    assert read(pipe.data, "a.zip") == FILES


def test_a_zip_with_64_bit_numbers_is_read(read: Read) -> None:
    extra = b"\x09\x09\x01\x00x" + b"\x01\x00\x08\x00" + len(CONF).to_bytes(8, "little")
    entry = Zipped(b"a.conf", CONF, size=0xFFFFFFFF, local_size=0xFFFFFFFF, extra=extra)
    assert read(zip64_of(entry), "a.zip") == {"a.conf": CONF}
    assert len(read(many_zip(300), "a.zip", wanted=lambda path: path == "299.conf")) == 1


def test_a_zip_may_have_a_comment_that_looks_like_an_end(read: Read) -> None:
    assert read(zip_of(Zipped(b"a.conf"), comment=b"PK\5\6 PK\5\6"), "a.zip") == {"a.conf": CONF}


def test_only_what_is_wanted_is_given(read: Read) -> None:
    for data, name in ((good_tar("w", files=FILES), "a.tar"), (good_zip(files=FILES), "a.zip")):
        assert read(data, name, wanted=lambda path: path.endswith(".txt")) == {"app/README.txt": b"hello"}


def test_dots_doubled_slashes_folders_and_inner_links_are_normal(read: Read) -> None:
    data = tar(
        tar_entry("./", b"", b"5"),
        tar_entry("./a/", b"", b"5"),
        tar_entry("./a/", b"", b"5"),
        tar_entry("old/", b"", b"\0"),
        tar_entry("./a//b.conf"),
        tar_entry("a/c", b"", b"2", b"../a/b.conf"),
        tar_entry("d", b"", b"1", b"./a/b.conf"),
        tar_entry("A/b.conf", b"other", b"7"),
        pax({"comment": b"hello", "path": b"", "mtime": b"1"}, b"g"),
        pax({"linkpath": b"a"}) + tar_entry("e", b"", b"2", b"../.."),
        tar_entry("back\\slash.conf"),
    )
    links = {"a/c": b"", "d": b"", "e": b""}
    files = {"a/b.conf": CONF, "A/b.conf": b"other", "back\\slash.conf": CONF}
    assert read(data, "a.tar") == files | links
    zipped = zip_of(
        Zipped(b"a/", b""),
        Zipped(b"d", b"", mode=stat.S_IFDIR),
        Zipped(b"a\\b.conf"),
        Zipped(b"a/l", b"./b.conf", mode=stat.S_IFLNK),
    )
    assert read(zipped, "a.zip") == {"a/b.conf": CONF, "a/l": b""}


def test_a_name_that_is_no_utf8_is_read_byte_by_byte(read: Read) -> None:
    assert list(read(tar(tar_entry(b"gr\xfcn.conf"), tar_entry("grün2.conf")), "a.tar")) == [
        "grün.conf",
        "grün2.conf",
    ]


def test_sizes_in_base_256_and_in_pax_count(read: Read) -> None:
    sized = tar_header("a.conf", size_field=b"\x80" + len(CONF).to_bytes(11, "big")) + CONF.ljust(512, b"\0")
    said = pax({"size": b"%d" % len(CONF)}) + tar_header("b.conf") + CONF.ljust(512, b"\0")
    assert read(tar(sized, said), "a.tar") == {"a.conf": CONF, "b.conf": CONF}


def test_old_headers_are_read(read: Read) -> None:
    star = bytearray(tar_header("a.conf"))
    star[345:348], star[476:480], star[508:512] = b"app", b"1234", b"tar\0"
    star[148:156] = b"%06o\0 " % (sum(star[:148]) + 256 + sum(star[156:]))
    umlaut = bytearray(tar_header(b"\xfc.conf", magic=b""))
    signed = sum(each - 256 if each > 127 else each for each in umlaut[:148] + umlaut[156:]) + 256
    umlaut[148:156] = b"%06o\0 " % signed
    assert list(read(tar(bytes(star), bytes(umlaut)), "a.tar")) == ["app/a.conf", "ü.conf"]


@pytest.mark.parametrize(
    "data",
    [TAR_END, gzip.compress(TAR_END), bz2.compress(TAR_END), zip_of()],
    ids=["tar", "tar.gz", "tar.bz2", "zip"],  # ids of bytes would change: gzip writes the time into them
)
def test_an_empty_archive_gives_nothing(read: Read, data: bytes) -> None:
    assert read(data, "a.tar") == {}


def test_a_tar_may_stop_after_a_single_block_of_zeros(read: Read) -> None:
    assert read(tar_entry("a.conf") + bytes(512), "a.tar") == {"a.conf": CONF}


@pytest.mark.parametrize(
    "data",
    [
        tar_entry("a.conf"),
        tar_entry("a.conf") + pax({"mtime": b"1.5"}),
        tar_entry("a.conf") + pax({"path": b"b.conf"}) + TAR_END,
    ],
    ids=["between entries", "behind what says nothing", "before what was said"],
)
def test_a_tar_that_was_cut_off_between_entries_is_refused(read: Read, data: bytes) -> None:
    with pytest.raises(PermanentError, match="ends"):
        read(data, "a.tar")
    with pytest.raises(PermanentError, match="ends"):
        read(gzip.compress(data), "a.tgz")


def test_paths_are_bounded_in_bytes_too(read: Read) -> None:
    long = "\u6f22" * 960 + ".conf"
    with pytest.raises(PermanentError, match="longer than 2,000 bytes"):
        read(tar(pax({"path": long.encode()}) + tar_entry("x")), "a.tar")


def test_links_are_handed_on_as_what_they_are(tmp_path: Path, spool: Path) -> None:
    linked = tar(
        tar_entry("a.conf"),
        tar_entry("b.conf", b"", b"2", b"a.conf"),
        tar_entry("c.conf", b"", b"1", b"a.conf"),
        tar_entry("d.txt", b"", b"1", b"a.conf"),
    )
    zipped = zip_of(Zipped(b"a.conf"), Zipped(b"b.conf", b"a.conf", mode=stat.S_IFLNK))
    for data, kind, links in ((linked, Kind.TAR, ["b.conf", "c.conf"]), (zipped, Kind.ZIP, ["b.conf"])):
        (tmp_path / "upload").write_bytes(data)
        found = members(tmp_path / "upload", kind, ArchiveLimits(), lambda path: ".conf" in path, spool)
        told = {member.path: (member.link_to, member.file.read()) for member in found}
        assert told == {"a.conf": (None, CONF)} | dict.fromkeys(links, ("a.conf", b""))


def test_what_follows_the_end_of_a_tar_is_nobodys(read: Read) -> None:
    behind = tar_entry("b.conf")
    assert list(read(tar(tar_entry("a.conf")) + behind, "a.tar")) == ["a.conf"]
    assert list(read(tgz(tar_entry("a.conf")) + b"no gzip at all", "a.tgz")) == ["a.conf"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_streams_one_after_the_other_are_one(read: Read, pack: Callable[[bytes], bytes]) -> None:
    data = tar(tar_entry("a.conf", CONF * 100), tar_entry("b.conf"))
    streams = pack(data[:700]) + pack(b"") + bytes(300_000) + pack(data[700:])
    assert list(read(streams, "a.tgz")) == ["a.conf", "b.conf"]


# Archives in archives


def test_an_archive_in_an_archive_is_a_folder(read: Read) -> None:
    inner = good_zip(files={"x/default/app.conf": CONF})
    outer = {
        "apps/x.zip": inner,
        "apps/y.TGZ": tgz(tar_entry("./y.conf")),
        "apps/z.tgz": b"no archive",
        "z.conf": CONF,
    }
    found = read(good_tar("w:gz", files=outer), "a.tgz")
    assert list(found) == ["apps/x.zip/x/default/app.conf", "apps/y.TGZ/y.conf", "apps/z.tgz", "z.conf"]
    assert list(read(good_zip(files=outer), "a.zip", wanted=lambda path: path.endswith(".conf"))) == [
        *("apps/x.zip/x/default/app.conf", "apps/y.TGZ/y.conf", "z.conf")
    ]


def test_three_levels_are_read(read: Read) -> None:
    assert list(read(nested(3), "a.tgz")) == ["inner.tgz/inner.tgz/app.conf"]
    assert list(read(nested(3, "zip"), "a.zip")) == ["inner.zip/inner.zip/app.conf"]


def test_xz_in_xz_in_xz_share_the_memory(read: Read) -> None:
    inner = lzma.compress(tar(tar_entry("a.conf")))
    middle = lzma.compress(tar(tar_entry("in.txz", inner)))
    assert list(read(lzma.compress(tar(tar_entry("in.txz", middle))), "a.txz")) == ["in.txz/in.txz/a.conf"]
    greedy = lzma.compress(tar(tar_entry("in.txz", middle)), preset=8)
    with pytest.raises(PermanentError, match=r"The archive 'in\.txz' inside the archive needs more memory"):
        read(greedy, "a.txz")


# How it is read


def test_a_file_is_seekable_and_closed_when_the_next_one_is_asked_for(tmp_path: Path, spool: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(good_tar("w:gz", files=FILES))
    found = members(path, Kind.TAR_GZ, ArchiveLimits(), lambda _: True, spool)
    first = next(found)
    assert (first.file.read(), first.file.seek(1), first.file.read(3)) == (CONF, 1, CONF[1:4])
    next(found)
    assert first.file.closed


def test_a_reading_that_is_closed_early_leaves_nothing_open(tmp_path: Path, spool: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(
        good_zip(files={"big.tgz": tgz(tar_entry("a.conf", CONF * 100_000), tar_entry("b.conf"))})
    )
    found = members(path, Kind.ZIP, ArchiveLimits(), lambda _: True, spool)
    member = next(found)
    found.close()  # type: ignore[attr-defined]
    assert member.file.closed
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize(("mode", "kind"), [("w", Kind.TAR), ("w:gz", Kind.TAR_GZ), ("", Kind.ZIP)])
def test_progress_never_goes_back_and_ends_at_the_size(
    tmp_path: Path, spool: Path, mode: str, kind: Kind
) -> None:
    files = {**FILES, "in.tgz": tgz(tar_entry("x.conf", CONF * 50_000))}
    path, told = tmp_path / "a", []
    path.write_bytes(good_tar(mode, files=files) if mode else good_zip(files=files))
    assert len(list(members(path, kind, ArchiveLimits(), lambda _: True, spool, progress=told.append))) == 4
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size


def test_a_disk_that_is_full_is_not_the_archives_fault(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(good_tar("w:gz", files={"a.conf": CONF * 100_000}))
    with pytest.raises(FileNotFoundError):
        list(members(path, Kind.TAR_GZ, ArchiveLimits(), lambda _: True, tmp_path / "missing"))
