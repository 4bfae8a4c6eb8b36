"""What is known of a file of which a part is there: whose part it is, and what an answer says of it.

All of it is read from headers, which may say anything.
"""

from __future__ import annotations

import base64
import re
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self

import httpx
import msgspec

from holdfast.steps.http_exchange import content_length

_RANGE = re.compile(r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d{1,18})", re.IGNORECASE)
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\xff]+"')
_DIGEST = re.compile(r"sha-256\s*=\s*:?([A-Za-z0-9+/]{43}=):?", re.IGNORECASE)
_VALIDATOR_CHARS_MAX = 500
_DATE_CHARS_MAX = 100


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is noted with a draft. `validator` is an ETag or a date by which the portal knows this version of
    the file; `packed` where it is unpacked as it comes, so that bytes here are not bytes there."""

    url: str = ""
    validator: str = ""
    total: int | None = None
    sha256: str | None = None
    name: str = ""
    packed: bool = False

    @classmethod
    def of(cls, note: dict[str, Any]) -> Self:
        try:
            return msgspec.convert(note, cls)
        except msgspec.ValidationError:  # of another version of Holdfast
            return cls()

    def to_dict(self) -> dict[str, Any]:
        noted: dict[str, Any] = msgspec.to_builtins(self)
        return noted


def note_of(response: httpx.Response, url: str, name: str) -> Note:
    """Of an answer with the whole file."""
    headers = response.headers
    is_packed = is_coded(headers)
    return Note(
        url=url,
        validator=validator_of(headers),
        total=content_length(headers),
        sha256=None if is_packed else digest_of(headers),
        name=name[:1_000].encode(errors="replace").decode(),
        packed=is_packed,
    )


def is_coded(headers: httpx.Headers) -> bool:
    """Whether the bytes that come are not those of the file."""
    return headers.get("content-encoding", "").strip().lower() not in ("", "identity")


def validator_of(headers: httpx.Headers) -> str:
    """A strong ETag, else a date of change; "" where the portal tells neither. A weak ETag may stand for
    several files that are nearly the same, of which the parts do not fit together; so may the date of a file
    that has changed within the second in which it was sent (RFC 9110, 8.8.2.2)."""
    etag = headers.get("etag", "").strip()
    if len(etag) <= _VALIDATOR_CHARS_MAX and _STRONG_ETAG.fullmatch(etag):
        return etag if etag.isascii() else ""
    modified = headers.get("last-modified", "").strip()
    changed_at, sent_at = _seconds_of(modified), _seconds_of(headers.get("date", ""))
    is_settled = changed_at is not None and sent_at is not None and changed_at + 1 <= sent_at
    return modified if not etag and is_settled else ""


def _seconds_of(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date) if len(date) <= _DATE_CHARS_MAX else None
        return None if moment is None or moment.tzinfo is None else moment.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def is_of_same(note: Note, headers: httpx.Headers) -> bool:
    """Whether an answer with a part says that it is of the file of which a part is noted: by its ETag, which
    must be there where one was; by its date, where only that was there."""
    etag: str = headers.get("etag", "").strip()
    modified: str = headers.get("last-modified", "").strip()
    if note.validator.startswith('"'):
        return etag == note.validator
    return not note.validator or (not etag and modified in ("", note.validator))


def digest_of(headers: httpx.Headers) -> str | None:
    """The SHA-256 of the whole file, where the portal tells it: RFC 9530, and its predecessor."""
    for name in ("repr-digest", "digest"):
        if match := _DIGEST.search(headers.get(name, "")):
            return base64.b64decode(match[1]).hex()
    return None


class Range(NamedTuple):
    first: int
    last: int
    total: int | None


def range_of(headers: httpx.Headers) -> Range | None:
    match = _RANGE.fullmatch(headers.get("content-range", "").strip())
    if match is None:
        return None
    told = Range(int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3]))
    is_possible = told.first <= told.last and (told.total is None or told.last < told.total)
    return told if is_possible else None


def covers_all(headers: httpx.Headers, size: int) -> bool:
    """Whether a portal that has nothing behind the part that is there says that this is all."""
    match = _UNSATISFIED.fullmatch(headers.get("content-range", "").strip())
    return match is not None and int(match[1]) == size


def is_ended_by_closing(headers: httpx.Headers) -> bool:
    """Whether only the end of the connection tells the end of the body."""
    is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    return "content-length" not in headers and not is_chunked
