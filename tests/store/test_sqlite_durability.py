"""What SQLite promises the disk: everything, unless the store is to be thrown away."""

from __future__ import annotations

import pytest

from holdfast.store.sqlite import SqliteStore
from running import run

OFF, FULL = 0, 2


@pytest.mark.parametrize(("options", "synchronous"), [({}, FULL), ({"durable": False}, OFF)])
def test_a_commit_is_on_the_disk_unless_the_store_is_to_be_thrown_away(
    sqlite_url: str, options: dict[str, bool], synchronous: int
) -> None:
    async def test() -> None:
        store = SqliteStore(sqlite_url, **options)
        await store.open()
        further = store.connect_writer()
        for connection in (store._writer, further):
            assert connection.execute("PRAGMA synchronous").get == synchronous
        further.close()
        await store.close()

    run(test())
