"""Tables of pipelines beside the store's own, on both stores: made once, read, written in parts."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing

import apsw
import asyncpg
import pytest

from holdfast.core.errors import SchemaTooNew, StoreUnavailable, StoreUnusable
from holdfast.store import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.tables import TableSet, TableTransaction, table_writer
from running import run
from store_scenario import opened

FIRST = "CREATE TABLE holdfast_notes (id integer PRIMARY KEY, text text NOT NULL)"
SECOND = "ALTER TABLE holdfast_notes ADD COLUMN stars integer"
NOTES = TableSet("notes", (FIRST,))
NEWER = TableSet("notes", (FIRST, SECOND))
INSERT = "INSERT INTO holdfast_notes (id, text) VALUES ($1, $2)"
ALL = "SELECT id, text FROM holdfast_notes ORDER BY id"


def test_tables_are_made_once_and_brought_up_to_date(store_url: str) -> None:
    async def story() -> None:
        async with opened(store_url) as store:
            await store.make_tables(NOTES)
            await store.write_rows(INSERT, 1, "one")
            await store.make_tables(NOTES)
            await store.make_tables(NEWER)
            await store.make_tables(NEWER)
            rows = await store.fetch_rows("SELECT id, text, stars FROM holdfast_notes WHERE id = $1", 1)
            assert rows == [(1, "one", None)]
            with pytest.raises(SchemaTooNew, match="version 2"):
                await store.make_tables(NOTES)

    run(story())


def test_several_processes_make_the_same_tables(store_url: str) -> None:
    async def story() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            await asyncio.gather(*(store.make_tables(NEWER) for store in (one, two) for _ in range(3)))
            await two.write_rows(INSERT, 7, "seven")
            assert await one.fetch_rows(ALL) == [(7, "seven")]

    run(story())


def test_a_statement_that_writes_gives_what_it_returns(store_url: str) -> None:
    async def story() -> None:
        async with opened(store_url) as store:
            await store.make_tables(NOTES)
            assert await store.write_rows(f"{INSERT} RETURNING id", 3, "x") == [(3,)]

    run(story())


async def _prepared(store: Store) -> None:
    await store.make_tables(NOTES)


def prepared(url: str) -> None:
    async def make() -> None:
        async with opened(url) as store:
            await _prepared(store)

    run(make())


def rows_of(url: str) -> list[tuple[object, ...]]:
    async def read() -> list[tuple[object, ...]]:
        async with opened(url) as store:
            return await store.fetch_rows(ALL)

    return run(read())


def test_a_writer_writes_all_of_a_part_or_nothing(store_url: str) -> None:
    prepared(store_url)

    def good(tx: TableTransaction) -> int:
        tx.execute(INSERT, 1, "one")
        tx.execute(INSERT, 2, "two")
        assert tx.fetch(ALL) == [(1, "one"), (2, "two")]
        return tx.execute("UPDATE holdfast_notes SET text = $1", "same")

    def broken(tx: TableTransaction) -> None:
        tx.execute(INSERT, 3, "three")
        raise KeyError("in the middle")

    with closing(table_writer(store_url)) as writer:
        assert writer.write(good) == 2
        with pytest.raises(KeyError):
            writer.write(broken)
        with pytest.raises((apsw.ConstraintError, asyncpg.UniqueViolationError)):
            writer.write(lambda tx: tx.execute(INSERT, 1, "again"))
        # It goes on after a failure.
        assert writer.write(lambda tx: tx.execute(INSERT, 4, "four")) == 1
    assert rows_of(store_url) == [(1, "same"), (2, "same"), (4, "four")]


def test_many_rows_are_written_at_once(store_url: str) -> None:
    prepared(store_url)
    sql = "INSERT INTO holdfast_notes (id, text) VALUES (?, ?)"
    if not store_url.startswith("sqlite"):
        sql = "INSERT INTO holdfast_notes (id, text) SELECT * FROM unnest($1::int[], $2::text[])"
    with closing(table_writer(store_url)) as writer:
        writer.make_tables(NOTES)
        writer.write(lambda tx: tx.execute_many(sql, [(n, f"n{n}") for n in range(1_000)]))
        writer.write(lambda tx: tx.execute_many(sql, []))
    assert len(rows_of(store_url)) == 1_000


def test_a_writer_makes_tables_by_itself(store_url: str) -> None:
    async def store_opened() -> None:
        async with opened(store_url):
            await asyncio.sleep(0)

    run(store_opened())
    with closing(table_writer(store_url)) as writer:
        writer.make_tables(NEWER)
        writer.write(lambda tx: tx.execute(INSERT, 1, "one"))
        with pytest.raises(SchemaTooNew):
            writer.make_tables(NOTES)
    assert rows_of(store_url) == [(1, "one")]


def test_a_database_that_is_not_there_is_told_in_our_words(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StoreUnusable):
        table_writer(f"sqlite:///{tmp_path / 'missing' / 'x.db'}")
    with pytest.raises(StoreUnavailable):
        table_writer(f"postgresql://postgres@/nobody?host={tmp_path}&port=5432")


def test_on_sqlite_a_writer_waits_for_its_turn_and_gives_up_in_time(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(sqlite_url)
    with closing(table_writer(sqlite_url)) as writer:
        store = writer._store  # type: ignore[attr-defined]
        monkeypatch.setattr(store, "write_wait_seconds", 0.05)
        with store.write_lock, pytest.raises(StoreUnavailable, match="locked by another connection"):
            writer.write(lambda tx: tx.execute(INSERT, 1, "one"))
        assert writer.write(lambda tx: tx.execute(INSERT, 1, "one")) == 1


def test_what_is_asked_of_tables_keeps_no_reader_of_the_store_waiting(sqlite_url: str) -> None:
    may_go_on = threading.Event()

    def waits(db: apsw.Connection) -> str:
        assert may_go_on.wait(60)
        return db.execute("SELECT 'asked'").get

    async def story() -> None:
        async with opened(sqlite_url) as store:
            assert isinstance(store, SqliteStore)
            asked = asyncio.create_task(store._asking(waits))
            try:
                assert await store.execution_by_key("orders", "key") is None
                assert not asked.done()
            finally:
                may_go_on.set()
            assert await asked == "asked"

    run(story())
