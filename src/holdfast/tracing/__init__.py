"""OpenTelemetry, for those who ask for it: a span for each attempt, all those of an execution in one trace.

    spans.py    the spans: their ids, what they tell
    export.py   where they go, for a process that Holdfast's commands started

Nothing here is imported, nor needs to be installed, unless somebody asks: this is the door.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from holdfast.core.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.tracing.spans import Tracing


def tracing_of(asked: bool | Tracing) -> Tracing | None:
    """What a program asked for: True for the tracer provider that it has set up."""
    if asked is False:
        return None
    with_extra("opentelemetry.sdk.trace")
    from holdfast.tracing.spans import Tracing

    if asked is True:
        return Tracing()
    if not isinstance(asked, Tracing):
        raise InvalidInput(
            f"tracing must be True, False or a Tracing, not {asked!r}.",
            guidance="Write Holdfast(tracing=True); holdfast.tracing.spans has Tracing.",
        )
    return asked


def with_extra(module: str) -> None:
    """Refuse in words where this part of the libraries is not there."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"Tracing needs OpenTelemetry, and {error.name} is not installed.",
            guidance="Install it with pip install 'holdfast[otel]',"
            " or leave out --otel, HOLDFAST_OTEL and tracing.",
        ) from None
