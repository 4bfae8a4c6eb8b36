"""Waking and the clock: hints that work may be ready, from this process and from others."""

import asyncio
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.store import Store, postgres, postgres_clock, postgres_waking
from holdfast.store.postgres_clock import Lead, ServerClock
from holdfast.store.waking import LOOKS_WITHOUT_A_MOVE_MAX, LogWatch
from running import eventually, run
from store_scenario import ENVIRONMENT, NOW, opened, raw, submit

# Far longer than any hint takes; a wait that lasts this long has missed its hint.
LONG_SECONDS = 30.0

SUBMIT_AND_ANNOUNCE = """
import asyncio, sys
from holdfast.store import postgres_waking
from store_scenario import opened, submit

postgres_waking.FLUSH_SECONDS = 60.0

async def main():
    async with opened(sys.argv[1]) as store:
        await submit(store)
        store.announce_work()

asyncio.run(main())
"""

LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"


async def waiting(store: Store, ticket: int) -> asyncio.Task[bool]:
    """A task that waits, and has begun to; whether it was woken is its result."""

    async def wait() -> bool:
        started = time.monotonic()
        await store.wait_for_work(ticket, LONG_SECONDS)
        return time.monotonic() - started < LONG_SECONDS

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


async def listening(url: str) -> int:
    """The process id of the connection that hears NOTIFY, once there is one."""

    async def found() -> int | None:
        rows = await raw(url, LISTENERS)
        return rows[0][0] if rows else None

    pid = await eventually(found)
    assert pid is not None
    return pid


async def quiet_ticket(store: Store) -> int:
    """A ticket taken after the stir of opening: a listener that has just begun hints once by itself."""
    before = store.work_ticket()
    await store.wait_for_work(before, 0.0)
    if isinstance(store, postgres.PostgresStore):
        await eventually(lambda: store.work_ticket() > before, LONG_SECONDS)
    return store.work_ticket()


