"""What people look at: workers that announce themselves, open work counted, failures in groups."""

from typing import Any

import msgspec
import pytest

from holdfast.core.model import ExecutionStatus, JobStatus, Lane, WorkerRow
from holdfast.store import Store
from holdfast.store.changes import ChangedJob, Changes
from holdfast.store.interface import FailureFilter, Locked, OpenWork
from holdfast.store.queries import load_migrations
from running import run
from store_scenario import (
    ERROR,
    GROUP,
    NOW,
    PATH,
    claim,
    complete,
    new,
    opened,
    raw,
    request,
    submit,
)

WORKER = WorkerRow(
    worker_id="host:1:a",
    host="host",
    pid=1,
    version="0.1.0",
    concurrency=4,
    lanes=(Lane.MANUAL, Lane.BULK),
    handlers=("mail/send", 'odd "name"'),
    started_at=NOW,
    seen_at=NOW,
    seen_until=NOW + 30,
)


def changed(**fields: Any) -> WorkerRow:
    return msgspec.structs.replace(WORKER, **fields)


def test_a_worker_is_known_as_it_last_announced_itself_until_it_retires(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await store.announce_worker(WORKER, forget_before=0.0)
            assert await store.workers(10) == [WORKER]
            later = changed(seen_at=NOW + 10, seen_until=NOW + 40, handlers=("mail/send",), concurrency=8)
            await store.announce_worker(later, forget_before=0.0)
            assert await store.workers(10) == [later]
            await store.retire_worker("somebody else")
            assert await store.workers(10) == [later]
            await store.retire_worker(WORKER.worker_id)
            await store.retire_worker(WORKER.worker_id)
            assert await store.workers(10) == []

    run(main())


def test_an_announcement_forgets_the_long_silent_and_nobody_else(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            for id_, until in (("gone", NOW - 2), ("silent", NOW), ("living", NOW + 9)):
                await store.announce_worker(changed(worker_id=id_, seen_until=until), forget_before=0.0)
            await store.announce_worker(changed(worker_id="new", started_at=NOW + 1), forget_before=NOW - 1)
            assert [worker.worker_id for worker in await store.workers(10)] == ["living", "silent", "new"]
            assert len(await store.workers(2)) == 2

    run(main())


def test_open_work_is_counted_by_status_handler_and_lane(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.open_work(NOW) == []
            other = GROUP._replace(handler="other", lane="manual")
            await submit(
                store,
                *[new(available_at=NOW - 5), new(available_at=NOW - 9), new(available_at=NOW + 100)],
                *[new(lane=Lane.MANUAL, group=other)],
            )
            [leased, finished] = await claim(store, limit=2)
            await complete(store, finished)
            assert {leased.execution_id, finished.execution_id} == {1, 2}
            assert await store.open_work(NOW) == [
                OpenWork(JobStatus.QUEUED, "other", Lane.MANUAL, 1, NOW, ready=1),
                OpenWork(JobStatus.LEASED, "send", Lane.BULK, 1, leased_since(leased.execution_id)),
                OpenWork(JobStatus.QUEUED, "send", Lane.BULK, 1, NOW + 100),
            ]
            assert [item.ready for item in await store.open_work(NOW - 1)] == [0, 0, 0]
            assert [item.ready for item in await store.open_work(NOW + 100)] == [1, 0, 1]
            assert await store.execution_counts() == {
                ExecutionStatus.RUNNING: 3,
                ExecutionStatus.COMPLETED: 1,
            }

    def leased_since(execution_id: int) -> float:
        return NOW - 5 if execution_id == 1 else NOW - 9

    run(main())


def test_open_work_that_must_run_alone_is_counted_apart(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            alone = GROUP._replace(alone=True)
            await submit(store, new(), new(group=alone), new(group=alone, available_at=NOW - 3))
            assert await store.open_work(NOW) == [
                OpenWork(JobStatus.QUEUED, "send", Lane.BULK, 1, NOW, ready=1),
                OpenWork(JobStatus.QUEUED, "send", Lane.BULK, 2, NOW - 3, alone=True, ready=2),
            ]

    run(main())


async def fail(store: Store, error_type: str, dead_reason: str | None, *, now: float = NOW) -> int:
    """Lease the next job and fail its execution with it; without a reason as a deadline does."""
    [leased] = await store.claim(request(limit=1), NOW)

    def plan(locked: list[Locked]) -> Changes:
        job, execution = locked[0]
        error = ERROR.replace("timeout", error_type).replace("too slow", f"of {execution.id}")
        status = JobStatus.DEAD if dead_reason else JobStatus.CANCELLED
        dead = msgspec.structs.replace(job, status=status, dead_reason=dead_reason)  # type: ignore[arg-type]
        failed = msgspec.structs.replace(execution, status=ExecutionStatus.FAILED, error=error)
        return Changes(jobs=[ChangedJob(dead)], executions=[failed])

    await store.amend_jobs([leased.id], plan, now)
    return leased.execution_id


def test_failures_come_in_groups_of_one_cause_and_one_by_one(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *[new() for _ in range(5)], new(path="other"))
            [first, second] = [await fail(store, "timeout", "permanent", now=NOW + at) for at in (1, 7)]
            lost = await fail(store, "worker_lost", "poisoned")
            late = await fail(store, "timeout", None)
            await claim(store, limit=1)
            elsewhere = await fail(store, "timeout", "permanent")
            groups = await store.failure_groups(FailureFilter(), 10)
            assert [(g.path, g.error_type, g.dead_reason, g.executions, g.example) for g in groups] == [
                (PATH, "timeout", "permanent", 2, second),
                ("other", "timeout", "permanent", 1, elsewhere),
                (PATH, "timeout", "deadline", 1, late),
                (PATH, "worker_lost", "poisoned", 1, lost),
            ]
            top = groups[0]
            assert (top.step, top.category, top.first_at, top.last_at) == (
                "first",
                "transient",
                NOW + 1,
                NOW + 7,
            )
            assert top.message == f"of {second}"
            assert len(await store.failure_groups(FailureFilter(), 2)) == 2

            async def ids(after: int = 0, limit: int = 10, **filters: str) -> list[int]:
                return [
                    row.execution_id for row in await store.failures(FailureFilter(**filters), after, limit)
                ]

            assert await ids() == [first, second, lost, late, elsewhere]
            assert await ids(after=second, limit=2) == [lost, late]
            assert await ids(path="other") == [elsewhere]
            assert await ids(error_type="timeout", dead_reason="deadline") == [late]
            assert await ids(step="second") == []
            [row] = await store.failures(FailureFilter(dead_reason="poisoned"), 0, 1)
            assert (row.step, row.message, row.failed_at) == ("first", f"of {lost}", NOW)

    run(main())


def test_a_failure_that_was_retried_is_none_any_more(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            execution_id = await fail(store, "timeout", "permanent")

            def again(executions: Any, _: Any) -> Changes:
                state = msgspec.structs.replace(
                    executions[0], status=ExecutionStatus.RUNNING, round=2, error=None
                )
                return Changes(executions=[state])

            await store.amend_executions([execution_id], again, NOW)
            assert await store.failures(FailureFilter(), 0, 10) == []
            assert await store.failure_groups(FailureFilter(), 10) == []

    run(main())


def test_the_latest_definition_is_the_one_registered_last(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.latest_definitions(None, 10) == []
            old = await store.save_definition("mail", "{}", "old", NOW)
            new_ = await store.save_definition("mail", '{"new":1}', "new", NOW + 1)
            other = await store.save_definition("a/first", "{}", "x", NOW)
            assert await store.latest_definitions("mail", 10) == [new_]
            assert await store.latest_definitions(None, 10) == [other, new_]
            assert await store.save_definition("mail", "{}", "old", NOW + 2) == old
            assert await store.latest_definitions("mail", 10) == [old]
            assert await store.latest_definitions("nothing", 10) == []

    run(main())


OF_THE_FIRST_VERSION = (
    "INSERT INTO definitions (path, version, hash, content, created_at)"
    f" VALUES ('{PATH}', 1, 'h', '{{}}', {NOW}), ('{PATH}', 2, 'i', '[]', {NOW})",
    "INSERT INTO claim_groups (handler, lane, rank, operation, limit_name, alone) VALUES"
    " ('send', 'bulk', 5, '', '', false), ('a/b.c/d', 'bulk', 5, '', 'portal', false),"
    " ('x/x', 'bulk', 5, '', '', true)",
    "INSERT INTO executions"
    " (path, definition_id, status, lane, mode, workload, error, created_at, finished_at)"
    f" VALUES ('{PATH}', 1, 'failed', 'bulk', 'bulk', '{{}}', '{ERROR}', {NOW}, {NOW}),"
    f" ('{PATH}', 1, 'running', 'bulk', 'bulk', '{{}}', NULL, {NOW}, NULL)",
    "INSERT INTO jobs (execution_id, step, round, status, attempts, leases, max_attempts, claim_group,"
    " available_at, dead_reason, created_at, finished_at) VALUES"
    f" (1, 'first', 1, 'dead', 1, 1, 3, 1, {NOW}, 'permanent', {NOW}, {NOW}),"
    f" (2, 'first', 1, 'queued', 0, 0, 3, 2, {NOW}, NULL, {NOW}, NULL)",
)


def test_a_database_of_the_first_version_is_migrated_with_what_is_in_it(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = store_url.partition(":")[0]
    module = "holdfast.store.sqlite" if dialect == "sqlite" else "holdfast.store.postgres"
    versions = "holdfast_schema" if dialect == "sqlite" else "schema_version"

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.load_migrations", lambda _: load_migrations(dialect)[:1])
            async with opened(store_url):
                for statement in OF_THE_FIRST_VERSION:
                    await raw(store_url, statement)
        assert await raw(store_url, f"SELECT version FROM {versions}") == [(1,)]
        async with opened(store_url) as store:
            assert await store.execution_counts() == {
                ExecutionStatus.RUNNING: 1,
                ExecutionStatus.FAILED: 1,
            }
            assert [row.execution_id for row in await store.failures(FailureFilter(), 0, 10)] == [1]
            groups = await raw(store_url, "SELECT handler, path, step FROM claim_groups ORDER BY id")
            assert groups == [("send", "", ""), ("a/b.c/d", "a/b.c", "d"), ("x/x", "x", "x")]
            limited = await raw(store_url, "SELECT claim_group FROM jobs WHERE limited ORDER BY id")
            assert limited == [(2,)]
            [taken] = await claim(store, handlers=("a/b.c/d",))
            assert taken.execution_id == 2
            [definition] = await store.latest_definitions(PATH, 1)
            assert (definition.version, definition.content) == (2, "[]")
            await store.save_definition(PATH, "{}", "h", NOW + 1)
            [definition] = await store.latest_definitions(PATH, 1)
            assert (definition.version, definition.content) == (1, "{}")
            await store.announce_worker(WORKER, forget_before=0.0)
            assert await store.workers(10) == [WORKER]
        async with opened(store_url, migrate=False):
            pass
        [(count,)] = await raw(store_url, f"SELECT count(*) FROM {versions}")
        assert count == len(load_migrations(dialect))

    run(main())
