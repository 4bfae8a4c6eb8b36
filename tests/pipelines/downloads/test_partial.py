"""What headers tell of a file of which a part is there, nonsense included."""

from __future__ import annotations

import base64
import hashlib
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipelines.downloads.partial import (
    Note,
    Range,
    covers_all,
    digest_of,
    is_coded,
    is_ended_by_closing,
    note_of,
    range_of,
    validator_of,
)

DIGEST = hashlib.sha256(b"north").digest()
ENCODED = base64.b64encode(DIGEST).decode()
LONG_AGO, NOW = formatdate(1_600_000_000, usegmt=True), formatdate(1_700_000_000, usegmt=True)


def headers(**given: str) -> httpx.Headers:
    return httpx.Headers([(name.replace("_", "-").encode(), given[name].encode("latin-1")) for name in given])


# Validators


@pytest.mark.parametrize("etag", ['"abc"', '"a-b:c/d!"', ' "abc" '])
def test_a_strong_etag_is_a_validator_before_any_date(etag: str) -> None:
    assert validator_of(headers(etag=etag, last_modified=LONG_AGO, date=NOW)) == etag.strip()


@pytest.mark.parametrize("etag", ['W/"abc"', '""', "abc", '"a"b"', '"a b"', '"', '"é"', f'"{"x" * 500}"'])
def test_another_etag_is_none_and_no_date_takes_its_place(etag: str) -> None:
    assert validator_of(headers(etag=etag, last_modified=LONG_AGO, date=NOW)) == ""


def test_without_an_etag_the_date_of_a_change_long_ago_is_one() -> None:
    assert validator_of(headers(last_modified=LONG_AGO, date=NOW)) == LONG_AGO


@pytest.mark.parametrize(
    ("modified", "date"),
    [
        (NOW, NOW),  # it may have changed again within this second
        (NOW, LONG_AGO),
        (LONG_AGO, ""),
        ("yesterday", NOW),
        ("", NOW),
        ("9" * 1_000, NOW),
        (LONG_AGO.replace("GMT", "-0000"), NOW),
        (LONG_AGO.replace("Sep", "Feb").replace("13", "31"), NOW),
    ],
)
def test_a_date_that_may_stand_for_two_files_is_none(modified: str, date: str) -> None:
    assert validator_of(headers(last_modified=modified, date=date)) == ""


def test_a_portal_that_tells_nothing_gives_no_validator() -> None:
    assert validator_of(headers()) == ""


# Checksums


@pytest.mark.parametrize(
    "given",
    [
        {"repr_digest": f"sha-256=:{ENCODED}:"},
        {"repr_digest": f"md5=:xyz:, SHA-256 = :{ENCODED}:"},
        {"digest": f"SHA-256={ENCODED}"},
        {"repr_digest": "sha-512=:abc:", "digest": f"sha-256={ENCODED}"},
    ],
)
def test_a_checksum_is_read_in_both_forms(given: dict[str, str]) -> None:
    assert digest_of(headers(**given)) == DIGEST.hex()


@pytest.mark.parametrize(
    "told",
    ["", "sha-256", "sha-256=::", f"sha-512=:{ENCODED}:", "sha-256=:tooshort=:", f"sha-256=:{'é' * 43}=:"],
)
def test_what_is_no_checksum_is_none(told: str) -> None:
    assert digest_of(headers(repr_digest=told)) is None


# Parts


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("bytes 5-9/10", Range(5, 9, 10)),
        ("BYTES  0-0/1", Range(0, 0, 1)),
        (" bytes 5-9/* ", Range(5, 9, None)),
    ],
)
def test_a_part_says_where_it_begins_and_how_long_the_whole_is(told: str, found: Range) -> None:
    assert range_of(headers(content_range=told)) == found