def test_an_announcement_wakes_every_waiter_of_the_process(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            ticket = await quiet_ticket(store)
            waiters = [await waiting(store, ticket) for _ in range(3)]
            store.announce_work()
            assert await asyncio.gather(*waiters) == [True] * 3

    run(main())


def test_work_announced_between_ticket_and_wait_is_not_slept_through(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            ticket = await quiet_ticket(store)
            store.announce_work()
            assert await (await waiting(store, ticket))

    run(main())


def test_a_wait_without_a_hint_ends_at_its_time(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            ticket = await quiet_ticket(store)
            await store.wait_for_work(ticket, 0.05)
            assert store.work_ticket() == ticket

    run(main())


def test_another_store_on_the_same_database_wakes_the_waiter(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as here, opened(store_url) as there:
            task = await waiting(here, await quiet_ticket(here))
            await submit(there)
            there.announce_work()
            assert await task

    run(main())


def test_another_process_wakes_the_waiter_even_if_it_ends_at_once(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            task = await waiting(store, await quiet_ticket(store))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SUBMIT_AND_ANNOUNCE, store_url, env=ENVIRONMENT, stderr=subprocess.PIPE
            )
            _, complaint = await process.communicate()
            assert (process.returncode, complaint) == (0, b"")
            assert await task

    run(main())


def test_a_sqlite_waiter_is_not_woken_by_its_own_commits(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            ticket = await quiet_ticket(store)
            await submit(store)
            await store.wait_for_work(ticket, 0.1)
            assert store.work_ticket() == ticket

    run(main())


def test_many_announcements_are_few_notifications(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            ticket = await quiet_ticket(here)
            for _ in range(100):
                there.announce_work()
            await eventually(lambda: here.work_ticket() > ticket)
            assert here.work_ticket() - ticket < 10

    run(main())


def test_announcements_that_come_during_a_notification_are_sent_after_it(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            ticket = await quiet_ticket(here)
            there.announce_work()
            await eventually(lambda: here.work_ticket() > ticket)
            ticket = here.work_ticket()
            there.announce_work()
            await asyncio.sleep(0)
            there.announce_work()
            await eventually(lambda: here.work_ticket() > ticket)

    run(main())


def test_a_listener_whose_connection_is_killed_listens_again(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            ticket = await quiet_ticket(here)
            first = await listening(postgres_url)
            await raw(postgres_url, f"SELECT pg_terminate_backend({first})")

            async def another() -> bool:
                return await raw(postgres_url, LISTENERS) not in ([], [(first,)])

            await eventually(another)
            await eventually(lambda: here.work_ticket() > ticket)  # it hints once by itself as well
            task = await waiting(here, here.work_ticket())
            there.announce_work()
            assert await task

    run(main())


def test_a_listener_that_cannot_connect_tries_until_it_can(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_waking, "LISTEN_RETRY_SECONDS", 0.01)

    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, postgres.PostgresStore)
            real, store.url = store.url, "postgresql://nobody@/nothing?host=/nowhere&port=1"
            await store.wait_for_work(store.work_ticket(), 0.05)
            assert await raw(postgres_url, LISTENERS) == []
            store.url = real
            await listening(postgres_url)

    run(main())


def test_a_closed_store_does_not_listen(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await quiet_ticket(store)
        await store.wait_for_work(store.work_ticket(), 0.05)

        async def silent() -> bool:
            return await raw(postgres_url, LISTENERS) == []

        await eventually(silent)

    run(main())


def test_an_announcement_that_cannot_be_sent_is_no_error(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, postgres.PostgresStore)
            await raw(
                postgres_url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            store.announce_work()
            assert store._work_notifier.task is not None
            await store._work_notifier.task

    run(main())


# the clock


def test_an_injected_clock_is_the_stores_clock(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url, clock=lambda: NOW) as store:
            assert await store.now() == NOW

    run(main())


def test_sqlite_has_the_clock_of_its_machine(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            before = time.time()
            assert before <= await store.now() <= time.time()

    run(main())


def test_postgresql_has_the_clock_of_its_server_whatever_the_local_one_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def server_now() -> float:
        ((now,),) = await raw(postgres_url, "SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now)

    async def main() -> None:
        async with opened(postgres_url) as store:
            monkeypatch.setattr(time, "time", lambda: 0.0)
            before = await server_now()
            first, second = await store.now(), await store.now()
            after = await server_now()
            # The offset is measured to half a round trip, and PostgreSQL's clock may be slewed meanwhile.
            assert before - 1 < first <= second < after + 1

    run(main())


def test_the_clock_is_compared_with_the_servers_again_and_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, postgres.PostgresStore)
            await store.now()
            store._server_clock.offset += 1_000.0
            wrong = await store.now()
            monkeypatch.setattr(postgres_clock, "SYNC_SECONDS", -1.0)

            async def is_right() -> bool:
                return await store.now() < wrong - 900.0

            await eventually(is_right)

    run(main())


def test_what_is_under_way_does_not_wait_for_the_servers_clock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, postgres.PostgresStore)
            before = await store.now()
            monkeypatch.setattr(postgres_clock, "SYNC_SECONDS", -1.0)
            async with AsyncExitStack() as taken:
                for _ in range(postgres.POOL_SIZE_MAX):
                    await taken.enter_async_context(store._acquire())
                async with asyncio.timeout(LONG_SECONDS):  # nobody can be asked
                    assert await store.now() >= before

    run(main())


def test_a_clock_that_was_not_compared_for_long_is_compared_first(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, postgres.PostgresStore)
            await store.now()
            store._server_clock.offset += 1_000.0
            wrong = await store.now()
            monkeypatch.setattr(postgres_clock, "STALE_SECONDS", -1.0)
            assert await store.now() < wrong - 900.0

    run(main())


def test_the_wait_for_a_connection_is_not_mistaken_for_a_difference_of_the_clocks(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, postgres.PostgresStore)
            true = await store.now() - time.monotonic()
            store._server_clock.compared_at = float("-inf")
            async with AsyncExitStack() as taken:
                for _ in range(postgres.POOL_SIZE_MAX):
                    await taken.enter_async_context(store._acquire())
                asked, asking = time.monotonic(), asyncio.create_task(store.now())
                await eventually(lambda: time.monotonic() > asked + 3, 30)
            await asking
            assert abs(store._server_clock.offset - true) < 1

    run(main())


def test_an_answer_of_the_clock_that_was_held_up_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped in the middle would take half of that time for a lead."""
    local, delays = [100.0], iter([4.0, 0.05, 0.002, 9.0])

    async def ask() -> float:
        answered = local[0] + 1_000.0
        local[0] += next(delays)
        return answered

    monkeypatch.setattr(postgres_clock.time, "monotonic", lambda: local[0])
    coroutine = postgres_clock.lead_of(ask)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == pytest.approx((1_000.0 - 0.001, 0.001))
    assert next(delays) == 9.0  # a quick answer is enough


def test_a_poor_answer_of_the_clock_changes_nothing_unless_it_contradicts_a_better_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = [100.0]
    answers = iter(
        [
            Lead(1_000.0, 0.001),
            Lead(1_000.03, 0.05),  # the machine was busy
            Lead(1_000.002, 0.002),  # no worse than the first, which is 50 s old
            Lead(990.0, 0.5),  # the server's clock was set
            Lead(990.3, 0.4),
        ]
    )

    async def compare() -> Lead:
        return next(answers)

    async def main() -> list[float]:
        clock = ServerClock(compare)
        told = []
        for _ in range(5):
            local[0] += 2 * postgres_clock.STALE_SECONDS
            told.append(await clock.now() - local[0])
        return told

    monkeypatch.setattr(postgres_clock.time, "monotonic", lambda: local[0])
    monkeypatch.setattr(postgres_clock, "STALE_SECONDS", 25.0)
    coroutine = main()
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == pytest.approx([1_000.0, 1_000.0, 1_000.002, 990.0, 990.3])


def test_the_end_of_something_is_announced_in_this_process_only(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as elsewhere:
            listening = elsewhere.work_ticket()
            await elsewhere.wait_for_work(listening, 30)  # the listener's own start moves it once
            ticket, far = here.work_ticket(), elsewhere.work_ticket()
            here.announce_end()
            await here.wait_for_work(ticket, 30)
            assert here.work_ticket() != ticket
            await elsewhere.wait_for_work(far, 0.2)
            assert elsewhere.work_ticket() == far

    run(main())


def test_a_hint_leaves_the_session_as_it_was(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            assert isinstance(store, postgres.PostgresStore)
            store.announce_work()
            assert store._work_notifier.task is not None
            await store._work_notifier.task
            async with AsyncExitStack() as taken:
                for _ in range(2):
                    db = await taken.enter_async_context(store._acquire())
                    assert await db.fetchval("SHOW synchronous_commit") == "on"

    run(main())


def test_a_log_has_moved_once_for_each_touch(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    watch, writer = LogWatch(log), LogWatch(log)
    assert watch.has_moved() and not watch.has_moved()
    writer.touch()
    assert watch.has_moved() and not watch.has_moved()
    log.write_text("more")
    assert watch.has_moved() and not watch.has_moved()


def test_a_log_is_taken_to_have_moved_now_and_then(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    watch = LogWatch(log)
    looks = [watch.has_moved() for _ in range(1 + 2 * LOOKS_WITHOUT_A_MOVE_MAX)]
    assert [place for place, moved in enumerate(looks) if moved] == [
        0, LOOKS_WITHOUT_A_MOVE_MAX, 2 * LOOKS_WITHOUT_A_MOVE_MAX,
    ]  # fmt: skip


def test_a_log_that_is_not_there_has_moved(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path / "log")
    watch.touch()
    assert watch.has_moved() and watch.has_moved()
    assert not (tmp_path / "log").exists()


def test_the_log_of_a_database_behind_a_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "far" / "real.db")

    async def main() -> None:
        async with opened(f"sqlite:///{tmp_path / 'link.db'}") as store:
            log = tmp_path / "far" / "real.db-wal"
            before = log.stat().st_mtime_ns
            store.announce_work()
            assert log.stat().st_mtime_ns > before

    run(main())
