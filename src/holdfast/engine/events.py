"""Events as they are written: one packed row for what one transaction tells of one execution.

Step names are checked when a pipeline is defined and need no escaping, so the rows of the success path
are plain strings; what carries people's text goes through the JSON encoder.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.model import EventType


def event(type_: EventType, step: str | None = None, **data: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"type": type_.value}
    if step is not None:
        own["step"] = step
    return {**own, **data}


def pack(events: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(events).decode()


def appended(packed: str, further: dict[str, Any]) -> str:
    """What was packed, with one event more."""
    return f"{packed[:-1]},{msgspec.json.encode(further).decode()}]"


def started(first_step: str) -> str:
    return f'[{{"type":"execution_started"}},{{"type":"step_started","step":"{first_step}"}}]'


def completed(step: str, attempt: int, following: str | None) -> str:
    """A step is done, and the next one starts or the execution is complete."""
    head = f'[{{"type":"action_completed","step":"{step}","attempt":{attempt}}},'
    done = f'{{"type":"step_completed","step":"{step}"}},'
    if following is None:
        return f'{head}{done}{{"type":"execution_completed"}}]'
    return f'{head}{done}{{"type":"step_started","step":"{following}"}}]'
