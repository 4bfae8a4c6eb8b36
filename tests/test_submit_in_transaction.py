"""A job that is submitted on the caller's connection commits or vanishes with the caller's own data."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from caller_connections import ASYNC_KINDS, KINDS, SYNC_KINDS, WAYS_OF_SENDING, for_sqlalchemy
from holdfast import Context, Execution, ExecutionStatus, Holdfast, IdempotencyConflict, UnknownName
from running import eventually, run

ENDS_SOON = 60.0
HOW_TO = Path(__file__).parent.parent / "docs" / "how-to" / "submit-in-your-own-transaction.md"
HOSTILE = {"text": "100 % {a,b} \"q\" \\ 'it''s' $1 %(p1)s NULL\n☃", "none": None, "list": [None, 1.5, True]}
# A worker that polls so rarely works only on what it is woken for.
HARDLY_EVER = 3600.0


async def echo(ctx: Context) -> Any:
    return ctx.workload


def shop(url: str) -> Holdfast:
    hf = Holdfast(url)
    hf.pipeline("confirm", [hf.step(retry=2)(echo)])
    return hf


@contextlib.asynccontextmanager
async def open_shop(url: str) -> AsyncIterator[Holdfast]:
    """Its database has a table of the caller's own."""
    async with shop(url) as hf:
        await ask(url, "CREATE TABLE orders (id int)")
        yield hf


async def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    """On a connection of its own: what others see."""
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def orders(url: str) -> list[int]:
    return [id_ for (id_,) in await ask(url, "SELECT id FROM orders ORDER BY id")]


async def jobs(url: str) -> int:
    [(executions, jobs, events)] = await ask(
        url,
        "SELECT (SELECT count(*) FROM holdfast.executions), (SELECT count(*) FROM holdfast.jobs),"
        " (SELECT count(*) FROM holdfast.events)",
    )
    assert executions == jobs == events
    found: int = jobs
    return found


every_kind = pytest.mark.parametrize("kind", KINDS)
every_way_of_sending = pytest.mark.parametrize("kind", WAYS_OF_SENDING)


class Undo(Exception):
    pass


@every_kind
def test_a_job_is_run_once_its_transaction_has_committed(postgres_url: str, kind: str) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf, hf.working(poll_seconds=HARDLY_EVER):
            async with KINDS[kind](postgres_url) as caller:
                await caller.execute("INSERT INTO orders VALUES (1)")
                execution = await hf.submit("confirm", HOSTILE, connection=caller.connection)
                assert execution.created
                assert await jobs(postgres_url) == 0
                with pytest.raises(UnknownName):
                    await execution.status()
            view = await execution.wait(within=ENDS_SOON)
            assert view.status is ExecutionStatus.COMPLETED
            assert view.outputs == {"echo": HOSTILE}
            assert await orders(postgres_url) == [1]

    run(main())


@every_kind
def test_an_error_in_the_block_leaves_neither_the_data_nor_the_job(postgres_url: str, kind: str) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf:
            with pytest.raises(Undo):
                async with KINDS[kind](postgres_url) as caller:
                    # The job comes first: its statement may be the one that begins the transaction.
                    await hf.submit("confirm", 1, connection=caller.connection)
                    await caller.execute("INSERT INTO orders VALUES (1)")
                    raise Undo
            assert await orders(postgres_url) == []
            assert await jobs(postgres_url) == 0

    run(main())


@pytest.mark.parametrize("kind", SYNC_KINDS)
def test_a_program_without_an_event_loop_submits_by_the_callers_connection_alone(
    postgres_url: str, kind: str
) -> None:
    """The pipeline and its claim group are unknown to the database: they come with the job."""

    async def submit(*, undo: bool) -> Execution:
        hf = shop(postgres_url)
        async with SYNC_KINDS[kind](postgres_url) as caller:
            await caller.execute("INSERT INTO orders VALUES (1)")
            execution = hf.submit_sync("confirm", HOSTILE, connection=caller.connection)
            more = hf.submit_many_sync("confirm", [1, 2], lane="manual", connection=caller.connection)
            if undo:
                raise Undo
        assert hf._engine is None
        assert [item.id for item in more] == [execution.id + 1, execution.id + 2]
        return execution

    async def main() -> None:
        async with Holdfast(postgres_url):  # makes the tables
            await ask(postgres_url, "CREATE TABLE orders (id int)")
        with pytest.raises(Undo):
            await submit(undo=True)
        assert await jobs(postgres_url) == 0
        assert await ask(postgres_url, "SELECT path FROM holdfast.definitions") == []

        execution = await submit(undo=False)
        assert await orders(postgres_url) == [1]
        async with shop(postgres_url) as hf, hf.working():
            view = await hf.wait(execution.id, within=ENDS_SOON)
        assert view.outputs == {"echo": HOSTILE}
        assert await ask(postgres_url, "SELECT path, version FROM holdfast.definitions") == [("confirm", 1)]

    run(main())


