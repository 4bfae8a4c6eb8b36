"""What submit on a caller's connection refuses, and that a refusal harms neither the caller nor the data."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from caller_connections import ASYNC_KINDS, KINDS, SYNC_KINDS, for_sqlalchemy
from holdfast import Context, Holdfast, HoldfastError, InvalidInput, UnknownName
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.core.errors import SchemaTooNew, SchemaTooOld, StoreUnusable
from holdfast.store.foreign import with_names
from holdfast.testing import AsyncRehearsal
from running import run


async def noop(ctx: Context) -> None: ...


def shop(url: str) -> Holdfast:
    hf = Holdfast(url)
    hf.pipeline("confirm", [noop])
    return hf


async def make_tables(url: str) -> None:
    async with shop(url):
        pass


def count(url: str) -> int:
    with psycopg.connect(url) as connection:
        [(found,)] = connection.execute("SELECT count(*) FROM holdfast.executions").fetchall()
    return int(found)


async def asyncpg_outside(url: str, submit: Callable[[Any], Any]) -> None:
    connection = await asyncpg.connect(url)
    try:
        await submit(connection)
        assert not connection.is_in_transaction()
    finally:
        await connection.close()


async def psycopg_outside(url: str, submit: Callable[[Any], Any]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        await submit(connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def psycopg_async_outside(url: str, submit: Callable[[Any], Any]) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await submit(connection)


async def sqlalchemy_outside(url: str, submit: Callable[[Any], Any]) -> None:
    engine = sa.create_engine(
        for_sqlalchemy(url, "psycopg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    with engine.connect() as connection:
        await submit(connection)


async def sqlalchemy_async_outside(url: str, submit: Callable[[Any], Any]) -> None:
    engine = create_async_engine(
        for_sqlalchemy(url, "asyncpg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    async with engine.connect() as connection:
        await submit(connection)


@pytest.mark.parametrize(
    ("outside", "word"),
    [
        (asyncpg_outside, "async with connection.transaction()"),
        (psycopg_outside, "`with connection.transaction()"),
        (psycopg_async_outside, "async with connection.transaction()"),
        (sqlalchemy_outside, "AUTOCOMMIT"),
        (sqlalchemy_async_outside, "AUTOCOMMIT"),
    ],
)
def test_a_connection_outside_of_a_transaction_is_told_how_to_begin_one(
    postgres_url: str, outside: Any, word: str
) -> None:
    async def main() -> None:
        async with shop(postgres_url) as hf:

            async def submit(connection: Any) -> None:
                with pytest.raises(InvalidInput, match="not in a transaction") as refused:
                    await hf.submit("confirm", connection=connection)
                assert word in refused.value.guidance

            await outside(postgres_url, submit)

    run(main())
    assert count(postgres_url) == 0


class Connection:
    """Of a library that nobody knows."""


@pytest.mark.parametrize("given", [Connection(), "postgresql://host/name", 1, object])
def test_what_is_no_known_connection_is_refused_with_what_is_accepted(postgres_url: str, given: Any) -> None:
    hf = shop(postgres_url)
    for submit in (
        lambda: run(hf.submit("confirm", connection=given)),
        lambda: run(hf.submit_many("confirm", [], connection=given)),
        lambda: hf.submit_sync("confirm", connection=given),
        lambda: hf.submit_many_sync("confirm", [], connection=given),
    ):
        with pytest.raises(InvalidInput, match=type(given).__name__) as refused:
            submit()
        assert "asyncpg" in refused.value.guidance and "AsyncSession" in refused.value.guidance


def test_a_missing_connection_is_refused_where_one_is_needed(postgres_url: str) -> None:
    with pytest.raises(InvalidInput, match="NoneType"):
        shop(postgres_url).submit_sync("confirm", connection=None)


def test_a_pool_and_an_engine_are_no_connections(postgres_url: str) -> None:
    async def main() -> None:
        engine = sa.create_engine(for_sqlalchemy(postgres_url, "psycopg"), poolclass=NullPool)
        async with asyncpg.create_pool(postgres_url, min_size=0, max_size=1) as pool:
            for given in (pool, engine):
                with pytest.raises(InvalidInput, match=type(given).__name__):
                    await shop(postgres_url).submit("confirm", connection=given)

    run(main())


def test_a_database_of_another_make_is_refused(postgres_url: str) -> None:
    run(make_tables(postgres_url))
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(InvalidInput, match=r"sqlite\+pysqlite"):
        shop(postgres_url).submit_sync("confirm", connection=connection)
    engine.dispose()


def test_a_holdfast_on_sqlite_joins_nothing(sqlite_url: str, postgres_url: str) -> None:
    async def main() -> None:
        hf = shop(sqlite_url)
        with psycopg.connect(postgres_url) as connection:
            with pytest.raises(InvalidInput, match="SQLite") as refused:
                await hf.submit("confirm", connection=connection)
            assert "postgresql://" in refused.value.guidance
            with pytest.raises(InvalidInput, match="SQLite"):
                hf.submit_sync("confirm", connection=connection)

    run(main())


def test_a_rehearsal_has_no_transaction_to_join(postgres_url: str) -> None:
    hf = shop(postgres_url)

    async def main() -> None:
        with psycopg.connect(postgres_url) as connection:
            async with AsyncRehearsal(hf):
                with pytest.raises(InvalidInput, match="rehearsal"):
                    await hf.submit("confirm", connection=connection)
                with pytest.raises(InvalidInput, match="rehearsal"):
                    hf.submit_sync("confirm", connection=connection)

    run(main())


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg async", "sqlalchemy async session, asyncpg"])
def test_submit_sync_refuses_an_asynchronous_connection(postgres_url: str, kind: str) -> None:
    async def main() -> None:
        async with ASYNC_KINDS[kind](postgres_url) as caller:
            with pytest.raises(InvalidInput, match="asynchronous") as refused:
                shop(postgres_url).submit_sync("confirm", connection=caller.connection)
            assert "await hf.submit" in refused.value.guidance

    run(main())


def test_an_unknown_pipeline_names_the_known_ones(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        for name in ("other", None, ["confirm"]):
            with pytest.raises(UnknownName) as refused:
                shop(postgres_url).submit_sync(name, connection=connection)  # type: ignore[arg-type]
            assert "confirm" in refused.value.guidance
        with pytest.raises(UnknownName) as refused:
            Holdfast(postgres_url).submit_sync("confirm", connection=connection)
        assert "hf.pipeline()" in refused.value.guidance


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        (float("nan"), {}),
        ({1: 2}, {}),
        ("a\0b", {}),
        (1, {"idempotency_key": ""}),
        (1, {"lane": "express"}),
        (1, {"delay": "soon"}),
        (1, {"deadline": 0}),
    ],
)
def test_bad_data_is_refused_before_the_connection_is_touched(
    postgres_url: str, workload: Any, options: dict[str, Any]
) -> None:
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(InvalidInput):
            shop(postgres_url).submit_sync("confirm", workload, connection=connection, **options)
        with pytest.raises(InvalidInput):
            shop(postgres_url).submit_many_sync("confirm", [1, float("inf")], connection=connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy session", "sqlalchemy connection"])
def test_a_database_without_tables_asks_for_a_migration(postgres_url: str, kind: str) -> None:
    async def main() -> None:
        async with SYNC_KINDS[kind](postgres_url) as caller:
            await caller.execute("CREATE TABLE orders (id int)")
            with pytest.raises(SchemaTooOld, match="no tables") as refused:
                shop(postgres_url).submit_sync("confirm", connection=caller.connection)
            assert "holdfast migrate" in refused.value.guidance
            await caller.execute("INSERT INTO orders VALUES (1)")

    run(main())
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ("DELETE FROM holdfast.schema_version", SchemaTooOld, "holdfast migrate"),
        ("INSERT INTO holdfast.schema_version VALUES (9999)", SchemaTooNew, "newer Holdfast"),
    ],
)
def test_a_schema_of_another_version_is_refused(
    postgres_url: str, change: str, error: type[HoldfastError], word: str
) -> None:
    run(make_tables(postgres_url))
    with psycopg.connect(postgres_url) as connection:
        connection.execute(change)
        with pytest.raises(error) as refused:
            shop(postgres_url).submit_sync("confirm", connection=connection)
        assert word in refused.value.guidance
        connection.execute("SELECT 1")


def test_a_user_without_rights_is_told_what_to_grant(postgres_url: str) -> None:
    run(make_tables(postgres_url))
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE ROLE visitor_of_this_test")
        connection.execute("SET ROLE visitor_of_this_test")
        with pytest.raises(StoreUnusable, match="permission denied") as refused:
            shop(postgres_url).submit_sync("confirm", connection=connection)
        assert "Grant" in refused.value.guidance
        connection.execute("RESET ROLE")
        for grant in (
            "USAGE ON SCHEMA holdfast",
            "SELECT, INSERT ON ALL TABLES IN SCHEMA holdfast",
            "USAGE ON ALL SEQUENCES IN SCHEMA holdfast",
        ):
            connection.execute(f"GRANT {grant} TO visitor_of_this_test")
        connection.execute("SET ROLE visitor_of_this_test")
        assert shop(postgres_url).submit_sync("confirm", connection=connection).created
        connection.rollback()


def test_a_connection_to_another_database_is_refused(
    postgres_url: str, postgres_server: TemporaryPostgres
) -> None:
    """Even where that one has Holdfast's tables too, and the very same pipeline."""
    postgres_server.create_database("another")

    async def main() -> None:
        other = postgres_server.url("another")
        await make_tables(other)
        async with shop(postgres_url) as hf, KINDS["asyncpg"](other) as caller:
            with pytest.raises(InvalidInput, match="another database"):
                await hf.submit("confirm", connection=caller.connection)
            await caller.execute("SELECT 1")
        assert count(other) == 0

    try:
        run(main())
    finally:
        postgres_server.drop_database("another")


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "sqlalchemy async session, asyncpg"])
def test_a_connection_that_breaks_says_so_in_its_own_words(postgres_url: str, kind: str) -> None:
    own_errors = (asyncpg.PostgresError, asyncpg.InterfaceError, psycopg.Error, sa.exc.SQLAlchemyError)

    async def main() -> None:
        async with shop(postgres_url) as hf:
            killer = await asyncpg.connect(postgres_url)
            await killer.execute(
                "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"
            )
            await killer.execute(
                "CREATE TRIGGER die AFTER INSERT ON holdfast.jobs FOR EACH ROW EXECUTE FUNCTION die()"
            )
            await killer.close()
            with contextlib.suppress(*own_errors):  # the end of a block whose connection is gone
                async with KINDS[kind](postgres_url) as caller:
                    with pytest.raises(own_errors, match="terminat"):
                        await hf.submit("confirm", connection=caller.connection)

    run(main())
    assert count(postgres_url) == 0


def test_no_library_is_imported_that_the_caller_has_not_imported(postgres_url: str) -> None:
    program = f"""
import sys
from holdfast import Holdfast, InvalidInput
hf = Holdfast({postgres_url!r})
try:
    hf.submit_sync("confirm", connection=object())
except InvalidInput:
    print(sorted({{"sqlalchemy", "psycopg", "greenlet"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_placeholders_become_names_and_percent_signs_stay() -> None:
    assert (
        with_names("SELECT $1, $16::text LIKE '%a', $1") == "SELECT %(p1)s, %(p16)s::text LIKE '%%a', %(p1)s"
    )
