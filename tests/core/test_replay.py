"""The log alone tells the state: scripted histories, folded. (Every engine story checks it on real ones.)"""

from typing import Any

from holdfast.core.model import NO_ELEMENT, Event, EventType, ExecutionStatus, JobStatus, place_of
from holdfast.core.replay import ReplayedExecution, ReplayedJob, replay


def replayed(*lines: str | tuple[str, dict[str, Any]]) -> ReplayedExecution:
    """Lines are `type` or `type step`, with data where the type has some."""
    events = []
    for number, line in enumerate(lines):
        words, data = (line, {}) if isinstance(line, str) else line
        type_, _, step = words.partition(" ")
        events.append(Event(f"{number}.0", 1, float(number), EventType(type_), step or None, data))
    return replay(events)


def started(step: str, attempt: int) -> tuple[str, dict[str, Any]]:
    return (f"action_started {step}", {"attempt": attempt})


BEGUN = ("execution_started", "step_started a")
DIED = (
    *BEGUN,
    started("a", 1),
    "action_error a",
    ("step_failed_terminal a", {"dead_reason": "permanent"}),
    "execution_failed",
)


def test_an_empty_log_is_an_execution_that_runs() -> None:
    assert replayed() == ReplayedExecution()


def test_a_new_execution_has_one_queued_job() -> None:
    assert replayed(*BEGUN).jobs == {(1, "a", NO_ELEMENT): ReplayedJob(JobStatus.QUEUED)}


def test_a_retry_keeps_its_attempt() -> None:
    told = replayed(*BEGUN, started("a", 1), "action_error a", "step_retry a")
    assert told.jobs == {(1, "a", NO_ELEMENT): ReplayedJob(JobStatus.RETRY, 1)}


def test_a_release_gives_the_attempt_back() -> None:
    assert replayed(*BEGUN, started("a", 1), "lease_released a").jobs == {
        (1, "a", NO_ELEMENT): ReplayedJob(JobStatus.QUEUED, 0)
    }
    assert replayed(*BEGUN, started("a", 2), "lease_released a").jobs == {
        (1, "a", NO_ELEMENT): ReplayedJob(JobStatus.RETRY, 1)
    }


def test_completed_steps_lead_to_a_completed_execution() -> None:
    first = (*BEGUN, started("a", 1), "action_completed a", "step_completed a")
    told = replayed(*first, "step_started b", started("b", 1))
    assert told.last_completed_stage == "a"
    assert told.jobs[1, "b", NO_ELEMENT] == ReplayedJob(JobStatus.LEASED, 1)
    told = replayed(*first, "execution_completed")
    assert told.status is ExecutionStatus.COMPLETED
    assert told.jobs == {(1, "a", NO_ELEMENT): ReplayedJob(JobStatus.DONE, 1)}


def test_a_dead_job_has_its_reason() -> None:
    told = replayed(*DIED)
    assert told.status is ExecutionStatus.FAILED
    assert told.jobs == {(1, "a", NO_ELEMENT): ReplayedJob(JobStatus.DEAD, 1, "permanent")}


def test_the_end_of_an_execution_cancels_what_is_live() -> None:
    told = replayed(*BEGUN, started("a", 1), "execution_cancelled")
    assert told.status is ExecutionStatus.CANCELLED
    assert told.jobs == {(1, "a", NO_ELEMENT): ReplayedJob(JobStatus.CANCELLED, 1)}


def test_a_manual_retry_is_a_new_round_beside_the_old_rows() -> None:
    told = replayed(
        *DIED, ("manual_retry", {"last_completed_stage": None}), "step_skipped x", "step_started a"
    )
    assert (told.status, told.round, told.last_completed_stage) == (ExecutionStatus.RUNNING, 2, None)
    assert told.jobs == {
        (1, "a", NO_ELEMENT): ReplayedJob(JobStatus.DEAD, 1, "permanent"),
        (2, "a", NO_ELEMENT): ReplayedJob(JobStatus.QUEUED),
    }


def test_a_list_makes_its_elements_which_end_one_by_one() -> None:
    made = (*BEGUN, started("a", 1), ("action_completed a", {"elements": 2}))
    assert replayed(*made).jobs == {
        (1, "a", NO_ELEMENT): ReplayedJob(JobStatus.DONE, 1),
        (1, "a", 0): ReplayedJob(JobStatus.QUEUED),
        (1, "a", 1): ReplayedJob(JobStatus.QUEUED),
    }
    told = replayed(
        *made,
        ("action_started a", {"attempt": 1, "element": 1}),
        ("action_completed a", {"element": 1}),
        ("step_skipped a", {"element": 0, "reason": "a failed"}),
    )
    assert told.jobs[1, "a", 1] == ReplayedJob(JobStatus.DONE, 1)
    assert told.jobs[1, "a", 0] == ReplayedJob(JobStatus.CANCELLED)
    retried = replayed(
        *made,
        "execution_failed",
        ("manual_retry", {"last_completed_stage": None}),
        ("step_started a", {"elements": [1]}),
    )
    assert retried.jobs[2, "a", 1] == ReplayedJob(JobStatus.QUEUED)
    assert (2, "a", 0) not in retried.jobs


def test_each_visit_of_a_step_is_a_job_of_its_own() -> None:
    told = replayed(
        *BEGUN,
        started("a", 1),
        "action_completed a",
        ("step_started a", {"visit": 2}),
        ("action_started a", {"attempt": 1, "visit": 2}),
        ("action_completed a", {"visit": 2, "elements": 1}),
    )
    assert told.jobs == {
        (1, "a", NO_ELEMENT): ReplayedJob(JobStatus.DONE, 1),
        (1, "a", place_of(2, NO_ELEMENT)): ReplayedJob(JobStatus.DONE, 1),
        (1, "a", place_of(2, 0)): ReplayedJob(JobStatus.QUEUED),
    }


def test_a_control_step_is_no_job_and_does_not_count_as_completed() -> None:
    told = replayed(("step_started a", {"control": True}), ("step_completed a", {"control": True}))
    assert (told.jobs, told.last_completed_stage) == ({}, None)
