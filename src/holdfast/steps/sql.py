"""The step type `sql`: statements for a SQLite, PostgreSQL or DuckDB database, as one transaction.

    config ──_query_of──▶ Query ──the database's own module──▶ {columns, row_count, data, truncated}

A query with templates in its text comes as its parts, which sql_literals puts together.

The last statement's rows are the output; all statements are committed together or none is. An attempt that is
cancelled or runs out of time interrupts the database. Each attempt has a connection of its own: what a step
sets or leaves behind ends with it.

Here is what all three share; what differs is in sql_sqlite, sql_postgres and sql_duckdb, each loaded when it
is first needed.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.core.payload import a_type
from holdfast.steps.fields import count_field, refused, text_field
from holdfast.steps.interface import StepCall, StepSettings
from holdfast.steps.sql_literals import with_literals
from holdfast.steps.sql_places import dialect_of
from holdfast.steps.sql_text import QUERY_CHARS_MAX, Dialect, Statement, statements

T = TypeVar("T")

ROWS_MAX_DEFAULT = 1000
# How long a database is given to end what was interrupted, and how often it is told.
INTERRUPTED_SECONDS_MAX = 5.0
INTERRUPT_EVERY_SECONDS = 0.05

_MODULES = {
    Dialect.SQLITE: "holdfast.steps.sql_sqlite",
    Dialect.POSTGRESQL: "holdfast.steps.sql_postgres",
    Dialect.DUCKDB: "holdfast.steps.sql_duckdb",
}


@dataclass(frozen=True, slots=True)
class Query:
    url: str
    statements: tuple[Statement, ...]
    params: Mapping[str, Any] | Sequence[Any]
    rows_max: int
    timeout_seconds: float
    settings: StepSettings


async def run(call: StepCall) -> dict[str, Any]:
    # A worker may begin a handler in one task and go on with it in another; timeouts belong to one.
    await asyncio.sleep(0)
    url = text_field(call.config, "url")
    dialect = dialect_of(url)
    # Taking a long query apart takes seconds, which are not the event loop's to give.
    query = await asyncio.to_thread(_query_of, call, url, dialect)
    execute = importlib.import_module(_MODULES[dialect]).execute
    output: dict[str, Any] = await execute(query)
    return output


def _query_of(call: StepCall, url: str, dialect: Dialect) -> Query:
    given = call.config.get("query")
    text = with_literals(given, dialect) if isinstance(given, list) else text_field(call.config, "query")
    if len(text) > QUERY_CHARS_MAX:
        raise refused(f"The query has {len(text):,} characters; the limit is {QUERY_CHARS_MAX:,}.")
    if "\0" in text:
        raise refused("The query has a NUL character.")
    params = call.config.get("params")
    if params is None:
        params = {}
    if isinstance(params, str) or not isinstance(params, Mapping | Sequence):
        raise refused(
            f"params must be a mapping or a list, not {a_type(params)}.",
            "Use a mapping for :name in the query, or a list for its ?.",
        )
    found = statements(text, dialect)
    if not found:
        raise refused("The query is empty.", "Write a statement, such as SELECT 1.")
    return Query(
        url=url,
        statements=found,
        params=params,
        rows_max=count_field(call.config, "rows_max", ROWS_MAX_DEFAULT),
        timeout_seconds=call.timeout_seconds,
        settings=call.settings,
    )


def check_params(params: Mapping[str, Any] | Sequence[Any], found: Sequence[Statement]) -> None:
    if params and len(found) > 1:
        raise refused(
            f"The query has {len(found)} statements and params, which belong to one.",
            "Use a step for each statement, or write the statements without params.",
        )


class Interruption:
    """Tells work in a thread that nobody waits for it any more; `interrupt` reaches into the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self.is_set = False

    def arm(self, interrupt: Callable[[], None]) -> None:
        with self._lock:
            self._interrupt = interrupt

    def disarm(self) -> None:
        """Before the connection is closed: it must not be touched afterwards."""
        with self._lock:
            self._interrupt = None

    def check(self) -> None:
        """Nothing is committed for an attempt that has ended."""
        if self.is_set:
            raise InterruptedError("the attempt has ended")

    def strike(self) -> None:
        self.is_set = True
        with self._lock:
            if self._interrupt is not None:
                self._interrupt()


async def in_thread(work: Callable[[Interruption], T]) -> T:
    """Run what blocks in a thread of its own: a pool of them could be full of queries that take hours."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    interruption = Interruption()

    def tell(result: T | None, error: BaseException | None) -> None:
        if error is None:
            ended.set_result(result)  # type: ignore[arg-type]
        else:
            ended.set_exception(error)
            ended.exception()  # taken, even where nobody waits for it any more

    def thread() -> None:
        result, raised = None, None
        try:
            result = work(interruption)
        except BaseException as error:
            raised = error
        try:
            loop.call_soon_threadsafe(tell, result, raised)
        except RuntimeError:  # the event loop has ended meanwhile
            return

    threading.Thread(target=thread, name="holdfast-sql", daemon=True).start()
    try:
        await asyncio.wait([ended])
    except asyncio.CancelledError:
        deadline = loop.time() + INTERRUPTED_SECONDS_MAX
        while not ended.done() and loop.time() < deadline:
            interruption.strike()
            await asyncio.wait([ended], timeout=INTERRUPT_EVERY_SECONDS)
        raise
    return ended.result()
