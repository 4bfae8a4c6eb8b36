"""The simulation is worth what it finds: each bug below is put into the engine or the store on purpose,
and must break an invariant within a bounded number of seeds."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core import transitions
from holdfast.core.gates import Gates, WaveGate
from holdfast.core.limits import Limit, Room
from holdfast.core.model import Ack, AckCode, JobState, JobStatus, Lane
from holdfast.engine import Engine, batches, settle
from holdfast.engine.batch_book import BatchBook, gates_of, with_gates
from holdfast.engine.batches import Batches
from holdfast.engine.group_commit import GroupCommit
from holdfast.engine.settle import SettlePlan
from holdfast.playbook.definition import Step
from holdfast.store import sqlite_claim
from holdfast.store.changes import Changes
from holdfast.store.choosing import Choice
from holdfast.store.queries import load_queries
from holdfast.store.sqlite import SqliteStore, _Transaction
from holdfast.store.sqlite_batches import SqliteBatches
from running import run
from simulation.seeds import SeedFailed, open_stage, seeds_of_chains

SEEDS_MAX = 400

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

    def spoiled(self: SettlePlan, item: Any) -> Any:
        job = self._jobs.get(item.queue_id)
        answer = refusal(self, item)
        return answer if answer is None or job is None else spoil(item, job) or answer

    patch.setattr(SettlePlan, "_refusal", spoiled)


def any_fence_settles_a_leased_job(patch: Patch) -> None:
    refusal = SettlePlan._refusal

    def spoiled(self: SettlePlan, item: Any) -> Any:
        job = self._jobs.get(item.queue_id)
        return None if job is not None and job.status is JobStatus.LEASED else refusal(self, item)

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
    patch.setattr(
        Step,
        "claim_group",
        lambda self, path, lane, alone=False, handler=None: claim_group(self, path, lane, handler=handler),
    )


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


# limits, lanes, pauses


def what_is_leased_under_a_limit_is_not_counted(patch: Patch) -> None:
    change_query(patch, "leased_under_limits", "j.status = 'leased' AND j.limited", "j.status = 'lost'")


def what_the_fleet_has_leased_is_not_counted(patch: Patch) -> None:
    change_query(patch, "leased_under_limits", "WHERE j.status = 'leased' AND 'max", "WHERE 0 AND 'max")


def a_claim_does_not_count_what_it_takes_itself(patch: Patch) -> None:
    patch.setattr(Room, "take", lambda self, limit, lane, jobs=1: True)


def the_reserve_is_open_to_all(patch: Patch) -> None:
    patch.setattr(Limit, "reserve", property(lambda self: 0))


def only_the_limit_over_everything_holds(patch: Patch) -> None:
    change_query(patch, "limits_over", "OR name IN", "OR name NOT IN")


def a_worker_gets_more_bulk_work_than_it_asks_for(patch: Patch) -> None:
    patch.setattr(Choice, "left", lambda self, limit, lane: _left(self, limit, Lane.MANUAL))


def limited_work_is_prefetched(patch: Patch) -> None:
    left = Choice.left

    def unbounded(self: Any, limit: str, lane: str) -> int:
        self._limited = 1_000
        return left(self, limit, lane)

    patch.setattr(Choice, "left", unbounded)


def aged_bulk_work_waits_for_all_manual_work(patch: Patch) -> None:
    patch.setattr(sqlite_claim, "aged_until", lambda request, now: float("-inf"))


def a_paused_step_goes_on(patch: Patch) -> None:
    change_query(patch, "ready_groups", "WHEN 'step' THEN g.path || '/' || g.step", "WHEN 'step' THEN g.step")


def a_pause_of_everything_holds_for_nothing(patch: Patch) -> None:
    change_query(patch, "ready_groups", "p.kind = 'limit' AND p.name = 'max_concurrency'", "false")


def a_worker_is_told_to_wait_for_what_is_paused(patch: Patch) -> None:
    change_query(patch, "next_due", "NOT EXISTS (SELECT 1 FROM pauses)", "true")


# batches


def a_key_that_is_repeated_counts_twice(patch: Patch) -> None:
    add_to_batch = SqliteBatches.add_to_batch

    async def spoiled(self: Any, batch_id: int, executions: Any, plan: Any, now: float) -> Any:
        def count(batch: Any, inserted: Any) -> Any:
            return plan(batch, [item._replace(created=True) for item in inserted])

        return await add_to_batch(self, batch_id, executions, count, now)

    patch.setattr(SqliteBatches, "add_to_batch", spoiled)


def what_was_added_is_counted_in_a_transaction_of_its_own(patch: Patch) -> None:
    async def in_two(self: Any, batch_id: int, executions: Any, plan: Any, now: float) -> Any:
        inserted = await self._write(lambda db: self.insert_in(db, executions, now))
        await self._write(lambda db: self._save(db, [plan(self._batch(db, batch_id)[0], inserted)]))
        return inserted

    patch.setattr(SqliteBatches, "add_to_batch", in_two)


def change_moves(patch: Patch, is_forgotten: Callable[[Any, Any], bool]) -> None:
    moved = BatchBook.moved

    def spoiled(self: BatchBook, execution: Any, before: Any, after: Any) -> None:
        if not is_forgotten(before, after):
            moved(self, execution, before, after)

    patch.setattr(BatchBook, "moved", spoiled)


def an_item_that_ends_is_waited_for(patch: Patch) -> None:
    change_moves(patch, lambda before, after: after is None)


def an_item_that_is_retried_by_hand_is_not_waited_for(patch: Patch) -> None:
    change_moves(patch, lambda before, after: before is None)


def a_barrier_opens_while_one_is_not_settled(patch: Patch) -> None:
    def open_barriers(gates: Gates, now: float) -> None:
        for gate in gates.barriers:
            if gate.opened_at is None and gate.unsettled <= 1:
                gate.opened_at, gate.scheduled_for = now, now + gate.delay_seconds

    patch.setattr(batches, "_open_barriers", open_barriers)


def a_barrier_opens_before_its_batch_is_closed(patch: Patch) -> None:
    need_attention = Gates.need_attention
    patch.setattr(Gates, "need_attention", lambda self, *, is_closed: need_attention(self, is_closed=True))
    open_due = Batches._open_due

    async def at_any_time(self: Any, batch_id: int, definition: Any) -> Any:
        now = await self._store.now()

        def open_all(batch: Any, live: Any) -> Any:
            gates = gates_of(batch)
            batches._open_barriers(gates, now)
            return with_gates(batch, gates)

        await self._store.amend_batch(batch_id, open_all, now, count_jobs=True)
        return await open_due(self, batch_id, definition)

    patch.setattr(Batches, "_open_due", at_any_time)


def who_goes_on_with_an_opening_takes_a_time_of_his_own(patch: Patch) -> None:
    let_through = Batches._let_through

    async def spoiled(self: Any, batch_id: int, gates: Gates) -> None:
        for gate in gates.barriers:
            gate.scheduled_for = await self._store.now() + gate.delay_seconds
        await let_through(self, batch_id, gates)

    patch.setattr(Batches, "_let_through", spoiled)


def a_barrier_counts_as_passed_before_anybody_has(patch: Patch) -> None:
    open_barriers = batches._open_barriers

    def spoiled(gates: Gates, now: float) -> None:
        open_barriers(gates, now)
        for gate in gates.barriers:
            gate.released = gate.opened_at is not None

    patch.setattr(batches, "_open_barriers", spoiled)


def who_comes_late_to_an_open_barrier_has_the_time_of_all(patch: Patch) -> None:
    start = BatchBook.start

    def spoiled(self: BatchBook, step: Step, execution: Any, just_completed: str | None) -> Any:
        begins = start(self, step, execution, just_completed)
        gates = self._gates_of(execution)
        gate = None if gates is None else gates.barrier(step.name)
        if gate is None or gate.scheduled_for is None:
            return begins
        return begins._replace(
            scheduled_for=gate.scheduled_for, available_at=max(self.now, gate.scheduled_for)
        )

    patch.setattr(BatchBook, "start", spoiled)


def a_skipped_download_has_no_reason(patch: Patch) -> None:
    patch.setattr(settle, "skipped_by_failure", lambda definition, failed: [])


def what_was_leased_too_early_is_kept(patch: Patch) -> None:
    async def keep(self: Engine, claimed: Any) -> Any:
        return claimed

    patch.setattr(Engine, "_put_back_early", keep)


def a_wave_starts_while_others_are_at_work(patch: Patch) -> None:
    patch.setattr(WaveGate, "is_due", property(lambda self: self.waiting > 0))


def a_wave_starts_before_its_longest_delay(patch: Patch) -> None:
    start_waves = batches._start_waves

    def spoiled(gates: Gates, now: float) -> None:
        for wave in gates.waves:
            wave.longest_delay /= 2
        start_waves(gates, now)

    patch.setattr(batches, "_start_waves", spoiled)


def what_waits_for_its_wave_is_leased(patch: Patch) -> None:
    change_query(patch, "ready_in_group", "AND held_by IS NULL", "AND coalesce(held_by, '') <> 'barrier'")
    change_query(patch, "ready_groups", "j.held_by IS NULL", "coalesce(j.held_by, '') <> 'barrier'")


def a_cancelled_batch_forgets_that_it_is_being_cancelled(patch: Patch) -> None:
    need_attention = Gates.need_attention

    def spoiled(self: Gates, *, is_closed: bool) -> bool:
        self.cancelling = False
        return need_attention(self, is_closed=is_closed)

    patch.setattr(Gates, "need_attention", spoiled)


_left = Choice.left

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
    what_is_leased_under_a_limit_is_not_counted,
    what_the_fleet_has_leased_is_not_counted,
    a_claim_does_not_count_what_it_takes_itself,
    the_reserve_is_open_to_all,
    only_the_limit_over_everything_holds,
    a_worker_gets_more_bulk_work_than_it_asks_for,
    limited_work_is_prefetched,
    aged_bulk_work_waits_for_all_manual_work,
    a_paused_step_goes_on,
    a_pause_of_everything_holds_for_nothing,
    a_worker_is_told_to_wait_for_what_is_paused,
    a_key_that_is_repeated_counts_twice,
    what_was_added_is_counted_in_a_transaction_of_its_own,
    an_item_that_ends_is_waited_for,
    an_item_that_is_retried_by_hand_is_not_waited_for,
    a_barrier_opens_while_one_is_not_settled,
    a_barrier_opens_before_its_batch_is_closed,
    who_goes_on_with_an_opening_takes_a_time_of_his_own,
    a_barrier_counts_as_passed_before_anybody_has,
    who_comes_late_to_an_open_barrier_has_the_time_of_all,
    a_skipped_download_has_no_reason,
    what_was_leased_too_early_is_kept,
    a_wave_starts_while_others_are_at_work,
    a_wave_starts_before_its_longest_delay,
    what_waits_for_its_wave_is_leased,
    a_cancelled_batch_forgets_that_it_is_being_cancelled,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found(bug: Bug, monkeypatch: Patch, sqlite_url: str) -> None:
    async def play_until_it_breaks() -> None:
        async with open_stage(sqlite_url) as stage:
            await stage.play(0)  # without the bug nothing breaks
            bug(monkeypatch)
            for seed in seeds_of_chains(SEEDS_MAX):
                await stage.play(seed)

    with pytest.raises(SeedFailed) as found:
        run(play_until_it_breaks(), 300)
    assert not isinstance(found.value.__cause__, AttributeError | NameError | TypeError), "broken, not found"
    told = str(found.value)
    seed = re.match(r"Seed (\d+) on sqlite", told)
    assert seed is not None
    assert told.endswith(f"{Path('tests/simulation/run.py')} --store sqlite --seed {seed[1]}")
    print(f"found after {int(seed[1]) + 1} seeds: {told.splitlines()[0][:200]}")
