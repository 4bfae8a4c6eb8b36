"""Workloads and results as JSON text, checked where they enter.

A payload is refused here with a sentence that names the fault and its place, so that nothing
half-written reaches a store: what is not JSON, what is too large or nested too deeply to be read back
anywhere, NUL characters (PostgreSQL cannot hold them), and what an encoder would change silently: NaN and
infinity, keys that are no strings (two of them may become one), and sets (their order differs by process).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast.core.errors import InvalidInput, PayloadInvalid, PayloadTooLarge
from holdfast.core.failures import Failure, failure_from_exception

PAYLOAD_BYTES_MAX_DEFAULT = 1024 * 1024
# Reading JSON recurses, and whoever reads it may have little of the interpreter's stack left.
PAYLOAD_DEPTH_MAX = 100

Member = TypeVar("Member", bound=StrEnum)

_SORTED = msgspec.json.Encoder(order="sorted")
_SYNTAX = msgspec.json.Decoder(msgspec.Raw)  # checks without building the value
_SCALARS = frozenset(
    [str, int, float, bool, type(None), bytes, Decimal, UUID, datetime, date, time, timedelta],
)
# Numbers that are JSON and that a reader may refuse: 1e999, or thousands of digits.
_MAY_BE_OUT_OF_RANGE = re.compile(r"[0-9][eE]\+?[0-9]{3}|[0-9]{300}")
_BETWEEN_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^\[\]{}"]+')


def a_type(value: object) -> str:
    """What somebody gave in place of what was asked for: `an int`, `a list`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def encode_payload(value: object, *, what: str, bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT) -> str:
    """`value` as JSON text, or an error that says what is wrong with it and where."""
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise PayloadInvalid(
            f"The {what} cannot be written as JSON: {error}.",
            guidance="Use plain data: dicts with string keys, lists, strings, numbers, booleans and None.",
        ) from error
    text = encoded.decode()
    _check(text, len(encoded), what, bytes_max)
    is_plain = _is_plain(value)
    if not is_plain:
        _check_keys_and_sets(value, what)
    if "null" in text and not (is_plain and _is_finite(value)):
        for path, leaf in _leaves(msgspec.to_builtins(value)):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise PayloadInvalid(
                    f"The {what} holds {leaf} at {path}, which JSON cannot carry.",
                    guidance="Use None or a string in its place.",
                )
    return text


def check_payload(text: str, *, what: str, bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT) -> None:
    """Refuse text that is no JSON, is too large, is nested too deeply, has numbers that nobody can read back
    or carries NUL characters."""
    try:
        size = len(text.encode())
        if size <= bytes_max:  # a text that is refused for its size anyway is not read
            _SYNTAX.decode(text)
            if _MAY_BE_OUT_OF_RANGE.search(text):
                msgspec.json.decode(text)
    except (UnicodeError, RecursionError, msgspec.MsgspecError) as error:
        raise PayloadInvalid(
            f"The {what} is not valid JSON text: {error}.", guidance="Encode it with a JSON encoder."
        ) from error
    _check(text, size, what, bytes_max)


def _check(text: str, size: int, what: str, bytes_max: int) -> None:
    """What both ways in have in common; `text` is JSON already."""
    if size > bytes_max:
        raise PayloadTooLarge(
            f"The {what} is {size:,} bytes of JSON; the limit is {bytes_max:,} bytes.",
            guidance="Keep large data in a file or object store and pass its address,"
            " or raise payload_bytes_max.",
        )
    if _is_deeper(text, PAYLOAD_DEPTH_MAX):
        raise PayloadInvalid(
            f"The {what} is nested deeper than {PAYLOAD_DEPTH_MAX} levels.",
            guidance="Flatten it, or pass the address of a file that holds it.",
        )
    # The escape may also be the tail of an escaped backslash, so look closer only when it is there.
    if "\\u0000" in text:
        for path, leaf in _leaves(msgspec.json.decode(text)):
            if isinstance(leaf, str) and "\0" in leaf:
                raise PayloadInvalid(
                    f"The {what} has a NUL character at {path}, which cannot be stored.",
                    guidance="Remove the character, or encode binary data as base64.",
                )


