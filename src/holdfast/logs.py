"""The log, as text for people or as one JSON object a line, each line with the attempt that it belongs to.

    worker ──CURRENT──▶ every line that is written while a handler runs, by whomever
    engine, worker ──about(…)──▶ a line about an attempt, written where none runs

Only a process that Holdfast's commands started is set up here; a program has its own ways, and may give its
handlers a `JsonFormatter`. A line is never lost for what stands in it: text that cannot be written is made
writable, too long a one is cut, a call that logging could not format tells so.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from holdfast.core.masking import clean_message, clean_trace, mask_secrets
from holdfast.core.model import Leased

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
FORMATS = ("text", "json")
_ABOUT = "holdfast_attempt"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class RunningAttempt(Protocol):
    """What a line needs to know of the attempt it was written in."""

    @property
    def job(self) -> Leased: ...

    @property
    def worker_id(self) -> str: ...


CURRENT: ContextVar[RunningAttempt | None] = ContextVar("holdfast_attempt", default=None)


class LogSettings(msgspec.Struct, frozen=True):
    """How a process of ours logs, so that those it starts do the same."""

    level: int
    form: str


def log_to_stderr(settings: LogSettings) -> None:
    """For a process of ours, once. One that logs already, as its program wants it, is left as it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.form == "json" else TextFormatter())
    logging.basicConfig(level=settings.level, handlers=[handler])


def settings_in_use() -> LogSettings | None:
    """Those that this process was set up with; None where a program logs as it likes."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler.formatter, JsonFormatter):
            return LogSettings(root.level, "json")
        if isinstance(handler.formatter, TextFormatter):
            return LogSettings(root.level, "text")
    return None


def about(**ids: Any) -> dict[str, Any]:
    """The `extra` of a line about an attempt that does not run here, or no longer."""
    return {_ABOUT: ids}


def about_attempt(attempt: RunningAttempt) -> dict[str, Any]:
    return about(**ids_of(attempt))


def ids_of(attempt: RunningAttempt) -> dict[str, Any]:
    job = attempt.job
    return {
        "execution_id": job.execution_id,
        "queue_id": job.queue_id,
        "path": job.path,
        "step": job.step,
        "attempt": job.attempt,
        "worker_id": attempt.worker_id,
    }


class TextFormatter(logging.Formatter):
    """For people. A line that a handler wrote ends with its attempt; one of ours says it. Whatever a message
    holds, it moves no cursor, and no line of it passes for one of somebody else."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line, attempt = mask_secrets(super().formatMessage(record)), CURRENT.get()
        line = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", line).replace("\n", "\n    ")
        if attempt is None or hasattr(record, _ABOUT):
            return line
        job = attempt.job
        return f"{line} [execution {job.execution_id}, step {job.step}, attempt {job.attempt}]"


class JsonFormatter(logging.Formatter):
    """For machines: one object a line, in ASCII, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname,
            "logger": clean_message(record.name),
            "process": record.process,
            "message": _message(record),
            **_attempt_of(record),
            **_trace_of(),
        }
        if trace := self._exception(record):
            line["exception"] = trace
        return json.dumps(line, default=repr)

    def _exception(self, record: logging.LogRecord) -> str:
        told = record.exc_text or ""  # made already where a secret had to be taken out of it
        if not told and record.exc_info:
            try:
                told = self.formatException(record.exc_info)
            except Exception as error:
                told = f"an exception that cannot be shown ({type(error).__name__})"
        return clean_trace("\n".join(part for part in (told, record.stack_info or "") if part))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return clean_message(record.getMessage())
    except Exception as error:  # its own author's fault: what was to be said is said as far as it goes
        why = f"{type(error).__name__}: {error}"
    try:
        said = str(record.msg)
    except Exception:
        said = f"a {type(record.msg).__name__} that cannot be shown"
    return clean_message(f"{said} [not formatted: {why}]")


def _attempt_of(record: logging.LogRecord) -> dict[str, Any]:
    ids: dict[str, Any] | None = getattr(record, _ABOUT, None)
    if ids is not None:
        return ids
    attempt = CURRENT.get()
    return {} if attempt is None else ids_of(attempt)


def _trace_of() -> dict[str, str]:
    """Of the span that is current, where somebody in this process traces."""
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return {}
    context = tracing.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
