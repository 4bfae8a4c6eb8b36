"""What archives are, and what is read from good ones."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives import zip_reader
from holdfast.pipelines.conf_archives.archive import HEAD_BYTES, ArchiveLimits, Kind, kind_of, members
from holdfast.pipelines.conf_archives.placing import is_wanted
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
    xz,
    zip64_of,
    zip_of,
)

FILES = {"app/default/app.conf": CONF, "app/README.txt": b"hello", "app/" + "n" * 90 + ".conf": CONF * 30_000}
USTAR_TEXT = (b"# " + b"x" * 255 + b"ustar is what stands here in a tar\n").ljust(1024, b"\n")
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


Told = Callable[..., dict[str, str]]


@pytest.fixture
def told(tmp_path: Path, spool: Path) -> Told:
    """What is said of each file: its fault, what it is linked to, or "read"."""

    def told(data: bytes, name: str, wanted: Callable[[str], bool] = is_wanted) -> dict[str, str]:
        (tmp_path / "upload").write_bytes(data)
        kind = kind_of(name, data[:HEAD_BYTES])
        said = {}
        for member in members(tmp_path / "upload", kind, ArchiveLimits(), wanted, spool):
            linked = member.linked_to and f"linked to {member.linked_to}"
            said[member.path] = member.fault or linked or "read"
            if said[member.path] != "read":
                assert (member.size, member.file.read()) == (0, b"")
        assert list(spool.iterdir()) == []
        return said

    return told


# Kinds


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.tar", good_tar(), Kind.TAR),
        ("a.TGZ", good_tar("w:gz"), Kind.TAR_GZ),
        ("a.spl", good_tar("w:gz"), Kind.TAR_GZ),
        ("a.tar.bz2", good_tar("w:bz2"), Kind.TAR_BZ2),
        ("a.tbz2", bz2.compress(b""), Kind.TAR_BZ2),
        ("a.tbz", good_tar("w:bz2"), Kind.TAR_BZ2),
        ("a.tb2", good_tar("w:bz2"), Kind.TAR_BZ2),
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
        ("a.conf", USTAR_TEXT, Kind.CONF),
        ("local.meta", USTAR_TEXT[:300], Kind.CONF),
        ("a.conf", tar_header("a"), Kind.TAR),
        ("a.tar", tar_header("a").replace(b"0000644", b"0000777"), Kind.TAR),
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


class Pipe:
    """Cannot seek."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("is_64", [False, True])
def test_a_zip_that_was_streamed_has_its_sizes_behind_the_data(read: Read, is_64: bool) -> None:
    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        for name, data in FILES.items():
            with archive.open(name, "w", force_zip64=is_64) as entry:
                entry.write(data)
    assert read(pipe.data, "a.zip") == FILES


@pytest.mark.parametrize("size", [0, 12, 16, 20, 24])
def test_sizes_behind_the_data_have_a_signature_or_not_and_32_or_64_bits(read: Read, size: int) -> None:
    entries = [Zipped(name, flags=8, behind=bytes(size)) for name in (b"a.conf", b"b.conf")]
    assert read(zip_of(*entries), "a.zip") == {"a.conf": CONF, "b.conf": CONF}


def test_the_entries_of_a_zip_may_lie_in_another_order_than_its_directory_says(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_reader, "_SORTED_AT_ONCE", 2)
    data = many_zip(5)
    begin, size = data.index(b"PK\1\2"), 46 + len("0.conf")
    records = [data[begin + number * size :][:size] for number in range(5)]
    shuffled = b"".join(records[number] for number in (3, 0, 4, 2, 1))
    assert list(read(data[:begin] + shuffled + data[begin + 5 * size :], "a.zip")) == [
        *("3.conf", "0.conf", "4.conf", "2.conf", "1.conf")
    ]


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


def test_a_name_of_a_zip_that_is_no_utf8_is_what_ms_dos_would_read(read: Read) -> None:
    zipped = zip_of(Zipped(b"gr\x81n.conf"), Zipped("grün2.conf".encode()))
    assert list(read(zipped, "a.zip")) == ["grün.conf", "grün2.conf"]


