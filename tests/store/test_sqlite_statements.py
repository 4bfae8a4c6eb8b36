"""A statement of SQLite's is prepared once, whatever is bound to it later."""

import apsw

from holdfast.store.sqlite import SqliteStore
from running import run
from store_scenario import NOW, claim, opened, submit


def test_no_statement_is_prepared_anew_because_time_goes_on(sqlite_url: str) -> None:
    prepared: list[tuple[str | None, ...]] = []

    def ask(_: int, *what: str | None) -> int:  # SQLite asks while it prepares a statement, and only then
        prepared.append(what)
        return apsw.SQLITE_OK

    async def use(store: SqliteStore, now: float) -> None:
        await submit(store)
        assert await claim(store, now=now)
        assert not await claim(store, now=now)
        await store.expired(now, 10)

    async def main() -> None:
        async with opened(sqlite_url) as store:
            assert isinstance(store, SqliteStore)
            for connection in (store._writer, store._reader):
                connection.authorizer = ask
            await use(store, NOW)
            assert prepared
            prepared.clear()
            for later in range(1, 4):
                await use(store, NOW + later)
            assert prepared == []

    run(main())
