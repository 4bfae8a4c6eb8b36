"""Events as they are written: one packed row for what one transaction tells of one execution.

Step names are checked when a pipeline is defined and need no escaping, so what every job says is put together
as plain strings; what carries people's text goes through the JSON encoder.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.model import NO_ELEMENT, EventType, JobState, told_place


def event(type_: EventType, step: str | None = None, **data: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"type": type_.value}
    if step is not None:
        own["step"] = step
    return {**own, **data}


def pack(events: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(events).decode()


def text_of(event: object) -> str:
    """One event, or a part of one, as it stands in a packed row."""
    return msgspec.json.encode(event).decode()


def appended(packed: str, further: dict[str, Any]) -> str:
    """What was packed, with one event more."""
    return f"{packed[:-1]},{text_of(further)}]"


def started(first_step: str) -> str:
    return f'[{{"type":"execution_started"}},{{"type":"step_started","step":"{first_step}"}}]'


def began(step: str, attempt: int, worker_id: str | None, at: float | None, place: int = NO_ELEMENT) -> str:
    """An attempt began. It is told with what ended it, and so it says when that was: until then the job's row
    is what tells it, see the stores' query of events."""
    at_that_time = "" if at is None else f'"at":{at!r},'
    where = "" if place == NO_ELEMENT else "," + text_of(told_place(place))[1:-1]
    return (
        f'{{"type":"action_started","step":"{step}",{at_that_time}"attempt":{attempt},'
        f'"is_retry":{"true" if attempt > 1 else "false"},"worker":{text_of(worker_id)}{where}}}'
    )


def attempt_of(job: JobState) -> str:
    """The beginning of the attempt that a leased job is in."""
    return began(job.step, job.attempts, job.worker_id, job.last_attempt_at, job.element)


def completed(step: str, attempt: int, following: str | None, begun: str) -> str:
    """An attempt began and completed its step, and the next one starts or the execution is complete."""
    head = f'[{begun},{{"type":"action_completed","step":"{step}","attempt":{attempt}}},'
    done = f'{{"type":"step_completed","step":"{step}"}},'
    if following is None:
        return f'{head}{done}{{"type":"execution_completed"}}]'
    return f'{head}{done}{{"type":"step_started","step":"{following}"}}]'


def failed(step: str, attempt: int, error: str, **further: object) -> str:
    """An attempt ended with this error, given as the JSON text that is kept of it."""
    told = f'{{"type":"action_error","step":"{step}","attempt":{attempt},{error[1:]}'
    for name, value in further.items():
        told = f'{told[:-1]},"{name}":{text_of(value)}}}'
    return told
