"""The simulation is worth what it finds: each bug below is put into the engine or the store on purpose,
and must break an invariant within a bounded number of seeds."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core import transitions
from holdfast.core.model import Ack, AckCode, JobState, JobStatus
from holdfast.engine.group_commit import GroupCommit
from holdfast.engine.settle import SettlePlan
from holdfast.playbook.definition import Step
from holdfast.store.interface import Changes
from holdfast.store.queries import load_queries
from holdfast.store.sqlite import SqliteStore, _Transaction
from running import run
from simulation.seeds import SeedFailed, open_stage

SEEDS_MAX = 200

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]


def change_query(patch: Patch, name: str, old: str, new: str) -> None:
    queries = load_queries("sqlite")
    assert old in queries[name], f"the query {name} has changed: {queries[name]}"
    patch.setitem(queries, name, queries[name].replace(old, new))


def change_what_is_written(patch: Patch, spoil: Callable[[Changes], None]) -> None:
    apply = SqliteStore._apply

    def spoiled(self: SqliteStore, db: Any, changes: Changes, now: float) -> None:
        spoil(changes)
        apply(self, db, changes, now)

    patch.setattr(SqliteStore, "_apply", spoiled)


def change_refusal(patch: Patch, spoil: Callable[[Any, JobState], Any]) -> None:
    refusal = SettlePlan._refusal

    def spoiled(self: SettlePlan, item: Any, current: Any) -> Any:
        job = current[item.queue_id][0] if item.queue_id in current else None
        answer = refusal(self, item, current)
        return answer if answer is None or job is None else spoil(item, job) or answer

    patch.setattr(SettlePlan, "_refusal", spoiled)


def any_fence_settles_a_leased_job(patch: Patch) -> None:
    refusal = SettlePlan._refusal

    def spoiled(self: SettlePlan, item: Any, current: Any) -> Any:
        if item.queue_id in current and current[item.queue_id][0].status is JobStatus.LEASED:
            return None
        return refusal(self, item, current)

    patch.setattr(SettlePlan, "_refusal", spoiled)


def another_outcome_of_a_settled_fence_is_accepted(patch: Patch) -> None:
    def accept(item: Any, job: JobState) -> Ack | None:
        return Ack(item.queue_id, AckCode.ACCEPTED) if job.settled_fence == item.fence else None

    change_refusal(patch, accept)


def the_same_report_again_is_stale(patch: Patch) -> None:
    change_refusal(patch, lambda item, job: Ack(item.queue_id, AckCode.STALE_LEASE))


def a_retry_is_leased_without_counting(patch: Patch) -> None:
    change_query(patch, "lease", "attempts = attempts + 1", "attempts = max(attempts, 1)")


def a_fence_is_given_out_again(patch: Patch) -> None:
    change_query(patch, "lease", "(leases + 1) || '-' || :token", "'fence'")


def a_stale_heartbeat_extends_the_lease_of_another(patch: Patch) -> None:
    change_query(patch, "heartbeat", "fence = ?2", "fence IS NOT NULL AND ?2 IS NOT NULL")


def retries_are_leased_before_their_time(patch: Patch) -> None:
    change_query(patch, "ready_in_group", "available_at <= ?2", "(available_at <= ?2 OR status = 'retry')")


def the_older_job_waits(patch: Patch) -> None:
    change_query(patch, "ready_in_group", "ORDER BY available_at, id", "ORDER BY available_at DESC, id")


def running_executions_are_pruned(patch: Patch) -> None:
    change_query(patch, "finished_before", "finished_at < ?1", "coalesce(finished_at, 0) < ?1")


def a_release_keeps_its_event_to_itself(patch: Patch) -> None:
    def spoil(changes: Changes) -> None:
        changes.events = [event for event in changes.events if "lease_released" not in event[1]]

    change_what_is_written(patch, spoil)


def a_failure_is_written_without_its_events(patch: Patch) -> None:
    def spoil(changes: Changes) -> None:
        changes.events = [event for event in changes.events if '"step_retry"' not in event[1]]

    change_what_is_written(patch, spoil)


def the_next_job_is_forgotten(patch: Patch) -> None:
    def spoil(changes: Changes) -> None:
        if changes.completed:
            changes.new_jobs = []

    change_what_is_written(patch, spoil)


def an_output_is_written_to_another_job(patch: Patch) -> None:
    def spoil(changes: Changes) -> None:
        if len(changes.completed) > 1:
            outputs = [item.output for item in changes.completed]
            turned = zip(changes.completed, outputs[1:] + outputs[:1], strict=True)
            changes.completed = [item._replace(output=output) for item, output in turned]

    change_what_is_written(patch, spoil)


def the_next_job_has_a_transaction_of_its_own(patch: Patch) -> None:
    amend_jobs = SqliteStore.amend_jobs

    async def in_two(self: SqliteStore, ids: Any, plan: Any, now: float, **options: Any) -> None:
        later = Changes()

        def first_part(locked: Any) -> Changes:
            changes: Changes = plan(locked)
            later.new_jobs, changes.new_jobs = changes.new_jobs, []
            return changes

        await amend_jobs(self, ids, first_part, now, **options)
        if later.new_jobs:
            await self._write(lambda db: self._apply(db, later, now))

    patch.setattr(SqliteStore, "amend_jobs", in_two)


def a_transaction_that_fails_leaves_its_claim_groups_in_memory(patch: Patch) -> None:
    async def write(self: SqliteStore, action: Callable[[Any], Any]) -> Any:
        def transact() -> Any:
            with _Transaction(self._writer):
                return action(self._writer)

        return await self._on_writer(transact)

    patch.setattr(SqliteStore, "_write", write)


def a_release_uses_the_attempt_up(patch: Patch) -> None:
    release = transitions.release

    def spoiled(job: JobState, *, now: float) -> JobState:
        given_back = release(job, now=now)
        if given_back.status is not JobStatus.RETRY:
            return given_back
        return msgspec.structs.replace(given_back, attempts=min(job.attempts, job.max_attempts - 1))

    patch.setattr(transitions, "release", spoiled)


def one_unknown_error_too_many_is_retried(patch: Patch) -> None:
    decide = transitions.decide

    def spoiled(job: JobState, *rest: Any, **named: Any) -> transitions.Decision:
        return decide(msgspec.structs.replace(job, unknown_errors=job.unknown_errors - 1), *rest, **named)

    patch.setattr(transitions, "decide", spoiled)


def a_job_whose_worker_was_lost_runs_beside_others(patch: Patch) -> None:
    claim_group = Step.claim_group
    patch.setattr(Step, "claim_group", lambda self, lane, alone=False: claim_group(self, lane))


def a_group_commit_mixes_up_the_answers(patch: Patch) -> None:
    async def mixed_up(self: Any, group: Any) -> None:
        try:
            answers = await self._flush([item for items, _ in group for item in items])
        except Exception as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for items, future in group:
            if not future.done():
                future.set_result(answers[: len(items)])

    patch.setattr(GroupCommit, "_flush_group", mixed_up)


BUGS: tuple[Bug, ...] = (
    any_fence_settles_a_leased_job,
    another_outcome_of_a_settled_fence_is_accepted,
    the_same_report_again_is_stale,
    a_retry_is_leased_without_counting,
    a_fence_is_given_out_again,
    a_stale_heartbeat_extends_the_lease_of_another,
    retries_are_leased_before_their_time,
    the_older_job_waits,
    running_executions_are_pruned,
    a_release_keeps_its_event_to_itself,
    a_failure_is_written_without_its_events,
    the_next_job_is_forgotten,
    an_output_is_written_to_another_job,
    the_next_job_has_a_transaction_of_its_own,
    a_transaction_that_fails_leaves_its_claim_groups_in_memory,
    a_release_uses_the_attempt_up,
    one_unknown_error_too_many_is_retried,
    a_job_whose_worker_was_lost_runs_beside_others,
    a_group_commit_mixes_up_the_answers,
)


@pytest.mark.no_cover
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found(bug: Bug, monkeypatch: Patch, sqlite_url: str) -> None:
    bug(monkeypatch)

    async def play_until_it_breaks() -> None:
        async with open_stage(sqlite_url) as stage:
            for seed in range(SEEDS_MAX):
                await stage.play(seed)

    with pytest.raises(SeedFailed) as found:
        run(play_until_it_breaks(), 300)
    told = str(found.value)
    seed = re.match(r"Seed (\d+) on sqlite", told)
    assert seed is not None
    assert told.endswith(f"{Path('tests/simulation/run.py')} --store sqlite --seed {seed[1]}")
    print(f"found after {int(seed[1]) + 1} seeds: {told.splitlines()[0][:200]}")
