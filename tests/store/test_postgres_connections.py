"""Connections that stay in hand: used again at once, given up when others wait or when they are lost."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.store.postgres import POOL_SIZE_MAX, PostgresStore
from running import eventually, run
from store_scenario import opened, raw

PID = "SELECT pg_backend_pid()"


def with_store(test: Callable[[PostgresStore], Awaitable[None]], url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            assert isinstance(store, PostgresStore)
            await test(store)

    run(main())


async def pid(store: PostgresStore) -> int:
    [(found,)] = await store._fetch(PID)
    assert isinstance(found, int)
    return found


def test_one_after_the_other_use_one_connection(postgres_url: str) -> None:
    async def test(store: PostgresStore) -> None:
        assert len({await pid(store) for _ in range(5)}) == 1

    with_store(test, postgres_url)


def test_whoever_waits_gets_the_connection_that_comes_back(postgres_url: str) -> None:
    async def test(store: PostgresStore) -> None:
        async with AsyncExitStack() as taken:
            for _ in range(POOL_SIZE_MAX - 1):
                await taken.enter_async_context(store._acquire())
            async with store._acquire() as last:
                free = await last.fetchval(PID)
                waiting = asyncio.create_task(pid(store))
                await asyncio.sleep(0)
                assert not waiting.done()
            async with asyncio.timeout(30):
                assert await waiting == free

    with_store(test, postgres_url)


def test_connections_lost_in_hand_are_made_anew_as_often_as_it_happens(postgres_url: str) -> None:
    async def test(store: PostgresStore) -> None:
        async def answers() -> int | None:
            try:
                return await pid(store)
            except StoreUnavailable:  # it was found to be lost only now
                return None

        for _ in range(POOL_SIZE_MAX + 2):  # a place in the pool that is not given back would be missed then
            lost = await pid(store)
            await raw(postgres_url, f"SELECT pg_terminate_backend({lost})")
            assert await eventually(answers) != lost

    with_store(test, postgres_url)


def test_a_use_that_failed_or_was_cancelled_leaves_nothing_open(postgres_url: str) -> None:
    async def test(store: PostgresStore) -> None:
        async def fail() -> None:
            async with store._acquire() as db:
                await db.execute("BEGIN")
                await db.execute("SELECT pg_advisory_xact_lock(1)")
                raise KeyError("of the caller")

        async def never_ends() -> None:
            async with store._acquire() as db:
                await db.execute("BEGIN")
                await db.execute("SELECT pg_advisory_xact_lock(1)")
                began.set()
                await asyncio.Event().wait()

        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM"
        held += " pg_database WHERE datname = current_database())"
        began = asyncio.Event()
        task = asyncio.create_task(never_ends())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await raw(postgres_url, held))[0][0] == 0
        with pytest.raises(KeyError):
            await fail()

    with_store(test, postgres_url)


def test_a_closed_store_has_no_connection_left(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, PostgresStore)
            await asyncio.gather(*(pid(store) for _ in range(3)))
        with pytest.raises(StoreUnavailable):
            await pid(store)
        mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
        mine += " AND datname = current_database()"

        async def is_alone() -> bool:
            return (await raw(postgres_url, mine))[0][0] == 0

        await eventually(is_alone)

    run(main())