def test_a_name_that_is_no_utf8_is_read_byte_by_byte(read: Read) -> None:
    assert list(read(tar(tar_entry(b"gr\xfcn.conf"), tar_entry("grün2.conf")), "a.tar")) == [
        "grün.conf",
        "grün2.conf",
    ]


def test_sizes_in_base_256_and_in_pax_count(read: Read) -> None:
    sized = tar_header("a.conf", size_field=b"\x80" + len(CONF).to_bytes(11, "big")) + CONF.ljust(512, b"\0")
    said = pax({"size": b"%d" % len(CONF)}) + tar_header("b.conf") + CONF.ljust(512, b"\0")
    assert read(tar(sized, said), "a.tar") == {"a.conf": CONF, "b.conf": CONF}


@pytest.mark.parametrize("field", [b"0000027\0junk", b"0000027 junk", b"     27\0a\nb\0", b"000000000027"])
def test_a_size_ends_with_its_digits(read: Read, field: bytes) -> None:
    header = tar_header("a.conf", size_field=field)
    assert read(tar(header + CONF.ljust(512, b"\0")), "a.tar") == {"a.conf": CONF}


def test_labels_of_volumes_and_lists_of_incremental_backups_are_passed_over(read: Read) -> None:
    data = tar(
        tar_entry("Backup of /etc, 1 of 3", b"", b"V"),
        tar_entry("../label with data", b"x" * 600, b"V"),
        tar_entry("app/", b"Ya.conf\0Nb.conf\0\0" * 90, b"D"),
        tar_entry("app/a.conf"),
    )
    assert read(data, "a.tar") == {"app/a.conf": CONF}
    for type, size in ((b"V", 2000), (b"D", 2000)):
        with pytest.raises(PermanentError, match="unpacks to more than 1,000 bytes"):
            read(tar(tar_entry("x", bytes(size), type)), "a.tar", limits=ArchiveLimits(total_bytes_max=1000))
    with pytest.raises(PermanentError, match="'app' is there twice, as a folder and as a file"):
        read(tar(tar_entry("app/", b"", b"D"), tar_entry("app")), "a.tar")
    with pytest.raises(PermanentError, match="more than 1 entries"):
        read(tar(*[tar_entry("x", b"", b"V")] * 2), "a.tar", limits=ArchiveLimits(entries_max=1))


def test_icons_of_folders_are_passed_over(read: Read) -> None:
    names = ["Icon\r", "app/Icon\r", "app/._Icon\r", "app/a.conf"]
    assert read(tar(*[tar_entry(name) for name in names]), "a.tar") == {"app/a.conf": CONF}
    assert read(zip_of(*[Zipped(name.encode()) for name in names]), "a.zip") == {"app/a.conf": CONF}


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
    ids=["tar", "tar.gz", "tar.bz2", "zip"],
)
def test_an_empty_archive_gives_nothing(read: Read, data: bytes) -> None:
    assert read(data, "a.tar") == {}


def test_a_tar_may_stop_after_a_single_block_of_zeros(read: Read) -> None:
    for behind in (b"", bytes(511), b"less than a block"):
        assert read(tar_entry("a.conf") + bytes(512) + behind, "a.tar") == {"a.conf": CONF}


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


def test_what_tar_itself_has_packed_is_read(tmp_path: Path, told: Told) -> None:
    folder = tmp_path / "etc" / "default"
    folder.mkdir(parents=True)
    (folder / "app.conf").write_bytes(CONF)
    (folder / "inputs.conf").hardlink_to(folder / "app.conf")
    (folder / "props.conf").symlink_to("app.conf")
    names = ["./default/app.conf", "./default/inputs.conf", "./default/props.conf"]
    subprocess.run(["tar", "-czf", tmp_path / "a.tgz", "-C", tmp_path / "etc", *names], check=True)
    assert told((tmp_path / "a.tgz").read_bytes(), "a.tgz") == {
        "default/app.conf": "read",
        "default/inputs.conf": "linked to default/app.conf",
        "default/props.conf": followed_not("app.conf"),
    }


# Links


def followed_not(target: str) -> str:
    return f"a link to {target!r}, which is not followed; pack what it leads to: tar -h"


