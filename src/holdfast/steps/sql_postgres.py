"""sql steps on PostgreSQL.

Values come from JSON, where a date is a text. So every value is sent as text and PostgreSQL reads it as what
the statement needs: the statement is prepared once to learn the types of its parameters, and again with a
cast from text at each. Nothing is pasted, and '2024-01-01' is a date where a date is due.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg

from holdfast.core.errors import HoldfastError, TransientError
from holdfast.steps.fields import refused
from holdfast.steps.sql import Query, check_params
from holdfast.steps.sql_places import Server, connect_arguments, server_of
from holdfast.steps.sql_result import Rows, changed
from holdfast.steps.sql_text import Bound, Statement, bound, without_own_transaction
from holdfast.steps.storable import interval_text, parse_json, storable

CONNECT_SECONDS_MAX = 30.0
CLOSE_SECONDS_MAX = 5.0
ROWS_AT_A_TIME = 100
# The server's own bound, for a query whose worker is dead; the worker's own comes first.
SERVER_TIMEOUT_EXTRA_SECONDS = 5.0
SERVER_TIMEOUT_MS_MAX = 2**31 - 1

# What such a statement may not be in: a transaction, or one that it did not begin itself.
_OUTSIDE = frozenset({"25001", "2D000"})
_EPOCH = datetime(2000, 1, 1)
_closing: set[asyncio.Future[None]] = set()


async def execute(query: Query) -> dict[str, Any]:
    batch = without_own_transaction(query.statements)
    check_params(query.params, batch)
    for statement in batch:
        _refuse_copy(statement)
    server = server_of(query.url)
    db = await _connect(server, query)
    try:
        await _read_as_plain_data(db)
        return await _run(db, batch, query)
    finally:
        await _close(db)


def _refuse_copy(statement: Statement) -> None:
    if statement.verb == "COPY" and not {"STDIN", "STDOUT"}.isdisjoint(statement.words):
        raise refused(
            "The query has a COPY from or to this worker, which has nothing to copy.",
            "Use INSERT and SELECT; rows come back as the step's data.",
        )


async def _connect(server: Server, query: Query) -> Any:
    seconds = min(CONNECT_SECONDS_MAX, query.timeout_seconds)
    try:
        return await asyncpg.connect(
            **connect_arguments(server),
            timeout=seconds,
            statement_cache_size=0,  # works behind a pooler, too
        )
    except TimeoutError:
        raise TransientError(
            f"{server.shown} did not answer within {seconds:g} s.", error_type="timeout"
        ) from None
    except OSError as error:
        # Also a socket that is not there: the server is not running yet.
        raise TransientError(
            f"{server.shown} cannot be reached: {error.strerror or error}.", error_type="connection_error"
        ) from error
    except (asyncpg.InterfaceError, ValueError) as error:
        raise refused(f"The url of the database cannot be used: {error}.") from None


async def _close(db: Any) -> None:
    """Politely: a query that is under way is cancelled on the server first. Cancelled itself, it goes on."""
    closing = asyncio.ensure_future(_close_or_cut_off(db))
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)
    await asyncio.wait([closing], timeout=2 * CLOSE_SECONDS_MAX)


async def _close_or_cut_off(db: Any) -> None:
    try:
        await db.close(timeout=CLOSE_SECONDS_MAX)
    except Exception:
        db.terminate()


# ── running ──────────────────────────────────────────────────────────────────────────────────────


async def _run(db: Any, batch: list[Statement], query: Query) -> dict[str, Any]:
    try:
        return await _in_transaction(db, batch, query)
    except asyncpg.PostgresError as error:
        # Undone, and with nothing before it: VACUUM and its kind, and procedures that commit.
        if len(batch) > 1 or error.sqlstate not in _OUTSIDE:
            raise
    return await _last(db, batch[0], query, in_transaction=False)


async def _in_transaction(db: Any, batch: list[Statement], query: Query) -> dict[str, Any]:
    seconds = query.timeout_seconds + SERVER_TIMEOUT_EXTRA_SECONDS
    milliseconds = min(int(seconds * 1000), SERVER_TIMEOUT_MS_MAX)
    await db.execute(f"BEGIN; SET LOCAL statement_timeout = {milliseconds}")
    try:
        for statement in batch[:-1]:
            await db.execute(statement.text)
        output = await _last(db, batch[-1], query, in_transaction=True)
        await db.execute("COMMIT")
        return output
    except (asyncpg.PostgresError, HoldfastError, ValueError):
        await _roll_back(db)
        raise


async def _roll_back(db: Any) -> None:
    try:
        if not db.is_closed():
            await db.execute("ROLLBACK")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return  # the connection is lost, and the transaction with it; what went wrong before is told


async def _last(db: Any, statement: Statement, query: Query, *, in_transaction: bool) -> dict[str, Any]:
    prepared = bound(statement, query.params)
    text, values = await _with_casts(db, prepared)
    ready = await db.prepare(text)
    columns = [attribute.name for attribute in ready.get_attributes()]
    if not columns:
        await ready.fetch(*values)
        return changed(_changed_rows(ready.get_statusmsg()))
    rows = Rows(columns, query.rows_max, query.settings.payload_bytes_max)
    if not in_transaction:  # no cursor there; what cannot be in a transaction has few rows
        for record in await ready.fetch(*values):
            rows.add([_plain(value) for value in record.values()])
        return rows.output()
    cursor = await ready.cursor(*values)
    while not rows.is_full:
        found = await cursor.fetch(min(rows.wanted, ROWS_AT_A_TIME))
        for record in found:
            rows.add([_plain(value) for value in record.values()])
        if not found:
            break
    return rows.output()


def _changed_rows(status: str | None) -> int:
    number = (status or "").rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0


# ── values in ────────────────────────────────────────────────────────────────────────────────────


async def _with_casts(db: Any, prepared: Bound) -> tuple[str, list[Any]]:
    text = prepared.render(lambda place: f"${place + 1}")
    if not prepared.values:
        return text, []
    types = (await db.prepare(text)).get_parameters()

    def cast(place: int) -> str:
        kind = types[place]
        name = kind.name.removesuffix("[]")
        many = "[]" if kind.kind == "array" else ""
        return f"CAST(${place + 1}::text{many} AS {_quoted(kind.schema)}.{_quoted(name)}{many})"

    values = [
        _texts(value, _as_text) if kind.kind == "array" else _as_text(value)
        for kind, value in zip(types, prepared.values, strict=True)
    ]
    return prepared.render(cast), values


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        if value is not None and "\0" in value:
            raise refused("params has a NUL character, which PostgreSQL cannot hold.")
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _texts(value: Any, as_text: Callable[[Any], str | None]) -> Any:
    """For a parameter that is an array: lists of texts, as deep as they are."""
    if isinstance(value, list | tuple):
        return [_texts(each, as_text) for each in value]
    return as_text(value)


# ── values out ───────────────────────────────────────────────────────────────────────────────────


async def _read_as_plain_data(db: Any) -> None:
    """What the driver would make of these loses something: months, infinity, years before Christ."""
    readers: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
        ("json", "binary", parse_json),
        ("jsonb", "binary", lambda encoded: parse_json(encoded[1:])),
        ("interval", "tuple", lambda told: interval_text(*told)),
        ("date", "tuple", _date),
        ("timestamp", "tuple", _timestamp),
        ("timestamptz", "tuple", lambda told: _timestamp(told, UTC)),
    )
    for name, form, reader in readers:
        await db.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=reader, format=form)


def _date(told: tuple[int]) -> str:
    days = told[0]
    if abs(days) >= 2**31 - 1:
        return "infinity" if days > 0 else "-infinity"
    try:
        return (_EPOCH.date() + timedelta(days=days)).isoformat()
    except OverflowError:
        return f"{_EPOCH.date()} {days:+} days"


def _timestamp(told: tuple[int], zone: timezone | None = None) -> str:
    microseconds = told[0]
    if abs(microseconds) >= 2**63 - 1:
        return "infinity" if microseconds > 0 else "-infinity"
    try:
        return (_EPOCH.replace(tzinfo=zone) + timedelta(microseconds=microseconds)).isoformat()
    except OverflowError:
        return f"{_EPOCH.isoformat()} {microseconds:+} microseconds"


def _plain(value: Any) -> Any:
    if isinstance(value, asyncpg.Range):
        return _range(value)
    if isinstance(value, asyncpg.BitString):
        return value.as_string()
    if isinstance(value, asyncpg.Record):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _range(value: Any) -> str:
    """As PostgreSQL writes it: [1,5)."""
    if value.isempty:
        return "empty"
    lower = "" if value.lower is None else storable(value.lower)
    upper = "" if value.upper is None else storable(value.upper)
    return f"{'[' if value.lower_inc else '('}{lower},{upper}{']' if value.upper_inc else ')'}"
