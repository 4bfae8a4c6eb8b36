"""`ctx.transaction()`: what a handler writes commits with the completion of its step, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import apsw
import asyncpg
import pytest

from attempt_timeouts import Timeouts
from holdfast import Context, Holdfast, PermanentError, TransientError
from holdfast.core.model import EventType, ExecutionStatus, JobStatus
from holdfast.engine import Engine
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.statements import refuse_transaction_control
from notes_table import DELAYS, ENDS_SOON, INSERT, Notes, ended, errors_of
from running import eventually, run


def test_what_a_handler_writes_is_there_once_its_step_is_complete(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)
    seen: list[Any] = []

    @hf.step
    async def by_async(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            changed = await tx.execute(INSERT, ctx.execution_id, "async")
            await tx.executemany(INSERT, [(ctx.execution_id, "more"), (ctx.execution_id, "most")])
            seen.append(await tx.fetchval("SELECT count(*) FROM notes"))
            seen.append(await tx.fetchrow("SELECT note FROM notes WHERE note = $1", "more"))
            seen.append(await tx.fetchrow("SELECT note FROM notes WHERE note = $1", "none"))
            seen.append(await notes.all() if store_url.startswith("postgresql") else [])
        return changed

    @hf.step
    def by_thread(ctx: Context) -> int:
        with ctx.transaction() as tx:
            return tx.execute(
                "UPDATE notes SET note = note || $2 WHERE execution = $1", ctx.execution_id, "!"
            )

    hf.pipeline("notes", [by_async, by_thread])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working():
                view = await (await hf.submit("notes")).wait(ENDS_SOON)
            assert view.execution.status is ExecutionStatus.COMPLETED
            assert view.outputs == {"by_async": 1, "by_thread": 3}
            assert seen == [3, {"note": "more"}, None, []]
            assert await notes.all() == ["async!", "more!", "most!"]

    run(scenario())


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_an_attempt_that_fails_after_writing_leaves_nothing(store_url: str, kind: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def fails_once(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise TransientError("after the block")

    def fails_once_in_a_thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, ctx.execution_id, f"attempt {ctx.attempt}")
            if ctx.attempt == 1:
                raise TransientError("inside the block")

    hf.pipeline("p", [fails_once if kind == "async" else fails_once_in_a_thread], retry=DELAYS)

    async def scenario() -> None:
        async with hf:
            await ended(hf, notes)
            assert await notes.all() == ["attempt 2"]

    run(scenario())


def test_a_lost_lease_commits_nothing(store_url: str) -> None:
    """The fence is checked at the end, in the same transaction."""
    hf, notes = Holdfast(store_url), Notes(store_url)
    engine_of: list[Engine] = []

    @hf.step(retry=DELAYS)
    async def stolen_once(ctx: Context) -> str:
        if ctx.attempt == 1:
            # Everything a zombie does: another worker has the job before this one is done.
            engine = engine_of[0]
            await engine.store.heartbeat(  # so that the lease has run out and the sweep may take it
                [_beat(ctx)], await engine.store.now(), await engine.store.now() - 1
            )
            assert await engine.sweep() == 1
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, f"attempt {ctx.attempt}")
        return f"attempt {ctx.attempt}"

    hf.pipeline("p", [stolen_once])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            engine_of.append(await hf.engine())
            async with hf.working():
                view = await (await hf.submit("p")).wait(ENDS_SOON)
            assert view.outputs == {"stolen_once": "attempt 2"}
            assert await notes.all() == ["attempt 2"]
            told = [event.type for event in await hf.events(view.execution.id)]
            assert told.count(EventType.ACTION_COMPLETED) == 1

    run(scenario())


def _beat(ctx: Context) -> Any:
    from holdfast.store.interface import Beat

    return Beat(ctx._job.queue_id, ctx._job.fence)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_transaction_open_for_too_long_is_undone_and_tried_again(
    store_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(attempt: int) -> None:
        """Of the transactions that are begun from now on: the second attempt has all the time it needs."""
        for store in (SqliteStore, PostgresStore):
            monkeypatch.setattr(store, "transaction_seconds_max", 0.3 if attempt == 1 else 30.0)

    hf, notes = Holdfast(store_url), Notes(store_url)

    async def slow(ctx: Context) -> None:
        bound(ctx.attempt)
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, f"attempt {ctx.attempt}")
            if ctx.attempt == 1:
                await asyncio.sleep(1)  # and nothing more: found out at the end

    def slow_in_a_thread(ctx: Context) -> None:
        bound(ctx.attempt)
        with ctx.transaction() as tx:
            tx.execute(INSERT, ctx.execution_id, f"attempt {ctx.attempt}")
            if ctx.attempt == 1:
                time.sleep(1)
                tx.execute(INSERT, ctx.execution_id, "too late")

    hf.pipeline("p", [slow if kind == "async" else slow_in_a_thread], retry=DELAYS)

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            [error] = await errors_of(hf, view.execution.id)
            assert (error["error_type"], error["category"]) == ("timeout", "transient")
            assert "open for longer than 0.3 s" in error["message"]
            assert await notes.all() == ["attempt 2"]

    run(scenario())


def test_a_statement_that_never_ends_is_cut_off(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for store in (SqliteStore, PostgresStore):
        monkeypatch.setattr(store, "transaction_seconds_max", 0.3)
    hf = Holdfast(store_url)
    endless = (
        "SELECT pg_sleep(60)"
        if store_url.startswith("postgresql")
        else "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    )

    async def stuck(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            if ctx.attempt == 1:
                await tx.fetch(endless)

    hf.pipeline("p", [stuck], retry=DELAYS)

    async def scenario() -> None:
        async with hf:
            view = await ended(hf)
            [error] = await errors_of(hf, view.execution.id)
            assert error["error_type"] == "timeout"
            assert view.execution.status is ExecutionStatus.COMPLETED

    run(scenario())


@pytest.mark.usefixtures("quick_heartbeats")
def test_an_open_transaction_keeps_nobody_waiting_on_postgresql(postgres_url: str) -> None:
    """More open transactions than the store has connections, and reports, submits, sweeps go on."""
    hf, notes = Holdfast(postgres_url), Notes(postgres_url)
    opened, let_go = threading.Semaphore(0), threading.Event()

    async def holds(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, f"held {ctx.execution_id}")
            opened.release()
            await eventually(let_go.is_set, ENDS_SOON)

    async def passes(ctx: Context) -> None: ...

    hf.pipeline("holds", [holds])
    hf.pipeline("passes", [passes])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working(concurrency=12):
                held = await hf.submit_many("holds", range(10))
                for _ in range(8):
                    await eventually(lambda: opened.acquire(blocking=False), ENDS_SOON)
                await (await hf.submit("passes")).wait(ENDS_SOON)
                first = (await held[0].status()).jobs[0]
                assert first.status is JobStatus.LEASED
                # A heartbeat is not kept waiting by the transaction of its own job.
                await eventually(
                    lambda: _lease_was_extended(hf, held[0].id, first.lease_until or 0.0), ENDS_SOON
                )
                await (await hf.engine()).sweep()
                let_go.set()
                for execution in held:
                    view = await execution.wait(ENDS_SOON)
                    assert view.jobs[0].attempts == 1
            assert len(await notes.all()) == 10

    run(scenario())


async def _lease_was_extended(hf: Holdfast, execution_id: int, before: float) -> bool:
    job = (await hf.status(execution_id)).jobs[0]
    return job.status is JobStatus.LEASED and (job.lease_until or 0.0) > before


def test_on_sqlite_a_held_database_kills_no_healthy_lease(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats wait for the transaction; a sweep lets them go first."""
    hf, notes = Holdfast(sqlite_url), Notes(sqlite_url)
    started = threading.Event()
    sweep = Engine.sweep

    async def patient(engine: Engine, *, second_look_after: float) -> int:
        assert second_look_after > 0
        return await sweep(engine, second_look_after=3.0)  # time for a heartbeat also on a slow machine

    monkeypatch.setattr(Engine, "sweep", patient)

    @hf.step(retry=False)
    async def long(ctx: Context) -> None:
        started.set()
        await asyncio.sleep(8)  # until after the second look

    @hf.step(retry=False)
    async def holds(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "held")
            await asyncio.sleep(3)

    hf.pipeline("long", [long])
    hf.pipeline("holds", [holds])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working(lease_seconds=1.5):
                healthy = await hf.submit("long")
                await eventually(started.is_set, ENDS_SOON)
                holder = await hf.submit("holds")
                for execution in (holder, healthy):
                    view = await execution.wait(ENDS_SOON)
                    assert view.execution.status is ExecutionStatus.COMPLETED, view.summary
                    assert view.jobs[0].attempts == 1

    run(scenario())


