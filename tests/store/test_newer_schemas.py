"""A database that is newer than the Holdfast that opens it: used where it says that it may be."""

import logging
from pathlib import Path

import asyncpg
import psycopg
import pytest

from holdfast import Context, Holdfast
from holdfast.core.errors import SchemaTooNew, StoreUnavailable
from holdfast.core.model import ExecutionStatus
from holdfast.store import postgres_schema, queries
from holdfast.store.inspection import inspect
from holdfast.store.queries import Migration, can_be_used, load_migrations, oldest_that_works
from running import eventually, run
from schema_versions import dialect_of, following, knowing, previous
from store_scenario import NOW, claim, complete, new, opened, raw, raw_connection, submit, together

ADDS_A_TABLE = "CREATE TABLE {schema}added (id integer)"


def adds_a_table(url: str) -> str:
    return ADDS_A_TABLE.format(schema="" if dialect_of(url) == "sqlite" else "holdfast.")


async def noop(ctx: Context) -> None: ...


def shop(url: str) -> Holdfast:
    hf = Holdfast(url)
    hf.pipeline("confirm", [noop])
    return hf


async def made(url: str) -> None:
    async with opened(url):
        pass


# what migrations say


def test_the_first_line_of_a_migration_says_whose_holdfast_may_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(dialect: str, *texts: str) -> None:
        folder = tmp_path / "sql" / dialect / "migrations"
        folder.mkdir(parents=True)
        for number, text in enumerate(texts, 1):
            (folder / f"{number:04}_it.sql").write_text(text)

    monkeypatch.setattr(queries, "files", lambda _: tmp_path)
    written("telling", "SELECT 1", "-- works with: 1\nSELECT 2", "SELECT 3;\n-- works with: 1\n")
    assert [one.works_with for one in load_migrations("telling")] == [None, 1, None]
    written("mistaken", "-- works with: 1\nSELECT 1")
    with pytest.raises(AssertionError, match="migration 1 cannot work with 1"):
        load_migrations("mistaken")


def test_every_migration_has_its_say_about_who_may_stay() -> None:
    first, second, third = Migration(1, ""), Migration(2, "", 1), Migration(3, "", 2)
    assert oldest_that_works([first]) == 1
    assert oldest_that_works([first, second]) == 1
    assert oldest_that_works([first, second, third]) == 2
    assert oldest_that_works([first, Migration(2, ""), Migration(3, "", 1)]) == 2


def test_a_schema_is_used_that_is_known_or_says_that_it_need_not_be() -> None:
    assert can_be_used(3, 3, None) and can_be_used(2, 3, None)
    assert can_be_used(5, 3, 3) and can_be_used(5, 3, 1)
    assert not can_be_used(5, 3, None) and not can_be_used(5, 3, 4)


# opening


