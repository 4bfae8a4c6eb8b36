"""What callers get wrong, refused before a store sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.core.errors import InvalidInput, UnknownBatch, UnknownExecution, UnknownPipeline
from holdfast.core.payload import check_name

ID_MAX = 2**63 - 1
PAGE_ROWS_MAX = 1_000
VERSION_MAX = 2**31 - 1
_EVENT_ID = re.compile(r"[0-9]{1,18}\.[0-9]{1,9}(?:~[0-9.e+-]{1,32}){0,100}")
_TOKEN = re.compile(r"[0-9a-zA-Z_-]{8,64}")


def unknown_execution(execution_id: int) -> UnknownExecution:
    return UnknownExecution(
        f"There is no execution {execution_id}.",
        guidance="Check the number; finished executions may have been pruned.",
    )


def unknown_batch(batch_id: int) -> UnknownBatch:
    return UnknownBatch(
        f"There is no batch {batch_id}.",
        guidance="Check the number; a finished batch may have been pruned.",
    )


def unknown_pipeline(path: object, known: Iterable[str]) -> UnknownPipeline:
    names = ", ".join(sorted(known))
    return UnknownPipeline(
        f"There is no pipeline {path!r}.",
        guidance=f"Known are: {names}." if names else "Define it with hf.pipeline() in this program.",
    )


def is_id(value: int) -> bool:
    """Whether a store can hold it; other numbers are unknown ones, and no reason to fail their neighbours."""
    return 0 < value <= ID_MAX


def check_execution_id(value: object) -> None:
    check_id(value, "execution")


def check_id(value: object, of: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(
            f"The id of {'an' if of[0] in 'aeiou' else 'a'} {of} is a whole number, not {value!r}.",
            guidance="Use the `id` that submit gave.",
        )
    return value


def check_version(value: object, path: object) -> None:
    if not _is_whole(value):
        raise InvalidInput(
            f"A version is a whole number from 1, not {value!r}.",
            guidance=f"See which there are:  holdfast catalog list {path}",
        )


def check_token(value: object) -> str:
    """Of a lease: what a caller chooses in place of a token of ours."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise InvalidInput(
            f"{value!r} is no token of a lease.",
            guidance="Use 8 to 64 random characters of a-z, A-Z, 0-9, '_' and '-', others for each lease.",
        )
    return value


def check_request(execution_id: int, by: str = "") -> None:
    check_execution_id(execution_id)
    if not is_id(execution_id):
        raise unknown_execution(execution_id)
    if by != "":
        check_name(by, what="name of who asks")


def page_size(limit: int) -> int:
    if not _is_whole(limit) or not 1 <= limit <= PAGE_ROWS_MAX:
        raise InvalidInput(
            f"A page has 1 to {PAGE_ROWS_MAX} rows, not {limit!r}.",
            guidance="Ask for further ones behind its cursor.",
        )
    return limit


def check_share(value: object, of: str) -> None:
    """Of a lease: how many of its jobs may be of a kind; None is no bound."""
    if value is not None and not (_is_whole(value) and value >= 0):  # type: ignore[operator]
        raise InvalidInput(f"{of} of a lease must be a whole number from 0, or None, not {value!r}.")


def parse_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    known = isinstance(cursor, str) and cursor.isdecimal() and len(cursor) <= len(str(ID_MAX))
    if not known or int(cursor) > ID_MAX:
        raise InvalidInput(f"{cursor!r} is not a cursor.", guidance="Pass on `next` of the page before.")
    return int(cursor)


def check_event_id(value: object) -> None:
    if not isinstance(value, str) or not _EVENT_ID.fullmatch(value):
        raise InvalidInput(
            f"{value!r} is not an event id.", guidance="Pass on the `id` of the last event seen."
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
