"""Unpacking without trust: forward only, a piece at a time, whatever the packed bytes say.

    file ──PIECE_BYTES──▶ decoder ──PIECE_BYTES──▶ buffer ──▶ read, piece, skip

A decoder is never asked for more than a piece, so that a bomb goes off a piece at a time, and its reader
counts. gzip, bzip2 and xz may all be several streams, one after the other; what is damaged or cut off is
refused, with the entry that was being read.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol

from holdfast.pipelines.conf_archives.archive_entry import PIECE_BYTES
from holdfast.pipelines.conf_archives.archive_limits import Budget
from holdfast.pipelines.conf_archives.archive_refusals import damaged, needs_memory, shown, too_much

_STREAMS_MAX = 200_000  # some packers begin one every 64 KiB; many more are there to keep us busy
_FINISH_BYTES_MAX = 16 * 1024**2
_XZ_MEMORY_WORDS = "Memory usage limit"  # how liblzma's error begins


class Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Deflate:
    """zlib's decoder, with the manners of the other two."""

    GZIP = 31  # with a header and a checksum, which is compared
    RAW = -15

    def __init__(self, wbits: int) -> None:
        self._decoder = zlib.decompressobj(wbits=wbits)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)


class Undecodable(Exception):
    """The packed bytes are damaged. Only ever between a decoder and its user."""


def decode(decoder: Decoder, data: bytes) -> bytes:
    """The next piece, which may be empty."""
    try:
        return decoder.decompress(data, PIECE_BYTES)
    # bz2 raises OSError, which must not be taken for one of the disk's.
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise Undecodable(str(error)) from error


class Stream:
    """Unpacked bytes, forward only. `entry` is what is being read, for messages; `bytes_left` is None where
    only the end tells it."""

    def __init__(self, file: BinaryIO, archive: str, told: Callable[[int], None]) -> None:
        self.archive = archive
        self.entry = ""
        self._file = file
        self._told = told
        self._consumed = 0
        self._buffer = b""
        self._at = 0

    @property
    def bytes_left(self) -> int | None:
        return None

    def piece(self, bytes_max: int) -> bytes:
        """Some bytes, none only at the end."""
        if self._at == len(self._buffer):
            self._buffer, self._at = self._next_buffer(), 0
        begin, end = self._at, min(self._at + bytes_max, len(self._buffer))
        self._at = end
        # A whole buffer is handed on without a copy.
        return self._buffer if end - begin == len(self._buffer) else self._buffer[begin:end]

    def read(self, size: int) -> bytes:
        """So many bytes, fewer only at the end."""
        data = self.piece(size)
        if len(data) == size or not data:
            return data
        pieces, missing = [data], size - len(data)
        while missing and (data := self.piece(missing)):
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def skip(self, size: int) -> int:
        """How many bytes there were to skip: fewer only at the end."""
        missing = size
        while missing:
            if self._at == len(self._buffer):
                self._buffer, self._at = self._next_buffer(), 0
                if not self._buffer:
                    break
            step = min(missing, len(self._buffer) - self._at)
            self._at += step
            missing -= step
        return size - missing

    def finish(self) -> None:
        """Nothing more is wanted of it."""

    def place(self) -> str:
        return f"in the middle of entry {shown(self.entry)}" if self.entry else "before its first entry"

    def _packed_piece(self) -> bytes:
        data = self._file.read(PIECE_BYTES)
        self._consumed += len(data)
        self._told(self._consumed)
        return data

    def _next_buffer(self) -> bytes:
        return self._packed_piece()


class PlainStream(Stream):
    """Of a file that is not packed at all: what is skipped is not even read."""

    def __init__(self, file: BinaryIO, size: int, archive: str, told: Callable[[int], None]) -> None:
        super().__init__(file, archive, told)
        self._size = size

    @property
    def bytes_left(self) -> int:
        return self._size - self._consumed + len(self._buffer) - self._at

    def skip(self, size: int) -> int:
        buffered = len(self._buffer) - self._at
        if size <= buffered or size > self.bytes_left:
            return super().skip(size)
        self._buffer, self._at = b"", 0
        self._consumed += size - buffered
        self._file.seek(self._consumed)
        return size


class PackedStream(Stream):
    def __init__(
        self, file: BinaryIO, new_decoder: Callable[[], Decoder], archive: str, told: Callable[[int], None]
    ) -> None:
        super().__init__(file, archive, told)
        self._new_decoder = new_decoder
        self._decoder: Decoder | None = None
        self._streams = 0
        self._input = b""

    def finish(self) -> None:
        """To the end of the stream that is under way, for its checksum, if that is near; what follows it is
        nobody's."""
        unpacked = 0
        while self._decoder is not None and unpacked <= _FINISH_BYTES_MAX:
            unpacked += len(self._step(self._decoder))

    def _next_buffer(self) -> bytes:
        unpacked = b""
        while not unpacked and (decoder := self._decoder or self._next_stream()) is not None:
            unpacked = self._step(decoder)
        return unpacked

    def _step(self, decoder: Decoder) -> bytes:
        is_hungry = decoder.needs_input
        data = self._next_input() if is_hungry else b""
        try:
            unpacked = decode(decoder, data)
        except Undecodable as error:
            raise self._refused(error) from error
        if decoder.eof:
            self._input, self._decoder = decoder.unused_data, None
        elif is_hungry and not data and not unpacked:
            raise damaged(f"{self.archive} ends {self.place()}: its packed data is cut off.")
        return unpacked

    def _refused(self, error: Undecodable) -> Exception:
        if _XZ_MEMORY_WORDS in str(error):
            return needs_memory(self.archive)
        return damaged(f"{self.archive} is damaged {self.place()}: {error}.")

    def _next_stream(self) -> Decoder | None:
        self._input = self._next_input()
        while self._streams and self._input and not self._input.strip(b"\0"):
            self._input = self._packed_piece()  # padding
        if self._streams:
            self._input = self._input.lstrip(b"\0")
        if not self._input:
            return None
        self._streams += 1
        if self._streams > _STREAMS_MAX:
            raise too_much(f"{self.archive} is made of more than {_STREAMS_MAX:,} packed streams.")
        self._decoder = self._new_decoder()
        return self._decoder

    def _next_input(self) -> bytes:
        data, self._input = self._input, b""
        return data or self._packed_piece()


def gzip_decoder() -> Decoder:
    return Deflate(Deflate.GZIP)


def bzip2_decoder() -> Decoder:
    return bz2.BZ2Decompressor()


def xz_decoder(memory_bytes: int) -> Decoder:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=memory_bytes)


def xz_memory_bytes(head: bytes, archive: str, budget: Budget) -> int:
    """How much an xz that begins so must be given. What else is wrong with it is found when it is read."""
    for memory_bytes in budget.xz_memory_steps():
        try:
            decode(xz_decoder(memory_bytes), head)
        except Undecodable as error:
            if _XZ_MEMORY_WORDS in str(error):
                continue
        return memory_bytes
    raise needs_memory(archive)
