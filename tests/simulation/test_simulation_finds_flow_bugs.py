"""The same of playbooks that are more than chains of steps: each bug below is put into how they go on, and
must break an invariant within a third of the seeds of the others: one in three is about playbooks."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core.model import JobState, JobStatus
from holdfast.engine.children import Children
from holdfast.engine.decisions import Decisions, Needed
from holdfast.engine.flow import Flow, SiblingsNeeded
from holdfast.engine.reporting import Reporting
from holdfast.engine.resuming import Resuming
from holdfast.engine.settle import SettlePlan
from holdfast.playbook import plan
from holdfast.playbook.graph import Graph
from holdfast.playbook.plan import Each, Ended, State
from holdfast.store.queries import load_queries
from holdfast.store.sqlite import SqliteStore
from running import run
from simulation.seeds import SeedFailed, open_stage, seeds_of_flow

SEEDS_MAX = 133

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]


def change_query(patch: Patch, name: str, old: str, new: str) -> None:
    queries = load_queries("sqlite")
    assert old in queries[name], f"the query {name} has changed: {queries[name]}"
    patch.setitem(queries, name, queries[name].replace(old, new))


def a_join_does_not_wait(patch: Patch) -> None:
    init = Graph.__init__

    def spoiled(self: Graph, definition: Any) -> None:
        init(self, definition)
        self.inward = {name: min(edges, 1) for name, edges in self.inward.items()}

    patch.setattr(Graph, "__init__", spoiled)


def a_branch_that_is_not_taken_keeps_its_join_waiting(patch: Patch) -> None:
    end = plan._Walk.end

    def spoiled(self: Any, step: str, how: Ended, inputs: Any) -> None:
        if how is not Ended.SKIPPED:
            end(self, step, how, inputs)

    patch.setattr(plan._Walk, "end", spoiled)


def a_death_is_handled_although_nothing_leads_to_it(patch: Patch) -> None:
    """The other edges of a step that died count as taken."""
    end = plan._Walk.end

    def spoiled(self: Any, step: str, how: Ended, inputs: Any) -> None:
        end(self, step, Ended.COMPLETED if how is Ended.DIED else how, inputs)

    patch.setattr(plan._Walk, "end", spoiled)


def a_cycle_goes_round_while_one_of_its_steps_runs(patch: Patch) -> None:
    open_region = plan._Walk._open_region

    def spoiled(self: Any, step: str) -> plan.Region:
        region = open_region(self, step)
        region.left = min(region.left, 1)
        return region

    patch.setattr(plan._Walk, "_open_region", spoiled)


def the_end_of_a_dead_element_is_not_counted(patch: Patch) -> None:
    element_ended = Flow._element_ended

    def spoiled(self: Flow, execution: Any, state: State, job: JobState, *, died: str | None = None) -> Each:
        each = element_ended(self, execution, state, job, died=died)
        each.left += died is not None
        return each

    patch.setattr(Flow, "_element_ended", spoiled)


def an_element_that_waits_for_a_place_gets_none(patch: Patch) -> None:
    patch.setattr(Flow, "_let_through", lambda self, execution_id, job: None)


def more_elements_run_than_may(patch: Patch) -> None:
    change_query(patch, "let_elements_through", "LIMIT ?4", "LIMIT ?4 + 1")


def siblings_are_not_cancelled(patch: Patch) -> None:
    def no_cancel(self: Flow, execution: Any, ended: JobState, only: str | None = None) -> list[Any]:
        if self._siblings is None:
            raise SiblingsNeeded
        return []

    patch.setattr(Flow, "_cancel", no_cancel)


def what_is_under_way_is_not_waited_for(patch: Patch) -> None:
    patch.setattr(Flow, "_under_way", lambda self, execution, ended, only=None: 0)


def elements_left_behind_are_not_waited_for(patch: Patch) -> None:
    went_on = Flow._went_on

    def spoiled(self: Flow, execution: Any, state: State, told: Any) -> Any:
        state.stragglers = 0
        return went_on(self, execution, state, told)

    patch.setattr(Flow, "_went_on", spoiled)


def a_decision_is_made_with_what_was_stored_before(patch: Patch) -> None:
    decided = Decisions._decided

    async def spoiled(self: Decisions, needed: Needed) -> Any:
        stale = needed.visit > 1 or needed.round > 1
        return await decided(self, needed._replace(outputs=()) if stale else needed)

    patch.setattr(Decisions, "_decided", spoiled)


def a_job_whose_child_has_ended_is_never_let_through(patch: Patch) -> None:
    async def spoiled(self: Children, waiting: Any) -> bool:
        return waiting.child_id is None and await self._start(waiting)

    patch.setattr(Children, "_go_on", spoiled)


def a_child_whose_start_failed_is_never_started(patch: Patch) -> None:
    async def no_sweep(self: Children) -> int:
        return 0

    patch.setattr(Children, "sweep", no_sweep)


def children_run_on_when_nobody_waits_for_them(patch: Patch) -> None:
    async def none(self: SqliteStore, limit: int) -> list[int]:
        return []

    patch.setattr(SqliteStore, "orphans", none)


def outputs_of_earlier_rounds_are_handed_on(patch: Patch) -> None:
    change_query(patch, "step_outputs", "NOT j.superseded", "true")


def a_retry_runs_all_elements_again(patch: Patch) -> None:
    init = Resuming.__init__

    def spoiled(self: Resuming, *given: Any) -> None:
        init(self, *given)
        for place, job in self._last.items():
            if job.is_element and job.status is JobStatus.DONE:
                self._last[place] = msgspec.structs.replace(job, status=JobStatus.CANCELLED)

    patch.setattr(Resuming, "__init__", spoiled)


def a_retry_forgets_what_a_handler_was_told(patch: Patch) -> None:
    handled = Resuming._handled
    patch.setattr(Resuming, "_handled", lambda self, again: {name: {} for name in handled(self, again)})


def a_child_is_pruned_before_its_end_is_read(patch: Patch) -> None:
    change_query(patch, "finished_before", "p.status IN ('queued', 'leased', 'retry')", "false")


def two_reports_of_one_job_get_one_answer(patch: Patch) -> None:
    settle_together = Reporting._settle_together

    async def spoiled(self: Reporting, items: Any, *, skip_locked: bool) -> Any:
        acks = await settle_together(self, items, skip_locked=skip_locked)
        last = {ack.queue_id: ack for ack in acks}
        return [last[ack.queue_id] for ack in acks]

    patch.setattr(Reporting, "_settle_together", spoiled)


def each_branch_counts_on_a_plan_of_its_own(patch: Patch) -> None:
    """Two jobs of one execution that end in one transaction: the later forgets what the earlier did."""

    def forget(self: SettlePlan, execution: Any) -> None:
        self._changed_executions[execution.id] = execution

    patch.setattr(SettlePlan, "_change", forget)


BUGS: tuple[Bug, ...] = (
    a_join_does_not_wait,
    a_branch_that_is_not_taken_keeps_its_join_waiting,
    a_death_is_handled_although_nothing_leads_to_it,
    a_cycle_goes_round_while_one_of_its_steps_runs,
    the_end_of_a_dead_element_is_not_counted,
    an_element_that_waits_for_a_place_gets_none,
    more_elements_run_than_may,
    siblings_are_not_cancelled,
    what_is_under_way_is_not_waited_for,
    elements_left_behind_are_not_waited_for,
    a_decision_is_made_with_what_was_stored_before,
    a_job_whose_child_has_ended_is_never_let_through,
    a_child_whose_start_failed_is_never_started,
    children_run_on_when_nobody_waits_for_them,
    outputs_of_earlier_rounds_are_handed_on,
    a_retry_runs_all_elements_again,
    a_retry_forgets_what_a_handler_was_told,
    a_child_is_pruned_before_its_end_is_read,
    two_reports_of_one_job_get_one_answer,
    each_branch_counts_on_a_plan_of_its_own,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_the_flow_is_found(bug: Bug, monkeypatch: Patch, sqlite_url: str) -> None:
    async def play_until_it_breaks() -> None:
        async with open_stage(sqlite_url) as stage:
            bug(monkeypatch)
            for seed in seeds_of_flow(SEEDS_MAX):
                await stage.play(seed)

    with pytest.raises(SeedFailed) as found:
        run(play_until_it_breaks(), 300)
    assert not isinstance(found.value.__cause__, AttributeError | NameError | TypeError), "broken, not found"
    told = str(found.value)
    seed = re.match(r"Seed (\d+) on sqlite", told)
    assert seed is not None
    print(f"found after {int(seed[1]) + 1} seeds: {told.splitlines()[0][:200]}")
