"""The body of an answer: unpacked within bounds, and read as what its Content-Type says.

    raw chunks ──unpack──▶ chunks, never more than a piece at a time ──data_of──▶ JSON, text, or base64

A few bytes can be packed such that they fill a machine when unpacked, so what comes out is counted, not what
goes in, and no piece is larger than a bound.
"""

from __future__ import annotations

import base64
import codecs
import re
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, cast

import httpx

from holdfast.core.errors import HoldfastError, PermanentError
from holdfast.steps.storable import TooDeep, parse_json, storable_text

PIECE_BYTES_MAX = 64 * 1024
SHOWN_CHARS_MAX = 500

_GZIP_MAGIC = b"\x1f\x8b"
_TEXT_TYPES = re.compile(
    r"text/.+|application/(?:.+\+)?(?:xml|yaml|x-yaml|javascript|ecmascript|x-ndjson|ndjson|jsonl|graphql|sql"
    r"|x-www-form-urlencoded|toml|x-sh)"
    r"|image/svg\+xml"
)
_JSON_TYPES = re.compile(r"(?:application|text)/json|.+/.+\+json")
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([A-Za-z0-9_.:+-]{1,40})", re.IGNORECASE)
# Codecs of Python that are no encodings of the web, some of which take quadratic time.
_NO_CHARSETS = re.compile(r"idna|punycode|.*escape.*|undefined|mbcs|oem|utf[_-]?7|unicode.*", re.IGNORECASE)
# No type is longer; one that is would be looked at for seconds.
_KIND_CHARS_MAX = 200


class ResponseInvalid(HoldfastError):
    """The server answered with something that its own headers say it is not."""

    code = "response_invalid"
    user_message = "A service answered with something that cannot be read"


# ── unpacking ────────────────────────────────────────────────────────────────────────────────────


async def pieces_of(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body as it was before it was packed for the way."""
    unpack = _unpacker(response.headers)
    async with raw_chunks_of(response) as chunks:
        async for raw in chunks:
            for piece in (raw,) if unpack is None else unpack.feed(raw):
                yield piece
    if unpack is not None:
        unpack.end()


def raw_chunks_of(response: httpx.Response) -> aclosing[AsyncGenerator[bytes, None]]:
    """The body as it came, and an end of it where it is left in the middle."""
    return aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw()))


def _unpacker(headers: httpx.Headers) -> _Inflater | None:
    coding = headers.get("content-encoding", "").strip().lower()
    return _Inflater(coding) if coding in ("gzip", "x-gzip", "deflate") else None


def is_packed(headers: httpx.Headers) -> bool:
    """Whether it stays packed: in a way nobody asked for."""
    return headers.get("content-encoding", "").strip().lower() not in (
        "", "identity", "gzip", "x-gzip", "deflate",
    )  # fmt: skip


class _Inflater:
    def __init__(self, coding: str) -> None:
        self._is_gzip = coding != "deflate"
        self._stream = zlib.decompressobj(31 if self._is_gzip else 15)
        self._has_begun = False
        self._has_ended = False
        self._behind = b""
        """What came behind the end of a part, and may be the beginning of another."""

    def feed(self, packed: bytes) -> Iterator[bytes]:
        if not packed or self._has_ended:
            return
        if self._stream.eof:
            packed = self._next_part(packed)
            if not packed:
                return
        if not self._has_begun and not self._is_gzip and packed[0] & 0x0F != 8:
            self._stream = zlib.decompressobj(-15)  # some servers leave out the header
        self._has_begun = True
        while True:
            try:
                piece = self._stream.decompress(packed, PIECE_BYTES_MAX)
            except zlib.error as error:
                raise httpx.DecodingError(f"the body is not packed as it says: {error}") from error
            if piece:
                yield piece
            packed = self._stream.unconsumed_tail
            if self._stream.eof:
                packed = self._next_part(self._stream.unused_data)
                if not packed:
                    return
            elif not packed and not piece:
                return

    def _next_part(self, came: bytes) -> bytes:
        """There may be several packed parts, one behind the other, and a chunk may end between two of them.
        What is no further part is left out, as everybody does."""
        self._behind += came
        if not self._is_gzip or not _GZIP_MAGIC.startswith(self._behind[: len(_GZIP_MAGIC)]):
            self._has_ended = True
        if self._has_ended or len(self._behind) < len(_GZIP_MAGIC):
            return b""
        part, self._behind = self._behind, b""
        self._stream = zlib.decompressobj(31)
        return part

    def end(self) -> None:
        if self._has_begun and not self._has_ended and not self._stream.eof:
            raise httpx.DecodingError("the body ends in the middle")


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def data_of(body: bytes, headers: httpx.Headers, shown: str) -> Mapping[str, Any]:
    """`data`, and `encoding` where that is not the body's own text."""
    if not body:
        return {"data": None}
    content_type = headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()[:_KIND_CHARS_MAX]
    charset = _charset(content_type)
    if is_packed(headers):
        return _base64(body)
    if _JSON_TYPES.fullmatch(kind):
        return {"data": _json(body, charset, shown)}
    if _TEXT_TYPES.fullmatch(kind) or charset:
        return {"data": text_of(body, charset)}
    if not kind and (text := _utf8(body)) is not None:
        return {"data": text}
    return _base64(body)


def _base64(body: bytes) -> Mapping[str, Any]:
    return {"data": base64.b64encode(body).decode(), "encoding": "base64"}


def _json(body: bytes, charset: str, shown: str) -> Any:
    if not body.strip():
        return None
    try:
        return parse_json(body, charset)
    except TooDeep as error:
        raise ResponseInvalid(
            f"{shown} answered with JSON that is {error}.", guidance="Use save_to, and read the file."
        ) from None
    except ValueError as error:
        raise ResponseInvalid(
            f"{shown} answered with a JSON content type and a body that is no JSON ({error}):"
            f" {first_words(body)}",
            guidance="It is the service's fault. Ask its owner; use save_to to see all of the body.",
        ) from None


def _charset(content_type: str) -> str:
    match = _CHARSET.search(content_type)
    try:
        # By its own name: it has others, and Python finds it by many more spellings.
        name = codecs.lookup(match.group(1)).name if match else ""
    except LookupError:
        return ""
    return "" if _NO_CHARSETS.fullmatch(name) else name


def text_of(body: bytes, charset: str = "") -> str:
    """By the charset it says; else, or where that is wrong, as UTF-8; else as what the web of old was in."""
    for encoding in (charset, "utf-8-sig") if charset else ("utf-8-sig",):
        try:
            return storable_text(body.decode(encoding).removeprefix("\ufeff"))
        except (LookupError, ValueError):
            continue
    return storable_text(body.decode("cp1252", errors="replace"))


def _utf8(body: bytes) -> str | None:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def first_words(body: bytes, content_type: str = "") -> str:
    """A bounded part of a body, on one line, for a message."""
    text = " ".join(text_of(body[: 8 * SHOWN_CHARS_MAX], _charset(content_type)).split())
    text = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"


def too_large(shown: str, limit: int, *, is_saved: bool) -> PermanentError:
    return PermanentError(
        f"{shown} answered with more than {limit:,} bytes.",
        error_type="response_too_large",
        user_message="A service answered with more data than is allowed",
        guidance="Raise response_bytes_max."
        if is_saved
        else "Use save_to, which keeps the body in a file; or ask for less.",
    )
