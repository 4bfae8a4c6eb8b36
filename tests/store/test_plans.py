"""How the databases go about it: the plans of the hot statements, and that no stored query is unused."""

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core import transitions
from holdfast.core.access import Role, TokenRow
from holdfast.core.audit import Deed, audited
from holdfast.core.limits import FLEET_LIMIT, Limit
from holdfast.core.model import Lane, Mode, WorkerRow
from holdfast.core.pauses import PauseKind
from holdfast.store import Store, exchange
from holdfast.store.changes import ChangedJob, Changes, FinishedJob, NewJob, NextElements
from holdfast.store.interface import Beat, ExecutionFilter, FailureFilter, JobFilter, Locked, NewBatch, Taking
from holdfast.store.queries import listing, load_queries, numbered
from holdfast.store.sqlite import SqliteStore
from holdfast.store.stages import FollowingJob
from holdfast.store.tallies import Tally
from running import run
from store_plans import FILL_EXECUTIONS, explained, rows_touched
from store_scenario import (
    GROUP,
    NOW,
    change_job,
    claim,
    complete,
    completed_stage,
    held_stage,
    keyed,
    new,
    opened,
    raw,
    raw_connection,
    request,
    submit,
)

WORKER = WorkerRow(
    worker_id="w", host="h", pid=1, version="1", concurrency=1, lanes=(), handlers=(),
    started_at=NOW, seen_at=NOW, seen_until=NOW,
)  # fmt: skip
TOKEN = TokenRow(
    id="t", name="ops", role=Role.ADMIN, created_at=NOW, created_by="ann", expires_at=None, revoked_at=None,
    revoked_by=None, last_used_at=None,
)  # fmt: skip
FOLLOWING = FollowingJob("third", 1, GROUP, 3)
FUTURE_ROWS = 20_000
READY_ROWS = 50

FILL = """
INSERT INTO jobs (execution_id, step, round, max_attempts, claim_group, available_at, created_at)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
SELECT {first} + i, 'first', 1, 3, 1, {available_at}, 0 FROM n
"""


async def fill(url: str, store: Store) -> None:
    """One group with few ready jobs, and with many that are not ready yet before them in the table."""
    await submit(store, new(available_at=NOW + 1_000))
    await raw(url, FILL_EXECUTIONS.format(rows=FUTURE_ROWS))
    await raw(url, FILL.format(rows=FUTURE_ROWS, first=1_000_000, available_at=f"{NOW + 1_000} + i"))
    await submit(store, *[new(available_at=NOW - 1) for _ in range(READY_ROWS)])


# All that the queries of the claim are asked with.
ASKED: dict[str, Any] = {
    "now": NOW, "aged_until": NOW - 60, "handlers": ["send"], "lanes": ["manual", "bulk"], "alone": False,
    "share_limits": ["", "", "portal", "portal"], "share_lanes": ["manual", "bulk", "manual", "bulk"],
    "share_bounds": [10, 10, 10, 10], "limit": 10, "limits": ["portal", FLEET_LIMIT], "token": "t",
    "leased_at": NOW,     "lease_until": NOW + 60, "worker": "w", "worker_json": '"w"',
    "groups": [1], "jobs": [10], "are_limited": [True],
}  # fmt: skip
CLAIMING = {
    "claim", "lock_limits", "limits_over_alone", "leased_under_limits", "ready_under_limits",
    "lease_under_limits", "alone_ready", "next_due",
}  # fmt: skip


async def explained_claiming(url: str, query: str, **changes: Any) -> list[dict[str, Any]]:
    sql, names = numbered(load_queries("postgresql")[query])
    connection = await raw_connection(url)
    found = await explained(connection, sql, *({**ASKED, **changes}[name] for name in names))
    await connection.close()
    return found


def _is_of_jobs(node: dict[str, Any]) -> bool:
    return bool(node.get("Relation Name") == "jobs")


@pytest.mark.parametrize("analyzed", [True, False])
def test_the_claim_on_postgresql_walks_only_ready_rows_of_the_claim_index(
    postgres_url: str, analyzed: bool
) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await fill(postgres_url, store)
            if analyzed:
                await raw(postgres_url, "ANALYZE")
            found = await explained_claiming(postgres_url, "claim")
            scans = [node for node in found if "Scan" in node["Node Type"]]
            heads = [node for node in scans if node.get("Index Name") == "jobs_claim"]
            assert len(heads) == 2
            assert all("available_at <=" in node["Index Cond"] for node in heads)
            assert "jobs_pkey" in {node.get("Index Name") for node in scans}
            assert not [node for node in scans if node["Node Type"] == "Seq Scan" and _is_of_jobs(node)]
            assert max(map(rows_touched, scans)) <= READY_ROWS

    run(main())


