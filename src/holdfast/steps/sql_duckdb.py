"""sql steps on DuckDB: a file of the user's own, or memory that ends with the step.

DuckDB's SQL can read and write files, load extensions and reach the network. Without leave for code all of
that is switched off before the first statement, and the switches are locked.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from holdfast.steps.fields import refused
from holdfast.steps.sql import Interruption, Query, check_params, in_thread
from holdfast.steps.sql_places import file_of, forbidden
from holdfast.steps.sql_result import Rows, changed
from holdfast.steps.sql_text import Statement, bound, without_own_transaction

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
    db.execute(prepared.render(lambda place: "?"), list(prepared.values) or None)
    columns = [column[0] for column in db.description or ()]
    if columns == ["Count"] and _is_change(statement):
        found = db.fetchone()
        return changed(int(found[0]) if found else 0)
    if columns == ["Count"] and not _has_rows(statement):
        return changed(0)
    rows = Rows(columns, query.rows_max, query.settings.payload_bytes_max)
    while not rows.is_full:
        interruption.check()
        found = db.fetchmany(min(rows.wanted, ROWS_AT_A_TIME))
        for row in found:
            rows.add(row)
        if not found:
            break
    return rows.output() if columns else changed(0)


def _is_change(statement: Statement) -> bool:
    """What tells how many rows it changed, in a column of its own."""
    words = statement.words
    return not _WRITES.isdisjoint(words) and "RETURNING" not in words and statement.verb not in _READS


def _has_rows(statement: Statement) -> bool:
    return statement.verb in _READS or "RETURNING" in statement.words


_WRITES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"})
_READS = frozenset({"SELECT", "FROM", "VALUES", "TABLE", "PIVOT", "UNPIVOT", "DESCRIBE", "SHOW", "EXPLAIN"})
