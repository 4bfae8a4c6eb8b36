"""sql steps on a SQLite file of the user's own.

Without leave for code a query can reach its own file only: ATTACH, VACUUM INTO and extensions are refused by
SQLite itself, asked for every statement it compiles. Holdfast's own database is refused as well: it holds the
work of everybody.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.core.errors import PermanentError
from holdfast.steps.fields import refused
from holdfast.steps.sql import Interruption, Query, check_params, in_thread
from holdfast.steps.sql_places import IN_MEMORY, file_of, forbidden
from holdfast.steps.sql_result import Rows, changed
from holdfast.steps.sql_text import Statement, bound, without_own_transaction

BUSY_SECONDS_MAX = 10.0
BUSY_LOOK_SECONDS = 0.01
PROGRESS_EVERY_OPERATIONS = 10_000
VALUE_BYTES_MAX = 256 * 1024 * 1024

_READS = frozenset({"SELECT", "VALUES", "EXPLAIN", "PRAGMA"})
_WRITES = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE"})
# They cannot run in a transaction, or do nothing there.
_OUTSIDE = frozenset({"PRAGMA", "VACUUM", "ATTACH", "DETACH"})
_OWN_TABLES = frozenset({"claim_groups", "definitions", "executions", "jobs", "events"})
# They reach beyond their own connection: to the whole process (and so to a store in it), to other folders, or
# past the busy handler, which alone knows that nobody waits any more.
_FORBIDDEN_PRAGMAS = frozenset(
    {"temp_store_directory", "data_store_directory", "hard_heap_limit", "soft_heap_limit", "busy_timeout"}
)
_TRIGGER = re.compile(r"(EXPLAIN (QUERY PLAN )?)?CREATE (TEMP |TEMPORARY )?TRIGGER( |$)")


async def execute(query: Query) -> dict[str, Any]:
    path = file_of(query.url, query.settings)
    return await in_thread(lambda interruption: _execute(query, path, interruption))


def _execute(query: Query, path: str, interruption: Interruption) -> dict[str, Any]:
    batch = without_own_transaction(_whole(query.statements))
    check_params(query.params, batch)
    db = apsw.Connection(path)
    try:
        _prepare(db, query, path, interruption)
        try:
            return _run(db, batch, query, interruption)
        except (apsw.AuthError, apsw.SQLError) as error:
            if isinstance(error, apsw.SQLError) and "not authorized" not in str(error):
                raise
            raise forbidden(f"The query reaches outside its own database: {error}.") from error
    finally:
        db.close(True)


def _whole(found: Sequence[Statement]) -> list[Statement]:
    """A trigger has semicolons within, and ends as SQLite has it: at an END that stands alone."""
    whole: list[Statement] = []
    begun: list[Statement] = []
    for statement in found:
        begun.append(statement)
        is_trigger = _TRIGGER.match(" ".join(begun[0].words[:6])) is not None
        if not is_trigger or statement.words == ("END",):
            whole.append(_joined(begun))
            begun = []
    return [*whole, _joined(begun)] if begun else whole


def _joined(parts: Sequence[Statement]) -> Statement:
    return Statement(tuple(token for part in parts for token in part.tokens))


def _prepare(db: apsw.Connection, query: Query, path: str, interruption: Interruption) -> None:
    deadline = min(BUSY_SECONDS_MAX, query.timeout_seconds)
    since: list[float] = []

    def is_busy(times: int) -> bool:
        if times == 0:
            since[:] = [time.monotonic()]
        time.sleep(BUSY_LOOK_SECONDS)
        return not interruption.is_set and time.monotonic() - since[0] < deadline

    db.set_busy_handler(is_busy)
    db.set_progress_handler(lambda: interruption.is_set, PROGRESS_EVERY_OPERATIONS)
    db.limit(apsw.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    if query.settings.allow_code:
        return
    if path != IN_MEMORY:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if tables >= _OWN_TABLES:
            raise PermanentError(
                f"{path} is the database of Holdfast itself.",
                error_type="target_forbidden",
                user_message="The step may not reach this database",
                guidance="Keep your own tables in a file of their own.",
            )
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.authorizer = _authorize


def _authorize(
    operation: int, first: str | None, second: str | None, database: str | None, trigger: str | None
) -> int:
    is_refused = (
        (operation == apsw.SQLITE_ATTACH and first not in ("", IN_MEMORY))
        or (operation == apsw.SQLITE_FUNCTION and (second or "").lower() == "load_extension")
        or (operation == apsw.SQLITE_PRAGMA and (first or "").lower() in _FORBIDDEN_PRAGMAS)
    )
    return apsw.SQLITE_DENY if is_refused else apsw.SQLITE_OK


def _run(
    db: apsw.Connection, batch: list[Statement], query: Query, interruption: Interruption
) -> dict[str, Any]:
    output: dict[str, Any] = changed(0)
    rest = list(batch)
    while len(rest) > 1 and rest[0].verb in _OUTSIDE:
        output = _statement(db, rest.pop(0), query)
    if len(rest) == 1:  # a transaction by itself
        return _statement(db, rest[0], query)
    db.execute("BEGIN IMMEDIATE" if any(map(_is_write, rest)) else "BEGIN")
    try:
        for statement in rest:
            output = _statement(db, statement, query)
        interruption.check()
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return output


def _is_write(statement: Statement) -> bool:
    if statement.verb == "WITH":
        return not _WRITES.isdisjoint(statement.words)
    return statement.verb not in _READS


def _statement(db: apsw.Connection, statement: Statement, query: Query) -> dict[str, Any]:
    prepared = bound(statement, query.params)
    columns: list[str] = []

    def seen(cursor: apsw.Cursor, text: str, values: object) -> bool:
        # Once it runs, a statement that yields nothing no longer tells its columns.
        columns[:] = [column[0] for column in cursor.get_description()]
        return True

    before = db.total_changes()
    cursor = db.cursor()
    cursor.exec_trace = seen
    try:
        found = cursor.execute(prepared.render(lambda place: "?"), [_value(each) for each in prepared.values])
        rows = Rows(columns, query.rows_max, query.settings.payload_bytes_max)
        for row in found:
            rows.add(row)
            if rows.is_full:
                break
    finally:
        cursor.close(True)
    if columns:
        return rows.output()
    return changed(db.changes() if db.total_changes() != before else 0)


def _value(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise refused("params has a whole number of more than 64 bits.", "Give it as a text.")
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return value
