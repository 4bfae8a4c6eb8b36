"""Durations that operators set for pipelines, read from the environment: a wrong one is told with its
name."""

from __future__ import annotations

from holdfast.core.errors import InvalidInput, PolicyInvalid
from holdfast.core.retry import DELAYS_COUNT_MAX, parse_duration


def seconds_of(name: str, text: str, advice: str = "") -> float:
    try:
        return parse_duration(text, field=name)
    except PolicyInvalid as error:
        raise InvalidInput(f"{error}.", guidance=advice or f"Set {name} to a duration such as 15m.") from None


def delays_of(name: str, text: str, example: str) -> tuple[float, ...]:
    advice = f"Set {name} to durations such as {example}, up to {DELAYS_COUNT_MAX} of them."
    found = tuple(seconds_of(name, part, advice) for part in parts_of(text))
    if not 1 <= len(found) <= DELAYS_COUNT_MAX:
        raise InvalidInput(f"{name} has {len(found)} durations.", guidance=advice)
    return found


def parts_of(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def as_written(seconds: float) -> str:
    """For a playbook."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
