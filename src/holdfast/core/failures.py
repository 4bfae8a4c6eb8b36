"""What went wrong, whether it can heal, and what to tell people.

    exception ──failure_from_exception──▶ Failure ──clean_failure──▶ Failure fit to be kept
    (in the worker)                       (crosses HTTP)             (once, in the engine)

    clean Failure ──classify──▶ Classification ──stored_error──▶ StoredError (kept, shown)

`classify` asks, in this order: what was declared (a typed exception, or the worker's report); the
playbook's own `errors:` rules; known SQLSTATEs and exception types; the HTTP status; words in the
exception's name and message. The first answer wins and its rule is named. No answer is `unknown`,
which is retried a limited number of times: a wrong "permanent" would throw work away, a wrong
"transient" only costs a few attempts, so whatever is doubtful is left unknown.

The rules are in `error_rules`, what is known in `known_errors`, the words for people in `catalogue`, and
what makes text fit to be kept in `masking`. Nothing here does I/O or raises for the sake of what it was
given: an error that cannot be described would hide the error it describes.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.catalogue import (
    CATALOGUE,
    GENERIC_TYPE,
    Category,
    category_of,
    entry_for,
    guidance_when_final,
)
from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import HoldfastError, PermanentError, TransientError
from holdfast.core.known_errors import (
    builtin_type_names,
    is_status,
    known_by_sqlstate,
    known_by_status,
    known_by_type,
    known_by_words,
    qualified_name,
    short_name,
    type_names,
)
from holdfast.core.masking import clean_message, clean_trace
from holdfast.core.retry import parse_retry_after
from holdfast.core.traces import trace_text

STORED_TRACE_CHARS = 500

# What libraries put on their errors, and what could make up any of it.
_TELLING = frozenset(
    {"response", "status_code", "status", "headers", "orig", "sqlstate", "pgcode"}
    | {"__getattr__", "__getattribute__", "__dict__"}
)


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker tells of an error: plain data, so that it can cross HTTP."""

    message: str
    exception: str = ""
    exception_types: tuple[str, ...] = ()
    error_type: str | None = None
    category: Category | None = None
    status_code: int | None = None
    sqlstate: str | None = None
    retry_after: float | None = None
    user_message: str | None = None
    guidance: str | None = None
    stack_trace: str = ""
    data: Any = None
    """What a service answered with its error, for retry conditions to read; never stored."""


class Classification(msgspec.Struct, frozen=True):
    error_type: str
    category: Category
    rule: str
    user_message: str
    guidance: str

    @property
    def should_retry(self) -> bool:
        """True for unknown errors too; how often is the policy's `unknown_attempts`."""
        return self.category is not Category.PERMANENT


class StoredError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it is kept with its job and shown to people."""

    error_type: str
    category: Category
    message: str
    stage: str
    timestamp: float
    retry_count: int
    user_message: str
    guidance: str
    rule: str
    stack_trace: str
    final: bool = False


# ── classify ─────────────────────────────────────────────────────────────────────────────────────


def classify(failure: Failure, rules: Sequence[ErrorRule] = ()) -> Classification:
    """Name the error and say whether it can heal; never raises."""
    declared = failure.error_type or None
    if failure.category is not None:
        error_type = declared or GENERIC_TYPE[failure.category]
        return _classification(failure, error_type, failure.category, _who_declared(failure))

    names = _all_names(failure)
    for number, rule in enumerate(rules, start=1):
        if rule.matches(names=names, status=failure.status_code, message=failure.message):
            return _classification(
                failure,
                rule.error_type,
                rule.category or category_of(rule.error_type),
                f"errors rule {number}: {rule.describe()}",
                user_message=rule.user_message,
                guidance=rule.guidance,
            )

    if declared is not None and declared in CATALOGUE:
        return _classification(failure, declared, category_of(declared), "reported by the worker")

    known = (
        known_by_sqlstate(failure.sqlstate)
        or known_by_type(failure.exception_types or builtin_type_names(failure.exception), failure.message)
        or known_by_status(failure.status_code)
        or known_by_words(failure.exception, failure.message)
    )
    error_type, told_by = known or ("unknown", "no rule matched")
    # A type of the worker's own keeps its name; what is known only tells its category.
    return _classification(failure, declared or error_type, category_of(error_type), told_by)


def _classification(
    failure: Failure,
    error_type: str,
    category: Category,
    rule: str,
    *,
    user_message: str | None = None,
    guidance: str | None = None,
) -> Classification:
    entry = entry_for(error_type, category)
    return Classification(
        error_type,
        category,
        rule,
        user_message or failure.user_message or entry.user_message,
        guidance or failure.guidance or entry.guidance,
    )


def _who_declared(failure: Failure) -> str:
    for kind in (TransientError, PermanentError):
        if qualified_name(kind) in failure.exception_types:
            return f"raised as {kind.__name__}"
    return "reported by the worker"


def _all_names(failure: Failure) -> set[str]:
    """Every name the exception goes by: each class of it, short and qualified."""
    qualified = {failure.exception, *failure.exception_types} - {""}
    return qualified | {short_name(name) for name in qualified}


# ── from an exception to plain data ──────────────────────────────────────────────────────────────


def failure_from_exception(exc: BaseException, *, now: float | None = None) -> Failure:
    """Describe an exception as plain data. `now` (epoch seconds) lets Retry-After dates count."""
    name = type(exc).__qualname__
    tells = _tells_more(exc)
    response = _attribute(exc, "response") if tells else None
    category = error_type = user_message = guidance = data = None
    if isinstance(exc, TransientError | PermanentError):
        category = Category.TRANSIENT if isinstance(exc, TransientError) else Category.PERMANENT
        error_type = _text_attribute(exc, "error_type")
        user_message = _text_attribute(exc, "user_message")
        guidance = _text_attribute(exc, "guidance")
    elif isinstance(exc, HoldfastError):  # what was done wrong with us, we know best
        user_message = _text_attribute(exc, "user_message")
        guidance = _text_attribute(exc, "guidance")
        data = exc.__dict__.get("answered")
    return Failure(
        message=_message_of(exc, name),
        exception=name,
        exception_types=type_names(type(exc)),
        error_type=error_type,
        category=category,
        status_code=_status_code(exc, response) if tells else None,
        sqlstate=sqlstate_of(exc) if tells else None,
        retry_after=_retry_after(exc, response, now, tells),
        user_message=user_message,
        guidance=guidance,
        stack_trace=_trace_of(exc),
        data=data,
    )


def _tells_more(exc: BaseException) -> bool:
    """Whether it has any attribute of a library's error. Most have none, and are not asked for each."""
    for kind in type(exc).__mro__:
        if kind is BaseException or kind is object:
            continue  # a mixin may stand behind them
        if not _TELLING.isdisjoint(kind.__dict__):
            return True
    return not _TELLING.isdisjoint(exc.__dict__)


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except Exception:  # a property may do anything; httpx's `response` raises when there is none
        return None


