"""The rows of events across executions, which a live feed reads, and the hints that there are new ones."""

import asyncio
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from holdfast.store import Store, postgres_waking
from holdfast.store.event_rows import EventGap
from holdfast.store.postgres import PostgresStore
from holdfast.store.queries import listing, load_queries
from running import eventually, run
from store_plans import FILL_EXECUTIONS, explained, rows_touched
from store_scenario import ENVIRONMENT, NOW, claim, complete, new, opened, raw, raw_connection, submit

# Far longer than any hint takes; a wait that lasts this long has missed its hint.
LONG_SECONDS = 30.0
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
COMPLETE_ONE = """
import asyncio, sys
from store_scenario import claim, complete, opened

async def main():
    async with opened(sys.argv[1]) as store:
        await complete(store, (await claim(store, limit=1))[0])
        store.announce_end()
        if notifier := getattr(store, "_events_notifier", None):
            await notifier.task

asyncio.run(main())
"""


# the rows


def test_rows_are_told_in_their_order_behind_a_place(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.last_event_row() == 0
            assert await store.event_rows(0, 10) == []
            ids = await submit(store, new(), new(path="other"), new())
            found = await store.event_rows(0, 10)
            assert [(row.execution_id, row.path, row.at) for row in found] == [
                (ids[0], "mail", NOW), (ids[1], "other", NOW), (ids[2], "mail", NOW),
            ]  # fmt: skip
            assert [event["type"] for event in msgspec.json.decode(found[0].body)] == [
                "execution_started",
                "step_started",
            ]
            assert await store.event_rows(found[0].id, 1) == found[1:2]
            assert await store.event_rows(0, 10, until=found[1].id) == found[:2]
            assert await store.last_event_row() == found[-1].id

    run(main())


def test_rows_are_told_of_one_execution_or_of_one_path(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            first, other, _ = await submit(store, new(), new(path="other"), new())

            async def told(**filters: Any) -> list[int]:
                return [row.execution_id for row in await store.event_rows(0, 10, **filters)]

            assert await told(execution_id=first) == [first]
            assert await told(path="other") == [other]
            assert await told(path="other", execution_id=first) == []

    run(main())


def test_rows_are_found_by_their_ids_and_what_is_missing_is_left_out(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, new(), new(), new())
            first, _, third = await store.event_rows(0, 10)
            assert await store.event_rows_at([third.id, first.id, third.id + 7]) == [first, third]
            assert await store.event_rows_at([]) == []

    run(main())


def test_gaps_are_told_newest_first_with_the_time_of_the_row_behind_them(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new() for _ in range(9)])
            await raw(store_url, "DELETE FROM events WHERE id IN (2, 3, 6, 9)")
            assert await store.event_gaps(0, 9, 10) == [EventGap(6, 6, NOW), EventGap(2, 3, NOW)]
            assert await store.event_gaps(0, 9, 1) == [EventGap(6, 6, NOW)]
            assert await store.event_gaps(2, 5, 10) == [EventGap(3, 3, NOW)]
            assert await store.event_gaps(9, 9, 10) == []

    run(main())


def test_what_has_begun_is_told_as_its_event_will_be(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            first, second, third = await submit(store, new(), new(path="other"), new())
            [early] = await claim(store, NOW + 1, limit=1)
            [late] = await claim(store, NOW + 5, limit=1)
            [ended] = await claim(store, NOW + 6, limit=1)
            await complete(store, ended)
            found = await store.begun_since(NOW, 10)
            assert [(one.execution_id, one.path, one.at) for one in found] == [
                (first, "mail", NOW + 1),
                (second, "other", NOW + 5),
            ]
            assert msgspec.json.decode(found[0].body) == [
                {
                    "type": "action_started", "step": "first", "attempt": 1, "is_retry": False,
                    "worker": "worker-1", "place": -1,
                }
            ]  # fmt: skip
            assert [one.at for one in await store.begun_since(NOW + 5, 10)] == [NOW + 5]
            assert [one.at for one in await store.begun_since(NOW, 1)] == [NOW + 5]
            assert [one.at for one in await store.begun_since(0.0, 9, execution_id=first)] == [NOW + 1]
            assert await store.begun_since(0.0, 9, execution_id=third) == []
            assert early.id != late.id

    run(main())


def test_sqlite_has_no_open_transactions_to_wait_for(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            assert await store.open_transactions() == (0, 0)

    run(main())


def test_postgresql_tells_the_oldest_open_transaction(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            oldest, following = await store.open_transactions()
            assert 0 < oldest <= following
            connection = await raw_connection(postgres_url)
            async with connection.transaction():
                own = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
                await submit(store)
                oldest, following = await store.open_transactions()
                assert oldest <= own < following

            async def has_ended() -> bool:
                return (await store.open_transactions())[0] > own

            await eventually(has_ended)
            await connection.close()

    run(main())


# how the databases go about it


@pytest.mark.parametrize("analyzed", [True, False])
def test_postgresql_reads_few_rows_for_a_page_of_events(postgres_url: str, analyzed: bool) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store)
            await raw(postgres_url, FILL_EXECUTIONS.format(rows=20_000))
            await raw(
                postgres_url,
                "INSERT INTO events (execution_id, at, body)"
                " SELECT 1 + n % 20000, 0, '[]' FROM generate_series(1, 40000) n",
            )
            if analyzed:
                await raw(postgres_url, "ANALYZE")
            for conditions, index in [
                ([("v.id > {}", 39_000)], "events_pkey"),
                ([("v.id > {}", 0), ("v.execution_id = {}", 77)], "events_execution"),
            ]:
                sql, values = listing(
                    load_queries("postgresql")["event_rows"], conditions, 50, lambda place: f"${place}"
                )
                connection = await raw_connection(postgres_url)
                found = await explained(connection, sql, *values)
                await connection.close()
                assert index in {node.get("Index Name") for node in found}
                assert max(map(rows_touched, found)) <= 50

    run(main())


@pytest.mark.parametrize(
    ("conditions", "part"),
    [
        ([("v.id > {}", 0)], "SEARCH v USING INTEGER PRIMARY KEY (rowid>?)"),
        (
            [("v.id > {}", 0), ("v.execution_id = {}", 1)],
            "SEARCH v USING INDEX events_execution (execution_id=? AND id>?)",
        ),
        ([("v.id > {}", 0), ("e.path = {}", "mail")], "SEARCH v USING INTEGER PRIMARY KEY (rowid>?)"),
    ],
)
def test_sqlite_reads_a_page_of_events_by_an_index(
    sqlite_url: str, conditions: list[tuple[str, object]], part: str
) -> None:
    async def main() -> None:
        async with opened(sqlite_url):
            sql, values = listing(load_queries("sqlite")["event_rows"], conditions, 50, lambda _: "?")
            for value in values:
                sql = sql.replace("?", repr(value), 1)
            plan = [row[3] for row in await raw(sqlite_url, f"EXPLAIN QUERY PLAN {sql}")]
            assert plan == [part, "SEARCH e USING INTEGER PRIMARY KEY (rowid=?)"]

    run(main())


# hints


async def waiting(store: Store, ticket: int) -> asyncio.Task[bool]:
    """A task that waits, and has begun to; whether it was woken is its result."""

    async def wait() -> bool:
        started = time.monotonic()
        await store.wait_for_events(ticket, LONG_SECONDS)
        return time.monotonic() - started < LONG_SECONDS

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


async def quiet_ticket(store: Store) -> int:
    """A ticket taken after the stir of opening: a listener that has just begun hints once by itself, and so
    does the first look at a file."""
    before = store.event_ticket()
    await store.wait_for_events(before, LONG_SECONDS)
    return store.event_ticket()


@pytest.mark.parametrize("announce", ["announce_work", "announce_end"])
def test_what_is_announced_here_wakes_who_waits_for_events(store_url: str, announce: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            task = await waiting(store, await quiet_ticket(store))
            getattr(store, announce)()
            assert await task

    run(main())


@pytest.mark.parametrize("announce", ["announce_work", "announce_end"])
def test_what_is_announced_elsewhere_wakes_who_waits_for_events(store_url: str, announce: str) -> None:
    async def main() -> None:
        async with opened(store_url) as here, opened(store_url) as there:
            task = await waiting(here, await quiet_ticket(here))
            await submit(there)
            getattr(there, announce)()
            assert await task

    run(main())


def test_an_end_in_another_process_wakes_who_waits_for_events(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            task = await waiting(store, await quiet_ticket(store))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", COMPLETE_ONE, store_url, env=ENVIRONMENT, stderr=subprocess.PIPE
            )
            _, complaint = await process.communicate()
            assert (process.returncode, complaint) == (0, b"")
            assert await task

    run(main())


def test_a_wait_for_events_without_a_hint_ends_at_its_time(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            ticket = await quiet_ticket(store)
            await store.wait_for_events(ticket, 0.05)
            assert store.event_ticket() == ticket

    run(main())


def test_many_ends_are_few_notifications(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            ticket = await quiet_ticket(here)
            for _ in range(100):
                there.announce_end()
                await asyncio.sleep(0)
            await eventually(lambda: here.event_ticket() > ticket)
            assert here.event_ticket() - ticket < 10

    run(main())


def test_who_waits_for_work_does_not_listen_for_ends(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            before = here.work_ticket()
            await here.wait_for_work(before, LONG_SECONDS)  # the listener's own start
            listens = LISTENERS.replace("pid", "query")
            assert await raw(postgres_url, listens) == [('LISTEN "holdfast_work"',)]
            ticket = here.work_ticket()
            there.announce_end()
            assert isinstance(there, PostgresStore)
            assert there._events_notifier.task is not None
            await there._events_notifier.task
            await here.wait_for_work(ticket, 0.1)
            assert here.work_ticket() == ticket

    run(main())


def test_nobody_listens_for_events_when_nobody_waits_for_them_any_more(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_waking, "UNREAD_SECONDS_MAX", 0.1)

    async def main() -> None:
        async with opened(postgres_url) as store:
            await quiet_ticket(store)

            async def nobody() -> bool:
                return await raw(postgres_url, LISTENERS) == []

            store._events_read_at = float("-inf")  # type: ignore[attr-defined]
            await eventually(nobody)
            await quiet_ticket(store)
            assert not await nobody()

    run(main())
