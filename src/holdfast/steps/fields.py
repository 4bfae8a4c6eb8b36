"""The fields of a step's config, read after their templates were rendered.

What a playbook says is checked when it is registered; what its templates yield is known only here. A field
that is null counts as not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.errors import InvalidInput, PermanentError, settings_refused
from holdfast.core.payload import a_type
from holdfast.core.retry import parse_duration


def refused(message: str, guidance: str = "") -> PermanentError:
    """The step cannot be run with this config, now or later."""
    return settings_refused(
        message, guidance or "Correct the step in its playbook, or what its templates are given."
    )


def text_field(config: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise refused(f"The step has no {name}.", f"Give it one: `{name}: …`.")
    if not isinstance(value, str):
        raise refused(f"{name} must be a text, not {a_type(value)}.")
    return value


def flag_field(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refused(f"{name} must be true or false, not {a_type(value)}.")
    return value


def count_field(config: Mapping[str, Any], name: str, default: int, *, minimum: int = 1) -> int:
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise refused(f"{name} must be a whole number from {minimum} on, not {_shown(value)}.")
    return value


def seconds_field(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name)
    if value is None:
        return default
    try:
        seconds = parse_duration(value, field=name)
    except InvalidInput as error:
        raise refused(str(error), error.guidance) from None
    if seconds <= 0:
        raise refused(f"{name} must be more than nothing, not {_shown(value)}.")
    return seconds


def mapping_field(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refused(f"{name} must be a mapping, not {a_type(value)}.")
    for key in value:
        if not isinstance(key, str):
            raise refused(f"{name} has the key {_shown(key)}, which is no text.")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