def test_links_are_told_where_a_file_would_be_read(told: Told) -> None:
    linked = tar(
        tar_entry("a.conf"),
        tar_entry("b.conf", b"", b"2", b"a.conf"),
        tar_entry("./d/c.conf", b"", b"1", b"./d//e.txt"),
        tar_entry("d/e.txt"),
        tar_entry("f.txt", b"", b"2", b"a.conf"),
        tar_entry("g.txt", b"", b"1", b"a.conf"),
    )
    said = {"a.conf": "read", "b.conf": followed_not("a.conf"), "d/c.conf": "linked to d/e.txt"}
    assert told(linked, "a.tar") == said
    nested = told(tar(tar_entry("in.tar", linked)), "a.tar")
    assert nested["in.tar/d/c.conf"] == "linked to in.tar/d/e.txt"
    zipped = zip_of(Zipped(b"a.conf"), Zipped(b"b.conf", b"a.conf", mode=stat.S_IFLNK))
    assert told(zipped, "a.zip") == {"a.conf": "read", "b.conf": followed_not("a.conf")}


@pytest.mark.parametrize("target", [b"a/../b.conf", b".", b"b\x1b.conf", b""])
def test_a_hard_link_to_what_cannot_be_a_file_is_told(told: Told, target: bytes) -> None:
    [said] = told(tar(tar_entry("a.conf", b"", b"1", target)), "a.tar").values()
    assert said == (
        f"a hard link to {target.decode()!r}, which is not the path of any file;"
        " pack it as a file of its own: tar --hard-dereference"
    )


def test_a_long_target_is_shortened(told: Told) -> None:
    packed = tar(pax({"linkpath": b"t" * 900}), tar_entry("a.conf", b"", b"2"))
    [said] = told(packed, "a.tar").values()
    assert said.startswith("a link to 'ttt")
    assert len(said) < 280


@pytest.mark.parametrize(
    ("name", "target", "is_told"),
    [
        ("x/current.tgz", "x-1.2.tgz", True),
        ("x/default", "../gone", True),
        ("x/local", "../gone", True),
        ("x/metadata", "../gone", True),
        ("apps/y", "../shared/y", True),
        ("apps/y", "./.././shared//y/", True),
        ("apps/y", "../listed", True),
        ("apps/y", "../later", False),
        ("lib/libx.so", "libx.so.1", False),
        ("lib/libx.so", "../shared/y/a.txt", False),
        ("x/default.old", "gone", False),
        ("x/here", "..", False),  # the root: all of it is read anyway
    ],
)
def test_links_to_folders_and_archives_are_told_and_no_others(
    told: Told, name: str, target: str, is_told: bool
) -> None:
    before = [tar_entry("listed/", b"", b"5"), tar_entry("shared/y/a.txt")]
    packed = tar(*before, tar_entry(name, b"", b"2", target.encode()), tar_entry("later/", b"", b"5"))
    said = followed_not(target)
    assert told(packed, "a.tar") == dict.fromkeys([name] * is_told, said)
    assert told(tar(tar_entry("in.tar", packed)), "a.tar") == dict.fromkeys(
        [f"in.tar/{name}"] * is_told, said
    )


def test_a_hard_link_in_the_place_of_an_archive_is_told(told: Told) -> None:
    inner = tgz(tar_entry("default/app.conf"))
    link = tar_entry("b.tgz", b"", b"1", b"./a.bin")
    assert told(tar(tar_entry("a.bin", inner), link), "a.tar") == {
        "b.tgz": "a hard link to './a.bin', an archive; pack it as a file of its own: tar --hard-dereference"
    }
    assert told(tar(tar_entry("a.bin", inner), link), "a.tar", lambda _: True)["b.tgz"] == "linked to a.bin"


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
        *("apps/x.zip/x/default/app.conf", "apps/y.TGZ/y.conf", "apps/z.tgz", "z.conf")
    ]


def test_three_levels_are_read(read: Read) -> None:
    assert list(read(nested(3), "a.tgz")) == ["inner.tgz/inner.tgz/app.conf"]
    assert list(read(nested(3, "zip"), "a.zip")) == ["inner.zip/inner.zip/app.conf"]


