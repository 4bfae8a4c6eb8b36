"""What can be wrong with a file, a folder, a disk or a lock, and what the SQLite store says of it."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.errors import StoreUnavailable, StoreUnusable
from holdfast.store import sqlite, store_from_url
from holdfast.store.sqlite import SqliteStore
from running import run
from store_scenario import ENVIRONMENT, GROUP, NOW, claim, contents, new, opened, raw, row_counts, submit

OPEN_AS_NOBODY = """
import asyncio, os, sys
from holdfast.core.errors import StoreUnusable
from holdfast.store import queries, sqlite

queries.load_queries("sqlite"), queries.load_migrations("sqlite")
store = sqlite.SqliteStore("sqlite:///" + sys.argv[1])
if os.getuid() == 0:  # whom no permission binds
    os.setuid(65534)

async def main():
    try:
        await store.open()
    except StoreUnusable as error:
        print("unusable:", error)
    else:
        await store.close()
        print("opened")

asyncio.run(main())
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        inner = Path(folder) / "data"
        inner.mkdir()
        yield inner
        inner.chmod(0o755)


def open_as_nobody(path: Path) -> str:
    """What comes of opening this file as a user whom permissions bind."""
    command = [sys.executable, "-c", OPEN_AS_NOBODY, str(path)]
    finished = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60
    )
    return finished.stdout.strip()


async def refusal(url: str) -> str:
    store = store_from_url(url)
    with pytest.raises(StoreUnusable) as refused:
        await store.open()
    assert refused.value.guidance
    await store.close()
    return str(refused.value)


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Ann, " * 1_000)
    assert "is not a SQLite database" in run(refusal(f"sqlite:///{letter}"))
    assert letter.read_text() == "Dear Ann, " * 1_000
    assert list(tmp_path.iterdir()) == [letter]


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"

    async def main() -> None:
        async with opened(f"sqlite:///{path}") as store:
            await submit(store)
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\xff" * 8_000 + whole[8_100:])
        assert "damaged" in await refusal(f"sqlite:///{path}")

    run(main())


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    assert "cannot be opened" in run(refusal(f"sqlite:///{tmp_path}"))


def test_a_missing_folder_is_named_as_the_cause(tmp_path: Path) -> None:
    assert "the folder is missing" in run(refusal(f"sqlite:///{tmp_path}/none/holdfast.db"))


def test_a_folder_that_anyone_may_write_serves(open_folder: Path) -> None:
    open_folder.chmod(0o777)
    assert open_as_nobody(open_folder / "holdfast.db") == "opened"


def test_a_read_only_folder_is_named_as_the_cause(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    answer = open_as_nobody(open_folder / "holdfast.db")
    assert answer.startswith("unusable:") and "not writable" in answer


def test_a_read_only_file_is_refused(open_folder: Path) -> None:
    async def make() -> None:
        async with opened(f"sqlite:///{open_folder}/holdfast.db"):
            pass

    run(make())
    (open_folder / "holdfast.db").chmod(0o444)
    open_folder.chmod(0o777)
    answer = open_as_nobody(open_folder / "holdfast.db")
    assert answer.startswith("unusable:") and "read-only" in answer


@pytest.mark.parametrize("table", ["definitions", "claim_groups", "executions", "jobs", "events"])
def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path: Path, table: str) -> None:
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute(f"CREATE TABLE {table} (id integer)")
    other.close()
    before = path.read_bytes()
    assert "tables of another program" in run(refusal(f"sqlite:///{path}"))
    assert path.read_bytes() == before


def test_tables_with_other_names_do_not_matter(tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "shared.db"))
    other.execute("CREATE TABLE notes (id integer)")
    other.close()

    async def main() -> None:
        async with opened(f"sqlite:///{tmp_path}/shared.db") as store:
            assert await submit(store) == [1]

    run(main())


def test_a_full_disk_writes_nothing_and_heals_once_there_is_room(sqlite_url: str) -> None:
    def limit_pages(store: SqliteStore, pages: int) -> None:
        store._writer.execute(f"PRAGMA max_page_count = {pages}")

    async def main() -> None:
        async with opened(sqlite_url) as store:
            assert isinstance(store, SqliteStore)
            await submit(store)
            before = await contents(sqlite_url)
            ((pages,),) = await raw(sqlite_url, "PRAGMA page_count")
            limit_pages(store, pages + 2)
            many = [new(workload=f'"{"x" * 5_000}"', group=GROUP._replace(rank=1)) for _ in range(20)]
            with pytest.raises(StoreUnavailable, match="disk is full"):
                await store.insert(many, NOW)
            assert await contents(sqlite_url) == before
            limit_pages(store, 1_000_000)
            assert len(await store.insert(many, NOW)) == 20
            assert len(await claim(store)) == 21

    run(main())


