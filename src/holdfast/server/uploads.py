"""Files that come in the body of a request, handed on as they come.

    async for file in ask.upload.files(bytes_max=…, files_max=…):
        async for chunk in file.chunks:
            …

The request is read only as fast as the handler takes the chunks, and nothing of it is kept: a file may be as
large as the handler allows. There is no limit of time for the whole of it, since a large file over a slow
line is as legal as a small one; only a sender of whom nothing is heard any more is refused. Whatever is wrong
is raised where the handler reads, so that what was cut off is never taken for a whole file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request

from holdfast.server.multipart import Malformed, Parser, Part, Signal, boundary_of
from holdfast.server.problems import Refused
from holdfast.server.reading import check_media_type

IDLE_SECONDS_MAX = 30.0
FIELDS_MAX = 20
FIELD_BYTES_MAX = 16 * 1024
# Of what stands around the files: heads, boundaries, text fields.
AROUND_BYTES_MAX = 1024 * 1024
MEDIA_TYPE = "multipart/form-data"
FILE_FIELD = "file"
_HOW = "Send it as multipart/form-data in the field `file`:  curl -F file=@NAME …"
_AGAIN = "Send the upload again."


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """`chunks` are to be read before the next file is asked for; what is unread then is skipped."""

    field: str
    filename: str
    content_type: str
    chunks: AsyncIterator[bytes]


class Upload:
    """`fields` are the text fields that came so far: those before a file are there when the file is."""

    def __init__(self, request: Request) -> None:
        """Refuses what is no upload, by its head alone."""
        check_media_type(request, (MEDIA_TYPE,))
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise Refused(
                415,
                "unsupported_encoding",
                f"A request in {encoding!r} is not read.",
                "Send it without a Content-Encoding.",
            )
        try:
            self._parser = Parser(boundary_of(request.headers["content-type"]))
        except Malformed as error:
            raise _malformed(error) from None
        self._request = request
        self._refusal: Refused | None = None
        self._current: _Chunks | None = None
        self._count = 0
        self.fields: dict[str, str] = {}
        self.is_read = False
        """Whether all of the request has come: nothing is left then to be drained."""

    async def files(
        self,
        *,
        bytes_max: int,
        files_max: int,
        too_large: str = "Send a smaller one, or have the limit raised.",
    ) -> AsyncGenerator[UploadedFile, None]:
        """The files of the field `file`, in their order; at least one. `bytes_max` is for each of them, and
        `too_large` says what to do about one that has more."""
        self._check_announced(bytes_max, files_max)
        while (part := await self._next_part()) is not None:
            if part.filename is None:
                await self._take_field(part)
                continue
            _check_file(part)
            self._count += 1
            if self._count > files_max:
                raise Refused(
                    413,
                    "request_too_large",
                    f"The upload has more files than are taken at once; the limit is {files_max:,}.",
                    "Send them in several uploads.",
                )
            self._current = _Chunks(self, part.filename, bytes_max, too_large)
            yield UploadedFile(part.name, part.filename, part.content_type, self._current)
        if self._count == 0:
            raise Refused(422, "invalid_request", "The upload has no file.", _HOW)

    def _check_announced(self, bytes_max: int, files_max: int) -> None:
        """What is too large in any case is refused before a byte of it is read."""
        announced = self._request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > bytes_max * files_max + AROUND_BYTES_MAX:
            of_each = "" if files_max == 1 else f" for each of up to {files_max:,} files"
            raise Refused(
                413,
                "request_too_large",
                f"The upload has {int(announced):,} bytes; the limit is {bytes_max:,} bytes{of_each}.",
                "Send less at once, or have the limit raised.",
            )

    async def _take_field(self, part: Part) -> None:
        if part.name == FILE_FIELD:
            raise Refused(422, "invalid_request", "The field `file` is a text and no file.", _HOW)
        named = part.name[:100]
        if part.name in self.fields:
            raise Refused(422, "invalid_request", f"The field {named!r} is given twice.", "Give it once.")
        if len(self.fields) >= FIELDS_MAX:
            message = f"The upload has more than {FIELDS_MAX} text fields."
            raise Refused(413, "request_too_large", message, "Leave out those that mean nothing here.")
        value = bytearray()
        while (data := await self._next()) is not Signal.PART_END:
            assert isinstance(data, bytes)
            value += data
            if len(value) > FIELD_BYTES_MAX:
                raise Refused(
                    413,
                    "request_too_large",
                    f"The field {named!r} is too long; the limit is {FIELD_BYTES_MAX:,} bytes.",
                    "Send what is long as a file.",
                )
        try:
            self.fields[part.name] = value.decode()
        except UnicodeDecodeError:
            message = f"The field {named!r} is not UTF-8 text."
            raise Refused(422, "invalid_request", message, "Send text as UTF-8.") from None

    async def _next_part(self) -> Part | None:
        if self._current is not None:
            await self._current.skip()
        part = await self._next()
        assert isinstance(part, Part) or part is Signal.END, part
        return part if isinstance(part, Part) else None

    async def _next(self) -> Part | bytes | Signal:
        """What comes next; the end of all of it when the request has ended, too."""
        if self._refusal is not None:  # whoever let it pass must not read on as if nothing had been
            raise self._refusal
        try:
            while (event := self._parser.next()) is Signal.MORE or (event is Signal.END and not self.is_read):
                if self.is_read:
                    self._parser.finish()
                await self._receive()
            return event
        except Malformed as error:
            self._refusal = _malformed(error)
        except Refused as refusal:
            self._refusal = refusal
        raise self._refusal

    async def _receive(self) -> None:
        """One more piece of the request: as much as the connection has now."""
        piece = b""
        try:
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                while not piece and not self.is_read:
                    message = await self._request.receive()
                    if message["type"] != "http.request":
                        raise Refused(400, "disconnected", "The upload broke off.", _AGAIN)
                    piece = message.get("body", b"")
                    self.is_read = not message.get("more_body", False)
        except TimeoutError:
            raise Refused(
                408,
                "too_slow",
                f"Nothing more of the upload came for {IDLE_SECONDS_MAX:g} seconds.",
                "Send it again over a better connection.",
            ) from None
        self._parser.feed(piece)


class _Chunks:
    """The bytes of one file. Who closes it early, or never begins, changes nothing for the next file."""

    def __init__(self, upload: Upload, filename: str, bytes_max: int, too_large: str) -> None:
        self._upload = upload
        self._filename = filename
        self._bytes_max = bytes_max
        self._too_large = too_large
        self._size = 0
        self._is_whole = False
        self._is_skipped = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._is_skipped:
            raise RuntimeError(f"{self._filename!r} was to be read before the next file was asked for")
        if (chunk := await self._read()) is None:
            raise StopAsyncIteration
        return chunk

    async def skip(self) -> None:
        self._is_skipped = not self._is_whole
        while await self._read() is not None:
            pass

    async def _read(self) -> bytes | None:
        if self._is_whole:
            return None
        chunk = await self._upload._next()
        if chunk is Signal.PART_END:
            self._is_whole = True
            return None
        assert isinstance(chunk, bytes)
        self._size += len(chunk)
        if self._size > self._bytes_max:
            raise Refused(
                413,
                "file_too_large",
                f"The file {self._filename!r} is too large; the limit is {self._bytes_max:,} bytes.",
                self._too_large,
            )
        return chunk


def _check_file(part: Part) -> None:
    if part.name != FILE_FIELD:
        message = f"There is no field {part.name[:100]!r} for a file."
        raise Refused(422, "invalid_request", message, _HOW)
    if not part.filename:
        raise Refused(422, "invalid_request", "The file has no name.", "Choose a file. " + _HOW)


def _malformed(error: Malformed) -> Refused:
    guidance = f"{_AGAIN} HTTP clients make such a body themselves:  curl -F file=@NAME …"
    return Refused(400, "malformed_multipart", str(error), guidance)
