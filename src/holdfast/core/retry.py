"""When a failed attempt is tried again: durations, the retry policy, and its delays.

A policy arrives in many spellings (`retry: true`, `retry: 5`, a mapping with "15m" in it, explicit
`delays`) and leaves its constructor concrete: every field holds the value that will be used, so
nobody downstream asks what a missing one means. Whether to retry at all is decided elsewhere; this
file only knows how long to wait. The draw for the jitter and the time of day are arguments.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Self

from holdfast.core.errors import PolicyInvalid

MAX_ATTEMPTS_DEFAULT = 3
MAX_ATTEMPTS_MAX = 1000
INITIAL_DELAY_SECONDS_DEFAULT = 1.0
BACKOFF_MULTIPLIER_DEFAULT = 2.0
MAX_DELAY_SECONDS_DEFAULT = 60.0
DELAYS_COUNT_MAX = 100
EXPRESSION_CHARS_MAX = 2000
JITTER_LOW, JITTER_HIGH = 0.5, 1.5
RETRY_AFTER_MAX_SECONDS = 3600.0
# A century: longer ones are typing errors, and would leave the range of a timestamp.
DURATION_SECONDS_MAX = 36_500 * 86_400.0

DURATION_FORMS = "seconds (90, 0.5) or a text such as '90', '90s', '15m', '2h', '1d', '500ms', '1h30m'"

Duration = float | str

_NUMBER = r"(\d+(?:\.\d+)?)"
_SECONDS_TEXT = re.compile(_NUMBER, re.ASCII)
_UNITS_TEXT = re.compile(
    rf"(?:{_NUMBER}d)?\s*(?:{_NUMBER}h)?\s*(?:{_NUMBER}m)?\s*(?:{_NUMBER}s)?\s*(?:{_NUMBER}ms)?",
    re.ASCII | re.IGNORECASE,
)
_UNIT_SECONDS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
_RETRY_AFTER_CHARS_MAX = 100


def parse_duration(value: object, *, field: str = "duration") -> float:
    """Seconds from a number or a text with units."""
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
    elif isinstance(value, str):
        seconds = _duration_from_text(value.strip())
    # Written so that NaN, which compares false to everything, is refused as well.
    if seconds is None or not 0 <= seconds <= DURATION_SECONDS_MAX:
        raise PolicyInvalid(
            f"{field} cannot be {_shown(value)}: allowed is {DURATION_FORMS}, from 0 to 36500 days",
            guidance=f"Correct the value of {field}.",
        )
    return seconds


def checked_seconds(value: object, field: str) -> float:
    """A duration, as `parse_duration` reads it, that is longer than 0 seconds."""
    seconds = parse_duration(value, field=field)
    if seconds <= 0:
        raise PolicyInvalid(
            f"{field} must be longer than 0 seconds.", guidance=f"Correct the value of {field}."
        )
    return seconds


def _duration_from_text(text: str) -> float | None:
    if _SECONDS_TEXT.fullmatch(text):
        return float(text)
    match = _UNITS_TEXT.fullmatch(text)
    if match is None or not text:
        return None
    return sum(float(n) * unit for n, unit in zip(match.groups(), _UNIT_SECONDS, strict=True) if n)


def parse_retry_after(value: str | int | float | None, now: float | None) -> float | None:
    """Seconds to wait from a Retry-After header: a number of seconds or an HTTP date.

    A date in the past is 0.0 and junk is None. Without `now` (epoch seconds) dates are None too.
    """
    if isinstance(value, str):
        text = value.strip()
        if _SECONDS_TEXT.fullmatch(text):
            value = float(text)
        elif now is not None and len(text) <= _RETRY_AFTER_CHARS_MAX:
            return _seconds_until(text, now)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(min(value, DURATION_SECONDS_MAX))
    return None


def _seconds_until(http_date: str, now: float) -> float | None:
    try:
        moment = parsedate_to_datetime(http_date)
        if moment.tzinfo is None:  # "-0000": UTC, of unknown origin
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class RetryPolicy:
    """How often, and after which delays, a step is tried again."""

    max_attempts: int
    initial_delay: float
    backoff_multiplier: float
    max_delay: float
    jitter: bool
    delays: tuple[float, ...] | None
    retry_when: str | None
    stop_when: str | None
    unknown_attempts: int
    wave: bool

    # Written by hand rather than generated: the arguments are what people may write (durations as
    # texts, None for "the default"), the fields are what the engine reads, always concrete.
    def __init__(
        self,
        *,
        max_attempts: int | None = None,
        initial_delay: Duration | None = None,
        backoff_multiplier: float | None = None,
        max_delay: Duration | None = None,
        jitter: bool | None = None,
        delays: Sequence[Duration] | None = None,
        retry_when: str | None = None,
        stop_when: str | None = None,
        unknown_attempts: int | None = None,
        wave: bool | None = None,
    ) -> None:
        if delays is not None:
            _refuse_both(
                initial_delay=initial_delay, backoff_multiplier=backoff_multiplier, max_delay=max_delay
            )
        explicit = None if delays is None else _delays(delays)
        attempts_default = MAX_ATTEMPTS_DEFAULT if explicit is None else len(explicit) + 1
        attempts = _whole("max_attempts", max_attempts, attempts_default, MAX_ATTEMPTS_MAX)
        values: dict[str, object] = {
            "max_attempts": attempts,
            "initial_delay": _seconds("initial_delay", initial_delay, INITIAL_DELAY_SECONDS_DEFAULT),
            "backoff_multiplier": _multiplier(backoff_multiplier),
            "max_delay": _seconds("max_delay", max_delay, MAX_DELAY_SECONDS_DEFAULT),
            # Explicit delays are used exactly as written, unless jitter is asked for beside them.
            "jitter": _yes_or_no("jitter", jitter, explicit is None),
            "delays": explicit,
            "retry_when": _expression("retry_when", retry_when),
            "stop_when": _expression("stop_when", stop_when),
            "unknown_attempts": _whole("unknown_attempts", unknown_attempts, attempts, attempts),
            "wave": _yes_or_no("wave", wave, False),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def once(cls) -> Self:
        """A single attempt, no retry."""
        return cls(max_attempts=1)

    @classmethod
    def from_shorthand(cls, value: object, default: "RetryPolicy | None" = None) -> "RetryPolicy":
        """The policy behind whatever was written after `retry:`; absent (None) is the default's."""
        if value is None:
            return cls.once() if default is None else default
        if isinstance(value, RetryPolicy):
            return value
        if isinstance(value, bool):
            return cls() if value else cls.once()
        if isinstance(value, int):
            return cls(max_attempts=value)
        if isinstance(value, Mapping):
            allowed = [field.name for field in fields(cls)]
            unknown = [_shown(key) for key in value if key not in allowed]
            if unknown:
                raise PolicyInvalid(
                    f"retry has no field {', '.join(unknown)}; allowed are {', '.join(allowed)}",
                    guidance="Correct the spelling, or remove the field.",
                )
            return cls(**value)
        raise PolicyInvalid(
            f"retry cannot be {_shown(value)}: allowed is true, false, a number of attempts, or a mapping",
            guidance="Write for example `retry: 3` or `retry: {max_attempts: 3, initial_delay: 5s}`.",
        )

    @property
    def retries_total(self) -> int:
        """How many attempts there are after the first."""
        return self.max_attempts - 1

    def delay_after(self, attempt: int, draw: float, retry_after: float | None = None) -> float:
        """Seconds to wait after failed attempt `attempt` (from 1).

        `draw` is the caller's uniform draw from 0.5 to 1.5, used where the policy has jitter.
        """
        if attempt < 1:
            raise ValueError(f"attempts are numbered from 1, got {attempt}")
        if self.jitter and not JITTER_LOW <= draw <= JITTER_HIGH:
            raise ValueError(f"the draw must be from {JITTER_LOW} to {JITTER_HIGH}, got {draw}")
        factor = draw if self.jitter else 1.0
        if self.delays is not None:
            delay = self.delays[min(attempt, len(self.delays)) - 1] * factor
        else:
            delay = min(self._exponential(attempt) * factor, self.max_delay)
        # NaN fails the comparison, so a nonsensical wish changes nothing.
        if retry_after is not None and retry_after > delay:
            delay = max(delay, min(float(retry_after), RETRY_AFTER_MAX_SECONDS))
        return delay

    def _exponential(self, attempt: int) -> float:
        try:
            delay = self.initial_delay * self.backoff_multiplier ** (attempt - 1)
        except OverflowError:
            delay = math.inf if self.initial_delay else 0.0
        return min(delay, self.max_delay)

    def to_dict(self) -> dict[str, object]:
        """Plain data that `from_shorthand` turns back into an equal policy."""
        data: dict[str, object] = {"max_attempts": self.max_attempts}
        if self.delays is not None:
            data["delays"] = list(self.delays)
        else:
            data["initial_delay"] = self.initial_delay
            data["backoff_multiplier"] = self.backoff_multiplier
            data["max_delay"] = self.max_delay
        data["jitter"] = self.jitter
        data["unknown_attempts"] = self.unknown_attempts
        data["wave"] = self.wave
        for name, expression in (("retry_when", self.retry_when), ("stop_when", self.stop_when)):
            if expression is not None:
                data[name] = expression
        return data


