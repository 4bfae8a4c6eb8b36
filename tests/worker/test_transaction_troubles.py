"""`ctx.transaction()` when things go wrong in the middle: nothing half done is kept, and nothing is kept from
those who come after."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import Context, Holdfast, Retry, TransientError
from holdfast.core.errors import TransactionLost
from holdfast.core.model import ExecutionStatus
from holdfast.store import store_from_url
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite_transaction import TransactionLine
from holdfast.worker.transaction import AttemptTransaction
from notes_table import DELAYS, ENDS_SOON, INSERT, Notes, ended, errors_of
from running import eventually, run

CONNECTIONS = 8


def test_a_cancel_at_any_moment_leaves_the_turn_to_the_next(store_url: str) -> None:
    async def scenario() -> None:
        store = store_from_url(store_url)
        await store.open()
        for hops in [0, 1, 2, 3] * 25:
            transaction = store.transaction()
            statement = asyncio.create_task(transaction.fetch("SELECT 1 AS one", ()))
            for _ in range(hops):
                await asyncio.sleep(0)
            statement.cancel()
            await asyncio.wait([statement])
            await transaction.rollback()
        last = store.transaction()
        assert await last.fetch("SELECT 1 AS one", ()) == [{"one": 1}]
        await last.rollback()
        await store.close()

    run(scenario())


def test_what_comes_after_an_automatic_rollback_is_not_committed_on_its_own(sqlite_url: str) -> None:
    hf, notes = Holdfast(sqlite_url), Notes(sqlite_url)

    async def gathers(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "known")
            await asyncio.gather(
                tx.execute("INSERT OR ROLLBACK INTO notes VALUES (1, 'known')"),
                tx.execute(INSERT, ctx.execution_id, "on its own"),
            )

    hf.pipeline("p", [gathers])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            assert await notes.all() == []

    run(scenario())


def test_a_group_made_in_a_lost_transaction_is_made_again(sqlite_url: str) -> None:
    hf, notes = Holdfast(sqlite_url), Notes(sqlite_url)
    ran: list[str] = []

    async def loses(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await hf.submit("child", connection=tx)
            await tx.execute(INSERT, ctx.execution_id, "known")
            await tx.execute("INSERT OR ROLLBACK INTO notes VALUES (1, 'known')")

    async def child(ctx: Context) -> None:
        ran.append("child")

    async def other(ctx: Context) -> None:
        ran.append("other")

    hf.pipeline("p", [loses])
    hf.pipeline("child", [child])
    hf.pipeline("other", [other])

    async def scenario() -> None:
        async with hf:
            await ended(hf, notes)
            async with hf.working():
                for name in ("child", "other"):
                    await (await hf.submit(name)).wait(ENDS_SOON)
            assert ran == ["child", "other"]

    run(scenario())


@pytest.mark.parametrize("kind", ["nested", "beside", "beside, and ends during the rollback"])
def test_a_block_that_fails_takes_those_around_it_along(
    store_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction serves them all: the step must not complete without what the other block wrote."""
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def fails(ctx: Context) -> None:
        with contextlib.suppress(TransientError):
            async with ctx.transaction():
                raise TransientError("this block fails")

    async def nested(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "before")
            await fails(ctx)
            await tx.execute(INSERT, ctx.execution_id, "after")

    async def beside(ctx: Context) -> None:
        written, may_leave, has_left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        rollback = AttemptTransaction._rollback

        async def writes() -> None:
            try:
                async with ctx.transaction() as tx:
                    await tx.execute(INSERT, ctx.execution_id, "before")
                    written.set()
                    await may_leave.wait()
            finally:
                has_left.set()

        async def fails_then() -> None:
            await written.wait()
            await fails(ctx)
            may_leave.set()

        async def slow_rollback(transaction: AttemptTransaction) -> None:
            await rollback(transaction)
            if not may_leave.is_set():
                may_leave.set()
                await has_left.wait()

        if kind != "beside":
            monkeypatch.setattr(AttemptTransaction, "_rollback", slow_rollback)
        await asyncio.gather(writes(), fails_then())

    hf.pipeline("p", [nested if kind == "nested" else beside])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            assert view.execution.error is not None
            assert "this block fails" in view.execution.error.message
            assert await notes.all() == []

    run(scenario())