def test_a_lock_held_past_the_busy_timeout_makes_the_store_unavailable_for_that_long(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 20)

    async def main() -> None:
        async with opened(sqlite_url) as store:
            await submit(store)
            other = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
            other.execute("BEGIN IMMEDIATE")
            before = await row_counts(sqlite_url)
            with pytest.raises(StoreUnavailable, match="locked by another process") as refused:
                await submit(store)
            assert "safe to try again" in refused.value.guidance
            assert await row_counts(sqlite_url) == before
            assert await store.execution(1) is not None, "reading goes on"
            with pytest.raises(StoreUnavailable):
                async with opened(sqlite_url):
                    pass
            other.execute("ROLLBACK")
            other.close()
            assert await submit(store) == [2]

    run(main())


def test_a_reading_error_is_told_in_words(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            assert isinstance(store, SqliteStore)
            await submit(store)
            store._reader.set_authorizer(lambda *_: apsw.SQLITE_DENY)
            with pytest.raises(StoreUnusable, match="may not be accessed"):
                await store.execution(1)

    run(main())


def test_a_read_that_does_not_come_back_is_made_again_on_another_connection(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "READ_SECONDS_MAX", (0.2, 20.0))
    let_go = threading.Event()
    readers: list[apsw.Connection] = []

    def hangs_once(db: apsw.Connection) -> int:
        readers.append(db)
        if len(readers) == 1:
            let_go.wait(30)
        return int(db.execute("SELECT count(*) FROM executions").get)

    async def main() -> None:
        async with opened(sqlite_url) as store:
            assert isinstance(store, SqliteStore)
            await submit(store)
            both = await asyncio.gather(store._reading(hangs_once), store.execution(1))
            assert both[0] == 1 and both[1] is not None
            assert readers[0] is not readers[-1]
            assert await store.execution(1) is not None
        let_go.set()

    run(main())


def test_a_read_that_never_comes_back_is_told_and_keeps_nobody_from_closing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()

    async def main() -> None:
        async with opened(sqlite_url) as store:
            assert isinstance(store, SqliteStore)
            with monkeypatch.context() as soon:
                soon.setattr(sqlite, "READ_SECONDS_MAX", (0.1, 0.1))
                with pytest.raises(StoreUnavailable, match="did not come back"):
                    await store._reading(lambda _: let_go.wait(30))
        let_go.set()

    run(main())


def test_an_error_that_is_neither_keeps_its_own_name(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            with pytest.raises(apsw.ConstraintError):
                await submit(store, new(max_attempts=0))

    run(main())


FORKED = """
import asyncio, os, sys
from holdfast.core.errors import StoreUnusable
from holdfast.store import store_from_url

async def opened(url):
    store = store_from_url(url)
    await store.open()
    return store

async def refused(action):
    try:
        await action
    except StoreUnusable as error:
        print(error, flush=True)

parents = asyncio.run(opened(sys.argv[1]))
child = os.fork()
if child == 0:
    asyncio.run(refused(opened(sys.argv[1])))
    asyncio.run(refused(parents.execution(1)))
    os._exit(0)
os.waitpid(child, 0)
asyncio.run(parents.close())
asyncio.run(opened(sys.argv[1]))
os._exit(0)
"""


def test_a_database_that_was_open_at_a_fork_is_refused_in_the_child(
    sqlite_url: str,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, sqlite_url], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("was open when this process was forked") == 2


@pytest.mark.parametrize("named", ["path", "text", "uri", "bytes"])
def test_a_second_sqlite_library_is_kept_away_while_the_file_is_open(sqlite_url: str, named: str) -> None:
    """Two copies of SQLite in one process do not know of each other's locks: the file would be damaged."""
    text = sqlite_url.removeprefix("sqlite:///")
    name: Any = {"path": Path(text), "text": text, "uri": f"file:{text}?mode=ro", "bytes": text.encode()}[
        named
    ]

    async def scenario() -> None:
        store = SqliteStore(sqlite_url)
        await store.open()
        with pytest.raises(StoreUnusable, match="Python's own sqlite3 would damage it"):
            sqlite3.connect(name, uri=named == "uri")
        await store.close()
        connection = sqlite3.connect(name, uri=named == "uri")
        assert connection.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]
        connection.close()

    run(scenario())
