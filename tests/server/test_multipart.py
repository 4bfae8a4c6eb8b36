"""The parser of multipart/form-data: how a body is cut makes no difference, and whatever is no form is told
by one error."""

import itertools
import re
import time
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.server import multipart
from holdfast.server.multipart import Malformed, Parser, Part, Signal, boundary_of, plain_filename

BOUNDARY = "----b0undary"
DELIMITER = b"\r\n------b0undary"
FIRST = DELIMITER[2:] + b"\r\n"
CLOSING = DELIMITER + b"--\r\n"
HEAD = b'Content-Disposition: form-data; name="file"; filename="app.tgz"\r\n'


def parts_of(pieces: Iterable[bytes], boundary: str = BOUNDARY) -> list[tuple[Part, bytes]]:
    """All that a whole body says."""
    parser = Parser(boundary)
    found: list[tuple[Part, bytes]] = []
    for piece in [b"", *pieces]:
        parser.feed(piece)
        while (event := parser.next()) not in (Signal.MORE, Signal.END):
            if isinstance(event, Part):
                found.append((event, b""))
            elif isinstance(event, bytes):
                assert event, "a chunk of nothing"
                found[-1] = (found[-1][0], found[-1][1] + event)
    parser.finish()
    return found


def body_of(*contents: bytes) -> bytes:
    return b"".join(b"\r\n" + FIRST + HEAD + b"\r\n" + content for content in contents)[2:] + CLOSING


def in_pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def part_of(disposition: str, *headers: str) -> Part:
    lines = [f"Content-Disposition: {disposition}", *headers, ""]
    [(part, _)] = parts_of([FIRST + "\r\n".join(lines).encode() + b"\r\n" + CLOSING])
    return part


# What looks like a delimiter, or the first of one.
NEAR = [b"\r", b"\n", b"\r\n", b"--", b"\r\n--", DELIMITER[:-1], DELIMITER[1:], DELIMITER + b"x"]
NEAR += [
    DELIMITER + b"-x",
    DELIMITER + b" x",
    DELIMITER + b" --",
    DELIMITER + b"\rx",
    DELIMITER + b"\n",
    b"\0",
]
CONTENTS = st.lists(st.one_of(st.sampled_from(NEAR), st.binary(max_size=8)), max_size=8).map(b"".join)


def is_possible(content: bytes) -> bool:
    """Without a delimiter, which no file may have."""
    return re.search(DELIMITER + rb"(--|[ \t]*\r\n)", content + DELIMITER) is None


@given(
    contents=st.lists(CONTENTS.filter(is_possible), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 600), max_size=12),
)
@example(contents=[b"", b""], cuts=[])
def test_however_a_body_is_cut_its_parts_are_the_same(contents: list[bytes], cuts: list[int]) -> None:
    body = body_of(*contents)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(edges)]
    assert [content for _, content in parts_of(pieces)] == contents


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(DELIMITER), len(DELIMITER) + 1, 64])
def test_a_delimiter_may_stand_across_pieces(size: int) -> None:
    contents = [b"one\r\n", b"", b"\r\n\r\n", b"\r\n--" * 50, DELIMITER + b"x" + DELIMITER[:-1], b"x" * 500]
    found = parts_of(in_pieces(body_of(*contents), size))
    assert [content for _, content in found] == contents
    assert {part for part, _ in found} == {Part("file", "app.tgz", "application/octet-stream")}


@pytest.mark.parametrize("content", NEAR)
def test_what_only_looks_like_a_delimiter_belongs_to_the_file(content: bytes) -> None:
    for whole in (content, b"x" + content, content + b"x", content * 3):
        if is_possible(whole):
            assert parts_of([body_of(whole)])[0][1] == whole


def test_a_form_may_be_in_a_file_of_a_form() -> None:
    inner = body_of(b"inner").replace(BOUNDARY.encode(), BOUNDARY.encode() + b"-2")
    assert [content for _, content in parts_of([body_of(inner, b"")])] == [inner, b""]


def test_a_piece_without_a_delimiter_is_handed_on_uncopied() -> None:
    parser = Parser(BOUNDARY)
    parser.feed(FIRST + HEAD + b"\r\n")
    assert isinstance(parser.next(), Part) and parser.next() is Signal.MORE
    piece = b"x" * 65_536
    parser.feed(piece)
    assert parser.next() is piece