def _text_attribute(owner: object, name: str) -> str | None:
    value = _attribute(owner, name)
    return clean_message(value) if isinstance(value, str) and value else None


def _item(owner: object, key: str) -> object:
    get = _attribute(owner, "get")
    try:
        return get(key) if callable(get) else None
    except Exception:
        return None


def _status_code(exc: BaseException, response: object) -> int | None:
    candidates = [_attribute(owner, name) for owner in (exc, response) for name in ("status_code", "status")]
    # botocore keeps its response as nested mappings.
    candidates.append(_item(_item(response, "ResponseMetadata"), "HTTPStatusCode"))
    for value in candidates:
        if isinstance(value, int) and is_status(value):
            return int(value)
    return None


def sqlstate_of(exc: BaseException) -> str | None:
    # SQLAlchemy wraps the driver's error and keeps it as `orig`.
    for owner in (exc, _attribute(exc, "orig")):
        for name in ("sqlstate", "pgcode"):
            value = _attribute(owner, name)
            if isinstance(value, str) and re.fullmatch(r"[0-9A-Za-z]{5}", value):
                return value.upper()
    return None


def _retry_after(exc: BaseException, response: object, now: float | None, tells: bool) -> float | None:
    candidates = []
    if isinstance(exc, TransientError | PermanentError):
        candidates.append(_attribute(exc, "retry_after"))
    for owner in (response, exc) if tells else ():
        headers = _attribute(owner, "headers")
        candidates += [_item(headers, "Retry-After"), _item(headers, "retry-after")]
    for value in candidates:
        if isinstance(value, str | int | float):
            seconds = parse_retry_after(value, now)
            if seconds is not None:
                return seconds
    return None


def _message_of(exc: BaseException, name: str) -> str:
    try:
        text = str(exc)
    except Exception:
        text = f"{name} (its message could not be read)"
    if isinstance(exc, KeyError):  # its text is nothing but the key
        text = f"{name}: {text}"
    return clean_message(text if text.strip() else name)


def _trace_of(exc: BaseException) -> str:
    try:
        text = trace_text(exc)
    except Exception:
        return ""
    return clean_trace(text)


# ── from a failure to what is kept ───────────────────────────────────────────────────────────────


def clean_failure(failure: Failure) -> Failure:
    """What a worker reported, fit to be kept and shown: secrets masked, bounded, no NUL, no surrogates.

    The engine cleans each report once, before it classifies it. `exception_types` stay as they came: they
    are compared with known names and never kept.
    """
    return msgspec.structs.replace(
        failure,
        message=clean_message(failure.message),
        exception=clean_message(failure.exception),
        error_type=failure.error_type and clean_message(failure.error_type),
        user_message=failure.user_message and clean_message(failure.user_message),
        guidance=failure.guidance and clean_message(failure.guidance),
        sqlstate=failure.sqlstate and clean_message(failure.sqlstate),
        stack_trace=clean_trace(failure.stack_trace),
    )


def stored_error(
    failure: Failure,
    classification: Classification,
    *,
    stage: str,
    timestamp: float,
    retry_count: int,
    final: bool,
) -> StoredError:
    """The error as it is kept. It relies on a clean failure, and on a classification of that."""
    guidance = classification.guidance
    if final:
        guidance = guidance_when_final(classification.error_type, classification.category, guidance)
    return StoredError(
        error_type=classification.error_type,
        category=classification.category,
        message=failure.message,
        stage=stage,
        timestamp=timestamp,
        retry_count=retry_count,
        user_message=classification.user_message,
        guidance=guidance,
        rule=classification.rule,
        stack_trace=failure.stack_trace[-STORED_TRACE_CHARS:],
        final=final,
    )
