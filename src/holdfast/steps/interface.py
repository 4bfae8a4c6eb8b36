"""What a step type is given, and what it must be: `async def run(call: StepCall) -> Any`.

A type takes its config with all templates rendered, does the work of one attempt, and returns plain data or
raises: TransientError, PermanentError, or whatever else classification knows. It knows no engine, no store.
What the worker's owner decides (leave to run code, what may be reached) comes as StepSettings, never from the
playbook: its author may be somebody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT
from holdfast.core.sizes import parse_bytes, shown_bytes

STORAGE_DEFAULT = "holdfast-files"
SQL_FOLDER_DEFAULT = "."
CODE_MEMORY_BYTES_DEFAULT = 512 * 1024**2
CODE_MEMORY_BYTES_MIN = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What the owner of a worker allows its steps; the flags of the command win over the environment."""

    allow_code: bool = False
    """Inline Python; and with it files of the worker's machine through SQL."""
    allow_shell: bool = False
    http_private: bool = True
    """Whether an http step may reach loopback, private and link-local addresses."""
    storage: str = STORAGE_DEFAULT
    """Where `save_to` keeps files: a folder, its file:// address, or s3://bucket/prefix."""
    sql_folder: str = SQL_FOLDER_DEFAULT
    """Where the file databases of sql steps lie, on a worker without leave for code."""
    code_memory_bytes: int = CODE_MEMORY_BYTES_DEFAULT
    """For each process of inline code and shell commands."""
    payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT
    """What the engine will store of an output."""

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, allow_code: bool = False, allow_shell: bool = False
    ) -> StepSettings:
        return cls(
            allow_code=allow_code,
            allow_shell=allow_shell,
            http_private=_allowed(environ, "HOLDFAST_HTTP_PRIVATE"),
            storage=environ.get("HOLDFAST_STORAGE") or STORAGE_DEFAULT,
            sql_folder=environ.get("HOLDFAST_SQL_FOLDER") or SQL_FOLDER_DEFAULT,
            code_memory_bytes=_memory_bytes(environ, "HOLDFAST_CODE_MEMORY"),
        )


def _allowed(environ: Mapping[str, str], name: str) -> bool:
    word = environ.get(name, "").strip().lower() or "allow"
    if word not in ("allow", "forbid"):
        # Nobody who meant to forbid may find it allowed for a slip of the pen.
        raise InvalidInput(f"{name} is {word!r}.", guidance=f"Set {name} to allow or to forbid.")
    return word == "allow"


def _memory_bytes(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip()
    amount = parse_bytes(text) if text else CODE_MEMORY_BYTES_DEFAULT
    if amount is None or amount < CODE_MEMORY_BYTES_MIN:
        least = shown_bytes(CODE_MEMORY_BYTES_MIN)
        raise InvalidInput(f"{name} is {text!r}.", guidance=f"Set {name} to at least {least}, such as 512MB.")
    return int(amount)


def _no_progress(fraction: float) -> None:
    return None


@dataclass(frozen=True, slots=True)
class StepCall:
    """One attempt of one step, as its type sees it."""

    config: Mapping[str, Any]
    """The type's own fields, canonical names, templates rendered."""
    input: Mapping[str, Any] = field(default_factory=dict)
    execution_id: int = 0
    step: str = ""
    attempt: int = 1
    timeout_seconds: float = 3600.0
    progress: Callable[[float], None] = _no_progress
    settings: StepSettings = StepSettings()
    idempotency_key: str = ""
    """The same in every attempt of one job, and unlike that of any other job of any store; "" where the
    worker has none to give."""
    traceparent: str = ""
    """The span of this attempt, for what the step asks of others; "" where nobody traces."""
    parked: Any = None
    """What an earlier lease of this attempt was deferred for, with what came of it."""
    begun: float = field(default_factory=time.monotonic)

    @property
    def ends_at(self) -> float:
        """When its time is over, by the monotonic clock."""
        return self.begun + self.timeout_seconds


def spare_seconds(seconds_max: float, ends_at: float, now: float) -> float:
    """For what an attempt can do without: at most half of the time it has left, so that it can still tell
    what it has."""
    return max(0.0, min(seconds_max, (ends_at - now) / 2))
