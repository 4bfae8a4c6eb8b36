"""The step type `sleep`: it holds no slot of a worker and no lease while it waits.

The first lease of its attempt only tells for how long; the job is then parked, and leased again when the time
has come, however often workers and machines are restarted meanwhile.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.model import Deferred
from holdfast.core.retry import parse_duration
from holdfast.steps.fields import refused
from holdfast.steps.interface import StepCall

SLEEP_SECONDS_MAX = 366 * 86_400.0


async def run(call: StepCall) -> Any:
    seconds = _seconds(call.config.get("seconds"))
    if seconds > 0 and call.parked is None:
        return Deferred(until_seconds=seconds)
    return {"seconds": seconds}


def _seconds(value: object) -> float:
    if value is None:
        raise refused("The step does not say how long to sleep.", "Give it seconds: 90, or seconds: 15m.")
    try:
        seconds = parse_duration(value, field="seconds")
    except InvalidInput as error:
        raise refused(str(error), error.guidance) from None
    if seconds > SLEEP_SECONDS_MAX:
        raise refused(f"A step sleeps at most {SLEEP_SECONDS_MAX / 86_400:g} days, not {value!r}.")
    return seconds
