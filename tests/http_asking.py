"""An http step asked from a test, in an event loop and with a client of its own."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.failures import Failure, failure_from_exception
from holdfast.steps import http
from holdfast.steps.interface import StepCall
from running import run


async def closing(*calls: StepCall) -> list[Any]:
    try:
        return [await http.run(call) for call in calls]
    finally:
        await http.close()


def ask(url: str, **config: Any) -> Any:
    return run(closing(StepCall(config={"url": url, **config}, timeout_seconds=60)))[0]


def failed(url: str, **config: Any) -> Failure:
    with pytest.raises(Exception) as raised:
        ask(url, **config)
    return failure_from_exception(raised.value, now=0)