@pytest.mark.parametrize(
    "told",
    [
        *(
            "",
            "bytes",
            "bytes 5-9",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "bytes */10",
            "bytes -5/10",
            "lines 5-9/10",
        ),
        *("bytes 5-9/10, bytes 1-2/10", "bytes 5-9/x", "bytes 0x5-9/10", f"bytes 0-{'9' * 30}/*"),
    ],
)
def test_a_part_that_cannot_be_is_none(told: str) -> None:
    assert range_of(headers(content_range=told)) is None


def test_a_portal_that_has_nothing_more_says_how_much_there_is() -> None:
    assert covers_all(headers(content_range="bytes */10"), 10)
    assert not covers_all(headers(content_range="bytes */10"), 11)
    assert not covers_all(headers(content_range="bytes */*"), 10)
    assert not covers_all(headers(), 10)


HEADER_TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF))


@given(HEADER_TEXT, st.integers(0, 100))
def test_whatever_a_header_says_it_is_read_or_left(text: str, size: int) -> None:
    value = text.encode("latin-1")
    names = ("etag", "last-modified", "date", "content-range", "repr-digest", "digest", "content-encoding")
    said = httpx.Headers([(name.encode(), value) for name in names])
    assert validator_of(said).isascii()
    assert digest_of(said) is None or len(digest_of(said) or "") == 64
    assert range_of(said) is None or range_of(said).first <= range_of(said).last
    assert covers_all(said, size) in (True, False)


@given(st.integers(0, 10**17), st.integers(0, 10**17), st.integers(0, 10**17))
def test_a_part_is_within_the_whole(first: int, last: int, total: int) -> None:
    found = range_of(headers(content_range=f"bytes {first}-{last}/{total}"))
    assert found == (Range(first, last, total) if first <= last < total else None)


# Bodies


@pytest.mark.parametrize(
    ("given", "only_the_end_tells"),
    [
        ({}, True),
        ({"content_length": "5"}, False),
        ({"transfer_encoding": "chunked"}, False),
        ({"transfer_encoding": "gzip, Chunked"}, False),
        ({"transfer_encoding": "identity"}, True),
    ],
)
def test_a_body_without_length_or_chunks_ends_with_its_connection(
    given: dict[str, str], only_the_end_tells: bool
) -> None:
    assert is_ended_by_closing(headers(**given)) is only_the_end_tells


@pytest.mark.parametrize(
    ("coding", "expected"),
    [("", False), ("identity", False), (" IDENTITY ", False), ("gzip", True), ("br", True)],
)
def test_bytes_are_packed_where_the_portal_says_so(coding: str, expected: bool) -> None:
    assert is_coded(headers(content_encoding=coding)) is expected


# Notes


def answer(**given: str) -> httpx.Response:
    return httpx.Response(200, headers=headers(**given))


def test_a_note_tells_all_that_an_answer_did() -> None:
    said = answer(etag='"v1"', content_length="10", repr_digest=f"sha-256=:{ENCODED}:")
    note = note_of(said, "https://portal.example/T1", "north.csv")
    assert note == Note(
        url="https://portal.example/T1", validator='"v1"', total=10, sha256=DIGEST.hex(), name="north.csv"
    )
    assert Note.of(note.to_dict()) == note


def test_of_a_packed_body_neither_length_nor_checksum_is_the_files() -> None:
    said = answer(content_encoding="gzip", content_length="10", repr_digest=f"sha-256=:{ENCODED}:")
    note = note_of(said, "https://portal.example/T1", "north.csv")
    assert (note.packed, note.total, note.sha256) == (True, None, None)


def test_a_name_without_end_is_noted_in_part_and_can_be_written() -> None:
    assert note_of(answer(), "u", "x\ud800" * 5_000).name == "x?" * 500


@pytest.mark.parametrize("noted", [{}, {"total": "ten"}, {"url": 5}, {"validator": None}, {"etag": "old"}])
def test_a_note_of_another_version_says_nothing(noted: dict[str, Any]) -> None:
    assert Note.of(noted) == Note()
