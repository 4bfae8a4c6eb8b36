"""Opening a store: addresses, fresh and known databases, several at once, versions."""

import asyncio
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import (
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    StoreUrlInvalid,
)
from holdfast.store import Store, queries, store_from_url
from holdfast.store.postgres import PostgresStore, check_postgres_version
from holdfast.store.queries import Migration, check_schema_version, load_migrations, load_queries
from holdfast.store.sqlite import SqliteStore, check_sqlite_version
from running import run
from store_scenario import (
    ENVIRONMENT,
    NOW,
    TABLES,
    claim,
    new,
    opened,
    raw,
    request,
    row_counts,
    submit,
    together,
)

OPEN_AND_SUBMIT = """
import asyncio, sys
from store_scenario import opened, submit

async def main():
    async with opened(sys.argv[1]) as store:
        await submit(store)

asyncio.run(main())
"""

# addresses


@pytest.mark.parametrize(
    "url",
    [
        "",
        "holdfast.db",
        "/var/lib/holdfast.db",
        "mysql://user@host/name",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://holdfast.db",
        "sqlite://host/holdfast.db",
        "sqlite:///?mode=ro",
        "sqlite:///:memory:",
        "sqlite:///./:memory:",
        "sqlite:///%3Amemory%3A",
        "sqlite:///a%00b.db",
        "postgresql:",
        "postgresql:name",
        "postgresql://",
        "postgresql://host",
        "postgresql://host/",
        "postgresql://host:0/name",
        "postgresql://host:port/name",
        "postgresql://host:99999/name",
        "postgresql://[::1/name",
        "postgres://user@host",
    ],
)
def test_an_address_that_names_no_database_is_refused_with_the_forms_that_work(url: str) -> None:
    with pytest.raises(StoreUrlInvalid) as refusal:
        store_from_url(url)
    assert "://" in refusal.value.guidance


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:hunter2@host/name",
        "postgresql://ann:hunter2@host",
        "postgresql://ann:hunter2@host:port/name",
        "postgresql://host:port/name?user=ann&password=hunter2&x=1",
    ],
)
def test_a_refused_address_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(StoreUrlInvalid) as refusal:
        store_from_url(url)
    assert "hunter2" not in str(refusal.value) + refusal.value.guidance
    assert "***" in str(refusal.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_spellings_of_postgresql_are_known(scheme: str) -> None:
    assert isinstance(store_from_url(f"{scheme}://ann@host/name"), PostgresStore)


def test_a_sqlite_path_may_be_relative_absolute_or_percent_encoded() -> None:
    paths = {
        "sqlite:///file.db": Path("file.db"),
        "sqlite:////folder/file.db": Path("/folder/file.db"),
        "sqlite:////a%20folder/50%25.db": Path("/a folder/50%.db"),
    }
    for url, path in paths.items():
        store = store_from_url(url)
        assert isinstance(store, SqliteStore) and store.path == path


def test_a_percent_encoded_file_is_made_under_its_real_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(f"sqlite:///{tmp_path}/a%20name%3F.db"):
            assert (tmp_path / "a name?.db").exists()

    run(main())


# fresh, known, at once


def test_a_fresh_database_gets_its_tables(store_url: str) -> None:
    async def counts() -> dict[str, int]:
        async with opened(store_url):
            return await row_counts(store_url)

    assert run(counts()) == dict.fromkeys(TABLES, 0)


def test_a_second_open_finds_everything_in_place(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            (execution,) = await submit(store)
        for migrate in (True, False):
            async with opened(store_url, migrate=migrate) as store:
                assert await store.execution(execution) is not None

    run(main())


def test_a_store_can_be_opened_again_after_it_was_closed(store_url: str) -> None:
    async def main() -> None:
        store = store_from_url(store_url)
        for _ in range(2):
            await store.open()
            await submit(store)
            await store.close()
        await store.close()
        assert (await row_counts(store_url))["executions"] == 2

    run(main())


def test_many_opens_at_once_migrate_once(store_url: str) -> None:
    stores = [store_from_url(store_url) for _ in range(6)]

    async def main() -> None:
        assert await together(*(store.open() for store in stores)) == [None] * 6
        for store in stores:
            await submit(store)
            await store.close()
        assert (await row_counts(store_url))["executions"] == 6

    run(main())


def test_processes_that_open_at_once_migrate_once(store_url: str) -> None:
    async def start() -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN_AND_SUBMIT, store_url, env=ENVIRONMENT, stderr=subprocess.PIPE
        )
        _, complaint = await process.communicate()
        return process.returncode or 0, complaint

    async def main() -> None:
        assert await together(*(start() for _ in range(3))) == [(0, b"")] * 3
        assert await row_counts(store_url) == {
            "definitions": 1,
            "claim_groups": 1,
            "executions": 3,
            "jobs": 3,
            "events": 3,
        }

    run(main())


@pytest.mark.parametrize("opened_before", [False, True])
def test_every_verb_of_a_closed_store_says_that_it_is_closed(store_url: str, opened_before: bool) -> None:
    async def attempt(store: Store) -> None:
        verbs = {
            "claim": lambda: claim(store),
            "execution": lambda: store.execution(1),
            "heartbeat": lambda: store.heartbeat([], NOW, NOW),
            "insert": lambda: store.insert([new()], NOW),
            "alone_ready": lambda: store.alone_ready(request(), NOW),
        }
        for verb in verbs.values():
            with pytest.raises(StoreUnavailable, match="is closed"):
                await verb()

    async def main() -> None:
        store = store_from_url(store_url)
        if opened_before:
            await store.open()
            await store.close()
        await attempt(store)
        store.announce_work()
        await store.close()

    run(main())


# versions


def test_an_empty_database_is_too_old_where_migrating_is_not_allowed(store_url: str) -> None:
    async def main() -> None:
        with pytest.raises(SchemaTooOld, match="has schema version 0; this Holdfast needs version"):
            async with opened(store_url, migrate=False):
                pass

    run(main())


def test_an_older_schema_is_refused_or_migrated_as_asked(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = store_url.partition(":")[0]
    schema = "holdfast." if dialect == "postgresql" else ""
    known = load_migrations(dialect)
    added = Migration(len(known) + 1, f"CREATE TABLE {schema}added (id integer)")

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
        module = sys.modules[type(store).__module__]
        monkeypatch.setattr(module, "load_migrations", lambda _: (*known, added))
        with pytest.raises(SchemaTooOld, match=f"has schema version {len(known)}"):
            async with opened(store_url, migrate=False):
                pass
        async with opened(store_url) as store:
            assert await raw(store_url, "SELECT * FROM added") == []
            assert await store.execution(1) is not None

    run(main())


def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = store_url.partition(":")[0]
    schema = "holdfast." if dialect == "postgresql" else ""
    known = load_migrations(dialect)
    half = f"CREATE TABLE {schema}half (id integer); SELECT no_such_column FROM {schema}half;"

    async def main() -> None:
        async with opened(store_url) as store:
            module = sys.modules[type(store).__module__]
        with monkeypatch.context() as patch:
            patch.setattr(module, "load_migrations", lambda _: (*known, Migration(len(known) + 1, half)))
            with pytest.raises(Exception, match="no_such_column"):
                async with opened(store_url):
                    pass
        async with opened(store_url, migrate=False):
            with pytest.raises(Exception, match="half"):
                await raw(store_url, "SELECT * FROM half")

    run(main())


@pytest.mark.parametrize("migrate", [True, False])
def test_a_schema_from_the_future_is_refused(store_url: str, migrate: bool) -> None:
    is_sqlite = store_url.startswith("sqlite")
    insert = (
        "INSERT INTO holdfast_schema VALUES (99, 0)"
        if is_sqlite
        else "INSERT INTO schema_version VALUES (99)"
    )

    async def main() -> None:
        async with opened(store_url):
            pass
        await raw(store_url, insert)
        with pytest.raises(SchemaTooNew, match="has schema version 99") as refusal:
            async with opened(store_url, migrate=migrate):
                pass
        assert "newer Holdfast" in refusal.value.guidance

    run(main())


def test_the_version_of_a_schema_is_checked_against_what_is_known() -> None:
    check_schema_version(3, 3, migrate=False, where="here")
    check_schema_version(2, 3, migrate=True, where="here")
    with pytest.raises(SchemaTooOld):
        check_schema_version(2, 3, migrate=False, where="here")
    with pytest.raises(SchemaTooNew):
        check_schema_version(4, 3, migrate=True, where="here")


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.9.99"])
def test_a_sqlite_that_can_corrupt_its_wal_is_refused(version: str) -> None:
    with pytest.raises(StoreUnusable, match=version):
        check_sqlite_version(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0", apsw.sqlite_lib_version()])
def test_a_sound_sqlite_is_accepted(version: str) -> None:
    check_sqlite_version(version)


def test_postgresql_before_14_is_refused() -> None:
    check_postgres_version(140_000)
    with pytest.raises(StoreUnusable, match="PostgreSQL 13 is too old") as refusal:
        check_postgres_version(130_022)
    assert isinstance(refusal.value, StoreError)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_queries_and_migrations_are_read_from_their_files(dialect: str) -> None:
    assert "claim" in load_queries(dialect) or "ready_in_group" in load_queries(dialect)
    assert all(not sql.endswith(";") for sql in load_queries(dialect).values())
    versions = [migration.version for migration in load_migrations(dialect)]
    assert versions == list(range(1, len(versions) + 1))


def test_files_beside_the_migrations_are_not_taken_for_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sql" / "odd" / "migrations"
    folder.mkdir(parents=True)
    (folder / "0001_first.sql").write_text("SELECT 1")
    (folder / "0001_first.sql.orig").write_text("SELECT 2")
    monkeypatch.setattr(queries, "files", lambda _: tmp_path)
    assert load_migrations("odd") == (Migration(1, "SELECT 1"),)