@pytest.mark.parametrize("migrate", [True, False])
def test_the_holdfast_before_this_one_opens_what_this_one_has_made_and_says_so(
    store_url: str, migrate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    known = len(load_migrations(dialect_of(store_url)))

    async def main() -> None:
        await made(store_url)
        with knowing(previous(store_url)), caplog.at_level(logging.WARNING, "holdfast.store"):
            async with opened(store_url, migrate=migrate) as store:
                [execution] = await submit(store)
                [leased] = await claim(store)
                await complete(store, leased)
                row = await store.execution(execution)
                assert row is not None and row.status is ExecutionStatus.COMPLETED
        [said] = [record.getMessage() for record in caplog.records]
        assert f"has schema version {known}; this Holdfast knows versions up to {known - 1}." in said
        seen = await inspect(store_url)
        assert (seen.schema_found, seen.schema_oldest) == (known, known - 1)

    run(main())


def test_this_holdfast_opens_a_newer_database_that_says_it_may_and_leaves_it_as_it_is(
    store_url: str,
) -> None:
    known = len(load_migrations(dialect_of(store_url)))

    async def main() -> None:
        with knowing(following(store_url, adds_a_table(store_url), works_with=known - 1)):
            await made(store_url)
        for migrate in (True, False):
            async with opened(store_url, migrate=migrate) as store:
                await submit(store)
        seen = await inspect(store_url)
        assert (seen.schema_found, seen.schema_known, seen.schema_oldest) == (known + 1, known, known - 1)
        assert seen.can_be_used
        assert await raw(store_url, "SELECT * FROM added") == []

    run(main())


@pytest.mark.parametrize("migrate", [True, False])
def test_a_newer_database_that_does_not_say_so_is_refused_as_ever(store_url: str, migrate: bool) -> None:
    known = len(load_migrations(dialect_of(store_url)))

    async def main() -> None:
        with knowing(following(store_url, adds_a_table(store_url))):
            await made(store_url)
        with pytest.raises(SchemaTooNew, match=f"has schema version {known + 1};") as refusal:
            async with opened(store_url, migrate=migrate):
                pass
        assert "newer Holdfast" in refusal.value.guidance
        assert not (await inspect(store_url)).can_be_used

    run(main())


def test_a_later_migration_does_not_let_in_whom_an_earlier_one_has_shut_out(store_url: str) -> None:
    known = len(load_migrations(dialect_of(store_url)))
    shuts_out = following(store_url, adds_a_table(store_url))

    async def main() -> None:
        with knowing(shuts_out):
            await made(store_url)
        more = adds_a_table(store_url).replace("added", "more")
        with knowing((*shuts_out, Migration(known + 2, more, known))):
            await made(store_url)
        with pytest.raises(SchemaTooNew, match=f"has schema version {known + 2};"):
            await made(store_url)

    run(main())


def test_an_older_holdfast_without_the_table_that_tells_it_is_refused(store_url: str) -> None:
    """What a database of the time before that table was would be to it."""

    async def main() -> None:
        with knowing(previous(store_url)):
            await made(store_url)
        with knowing(previous(store_url)[:1]), pytest.raises(SchemaTooNew):
            await made(store_url)

    run(main())


# on a caller's connection


def test_a_submit_on_a_callers_connection_goes_by_the_same_rule(postgres_url: str) -> None:
    known = len(load_migrations("postgresql"))
    run(made(postgres_url))
    with knowing(previous(postgres_url)), psycopg.connect(postgres_url) as connection:
        shop(postgres_url).submit_sync("confirm", connection=connection)
    with (
        knowing(previous(postgres_url)[:-1]),
        psycopg.connect(postgres_url) as connection,
        pytest.raises(SchemaTooNew, match=f"has schema version {known};"),
    ):
        shop(postgres_url).submit_sync("confirm", connection=connection)
    assert run(raw(postgres_url, "SELECT count(*) FROM executions")) == [(1,)]


def test_whoever_may_only_submit_may_also_read_whether_it_may(postgres_url: str) -> None:
    """Its rights were granted before there was the table that tells it."""
    role = "submits_in_this_test"

    async def migrated() -> None:
        with knowing(previous(postgres_url)):
            await made(postgres_url)
        for right in (
            f"CREATE ROLE {role}",
            f"GRANT USAGE ON SCHEMA holdfast TO {role}",
            f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA holdfast TO {role}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO {role}",
        ):
            await raw(postgres_url, right)
        await made(postgres_url)

    run(migrated())
    with knowing(previous(postgres_url)), psycopg.connect(postgres_url) as connection:
        connection.execute(f"SET ROLE {role}")
        shop(postgres_url).submit_sync("confirm", connection=connection)
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")
    assert run(raw(postgres_url, "SELECT count(*) FROM executions")) == [(1,)]


# while others are at work


def test_a_migration_behind_a_long_transaction_lets_the_others_work_and_gives_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for it, and all who read the table behind it."""
    monkeypatch.setattr(postgres_schema, "LOCK_SECONDS_MAX", 0.1)
    monkeypatch.setattr(postgres_schema, "TRIES", 3)
    changes = following(postgres_url, "ALTER TABLE holdfast.jobs ADD COLUMN added integer")

    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store)
            other = await raw_connection(postgres_url)
            try:
                reading = other.transaction()
                await reading.start()
                await other.execute("SET application_name = 'the one in the way'; SELECT * FROM jobs")
                with (
                    knowing(changes),
                    pytest.raises(StoreUnavailable, match="could not be migrated") as refusal,
                ):
                    await made(postgres_url)
                assert (
                    "the one in the way" in str(refusal.value)
                    and "Nothing was changed" in refusal.value.guidance
                )
                assert len(await claim(store)) == 1
                assert (await inspect(postgres_url)).schema_found == len(load_migrations("postgresql"))
                with knowing(changes):
                    monkeypatch.setattr(postgres_schema, "TRIES", 1_000)
                    [(ended, _)] = [await together(made(postgres_url), ended_soon(other, reading))]
                assert ended is None
                assert (await inspect(postgres_url)).schema_found == len(changes)
            finally:
                await other.close()

    async def ended_soon(other: asyncpg.Connection, reading: asyncpg.transaction.Transaction) -> None:
        """Once the migration waits for it."""
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"

        async def is_waited_for() -> int:
            [(waiting,)] = await raw(postgres_url, waits)
            return int(waiting)

        await eventually(is_waited_for)
        await reading.rollback()

    run(main())


def test_what_an_open_store_has_prepared_outlasts_a_migration_of_its_tables(store_url: str) -> None:
    """On PostgreSQL a column of another type makes a prepared statement unusable, also in transactions."""
    if dialect_of(store_url) == "sqlite":
        changes = "ALTER TABLE jobs ADD COLUMN added integer; ALTER TABLE executions ADD COLUMN added integer"
    else:
        changes = (
            "ALTER TABLE holdfast.jobs ADD COLUMN added integer, ALTER COLUMN worker_id TYPE varchar(1000);"
            "ALTER TABLE holdfast.executions ADD COLUMN added integer, ALTER COLUMN error TYPE varchar"
        )

    async def main() -> None:
        async with opened(store_url) as store:
            for _ in range(2):  # as often as it takes until a statement is prepared for good
                await submit(store, new(), new())
                first, second = await claim(store)
                await store.heartbeat([], NOW, NOW)
                await complete(store, first)
                await complete(store, second)
            await submit(store, new(), new())
            first, second = await claim(store)
            with knowing(following(store_url, changes)):
                await made(store_url)
            await complete(store, first)
            await submit(store, new())
            [third] = await claim(store)
            for leased in (second, third):
                await complete(store, leased)
            assert await store.execution_counts() == {ExecutionStatus.COMPLETED: 7}

    run(main())