def test_xz_in_xz_in_xz_share_the_memory(read: Read, told: Told) -> None:
    inner = lzma.compress(tar(tar_entry("a.conf")))
    middle = lzma.compress(tar(tar_entry("in.txz", inner)))
    assert list(read(lzma.compress(tar(tar_entry("in.txz", middle))), "a.txz")) == ["in.txz/in.txz/a.conf"]
    greedy = tar(tar_entry("in.txz", middle), tar_entry("b.conf"))
    assert "in.txz/in.txz/a.conf" in told(xz(greedy, 32), "a.txz")
    assert told(xz(greedy, 64), "a.txz") == {
        "in.txz": "an archive that is not read: the archive 'in.txz' inside the archive needs more memory"
        " to be unpacked than it is given here",
        "b.conf": "read",
    }


def test_bzip2_shares_the_memory_too(told: Told) -> None:
    middle = bz2.compress(tar(tar_entry("a.conf")))
    packed = tar(tar_entry("in.tbz", middle), tar_entry("in.tbz2", middle))
    both = {"in.tbz/a.conf": "read", "in.tbz2/a.conf": "read"}
    assert told(xz(packed, 32), "a.txz") == both
    said = told(xz(packed, 64), "a.txz")
    assert list(said) == ["in.tbz", "in.tbz2"]
    assert all("needs more memory" in each for each in said.values())


def test_what_xz_makes_of_it_with_9_is_read(read: Read) -> None:
    assert list(read(lzma.compress(tar(tar_entry("a.conf")), preset=9), "a.txz")) == ["a.conf"]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("in.zip", zip_of(Zipped(b"a.conf", flags=1)), "entry 'in.zip/a.conf' is encrypted"),
        (
            "in.zip",
            zip_of(Zipped(b"a.conf", method=14)),
            "entry 'in.zip/a.conf' is packed with method 14 (LZMA); stored, deflate and bzip2 are read",
        ),
        *(
            (
                f"in.{suffix}",
                data,
                f"the archive 'in.{suffix}' inside the archive has no tar in it:"
                " it begins with something else",
            )
            for suffix, data in (
                ("tgz", gzip.compress(CONF * 100)),
                ("tbz", bz2.compress(CONF)),
                ("txz", lzma.compress(b"")),
            )
        ),
        ("in.zip", b"7z\xbc\xaf\x27\x1c...", "it is a 7-Zip archive"),
        ("in.tgz", b"\x28\xb5\x2f\xfd...", "it is packed with Zstandard"),
        ("in.TAR", b"something", "its bytes are those of no archive"),
        ("in.tar", b"", "it is empty"),
    ],
    # Ids of bytes would change: gzip writes the time into them.
    ids=["encrypted", "LZMA", "no tgz", "no tbz", "no txz", "7-Zip", "Zstandard", "nothing known", "empty"],
)
def test_an_archive_in_an_archive_that_is_no_harm_and_not_read_is_told(
    told: Told, name: str, data: bytes, reason: str
) -> None:
    said = {name: f"an archive that is not read: {reason}", "z.conf": "read"}
    assert told(tar(tar_entry(name, data), tar_entry("z.conf")), "a.tar") == said
    in_the_middle = tar(tar_entry("m.zip", zip_of(Zipped(name.encode(), data), Zipped(b"z.conf"))))
    deeper = told(in_the_middle, "a.tar")
    assert list(deeper) == [f"m.zip/{name}", "m.zip/z.conf"]
    assert deeper[f"m.zip/{name}"].startswith("an archive that is not read: ")


def test_what_macos_packs_beside_an_archive_is_not_told(told: Told) -> None:
    beside = tar_entry("._in.tgz", b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert told(tar(beside, tar_entry("in.tgz", tgz(tar_entry("a.conf")))), "a.tar") == {
        "in.tgz/a.conf": "read"
    }


def test_it_is_too_late_to_be_told_once_a_part_was_read(told: Told) -> None:
    data = tar(tar_entry("a.conf"), tar_entry("b.conf", CONF * 100))
    inner = xz(data[:1100], 1) + xz(data[1100:], 64)
    with pytest.raises(PermanentError, match=r"'in\.txz' inside the archive needs more memory"):
        told(tar(tar_entry("in.txz", inner)), "a.tar")
    assert list(told(tar(tar_entry("in.txz", inner)), "a.tar", lambda path: "b.conf" in path)) == ["in.txz"]


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