def test_many_lines_that_are_no_delimiters_make_no_small_chunks() -> None:
    parser = Parser("a")
    parser.feed(b"--a\r\n" + HEAD + b"\r\n" + b"\r\n--ab" * 50_000)
    assert isinstance(parser.next(), Part)
    data = parser.next()
    assert isinstance(data, bytes) and len(data) == 6 * 50_000
    assert parser.next() is Signal.MORE


def test_padding_a_preamble_and_an_epilogue_mean_nothing() -> None:
    body = b"preamble" + DELIMITER + b" \t \r\n" + HEAD + b"\r\nx" + DELIMITER + b"-- \r\nepilogue"
    assert [content for _, content in parts_of(in_pieces(body, 5))] == [b"x"]
    assert parts_of([DELIMITER[2:] + b"--"]) == []


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "not in the body"),
    (b"no form at all", "not in the body"),
    (b"--another\r\n" + HEAD + b"\r\nx\r\n--another--", "not in the body"),
    (b"x" * 5_000, "before the first boundary"),
    (body_of(b"x") + b"x" * 5_000, "behind the closing boundary"),
    (FIRST, "broke off"),
    (FIRST + HEAD, "broke off"),
    (FIRST + HEAD + b"\r\n", "broke off"),
    (FIRST + HEAD + b"\r\nx", "broke off"),
    (FIRST + HEAD + b"\r\nx" + DELIMITER, "broke off"),
    (FIRST + HEAD + b"\r\nx" + DELIMITER + b"-", "broke off"),
    (FIRST + HEAD + b"\r\nx" + DELIMITER + b"\r\n", "broke off"),
    (FIRST + b"x: " + b"y" * 9_000, "over 8,192 bytes"),
    (FIRST + b"x: " + b"y" * 9_000 + b"\r\n\r\n", "over 8,192 bytes"),
    (FIRST + b"\r\nx" + CLOSING, "no Content-Disposition"),
    (FIRST + b"Content-Type: text/plain\r\n\r\nx" + CLOSING, "no Content-Disposition"),
    (FIRST + b'Content-Disposition: attachment; name="file"\r\n\r\nx' + CLOSING, "no Content-Disposition"),
    (FIRST + b"Content-Disposition: form-data\r\n\r\nx" + CLOSING, "no name"),
    (FIRST + HEAD + HEAD + b"\r\nx" + CLOSING, "'content-disposition' twice"),
    (FIRST + HEAD + b" folded: x\r\n\r\nx" + CLOSING, "no header"),
    (FIRST + HEAD + b"no colon\r\n\r\nx" + CLOSING, "no header"),
    (FIRST + HEAD + b": no name\r\n\r\nx" + CLOSING, "no header"),
    (FIRST + HEAD + b"x: a\nb\r\n\r\nx" + CLOSING, "no header"),
    (FIRST + HEAD + b"x: a\0b\r\n\r\nx" + CLOSING, "no header"),
    (FIRST + HEAD + b"Content-Transfer-Encoding: base64\r\n\r\neA==" + CLOSING, "'base64'"),
]


@pytest.mark.parametrize(("body", "told"), MALFORMED, ids=lambda value: str(value)[:40])
def test_what_is_no_form_is_told_by_where_it_stops_being_one(body: bytes, told: str) -> None:
    for size in (1, 7, len(body) + 1):
        with pytest.raises(Malformed, match=told):
            parts_of(in_pieces(body, size))


DISPOSITIONS = [
    "form-data; name=a; name=b",
    'form-data; name="a',
    'form-data; name="a" filename',
    "form-data; name=a; filename*=UTF-8''%ff",
    "form-data; name=a; filename*=utf-7''x",
    "form-data; name=a; filename*=x",
    'form-data; name="' + "\\" * 4_000,
]


@pytest.mark.parametrize("disposition", DISPOSITIONS, ids=lambda text: text[:40])
def test_a_disposition_that_cannot_be_read_is_refused_at_once(disposition: str) -> None:
    started = time.process_time()
    with pytest.raises(Malformed):
        part_of(disposition)
    assert time.process_time() - started < 1


