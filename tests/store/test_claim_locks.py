"""What a claim costs on PostgreSQL where limits are set, and what holds it up."""

import asyncio

import pytest

from holdfast.store.postgres import PostgresStore
from limits_scenario import jobs, set_limit, under
from running import eventually, run
from store_scenario import (
    claim,
    opened,
    raw,
    raw_connection,
    submit,
)


def test_work_without_limits_is_leased_by_one_statement(postgres_url: str) -> None:
    said: list[str] = []

    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, PostgresStore)
            await submit(store, *jobs(3, under("")), *jobs(3, under(handler="scan")))
            await set_limit(postgres_url, 2)
            async with store._acquire() as connection:
                connection.add_query_logger(lambda record: said.append(record.query))
            assert len(await claim(store, limit=1)) == 1
            assert len(await claim(store)) == 2
            assert await claim(store) == []
            await eventually(lambda: len(said) == 3)  # the logger is called a turn later
            assert len(await claim(store, handlers=("scan",))) == 1
            await eventually(lambda: any(query.endswith("ORDER BY l.name FOR UPDATE") for query in said))
            await raw(postgres_url, "DELETE FROM limits")
            assert len(await claim(store, handlers=("scan",), limit=1)) == 1, "it finds that none is set"
            await asyncio.sleep(0)
            said.clear()
            assert len(await claim(store, handlers=("scan",))) == 1
            await asyncio.sleep(0)
            assert len(said) == 1

    run(main())


def test_work_without_limits_does_not_wait_for_a_limit_that_is_locked(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store, *jobs(1, under("")), *jobs(3, under(handler="scan")))
            await set_limit(postgres_url, 2)
            other = await raw_connection(postgres_url)
            async with other.transaction():
                await other.execute("SELECT FROM limits FOR UPDATE")
                assert len(await claim(store)) == 1
                held_up = asyncio.create_task(claim(store, handlers=("scan",)))
                await eventually(lambda: _is_waiting_for_a_lock(postgres_url))
            assert len(await held_up) == 1
            await other.close()

    run(main())


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_what_others_leased_while_a_claim_waited_for_the_limit_is_counted(
    postgres_url: str, isolation: str
) -> None:
    async def main() -> None:
        database = postgres_url.partition("?")[0].rpartition("/")[2]
        await raw(
            postgres_url, f"ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'"
        )
        async with opened(postgres_url) as store:
            await submit(store, *jobs(5, under()))
            await set_limit(postgres_url, 3, reserve=0)
            other = await raw_connection(postgres_url)
            async with other.transaction(isolation="read_committed"):
                await other.execute("SELECT FROM limits FOR UPDATE")
                waiting = asyncio.create_task(claim(store))
                await eventually(lambda: _is_waiting_for_a_lock(postgres_url))
                await other.execute(
                    "UPDATE jobs SET status = 'leased', attempts = 1, leases = 1, fence = '1-t',"
                    " lease_until = 0 WHERE id IN (4, 5)"
                )
            assert len(await waiting) == 1
            await other.close()

    run(main())


async def _is_waiting_for_a_lock(url: str) -> bool:
    found = await raw(
        url,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    return bool(found[0][0])


def test_a_job_that_another_worker_is_taking_is_passed_over_under_a_limit_too(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store, *jobs(3, under()))
            await set_limit(postgres_url, 2, reserve=0)
            other = await raw_connection(postgres_url)
            async with other.transaction():
                await other.execute("SELECT FROM jobs WHERE id = 1 FOR UPDATE")
                assert sorted(row.id for row in await claim(store)) == [2, 3]
            await other.close()

    run(main())


def test_what_is_remembered_of_limits_does_not_grow_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres_claim.OFFERS_MAX", 3)

    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, PostgresStore)
            await submit(store, *jobs(9, under()))
            await set_limit(postgres_url, 9, reserve=0)
            for n in range(7):
                assert len(await claim(store, handlers=("send", f"other-{n}"), limit=1)) == 1
                assert len(store._limited_offers) <= 3

    run(main())