def _is_plain(root: object) -> bool:
    """The quick look, for every payload: all of it is dicts with string keys, lists, tuples and scalars."""
    pending = [root]
    for value in pending:  # grows on the way
        kind = type(value)
        if kind is dict:
            for key, inner in value.items():  # type: ignore[attr-defined]
                if type(key) is not str:
                    return False
                if type(inner) not in _SCALARS:
                    pending.append(inner)
        elif kind is list or kind is tuple:
            pending += [inner for inner in value if type(inner) not in _SCALARS]  # type: ignore[attr-defined]
        elif kind not in _SCALARS:
            return False
    return True


def _is_finite(root: object) -> bool:
    """The quick look for numbers that JSON writes as null, in what is plain."""
    pending = [root]
    for value in pending:  # grows on the way
        kind = type(value)
        if kind is dict:
            pending += value.values()  # type: ignore[attr-defined]
        elif kind is list or kind is tuple:
            pending += value  # type: ignore[arg-type]
        elif kind is float and not math.isfinite(value):  # type: ignore[arg-type]
            return False
    return True


def _check_keys_and_sets(root: object, what: str) -> None:
    """The slow look, with places and into records."""
    pending: list[tuple[str, Any]] = [("$", root)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise PayloadInvalid(
                        f"The {what} has the key {key!r} at {path}, which is not a string.",
                        guidance="JSON has string keys only: write str(key), or use a list of pairs.",
                    )
                pending.append((f"{path}.{key}", inner))
        elif isinstance(value, list | tuple):
            pending.extend((f"{path}[{index}]", inner) for index, inner in enumerate(value))
        elif isinstance(value, set | frozenset):
            raise PayloadInvalid(
                f"The {what} has a set at {path}, which has no order to keep.", guidance="Use a sorted list."
            )
        else:
            pending.extend((f"{path}.{name}", getattr(value, name, None)) for name in _field_names(value))


def _field_names(value: object) -> list[str]:
    """Of a record that JSON can carry: a dataclass, a msgspec or an attrs one."""
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    attributes = getattr(type(value), "__attrs_attrs__", ())
    return [*getattr(type(value), "__struct_fields__", ()), *(item.name for item in attributes)]


def _is_deeper(text: str, depth_max: int) -> bool:
    if text.count("[") + text.count("{") <= depth_max:
        return False
    depth = 0
    for bracket in _BETWEEN_BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        if depth > depth_max:
            return True
    return False


def decode_payload(text: str) -> Any:
    return msgspec.json.decode(text)


def payload_hash(text: str) -> str:
    """Of JSON text: the same for equal data, whatever the order of its keys."""
    return hashlib.blake2b(_SORTED.encode(msgspec.json.decode(text)), digest_size=16).hexdigest()


def check_name(name: object, *, what: str, length_max: int = 200) -> str:
    """A key or name that people choose: a non-empty string without control characters."""
    if not isinstance(name, str) or not name.strip():
        raise PayloadInvalid(
            f"The {what} must be a non-empty string, not {name!r}.",
            guidance="Give it a text that is more than blanks.",
        )
    if len(name) > length_max:
        raise PayloadInvalid(
            f"The {what} is {len(name)} characters long; the limit is {length_max}.",
            guidance="Shorten it.",
        )
    if not name.isprintable():
        raise PayloadInvalid(
            f"The {what} {name!r} has characters that cannot be printed.",
            guidance="Leave out control characters and line breaks.",
        )
    return name


def member(kind: type[Member], value: object, what: str) -> Member:
    """`value` as a member of an enumeration, or an error that lists the allowed ones."""
    try:
        return kind(str(value))
    except ValueError:
        allowed = ", ".join(kind)
        raise InvalidInput(f"{value!r} is not a {what}.", guidance=f"Allowed are: {allowed}.") from None


def unstorable_output(error: PayloadInvalid | PayloadTooLarge) -> Failure:
    """A result that cannot be stored, as the failure of its attempt: it would be the same next time."""
    return msgspec.structs.replace(
        failure_from_exception(error),
        user_message="The step's result cannot be stored",
        guidance=error.guidance,
    )


def _leaves(root: object) -> Iterator[tuple[str, object]]:
    """Every key and scalar with its place; a stack instead of recursion, as depth is the sender's choice."""
    pending: list[tuple[str, object]] = [("$", root)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                yield f"{path} (a key)", key
                shown = str(key).replace("\0", "\N{REPLACEMENT CHARACTER}")
                pending.append((f"{path}.{shown}", inner))
        elif isinstance(value, list | tuple | set | frozenset):
            pending.extend((f"{path}[{index}]", inner) for index, inner in enumerate(value))
        else:
            yield path, value