async def make_tables(hf: Holdfast) -> None:
    async with hf:
        pass


def test_the_answer_of_submit_sync_can_be_waited_for(postgres_url: str) -> None:
    hf = shop(postgres_url)
    run(make_tables(hf))
    with psycopg.connect(postgres_url) as connection:
        execution = hf.submit_sync("confirm", 5, connection=connection)

    async def main() -> Any:
        async with hf, hf.working():
            return (await execution.wait(within=ENDS_SOON)).outputs

    assert run(main()) == {"echo": 5}


def test_what_is_stored_is_what_an_ordinary_submit_stores(postgres_url: str) -> None:
    options: dict[str, Any] = {
        "lane": "manual", "mode": "auto", "idempotency_key": "k", "delay": "1h", "deadline": "2h",
    }  # fmt: skip

    async def main() -> None:
        async with shop(postgres_url) as hf:
            plain = await hf.submit("confirm", {"a": 1}, **options)
            joined = []
            for kind in WAYS_OF_SENDING:
                async with KINDS[kind](postgres_url) as caller:
                    changed = {**options, "idempotency_key": kind, "connection": caller.connection}
                    joined.append(await hf.submit("confirm", {"a": 1}, **changed))
            [clock] = [row[0] for row in await ask(postgres_url, "SELECT extract(epoch FROM now())::float8")]
            expected = await hf.status(plain.id)
            for execution in joined:
                view = await hf.status(execution.id)
                for field in ("path", "version", "lane", "mode", "workload", "status", "round"):
                    assert getattr(view.execution, field) == getattr(expected.execution, field), field
                for field in ("step", "lane", "rank", "status", "attempts", "max_attempts", "round"):
                    assert getattr(view.jobs[0], field) == getattr(expected.jobs[0], field), field
                created = view.execution.created_at
                assert expected.execution.created_at <= created <= clock
                assert view.jobs[0].available_at == created + 3600
                assert view.execution.deadline_at == created + 7200
                assert [event.type for event in await hf.events(execution.id)] == [
                    event.type for event in await hf.events(plain.id)
                ]

    run(main())


@every_way_of_sending
def test_many_are_all_there_or_none(postgres_url: str, kind: str) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf:
            await ask(postgres_url, "ALTER TABLE holdfast.executions ADD CHECK (workload <> '13')")
            async with KINDS[kind](postgres_url) as caller:
                await caller.execute("INSERT INTO orders VALUES (1)")
                made = await hf.submit_many("confirm", [1, 2, 3], connection=caller.connection)
                # The server refuses one of them: the error of the caller's own library says so.
                with pytest.raises((asyncpg.CheckViolationError, psycopg.Error, sa.exc.IntegrityError)):
                    await hf.submit_many("confirm", [12, 13, 14], connection=caller.connection)
                assert await hf.submit_many("confirm", [], connection=caller.connection) == []
                await caller.execute("INSERT INTO orders VALUES (2)")
            assert await orders(postgres_url) == [1, 2]
            assert await jobs(postgres_url) == len(made) == 3

    run(main())


@every_way_of_sending
def test_a_conflict_leaves_the_callers_transaction_as_it_was(postgres_url: str, kind: str) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf:
            before = await hf.submit("confirm", 1, idempotency_key="before")
            async with KINDS[kind](postgres_url) as caller:
                await caller.execute("INSERT INTO orders VALUES (1)")

                async def submit(key: str, workload: int) -> Execution:
                    return await hf.submit(
                        "confirm", workload, idempotency_key=key, connection=caller.connection
                    )

                known = await submit("before", 1)
                assert (known.id, known.created) == (before.id, False)
                first, again = await submit("now", 7), await submit("now", 7)
                assert (first.created, again.created, again.id) == (True, False, first.id)
                for key in ("before", "now"):
                    with pytest.raises(IdempotencyConflict):
                        await submit(key, 2)
                await caller.execute("INSERT INTO orders VALUES (2)")
            assert await orders(postgres_url) == [1, 2]
            assert await jobs(postgres_url) == 2

    run(main())