HEAD_LIKE = [
    b"form-data",
    b"; ",
    b"name=",
    b'"',
    b"\\",
    b"filename*=",
    b"utf-8''",
    b"%ff",
    b":",
    b" ",
    b"\r\n",
]


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.sampled_from([*NEAR, *HEAD_LIKE, FIRST, HEAD, CLOSING]), st.binary(max_size=20)))
)
def test_whatever_is_sent_there_is_no_other_error(pieces: list[bytes]) -> None:
    for begun in (b"", FIRST, FIRST + b"Content-Disposition: form-data; "):
        try:
            parts_of([begun, *pieces])
        except Malformed as error:
            assert str(error)


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('form-data; name="file"; filename="app.tgz"', "app.tgz"),
        ("form-data; name=file; filename=app.tgz", "app.tgz"),
        ('FORM-DATA ; Name="file" ; FileName="app.tgz";', "app.tgz"),
        (r'form-data; name="file"; filename="a \"b\".tgz"', 'a "b".tgz'),
        ('form-data; name="file"; filename="a %22b%22.tgz"', 'a "b".tgz'),
        ('form-data; name="file"; filename="100%25 a%2Fb.tgz"', "100%25 a%2Fb.tgz"),
        ('form-data; name="file"; filename="a;b=c.tgz"', "a;b=c.tgz"),
        ('form-data; name="file"; filename="Überweisung 東京.pdf"', "Überweisung 東京.pdf"),
        ("form-data; name=file; filename=x; filename*=UTF-8''%e6%9d%b1%20%C3%BC.pdf", "東 ü.pdf"),
        ("form-data; name=file; filename*=iso-8859-1'de'%FC.pdf", "ü.pdf"),
        (r'form-data; name="file"; filename="C:\files\new\app.tgz"', "app.tgz"),
        ('form-data; name="file"; filename="../../etc/passwd"', "passwd"),
        ("form-data; name=file; filename*=UTF-8''..%2F..%2Fetc%2Fpasswd", "passwd"),
        ('form-data; name="file"; filename="a%0D%0Ab\x07\u202e.tgz"', "ab.tgz"),
        ('form-data; name="file"; filename=""', ""),
        ('form-data; name="file"; filename=".."', ""),
        ('form-data; name="file"; filename="a/"', ""),
        ('form-data; name="file"', None),
    ],
)
def test_a_file_is_named_by_the_last_name_of_its_path(disposition: str, filename: str | None) -> None:
    part = part_of(disposition)
    assert (part.name, part.filename) == ("file", filename)


def test_a_name_in_an_old_encoding_is_marked_and_not_refused() -> None:
    head = 'Content-Disposition: form-data; name="file"; filename="ü.txt"\r\n\r\n'.encode("latin-1")
    [(part, _)] = parts_of([FIRST + head + CLOSING])
    assert part.filename == "\N{REPLACEMENT CHARACTER}.txt"


@given(
    st.one_of(st.text(), st.lists(st.sampled_from([".", "..", "/", "\\", " ", "\0", "x" * 150])).map("".join))
)
def test_a_filename_leads_to_no_other_folder_and_is_bounded(given_name: str) -> None:
    name = plain_filename(given_name)
    assert not set(name) & set("/\\\0\r\n") and name not in (".", "..") and name == name.strip()
    assert len(name) <= multipart.FILENAME_CHARS_MAX


def test_of_a_long_filename_the_ending_is_kept() -> None:
    assert plain_filename("x" * 300 + ".tar.gz") == "x" * 193 + ".tar.gz"


@pytest.mark.parametrize(
    ("given_type", "told"),
    [
        ("text/csv; charset=utf-8", "text/csv; charset=utf-8"),
        ("application/x-tar", "application/x-tar"),
        ("nonsense", "application/octet-stream"),
        ("text/csv; ü", "application/octet-stream"),
        ("text/" + "x" * 300, "application/octet-stream"),
    ],
)
def test_a_content_type_that_is_none_says_nothing(given_type: str, told: str) -> None:
    part = part_of('form-data; name="file"; filename="x"', f"Content-Type: {given_type}")
    assert part.content_type == told


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=----WebKitFormBoundary7MA4", "----WebKitFormBoundary7MA4"),
        ('multipart/form-data; charset=utf-8; Boundary="a b"', "a b"),
        ("multipart/form-data; boundary=----=_Part_1/2:3", "----=_Part_1/2:3"),
        ("multipart/form-data;boundary=" + "x" * 70, "x" * 70),
    ],
)
def test_the_boundary_is_what_the_content_type_names(content_type: str, boundary: str) -> None:
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize(
    "parameters",
    [
        "",
        "boundary=a",
        "; boundary=",
        '; boundary=""',
        '; boundary="a',
        '; boundary="a "',
        '; boundary="a\\"b"',
        "; boundary=a*b",
        "; boundary=ü",
        "; boundary=a; boundary=b",
        "; boundary=" + "x" * 71,
    ],
)
def test_a_boundary_that_is_none_is_refused(parameters: str) -> None:
    with pytest.raises(Malformed):
        boundary_of("multipart/form-data" + parameters)
