"""Amounts of memory, as people write and read them: 512MB, 2 GB."""

import re

_UNITS = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGT]?)I?(B?)", re.IGNORECASE)


def parse_bytes(value: object) -> float | None:
    """A whole number, or a text with a unit; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _AMOUNT.fullmatch(value.strip())):
        number, prefix, _ = match.groups()
        return float(number) * _UNITS[f"{prefix.upper()}B"]
    return None


def shown_bytes(count: int) -> str:
    for unit in ("GB", "MB", "KB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.4g} {unit}"
    return f"{count} bytes"
