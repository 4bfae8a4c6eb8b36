"""sql steps on DuckDB: a file of the user's own, or memory that ends with the step.

DuckDB's SQL can read and write files, load extensions and reach the network. Without leave for code all of
that is switched off before the first statement, and the switches are locked.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from types import ModuleType
from typing import Any, TypeAlias

from holdfast.steps.fields import refused
from holdfast.steps.sql import Interruption, Query, check_params, in_thread
from holdfast.steps.sql_places import file_of, forbidden
from holdfast.steps.sql_result import Rows, changed
from holdfast.steps.sql_text import Statement, bound, without_own_transaction
from holdfast.steps.storable import interval_text

Row: TypeAlias = Sequence[Any]

ROWS_AT_A_TIME = 100

_ALWAYS = {
    # The variables of this process are no tables.
    "python_enable_replacements": "false",
}
_WITHOUT_LEAVE = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "memory_limit": "1GB",
    "lock_configuration": "true",
}
# They cannot run in a transaction, or do nothing there.
_OUTSIDE = frozenset(
    {"ATTACH", "CHECKPOINT", "DETACH", "FORCE", "INSTALL", "LOAD", "PRAGMA", "RESET", "SET", "USE", "VACUUM"}
)


async def execute(query: Query) -> dict[str, Any]:
    duckdb = _duckdb()
    path = file_of(query.url, query.settings)
    return await in_thread(lambda interruption: _execute(duckdb, query, path, interruption))


def _duckdb() -> ModuleType:
    try:
        importlib.import_module("pytz")  # DuckDB asks for it where a time has a zone
        return importlib.import_module("duckdb")
    except ImportError as error:
        raise refused(
            f"This worker has no DuckDB ({error}).",
            "Install it where the worker runs: pip install 'holdfast[duckdb]'.",
        ) from error


def _execute(duckdb: ModuleType, query: Query, path: str, interruption: Interruption) -> dict[str, Any]:
    batch = without_own_transaction(query.statements)
    check_params(query.params, batch)
    config = _ALWAYS if query.settings.allow_code else {**_ALWAYS, **_WITHOUT_LEAVE}
    db = duckdb.connect(path, config=dict(config))
    interruption.arm(db.interrupt)
    try:
        return _run(db, batch, query, interruption)
    except duckdb.PermissionException as error:
        raise forbidden(f"The query reaches outside its own database: {error}.") from error
    finally:
        interruption.disarm()
        db.close()


def _run(db: Any, batch: list[Statement], query: Query, interruption: Interruption) -> dict[str, Any]:
    output: dict[str, Any] = changed(0)
    rest = list(batch)
    while rest and rest[0].verb in _OUTSIDE:
        output = _statement(db, rest.pop(0), query, interruption)
    if not rest:
        return output
    db.execute("BEGIN TRANSACTION")
    try:
        for statement in rest:
            output = _statement(db, statement, query, interruption)
        interruption.check()
        db.execute("COMMIT")
    except BaseException:
        _roll_back(db)
        raise
    return output


def _roll_back(db: Any) -> None:
    try:
        db.execute("ROLLBACK")
    except Exception:
        return  # some errors end the transaction by themselves; closing ends any other


def _statement(db: Any, statement: Statement, query: Query, interruption: Interruption) -> dict[str, Any]:
    prepared = bound(statement, query.params)
    text, values = prepared.render(lambda place: "?"), list(prepared.values) or None
    db.execute(text, values)
    columns = [column[0] for column in db.description or ()]
    if columns == ["Count"] and _is_change(statement):
        found = db.fetchone()
        return changed(int(found[0]) if found else 0)
    if columns == ["Count"] and not _has_rows(statement):
        return changed(0)
    if not columns:
        return changed(0)
    if not _may_be_asked_again(statement):
        return _rows(db, columns, query, interruption, lambda row: row)
    try:
        return _rows(db, columns, query, interruption, _unambiguous)
    except _Ambiguous:
        db.execute(_with_texts(text, len(columns)), values)
        return _rows(db, columns, query, interruption, _told)


def _rows(
    db: Any, columns: list[str], query: Query, interruption: Interruption, plain: Callable[[Row], Row]
) -> dict[str, Any]:
    rows = Rows(columns, query.rows_max, query.settings.payload_bytes_max)
    while not rows.is_full:
        interruption.check()
        found = db.fetchmany(min(rows.wanted, ROWS_AT_A_TIME))
        for row in found:
            rows.add(plain(row))
        if not found:
            break
    return rows.output()


def _is_change(statement: Statement) -> bool:
    """What tells how many rows it changed, in a column of its own."""
    words = statement.words
    return not _WRITES.isdisjoint(words) and "RETURNING" not in words and statement.verb not in _READS


def _has_rows(statement: Statement) -> bool:
    return statement.verb in _READS or "RETURNING" in statement.words


_WRITES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"})
_QUERIES = frozenset({"SELECT", "FROM", "VALUES", "TABLE", "PIVOT", "UNPIVOT"})
_READS = _QUERIES | {"DESCRIBE", "SHOW", "EXPLAIN"}


# ── values out ───────────────────────────────────────────────────────────────────────────────────

# The driver gives infinity as the last or first moment that Python knows, and a month as 30 days. A query
# with such a value in its rows is asked once more, in the same transaction, with the database's own texts.
_ENDS = (date.max, date.min, datetime.max, datetime.min)
_INFINITE = ("infinity", "-infinity")
_INTERVAL = re.compile(
    r"(?:(-?\d+) years? ?)?(?:(-?\d+) months? ?)?(?:(-?\d+) days? ?)?"
    r"(?:(?P<sign>-?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<fraction>\d{1,6}))?)?"
)


# Functions that change something, or answer otherwise each time.
_CHANGING = frozenset(
    {"NEXTVAL", "RANDOM", "SETSEED", "UUID", "UUIDV4", "UUIDV7", "GEN_RANDOM_UUID", "TABLESAMPLE", "SAMPLE"}
)


class _Ambiguous(Exception):
    """A value of the driver that may stand for another one of the database."""


def _may_be_asked_again(statement: Statement) -> bool:
    """What is a query and nothing else, and answers the same again: rows of RETURNING come once."""
    is_plain_with = statement.verb == "WITH" and _WRITES.isdisjoint(statement.words)
    return (statement.verb in _QUERIES or is_plain_with) and _CHANGING.isdisjoint(statement.words)


def _with_texts(text: str, count: int) -> str:
    names = [f"c{place}" for place in range(count)]
    texts = [
        f"CASE WHEN typeof({name}) LIKE 'TIMESTAMP%' OR typeof({name}) IN ('DATE', 'INTERVAL')"
        f" THEN CAST({name} AS VARCHAR) END"
        for name in names
    ]
    inner = text.rstrip().removesuffix(";")
    # A line of its own for the bracket: the text may end in a comment.
    return f"SELECT {', '.join(names + texts)} FROM ({inner}\n) AS asked({', '.join(names)})"


def _is_ambiguous(value: Any) -> bool:
    return isinstance(value, timedelta) or (isinstance(value, date) and value in _ENDS)


def _unambiguous(row: Row) -> Row:
    if any(map(_is_ambiguous, row)):
        raise _Ambiguous
    return row


def _told(row: Row) -> Row:
    count = len(row) // 2
    return [
        _plain(value, text) if _is_ambiguous(value) else value
        for value, text in zip(row[:count], row[count:], strict=True)
    ]


def _plain(value: Any, text: str) -> Any:
    if not isinstance(value, timedelta):
        return text if text in _INFINITE else value
    match = _INTERVAL.fullmatch(text)
    if match is None:  # a form that is not known here: as the database writes it
        return text
    years, months, days = (int(part or 0) for part in match.group(1, 2, 3))
    hours, minutes, seconds = (int(part or 0) for part in match.group("hours", "minutes", "seconds"))
    microseconds = int((match["fraction"] or "").ljust(6, "0"))
    total = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + microseconds
    return interval_text(12 * years + months, days, -total if match["sign"] else total)