# The fields are annotated as they should be written, and checked as if they were anything: they come
# from YAML and JSON.


def _refuse_both(**exponential: object) -> None:
    written = [name for name, value in exponential.items() if value is not None]
    if written:
        raise PolicyInvalid(
            f"delays and {', '.join(written)} are written together, and delays replaces them",
            guidance=f"Keep delays, or keep {', '.join(written)}; not both.",
        )


def _delays(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= DELAYS_COUNT_MAX:
        raise PolicyInvalid(
            f"delays cannot be {_shown(value)}: allowed is a list of 1 to {DELAYS_COUNT_MAX} durations",
            guidance="Write for example `delays: [60, 180, 600]` or `delays: [1m, 3m, 10m]`.",
        )
    return tuple(parse_duration(delay, field=f"delays[{index}]") for index, delay in enumerate(value))


def _seconds(field: str, value: object, default: float) -> float:
    return default if value is None else parse_duration(value, field=field)


def _whole(field: str, value: object, default: int, maximum: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        limit = f"{maximum} (max_attempts)" if field == "unknown_attempts" else str(maximum)
        raise PolicyInvalid(
            f"{field} cannot be {_shown(value)}: allowed is a whole number from 1 to {limit}",
            guidance="Both count runs in all, the first included.",
        )
    return value


def _multiplier(value: object) -> float:
    if value is None:
        return BACKOFF_MULTIPLIER_DEFAULT
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if 1 <= number < math.inf:
            return number
    raise PolicyInvalid(
        f"backoff_multiplier cannot be {_shown(value)}: allowed is a number from 1 up",
        guidance="Write 1 for equal delays, 2 to double each one.",
    )


def _yes_or_no(field: str, value: object, default: bool) -> bool:
    if value is None:
        return default
    if not isinstance(value, bool):
        raise PolicyInvalid(
            f"{field} cannot be {_shown(value)}: allowed is true or false",
            guidance=f"Write `{field}: true` or `{field}: false`.",
        )
    return value


def _expression(field: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= EXPRESSION_CHARS_MAX:
        raise PolicyInvalid(
            f"{field} cannot be {_shown(value)}: "
            f"allowed is an expression of 1 to {EXPRESSION_CHARS_MAX} characters",
            guidance=f'Write for example `{field}: "{{{{ status_code >= 500 }}}}"`.',
        )
    return value


def _shown(value: object) -> str:
    """The value as the writer would recognise it, bounded."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python agrees to print
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:79]}…"