def test_statements_of_a_block_that_was_left_are_refused(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def late(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "inside")
        await tx.execute(INSERT, ctx.execution_id, "outside")

    hf.pipeline("p", [late])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.error is not None
            assert "has been left" in view.execution.error.message
            assert await notes.all() == []

    run(scenario())


def test_a_statement_that_is_not_awaited_fails_the_attempt(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def forgets(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "awaited")
            tx.execute(INSERT, ctx.execution_id, "forgotten")  # type: ignore[unused-coroutine]

    hf.pipeline("p", [forgets])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            error = view.execution.error
            assert error is not None
            assert "not awaited: INSERT INTO notes" in error.message
            assert "Write `await`" in error.guidance
            assert await notes.all() == []

    run(scenario())


@pytest.mark.parametrize("caught", [False, True])
def test_a_statement_that_fails_in_a_task_fails_the_attempt(store_url: str, caught: bool) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def spreads(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "known")
            task = asyncio.create_task(tx.execute(INSERT, ctx.execution_id, "known"))
            await asyncio.sleep(0)  # begun, and not waited for
        if caught:
            await asyncio.wait([task])

    hf.pipeline("p", [spreads])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            assert view.execution.error is not None
            assert "unique" in view.execution.error.message.lower()
            assert await notes.all() == []

    run(scenario())


def test_a_block_that_fails_in_a_task_does_not_stop_the_worker(store_url: str) -> None:
    """The handler itself is in a statement at that moment."""
    hf, notes = Holdfast(store_url), Notes(store_url)
    slow = (
        "SELECT pg_sleep(0.3)"
        if store_url.startswith("postgresql")
        else "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 300000) SELECT 1 FROM n"
    )

    async def spreads(ctx: Context) -> None:
        async def fails() -> None:
            with contextlib.suppress(TransientError):
                async with ctx.transaction():
                    await asyncio.sleep(0.05)
                    raise TransientError("in a task")

        async with ctx.transaction() as tx:
            task = asyncio.create_task(fails())
            await tx.fetch(slow)
            await task

    async def other(ctx: Context) -> str:
        return "goes on"

    hf.pipeline("p", [spreads])
    hf.pipeline("other", [other])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working(concurrency=1):
                view = await (await hf.submit("p")).wait(ENDS_SOON)
                assert view.execution.status is ExecutionStatus.FAILED
                later = await (await hf.submit("other")).wait(ENDS_SOON)
                assert later.outputs == {"other": "goes on"}

    run(scenario())


def test_a_program_may_go_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are made later lead to the same file."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    hf, notes = Holdfast("sqlite:///rel.db"), Notes(f"sqlite:///{tmp_path / 'rel.db'}")

    async def moves(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "moved")

    hf.pipeline("p", [moves])

    async def scenario() -> None:
        async with hf:
            await hf.executions()
            monkeypatch.chdir(tmp_path / "elsewhere")
            await ended(hf, notes)
        assert await notes.all() == ["moved"]
        assert list((tmp_path / "elsewhere").iterdir()) == []

    run(scenario())


def test_a_savepoint_takes_a_failed_statement_back(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def careful(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "known")
            await tx.execute("SAVEPOINT before")
            try:
                await tx.execute(INSERT, ctx.execution_id, "known")
            except Exception:
                await tx.execute("ROLLBACK TO before")
            await tx.execute(INSERT, ctx.execution_id, "another")

    hf.pipeline("p", [careful])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.COMPLETED, view.summary
            assert await notes.all() == ["another", "known"]

    run(scenario())


def test_a_statement_cut_off_by_the_handlers_own_timeout_fails_the_attempt(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until then the statement goes on, as SQLite has no other end for it.
    monkeypatch.setattr(SqliteStore, "transaction_seconds_max", 5.0)
    hf, notes = Holdfast(store_url), Notes(store_url)
    endless = (
        "SELECT pg_sleep(60)"
        if store_url.startswith("postgresql")
        else "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    )

    async def impatient(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "before")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await tx.fetch(endless)

    hf.pipeline("p", [impatient])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            [error] = await errors_of(hf, view.execution.id)
            assert error["category"] == "transient"
            assert await notes.all() == []

    run(scenario())


def test_what_a_clear_hook_did_in_a_lost_transaction_is_done_again(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)
    cleared: list[int] = []

    async def remove(ctx: Context) -> None:
        cleared.append(ctx.attempt)
        async with ctx.transaction() as tx:
            await tx.execute("DELETE FROM notes")

    @hf.step(retry=Retry(delays=[0.01]), clear=remove)
    async def writes(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, f"round {ctx.round}")
        if ctx.round == 2 and ctx.attempt == 1:
            raise TransientError("after the hook")

    @hf.step(retry=False)
    async def refuses(ctx: Context) -> None:
        if ctx.round == 1:
            raise TransientError("not in the first round")

    hf.pipeline("p", [writes, refuses])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            await hf.retry(view.execution.id, full=True, confirm=True)
            async with hf.working():
                await hf.wait(view.execution.id, ENDS_SOON)
            assert cleared == [1, 2]
            assert await notes.all() == ["round 2"]

    run(scenario())


def test_a_write_beside_the_open_transaction_says_what_to_do(sqlite_url: str) -> None:
    """It would wait for itself, and everybody with it."""
    hf, notes = Holdfast(sqlite_url), Notes(sqlite_url)

    async def beside(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "half")
            await hf.submit("p")

    async def after(ctx: Context) -> None:
        await hf.submit("nothing")

    async def nothing(ctx: Context) -> None: ...

    hf.pipeline("p", [beside], retry=DELAYS)
    hf.pipeline("after", [after])
    hf.pipeline("nothing", [nothing])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working(concurrency=1):
                view = await (await hf.submit("p")).wait(ENDS_SOON)
                # The same slot serves the next job, which may write.
                later = await (await hf.submit("after")).wait(ENDS_SOON)
            assert later.execution.status is ExecutionStatus.COMPLETED
            error = view.execution.error
            assert error is not None
            assert error.category == "permanent"
            assert "connection=tx" in error.guidance
            assert await notes.all() == []

    run(scenario())


def test_a_transaction_of_another_database_is_refused(store_url: str, tmp_path: Path) -> None:
    hf, other = Holdfast(store_url), Holdfast(f"sqlite:///{tmp_path / 'other.db'}")

    async def nothing(ctx: Context) -> None: ...

    async def confused(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await other.submit("elsewhere", connection=tx)

    hf.pipeline("p", [confused])
    other.pipeline("elsewhere", [nothing])

    async def scenario() -> None:
        async with hf, other:
            view = await ended(hf)
            assert view.execution.error is not None
            assert "another database" in view.execution.error.message

    run(scenario())


def test_many_rows_do_not_outlast_the_bound(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteStore, "transaction_seconds_max", 0.1)
    hf, notes = Holdfast(sqlite_url), Notes(sqlite_url)

    async def many(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.executemany(INSERT, [(1, f"{n}") for n in range(400_000)])

    hf.pipeline("p", [many])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.error is not None
            assert view.execution.error.error_type == "timeout"
            assert await notes.all() == []

    run(scenario())


def test_a_statement_that_begins_just_as_the_time_is_over_is_cut_off(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_handler = TransactionLine.as_handler

    def late(line: TransactionLine, action: Callable[[], Any]) -> Any:
        time.sleep(0.3)  # after the look at the clock, and before SQLite has begun
        return as_handler(line, action)

    async def scenario() -> None:
        store = store_from_url(sqlite_url)
        await store.open()
        with pytest.raises(TransactionLost, match="open for longer"):
            await store.transaction().fetch(
                "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n", ()
            )
        await store.close()

    monkeypatch.setattr(TransactionLine, "as_handler", late)
    monkeypatch.setattr(SqliteStore, "transaction_seconds_max", 0.2)
    run(scenario())


def test_closing_the_store_ends_an_open_transaction(store_url: str) -> None:
    async def scenario() -> None:
        store = store_from_url(store_url)
        await store.open()
        transaction = store.transaction()
        await transaction.fetch("SELECT 1", ())
        await store.close()
        await store.open()
        await store.prune(0.0, 1)  # it can be written
        await store.close()

    run(scenario())


def test_on_postgresql_a_statement_that_comes_too_late_keeps_no_connection(postgres_url: str) -> None:
    async def scenario() -> None:
        store = store_from_url(postgres_url)
        await store.open()
        held = [store.transaction() for _ in range(CONNECTIONS)]
        for transaction in held:
            await transaction.fetch("SELECT 1", ())
        late = store.transaction()
        waiting = asyncio.create_task(late.fetch("SELECT 1", ()))
        await asyncio.wait([waiting], timeout=0.1)  # for a connection
        over = asyncio.create_task(late.rollback())  # its attempt ends meanwhile
        await asyncio.wait([over], timeout=0.1)
        for transaction in held:
            await transaction.rollback()
        await asyncio.wait([waiting, over])
        assert (
            isinstance(waiting.exception(), TransactionLost | asyncio.CancelledError)
            if (not waiting.cancelled())
            else True
        )
        again = [store.transaction() for _ in range(CONNECTIONS)]
        for transaction in again:
            await transaction.fetch("SELECT 1", ())
        for transaction in again:
            await transaction.rollback()
        await store.close()

    run(scenario())


def test_on_postgresql_a_broken_connection_costs_an_attempt_and_not_the_worker(postgres_url: str) -> None:
    hf = Holdfast(postgres_url)

    async def breaks(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            pid = await tx.fetchval("SELECT pg_backend_pid()")
        if ctx.attempt == 1:
            other = await asyncpg.connect(postgres_url)
            await other.execute("SELECT pg_terminate_backend($1)", pid)
            await other.close()
        if ctx.workload == "and raises":
            raise TransientError("as well")

    hf.pipeline("p", [breaks], retry=Retry(delays=[0.01]))

    async def scenario() -> None:
        async with hf, hf.working():
            raising = await hf.submit("p", "and raises")
            view = await (await hf.submit("p")).wait(ENDS_SOON)
            assert view.execution.status is ExecutionStatus.COMPLETED
            assert (await raising.wait(ENDS_SOON)).execution.status is ExecutionStatus.FAILED

    run(scenario())


@pytest.mark.parametrize("ended_by", ["bound", "timeout of a thread"])
def test_on_postgresql_the_end_of_a_transaction_ends_its_statement(
    postgres_url: str, ended_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that went on at the server would keep its locks, and the retry waiting."""
    hf = Holdfast(postgres_url)

    async def sleeps(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.fetch("SELECT pg_sleep(300)")

    @hf.step(timeout=0.3)
    def sleeps_in_a_thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.fetch("SELECT pg_sleep(300)")

    if ended_by == "bound":
        monkeypatch.setattr(PostgresStore, "transaction_seconds_max", 0.3)
        hf.pipeline("p", [sleeps])
    else:
        hf.pipeline("p", [sleeps_in_a_thread])

    async def scenario() -> None:
        other = await asyncpg.connect(postgres_url)
        sleeping = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(300)' AND state = 'active'"
        )

        async def nobody_sleeps() -> bool:
            return not await other.fetchval(sleeping)

        async with hf:
            view = await ended(hf)
            assert view.execution.error is not None
            assert view.execution.error.error_type == "timeout"
            await eventually(nobody_sleeps, ENDS_SOON)
        await other.close()

    run(scenario())


def test_on_sqlite_transactions_one_after_the_other_leave_others_a_moment(sqlite_url: str) -> None:
    """Other processes poll for the lock; this is what they would meet."""

    async def scenario() -> None:
        store = store_from_url(sqlite_url)
        await store.open()
        first, second = store.transaction(), store.transaction()
        await first.fetch("SELECT 1", ())
        opened = asyncio.create_task(second.fetch("SELECT 1", ()))
        await asyncio.sleep(0.3)
        not_over = time.monotonic()
        await first.rollback()
        await opened
        assert time.monotonic() - not_over >= 0.1
        await second.rollback()
        await store.close()

    run(scenario())
