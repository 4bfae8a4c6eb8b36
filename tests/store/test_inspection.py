"""A look at a database that changes nothing: what it is, its schema, whether it can be written."""

from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import StoreUnavailable, StoreUnusable
from holdfast.store import inspection
from holdfast.store.inspection import inspect
from holdfast.store.queries import load_migrations
from running import run
from store_scenario import opened, raw, submit


def test_a_database_in_order_tells_its_version_schema_and_settings(store_url: str) -> None:
    dialect = store_url.partition(":")[0]

    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
        seen = await inspect(store_url)
        assert (seen.kind, seen.unwritable) == (dialect, "")
        assert seen.schema_found == seen.schema_known == len(load_migrations(dialect))
        assert seen.version[0].isdigit() and seen.newest_event_at is not None
        if dialect == "sqlite":
            assert seen.settings == {"journal_mode": "wal"}
        else:
            assert seen.settings["fsync"] == "off"  # of the tests' server
            assert abs(seen.clock_lead_seconds) - seen.clock_error_seconds < 1.0  # the same machine

    run(main())


def test_an_empty_database_has_no_schema_and_gets_none(store_url: str, tmp_path: Path) -> None:
    if store_url.startswith("sqlite"):
        (tmp_path / "holdfast.db").touch()

    async def main() -> None:
        for _ in range(2):
            seen = await inspect(store_url)
            assert (seen.schema_found, seen.newest_event_at) == (0, None)
            assert seen.schema_known >= 2

    run(main())


def test_a_sqlite_file_is_neither_made_nor_changed(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="cannot be opened"):
        run(inspect(f"sqlite:///{tmp_path / 'none.db'}"))
    assert not (tmp_path / "none.db").exists()
    foreign = tmp_path / "foreign.db"
    database = apsw.Connection(str(foreign))
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = foreign.read_bytes()
    seen = run(inspect(f"sqlite:///{foreign}"))
    assert (seen.schema_found, seen.settings) == (0, {"journal_mode": "delete"})
    assert foreign.read_bytes() == before
    (tmp_path / "text.db").write_text("no database at all, " * 100)
    with pytest.raises(StoreUnusable, match="not a SQLite database"):
        run(inspect(f"sqlite:///{tmp_path / 'text.db'}"))


def test_a_locked_sqlite_file_cannot_be_written(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.inspection.BUSY_TIMEOUT_MS", 10)

    async def main() -> None:
        async with opened(sqlite_url):
            pass
        other = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
        other.execute("BEGIN IMMEDIATE")
        assert "another process has kept it locked" in (await inspect(sqlite_url)).unwritable
        other.execute("ROLLBACK")
        other.close()
        assert (await inspect(sqlite_url)).unwritable == ""

    run(main())


def test_a_read_only_sqlite_file_cannot_be_written(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url):
            pass

    run(main())
    # As SQLite opens a file that this user may only read; root, who runs some tests, may write all.
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
    assert "read-only" in inspection._why_not_writable(connection)
    connection.close()


def test_a_postgresql_that_may_not_be_written_says_why(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url):
            pass
        name = postgres_url.partition("?")[0].rpartition("/")[2]
        await raw(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        assert "read-only" in (await inspect(postgres_url)).unwritable

    run(main())


def test_a_postgresql_that_is_away_is_told_as_such() -> None:
    with pytest.raises(StoreUnavailable, match="does not answer") as refusal:
        run(inspect("postgresql://ann:hunter2@127.0.0.1:1/name"))
    assert "hunter2" not in str(refusal.value)
