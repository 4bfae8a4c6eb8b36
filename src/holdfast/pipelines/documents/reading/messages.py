"""What the pool and its children say to each other, as msgpack.

pool ── Task, Task, … ──▶ child
pool ◀── Ready, then for each task: Part…, and in the end Read or Failed ── child
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from holdfast.pipelines.documents.reading.chunk import Chunk, Facts, ReadLimits

ErrorKind: TypeAlias = Literal["permanent", "transient", "memory", "failed"]


class Task(msgspec.Struct, frozen=True):
    path: str
    filename: str
    limits: ReadLimits


class Ready(msgspec.Struct, tag=True, array_like=True, frozen=True):
    pass


class Part(msgspec.Struct, tag=True, array_like=True, frozen=True):
    chunks: list[Chunk]
    share: float


class Read(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """`bytes_used`: what the process holds on to."""

    facts: Facts
    bytes_used: int


class Failed(msgspec.Struct, tag=True, array_like=True):
    kind: ErrorKind
    message: str
    error_type: str | None = None
    user_message: str | None = None
    guidance: str | None = None
    trace: str = ""
    bytes_used: int = 0


FromChild: TypeAlias = Ready | Part | Read | Failed

encode = msgspec.msgpack.encode
decode_task = msgspec.msgpack.Decoder(Task).decode
decode_answer = msgspec.msgpack.Decoder(FromChild).decode