def test_the_claim_on_sqlite_walks_only_ready_rows_of_the_claim_index(sqlite_url: str) -> None:
    steps: list[int] = []

    async def main() -> None:
        async with opened(sqlite_url) as store:
            await fill(sqlite_url, store)
            database = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
            sql = load_queries("sqlite")["ready_in_group"]
            details = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", (1, NOW, 10))]
            assert len(details) == 1 and "INDEX jobs_claim (claim_group=? AND available_at<?)" in details[0]

            def profile(statement: dict[str, Any]) -> None:
                steps.append(statement["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

            database.trace_v2(apsw.SQLITE_TRACE_PROFILE, profile)
            assert len(database.execute(sql, (1, NOW, READY_ROWS * 2)).fetchall()) == READY_ROWS
            database.close()

    run(main())
    # A few machine steps for each row it returns; the rows of the future would add 20,000 times that.
    assert max(steps) < READY_ROWS * 50


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_chunk_of_a_barrier_on_postgresql_reads_no_more_of_its_batch(
    postgres_url: str, analyzed: bool
) -> None:
    items, chunk = 5_000, 20

    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store, new())
            await raw(postgres_url, FILL_EXECUTIONS.format(rows=items))
            await raw(postgres_url, "UPDATE executions SET batch_id = 1")
            await raw(
                postgres_url,
                "INSERT INTO jobs (execution_id, step, round, max_attempts, claim_group, available_at,"
                " held_by, created_at) SELECT id, 'second', 1, 3, 1, 0, 'barrier', 0 FROM executions",
            )
            if analyzed:
                await raw(postgres_url, "ANALYZE")
            connection = await raw_connection(postgres_url)
            sql = load_queries("postgresql")["held_jobs"]
            found = await explained(connection, sql, 1, "second", "barrier", items // 2, chunk)
            await connection.close()
            assert max(map(rows_touched, found)) <= chunk

    run(main())


def test_next_due_looks_at_the_head_of_each_group_only(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await fill(store_url, store)
            if isinstance(store, SqliteStore):
                sql = load_queries("sqlite")["next_due"]
                database = apsw.Connection(str(store.path))
                bindings = {"handlers": '["send"]', "lanes": '["bulk"]', "now": NOW}
                plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
                database.close()
                found = [line for line in plan if "jobs_claim" in line]
                assert "SEARCH j USING INDEX jobs_claim (claim_group=? AND available_at>?)" in found
                assert not [line for line in plan if "TEMP B-TREE" in line], "in its order: no sort"
                return
            found = await explained_claiming(store_url, "next_due", lanes=["bulk"])
            (scan,) = filter(_is_of_jobs, found)
            assert scan["Index Name"] == "jobs_claim" and rows_touched(scan) == 1

    run(main())


LEASE_SOME = """
UPDATE jobs
SET status = 'leased', attempts = 1, leases = 1, fence = '1-t', lease_until = 0, limited = {limited}
WHERE id > {after}
"""


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("query", sorted(CLAIMING))
def test_no_query_of_the_claim_on_postgresql_walks_the_jobs_that_are_not_ready(
    postgres_url: str, query: str, analyzed: bool
) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await fill(postgres_url, store)
            await submit(store, *[new(group=GROUP._replace(limit="portal", alone=i > 4)) for i in range(10)])
            await store.set_limit(Limit("portal", 50), "ann", NOW)
            await store.set_limit(Limit(FLEET_LIMIT, 50), "ann", NOW)
            await raw(postgres_url, LEASE_SOME.format(limited="true", after=FUTURE_ROWS + READY_ROWS + 6))
            if analyzed:
                await raw(postgres_url, "ANALYZE")
            scans = [
                node
                for node in await explained_claiming(postgres_url, query)
                if _is_of_jobs(node) and "Scan" in node["Node Type"]
            ]
            assert bool(scans) == (query not in ("lock_limits", "limits_over_alone"))
            assert not [node for node in scans if node["Node Type"] == "Seq Scan"]
            assert max(map(rows_touched, scans), default=0) <= READY_ROWS

    run(main())


def test_the_claim_on_postgresql_is_planned_once_however_many_jobs_are_not_ready(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await fill(postgres_url, store)
            await raw(postgres_url, "ANALYZE")
            for name in (None, FLEET_LIMIT):
                if name:
                    await store.set_limit(Limit(name, 1_000), "ann", NOW)
                for _ in range(10):
                    assert await claim(store, limit=1)
                    await store.next_due(request(), NOW)
                    await store.alone_ready(request(), NOW)
            plans = await store._fetch(  # type: ignore[attr-defined]
                "SELECT statement, custom_plans FROM pg_prepared_statements WHERE generic_plans > 0"
            )
            often = dict(plans)
            for query in CLAIMING - {"limits_over_alone"}:
                sql, _ = numbered(load_queries("postgresql")[query])
                # PostgreSQL tries five times what it would gain by planning for the values.
                assert often.get(sql) == 5, query

    run(main())


@pytest.mark.parametrize(
    "query", ["ready_groups", "leased_under_limits", "limits_over", "claimed", "next_due"]
)
def test_no_query_of_the_claim_on_sqlite_walks_the_jobs_that_are_not_ready(
    sqlite_url: str, query: str
) -> None:
    steps: list[int] = []

    async def main() -> None:
        async with opened(sqlite_url) as store:
            await fill(sqlite_url, store)
            await submit(store, *[new(group=GROUP._replace(limit="portal")) for _ in range(10)])
            await store.set_limit(Limit(FLEET_LIMIT, 50), "ann", NOW)
            await raw(sqlite_url, LEASE_SOME.format(limited=1, after=FUTURE_ROWS + READY_ROWS + 1))
            database = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
            asked = {
                "handlers": '["send"]', "lanes": '["bulk"]', "alone": False, "now": NOW, "ids": "[1,2,3]",
                "limits": f'["portal", "{FLEET_LIMIT}"]',
            }  # fmt: skip
            bindings: Any = ('["portal"]',) if query == "limits_over" else asked
            database.trace_v2(
                apsw.SQLITE_TRACE_PROFILE,
                lambda done: steps.append(done["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]),
            )
            assert database.execute(load_queries("sqlite")[query], bindings).fetchall()
            database.close()

    run(main())
    assert max(steps) < READY_ROWS * 50


@pytest.mark.parametrize("size", [1, 100])
def test_completing_on_postgresql_finds_each_job_by_its_primary_key(postgres_url: str, size: int) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await fill(postgres_url, store)
            await raw(
                postgres_url,
                "UPDATE jobs SET status = 'leased', attempts = 1, leases = 1, fence = '1-t', lease_until = 0",
            )
            await raw(postgres_url, "ANALYZE")
            ids = list(range(1, size + 1))
            texts = [["hash"], ["null"], ["completed"], ["first"], ["[]"]]
            columns = (ids, ids, *(text * size for text in texts), NOW)
            joined = [chr(31).join(text * size) for text in (["1-t"], ["hash"], ["null"])]
            kind = [["completed"], ["first"], ["[]"], [None], [None], [None], [None], [None]]
            connection = await raw_connection(postgres_url)
            for query, bound in (
                ("complete_held", (ids, ids, *joined, [1] * size, *kind, NOW)),
                ("complete_stages", columns),
            ):
                found = await explained(connection, load_queries("postgresql")[query], *bound)
                (scan,) = [node for node in found if _is_of_jobs(node) and "Scan" in node["Node Type"]]
                assert scan["Index Name"] == "jobs_pkey" and rows_touched(scan) == size
            await connection.close()

    run(main())


@pytest.mark.parametrize(
    "query", ["complete_job", "complete_held_job", "update_job", "advance_execution", "update_execution"]
)
def test_sqlite_changes_each_row_by_its_primary_key(sqlite_url: str, query: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            assert isinstance(store, SqliteStore)
            database = apsw.Connection(str(store.path))
            sql = load_queries("sqlite")[query]
            bindings = (None,) * (1 + max(int(number) for number in _parameters(sql)))
            plan = list(database.execute(f"EXPLAIN QUERY PLAN {sql}", bindings[1:]))
            database.close()
            assert [row[3].partition(" USING ")[2] for row in plan] == ["INTEGER PRIMARY KEY (rowid=?)"]

    run(main())


def _parameters(sql: str) -> list[str]:
    return [part.split()[0].rstrip(",)") for part in sql.replace("(", " ").split("?")[1:]]


class Recorder(dict[str, str]):
    """The queries of a store, which notes the ones that are asked for."""

    def __init__(self, queries: dict[str, str]) -> None:
        super().__init__(queries)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.used.add(name)
        return super().__getitem__(name)


async def use_lineage(store: Store) -> None:
    """What playbooks with branches, elements and children ask for."""
    [finished] = await claim(store, limit=1)
    changes = Changes(
        finished=[FinishedJob(finished.id, "hash", "null")],
        let_through=[NextElements(1, "fan", 1, 1)],
        superseded=[(1, "none")],
    )
    await store.amend_jobs([finished.id], lambda _: changes, NOW)
    await store.step_outputs([1], ["first"])
    await store.handed_inputs([(1, "first", -1)])
    await store.execution_by_key("mail", "k")
    await store.definition_of(1)
    await store.definition_version("mail", 1)
    await store.waiting_for_child()
    await store.orphans(1)
    await store.children(1, 1)


async def use_every_verb(store: Store) -> None:
    for _ in range(2):
        await store.save_definition("mail", "{}", "h", NOW, "text")
    await store.definition(1)
    await store.insert([keyed("k"), keyed("k"), new(), new()], NOW)
    await store.insert([keyed("k")], NOW)
    await store.alone_ready(request(), NOW)
    await store.next_due(request(), NOW)
    done, failed, released = await claim(store)
    assert await claim(store, family=done.execution_id) == []
    await store.heartbeat([Beat(done.id, done.fence)], NOW, NOW + 60)
    await store.expired(NOW, 1)
    await store.leases_of("worker-1", 1)
    await store.handlers()
    await store.overdue(NOW, 1)
    await store.peek_jobs([1])

    def plan(locked: list[Locked]) -> Changes:
        erred = locked[1].execution
        return Changes(
            completed=[completed_stage(done)],
            new_jobs=[NewJob(erred.id, "second", 1, GROUP, 3, NOW)],
            events=[(erred.id, "[]")],
        )

    await store.amend_jobs([done.id, failed.id], plan, NOW)
    await change_job(store, released.id, lambda job: ChangedJob(transitions.release(job, now=NOW)))
    await store.amend_executions([1], lambda executions, _: Changes(executions=executions), NOW)
    await complete(store, (await claim(store, limit=1))[0])
    await store.outputs([1])
    await use_lineage(store)
    await store.execution(1)
    await store.executions(ExecutionFilter())
    await store.jobs(JobFilter())
    await store.events(1, None, 1)
    await store.last_event_row()
    await store.event_rows(0, 1)
    await store.event_rows_at([1])
    await store.event_gaps(0, 10, 1)
    await store.begun_since(NOW, 1)
    await store.open_transactions()
    await store.announce_worker(WORKER, forget_before=0.0)
    await store.workers(1)
    await store.retire_worker(WORKER.worker_id)
    await store.latest_definitions(None, 1)
    await store.catalog(None, limit=1)
    await store.definition_source(1)
    await store.open_work(NOW)
    await store.highest_event_row()
    await store.take_over([Taking(1, "f", "g")], "w", NOW, 60.0)
    await store.execution_counts()
    await store.open_executions()
    assert await store.write_tallies("s", [Tally("n", "[]", 1)], NOW, is_new=True)
    assert await store.write_tallies("s", [Tally("n", "[]", 2)], NOW, is_new=False)
    await store.fold_tallies(seen_before=NOW + 1)
    await store.tallies()
    await store.failures(FailureFilter(), 0, 1)
    await store.failure_groups(FailureFilter(), 1)
    await store.set_limit(Limit("portal", 5), "ann", NOW)
    await store.limits()
    await store.remove_limit("portal", "", NOW)
    for _ in range(2):
        await store.pause(PauseKind.LANE, "bulk", "ann", "", NOW)
    await store.resume(PauseKind.LANE, "bulk", "", NOW)
    deed = audited("ann", Deed.CREATE_TOKEN, "token ann")
    await store.add_token(TOKEN, "hash", deed)
    await store.token_used(TOKEN.id, NOW)
    await store.token(TOKEN.id)
    await store.tokens(10)
    await store.revoke_token(TOKEN.id, "ann", deed, NOW)
    await store.audit(limit=10)
    await store.pauses()
    for _ in range(2):
        batch, _created = await store.create_batch(
            NewBatch("mail", 1, Lane.BULK, Mode.BULK, "june", True, "{}"), NOW
        )
    await store.add_to_batch(batch.id, [new(batch_id=batch.id)], lambda batch, _: batch, NOW)
    await store.amend_batch(batch.id, lambda batch, _: batch, NOW, count_jobs=True)
    await store.amend_jobs([5], lambda _: Changes(batches=[batch]), NOW, batches=lambda _: None)
    await store.batches_to_attend(0, 1)
    await store.held_jobs(batch.id, "first", "barrier", 0, 1)
    await store.completed_at(1, "first")
    await store.batch(batch.id)
    await store.batches(before=None, limit=1)
    await store.batch_counts(batch.id)
    await store.batch_executions(batch.id)
    await store.batch_steps(batch.id)
    await store.batch_paces(batch.id, NOW)
    await store.batch_work(batch.id)
    await store.held_work()
    await store.batch_items(batch.id, status=None, after=0, limit=1)
    await store.jobs_of([1])
    await store.set_limit(Limit(FLEET_LIMIT, 50), "ann", NOW)
    await store.insert([new(), new(group=GROUP._replace(alone=True))], NOW)
    await store.alone_ready(request(), NOW)
    [held] = await claim(store, limit=1)
    assert await store.complete_held([held_stage(held, following=FOLLOWING)], NOW)
    await store.prune(NOW + 1, 10)
    await store.leave_out_numbers(1)


SAID_ELSEWHERE = Path(exchange.__file__).read_text()


def test_every_stored_query_is_used_by_its_store(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            recorder = Recorder(load_queries(store_url.partition(":")[0]))
            store._sql = recorder  # type: ignore[attr-defined]
            await use_every_verb(store)
            # What a submit says on a caller's connection is no verb of the store.
            said = set(re.findall(r"\[\"(\w+)\"\]", SAID_ELSEWHERE))
            assert sorted(recorder.keys() - recorder.used - said) == []

    run(main())


def test_sqlite_lists_the_jobs_of_an_execution_by_an_index(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            query = JobFilter(execution_id=1)
            sql, values = listing(load_queries("sqlite")["jobs"], query.conditions(), 50, lambda _: "?")
            plan = " ".join(
                str(row)
                for row in await store._reading(  # type: ignore[attr-defined]
                    lambda db: db.execute("EXPLAIN QUERY PLAN " + sql, tuple(values)).fetchall()
                )
            )
            assert "SEARCH j USING INDEX" in plan and "SCAN" not in plan

    run(main())


@pytest.mark.parametrize("query", ["failures", "failure_groups", "held_work", "limit_rows"])
def test_sqlite_looks_at_what_is_open_or_failed_by_partial_indexes(sqlite_url: str, query: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            sql, values = listing(load_queries("sqlite")[query], [], 50, lambda _: "?")
            plan = [
                row[3]
                for row in await store._reading(  # type: ignore[attr-defined]
                    lambda db: db.execute("EXPLAIN QUERY PLAN " + sql, tuple(values)).fetchall()
                )
            ]
            tables = [line for line in plan if line.startswith(("SCAN e", "SCAN j", "SEARCH e", "SEARCH j"))]
            assert tables and all("USING" in line for line in tables), plan

    run(main())


@pytest.mark.parametrize("analyzed", [True, False])
def test_what_a_worker_holds_is_found_among_the_leased_jobs_alone(store_url: str, analyzed: bool) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await fill(store_url, store)
            leased = await claim(store, limit=READY_ROWS)
            if analyzed:
                await raw(store_url, "ANALYZE")
            dialect = store_url.partition(":")[0]
            mark = "?" if dialect == "sqlite" else "$1"
            sql = load_queries(dialect)["leases_of"].format(where=f"j.worker_id = {mark}", limit="10")
            if isinstance(store, SqliteStore):
                database = apsw.Connection(str(store.path))
                plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", ("worker-1",))]
                database.close()
                assert plan[0] == "SCAN j USING INDEX jobs_leases"
                return
            connection = await raw_connection(store_url)
            found = await explained(connection, sql, "worker-1")
            await connection.close()
            assert {node["Index Name"] for node in found if "Index Name" in node} == {"jobs_leases"}
            assert "Seq Scan" not in {node["Node Type"] for node in found}
            assert max(map(rows_touched, found)) <= len(leased)

    run(main())
