"""Tables of pipelines, in the same database as the store's own and beside them.

They are made when they are first needed, version by version, under names of the pipeline's own. SQL is
written once for both stores: places are `$1, $2`, and `holdfast_` before a table's name is the project's
schema on PostgreSQL. What must commit with the completion of a step goes through `ctx.transaction()`; what is
too much for that is written in parts by a `TableWriter`, whose connection is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.core.errors import SchemaTooNew

T = TypeVar("T")
Row = tuple[Any, ...]


class TableSet(NamedTuple):
    """`versions` are scripts, the first of which makes the tables; none of them is changed once released."""

    name: str
    versions: tuple[str, ...]


class TablesStore(Protocol):
    """The part of a store that pipelines keep tables in."""

    dialect: str
    """sqlite or postgresql."""

    async def make_tables(self, tables: TableSet) -> None:
        """Make them, or bring them up to date; harmless where that has been done."""

    async def fetch_rows(self, sql: str, *arguments: Any) -> list[Row]:
        """What a statement reads that changes nothing."""

    async def write_rows(self, sql: str, *arguments: Any) -> list[Row]:
        """Run one statement that writes, in a transaction of its own; what it returns."""


class TableTransaction(Protocol):
    def execute(self, sql: str, *arguments: Any) -> int:
        """How many rows the statement changed."""

    def fetch(self, sql: str, *arguments: Any) -> list[Row]: ...

    def execute_many(self, sql: str, rows: Sequence[Row]) -> None:
        """On SQLite, once for each row; on PostgreSQL once, with a list for each column."""


class TableWriter(Protocol):
    """A connection for a handler that runs in a thread, used by that thread alone. It raises what the verbs
    of the store raise."""

    dialect: str

    def make_tables(self, tables: TableSet) -> None: ...

    def write(self, action: Callable[[TableTransaction], T]) -> T:
        """One transaction: all that the action does, or nothing. Keep it short: on SQLite nobody else writes
        meanwhile."""

    def close(self) -> None: ...


def table_writer(url: str) -> TableWriter:
    """On the database of this address."""
    if url.partition(":")[0].lower() == "sqlite":
        from holdfast.store.sqlite_tables import SqliteTableWriter

        return SqliteTableWriter(url)
    from holdfast.store.postgres_tables import PostgresTableWriter

    return PostgresTableWriter(url)


def versions_to_apply(tables: TableSet, found: int | None) -> Sequence[str]:
    if found is not None and found > len(tables.versions):
        raise SchemaTooNew(
            f"The tables of {tables.name} have version {found}; this Holdfast knows {len(tables.versions)}.",
            guidance="They were made by a newer Holdfast. Install that one here, too.",
        )
    return tables.versions[found or 0 :]