async def is_waiting_for_a_lock(url: str) -> bool:
    return bool(await ask(url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("kind", [kind for kind in WAYS_OF_SENDING if kind in ASYNC_KINDS])
def test_a_key_in_another_open_transaction_is_waited_for(postgres_url: str, kind: str, commits: bool) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf, ASYNC_KINDS[kind](postgres_url) as caller:
            other = await asyncpg.connect(postgres_url)
            transaction = other.transaction()
            await transaction.start()
            theirs = await hf.submit("confirm", 1, idempotency_key="k", connection=other)
            waiting = asyncio.create_task(
                hf.submit("confirm", 1, idempotency_key="k", connection=caller.connection)
            )
            await eventually(lambda: is_waiting_for_a_lock(postgres_url))
            await (transaction.commit() if commits else transaction.rollback())
            await other.close()
            ours = await waiting
            assert (ours.id == theirs.id, ours.created) == (commits, not commits)

    run(main())
    assert run(jobs(postgres_url)) == 1


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg async"])
def test_a_cancelled_submit_is_undone_and_the_transaction_goes_on(postgres_url: str, kind: str) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf, ASYNC_KINDS["asyncpg"](postgres_url) as other:
            await hf.submit("confirm", 1, idempotency_key="k", connection=other.connection)
            async with ASYNC_KINDS[kind](postgres_url) as caller:
                await caller.execute("INSERT INTO orders VALUES (1)")
                waiting = asyncio.create_task(
                    hf.submit("confirm", 1, idempotency_key="k", connection=caller.connection)
                )
                await eventually(lambda: is_waiting_for_a_lock(postgres_url))
                waiting.cancel()
                await asyncio.wait([waiting])
                assert waiting.cancelled()
                await caller.execute("INSERT INTO orders VALUES (2)")
            assert await orders(postgres_url) == [1, 2]
            assert await jobs(postgres_url) == 0

    run(main())


def test_a_savepoint_of_the_callers_takes_the_job_with_it(postgres_url: str) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf:
            engine = sa.create_engine(for_sqlalchemy(postgres_url, "psycopg"), poolclass=NullPool)
            with Session(engine) as session, session.begin():
                kept = await hf.submit("confirm", 1, connection=session)
                nested = session.begin_nested()
                await hf.submit("confirm", 2, connection=session)
                nested.rollback()
            async with ASYNC_KINDS["asyncpg"](postgres_url) as caller:
                with contextlib.suppress(Undo):
                    async with caller.connection.transaction():
                        await hf.submit("confirm", 3, connection=caller.connection)
                        raise Undo
            assert await ask(postgres_url, "SELECT id FROM holdfast.executions") == [(kept.id,)]

    run(main())


def test_the_objects_of_a_session_are_neither_flushed_nor_expired(postgres_url: str) -> None:
    class Base(sa.orm.DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: sa.orm.Mapped[int] = sa.orm.mapped_column(primary_key=True)

    async def main() -> None:
        async with open_shop(postgres_url) as hf:
            engine = sa.create_engine(for_sqlalchemy(postgres_url, "psycopg"), poolclass=NullPool)
            with Session(engine) as session:
                order = Order(id=1)
                session.add(order)
                hf.submit_sync("confirm", 1, idempotency_key="k", connection=session)
                with pytest.raises(IdempotencyConflict):
                    hf.submit_sync("confirm", 2, idempotency_key="k", connection=session)
                assert order in session.new
                session.commit()
            assert await orders(postgres_url) == [1]
            assert await jobs(postgres_url) == 1

    run(main())


def test_the_synchronous_side_of_an_async_connection_can_submit(postgres_url: str) -> None:
    async def main() -> None:
        async with open_shop(postgres_url) as hf:
            engine = create_async_engine(for_sqlalchemy(postgres_url, "asyncpg"), poolclass=NullPool)
            async with engine.begin() as connection:
                await connection.run_sync(lambda sync: hf.submit_sync("confirm", 1, connection=sync))
            assert await jobs(postgres_url) == 1

    run(main())


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
def test_a_transaction_that_cannot_see_the_new_pipeline_can_submit_it(
    postgres_url: str, isolation: str
) -> None:
    async def main() -> None:
        async with Holdfast(postgres_url):
            pass
        connection = await asyncpg.connect(postgres_url)
        async with shop(postgres_url) as hf:
            async with connection.transaction(isolation=isolation):
                await connection.execute("SELECT * FROM holdfast.definitions")
                other = shop(postgres_url)
                other.pipeline("late", [echo])
                execution = await other.submit("late", 1, connection=connection)
                await other.close()
            hf.pipeline("late", [echo])
            async with hf.working():
                assert (await hf.wait(execution.id, within=ENDS_SOON)).outputs == {"echo": 1}
        await connection.close()

    run(main())


def test_an_open_transaction_keeps_nobody_waiting(postgres_url: str) -> None:
    """Neither other submits of the same pipeline, nor a program that starts with it, nor their workers."""

    async def main() -> None:
        async with open_shop(postgres_url) as hf, ASYNC_KINDS["asyncpg"](postgres_url) as caller:
            await hf.submit("confirm", 1, connection=caller.connection)
            async with shop(postgres_url) as other, other.working():
                execution = await other.submit("confirm", 2)
                assert (await execution.wait(within=ENDS_SOON)).outputs == {"echo": 2}

    run(main())


def test_a_worker_elsewhere_is_woken_by_the_commit_and_not_before(postgres_url: str) -> None:
    async def main() -> None:
        heard: list[str] = []
        async with open_shop(postgres_url) as hf:
            listener = await asyncpg.connect(postgres_url)
            await listener.add_listener("holdfast_work", lambda *hint: heard.append(hint[3]))
            async with ASYNC_KINDS["asyncpg"](postgres_url) as caller:
                await hf.submit("confirm", 1, connection=caller.connection)
                await hf.submit("confirm", 2, connection=caller.connection)
                await listener.fetch("SELECT 1")  # what was sent before has arrived now
                assert heard == []
            await eventually(lambda: heard)
            await listener.fetch("SELECT 1")
            assert len(heard) == 1
            await listener.close()

    run(main())


def test_a_handler_may_submit_on_a_connection_of_its_own(postgres_url: str) -> None:
    async def main() -> None:
        async with shop(postgres_url) as hf:

            async def order(ctx: Context) -> int:
                async with ASYNC_KINDS["asyncpg"](postgres_url) as caller:
                    return (await hf.submit("confirm", ctx.workload, connection=caller.connection)).id

            hf.pipeline("order", [order])
            async with hf.working():
                first = await (await hf.submit("order", 8)).wait(within=ENDS_SOON)
                assert (await hf.wait(first.outputs["order"], within=ENDS_SOON)).outputs == {"echo": 8}

    run(main())


def test_the_examples_of_the_how_to_page_do_what_they_say(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DB", postgres_url)
    page: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", HOW_TO.read_text(), re.MULTILINE | re.DOTALL)
    exec("\n".join(blocks), page)
    hf: Holdfast = page["hf"]

    async def main() -> None:
        async with hf, hf.working():
            await ask(postgres_url, "CREATE TABLE orders (id int)")
            async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
                ids = [await page["order_with_asyncpg"](pool, 1)]
            ids.append(await page["order_with_psycopg"](postgres_url, 2))
            for driver in ("asyncpg", "psycopg"):
                engine = create_async_engine(for_sqlalchemy(postgres_url, driver), poolclass=NullPool)
                ids.append(await page["order_with_sqlalchemy"](engine, len(ids) + 1))
            sync_engine = sa.create_engine(for_sqlalchemy(postgres_url, "psycopg"), poolclass=NullPool)
            with Session(sync_engine) as session:
                ids.append(page["order_in_flask"](session, 5))
            for order, id_ in enumerate(ids, 1):
                view = await hf.wait(id_, within=ENDS_SOON)
                assert view.outputs == {"send_mail": f"confirmed order {order}"}
            assert await orders(postgres_url) == [1, 2, 3, 4, 5]

    run(main())
