"""Durations, sizes and counts that operators set for pipelines, read from the environment: a wrong one is
told with its name."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.errors import InvalidInput, PolicyInvalid
from holdfast.core.retry import DELAYS_COUNT_MAX, parse_duration
from holdfast.core.sizes import parse_bytes, shown_bytes


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


def bytes_of(
    environ: Mapping[str, str], name: str, default: int, *, least: int = 1, example: str = "1GB"
) -> int:
    text = environ.get(name, "").strip()
    amount = parse_bytes(text) if text else default
    if amount is None or amount < least:
        such = f"a size such as {example}"
        if least > 1:
            such = f"at least {shown_bytes(least)}, such as {example}"
        raise InvalidInput(f"{name} is {text!r}.", guidance=f"Set {name} to {such}.")
    return int(amount)


def count_of(environ: Mapping[str, str], name: str, default: int, *, least: int, most: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    if not (is_number and least <= int(text) <= most):
        comment = " (written without commas)" if most >= 1_000 else ""
        raise InvalidInput(
            f"{name} is {text!r}.", guidance=f"Set {name} to a number from {least} to {most:,}{comment}."
        )
    return int(text)