def test_an_error_swallowed_in_the_block_fails_the_attempt(store_url: str) -> None:
    """PostgreSQL would commit nothing, and the handler would believe it had."""
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def swallows(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "one")
            with contextlib.suppress(Exception):
                await tx.execute(INSERT, ctx.execution_id, "one")

    hf.pipeline("p", [swallows], retry=DELAYS)

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            assert view.execution.error is not None
            assert "unique" in view.execution.error.message.lower()
            assert await notes.all() == []

    run(scenario())


def test_a_handler_may_go_on_without_a_block_that_failed(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def tolerant(ctx: Context) -> str:
        try:
            async with ctx.transaction() as tx:
                await tx.execute(INSERT, ctx.execution_id, "known")
        except (apsw.ConstraintError, asyncpg.UniqueViolationError):
            async with ctx.transaction() as tx:
                await tx.execute(INSERT, ctx.execution_id, f"other {ctx.execution_id}")
            return "known before"
        return "new"

    hf.pipeline("p", [tolerant])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working():
                first = await (await hf.submit("p")).wait(ENDS_SOON)
                second = await (await hf.submit("p")).wait(ENDS_SOON)
            assert first.outputs == {"tolerant": "new"}
            assert second.outputs == {"tolerant": "known before"}
            assert await notes.all() == ["known", f"other {second.execution.id}"]

    run(scenario())


def test_a_block_that_failed_after_another_fails_the_attempt(store_url: str) -> None:
    """Going on would complete the step without what the first block wrote."""
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def careless(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "first")
        with contextlib.suppress(TransientError):
            async with ctx.transaction():
                raise TransientError("no second block today")

    hf.pipeline("p", [careless])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            assert view.execution.error is not None
            assert view.execution.error.message == "no second block today"
            assert await notes.all() == []

    run(scenario())


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", " /* hidden */ commit", "BEGIN", "END"])
def test_a_handler_cannot_end_the_transaction_by_itself(store_url: str, sql: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def ends(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "half")
            await tx.execute(sql)

    async def ordinary(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.fetch("SELECT 1")

    hf.pipeline("ordinary", [ordinary])
    hf.pipeline("p", [ends], retry=DELAYS)

    async def scenario() -> None:
        async with hf:
            async with hf.working():  # its COMMIT must not be lent to the handler
                await (await hf.submit("ordinary")).wait(ENDS_SOON)
            view = await ended(hf, notes)
            error = view.execution.error
            assert error is not None
            assert (error.error_type, error.category) == ("validation_error", "permanent")
            assert "cannot be used in ctx.transaction()" in error.message
            assert await notes.all() == []

    run(scenario())


def test_a_commit_cannot_hide_behind_another_statement(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def hides(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (1, 'half'); COMMIT")

    hf.pipeline("p", [hides], retry=DELAYS)

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.status is ExecutionStatus.FAILED
            assert await notes.all() == []

    run(scenario())


@pytest.mark.parametrize(
    ("sql", "is_refused"),
    [
        ("/* a /* b */ c */ COMMIT", True),
        ("-- a\n;/* b */commit", True),
        ("/* never closed COMMIT", False),
        ("ROLLBACK WORK TO SAVEPOINT a", False),
        ("rollback /* x */ to a", False),
        ("PREPARE TRANSACTION 'x'", True),
        ("PREPARE x AS SELECT 1", False),
        ("INSERT INTO commit VALUES (1)", False),
        ("", False),
    ],
)
def test_comments_hide_nothing(sql: str, is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(PermanentError, match="cannot be used"):
            refuse_transaction_control(sql)
    else:
        refuse_transaction_control(sql)


@pytest.mark.parametrize(
    "sql", ["DELETE FROM jobs", "DROP TABLE events", "ATTACH 'x' AS y", "PRAGMA synchronous = OFF"]
)
def test_on_sqlite_a_handler_cannot_touch_what_is_not_its_own(sqlite_url: str, sql: str) -> None:
    hf = Holdfast(sqlite_url)

    async def touches(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(sql)

    hf.pipeline("p", [touches], retry=DELAYS)

    async def scenario() -> None:
        async with hf:
            view = await ended(hf)
            assert view.execution.error is not None
            assert view.execution.error.category == "permanent"

    run(scenario())


def test_a_plain_with_in_an_async_handler_says_what_to_write(store_url: str) -> None:
    hf = Holdfast(store_url)

    async def mixed_up(ctx: Context) -> None:
        with ctx.transaction():
            pass

    hf.pipeline("p", [mixed_up])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf)
            assert view.execution.error is not None
            assert "plain `with`" in view.execution.error.message

    run(scenario())


def test_a_timed_out_thread_cannot_write_any_more(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hf, notes, timeouts = Holdfast(store_url), Notes(store_url), Timeouts(monkeypatch)
    late: list[BaseException] = []
    is_told = threading.Event()

    @hf.step
    def slow(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, ctx.execution_id, "early")
            timeouts.expire()
            is_told.wait(ENDS_SOON)
            try:
                tx.execute(INSERT, ctx.execution_id, "late")
            except TransientError as error:
                late.append(error)
                raise

    hf.pipeline("p", [slow])

    async def scenario() -> None:
        async with hf:
            view = await ended(hf, notes)
            assert view.execution.error is not None
            assert view.execution.error.error_type == "timeout"
            is_told.set()
            await eventually(lambda: late, ENDS_SOON)
            assert await notes.all() == []

    run(scenario())


@pytest.mark.usefixtures("quick_heartbeats")
def test_a_cancelled_execution_keeps_nothing_of_its_open_transaction(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)
    started = threading.Event()

    async def waits(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            if store_url.startswith("postgresql"):  # on SQLite the cancel itself waits for the transaction
                await tx.execute(INSERT, ctx.execution_id, "never")
            started.set()
            await asyncio.sleep(3600)

    async def after(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, "after")

    hf.pipeline("waits", [waits])
    hf.pipeline("after", [after])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working():
                execution = await hf.submit("waits")
                await eventually(started.is_set, ENDS_SOON)
                assert await hf.cancel(execution.id)
                await (await hf.submit("after")).wait(ENDS_SOON)
            assert await notes.all() == ["after"]

    run(scenario())


def test_many_at_once_each_commit_once(store_url: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def note(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, f"{ctx.execution_id:03}")

    def note_again(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, ctx.execution_id, f"{ctx.execution_id:03} again")

    hf.pipeline("p", [note, note_again])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            executions = await hf.submit_many("p", range(40))
            async with hf.working():
                for execution in executions:
                    view = await execution.wait(ENDS_SOON)
                    assert view.execution.status is ExecutionStatus.COMPLETED
            assert len(await notes.all()) == 80

    run(scenario())


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_work_submitted_in_it_runs_if_the_step_completes(store_url: str, kind: str) -> None:
    hf, notes = Holdfast(store_url), Notes(store_url)

    async def plan_work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await hf.submit("follow", f"attempt {ctx.attempt}", connection=tx)
            await hf.submit_many("follow", [f"{ctx.attempt} a", f"{ctx.attempt} b"], connection=tx)
        if ctx.attempt == 1:
            raise TransientError("not yet")

    def plan_in_a_thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            hf.submit_sync("follow", f"attempt {ctx.attempt}", connection=tx)
            hf.submit_many_sync("follow", [f"{ctx.attempt} a", f"{ctx.attempt} b"], connection=tx)
            if ctx.attempt == 1:
                raise TransientError("not yet")

    async def follow(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, ctx.execution_id, ctx.workload)

    hf.pipeline("plan", [plan_work if kind == "async" else plan_in_a_thread], retry=DELAYS)
    hf.pipeline("follow", [follow])

    async def scenario() -> None:
        async with hf:
            await notes.make()
            async with hf.working():
                await (await hf.submit("plan")).wait(ENDS_SOON)
                await eventually(lambda: _has_three(notes), ENDS_SOON)
            assert await notes.all() == ["2 a", "2 b", "attempt 2"]
            assert len((await hf.executions()).items) == 4

    run(scenario())


async def _has_three(notes: Notes) -> bool:
    return len(await notes.all()) == 3
