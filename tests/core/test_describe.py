"""The one sentence that people read about an execution."""

from typing import Any

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.describe import describe, full, paused, retrying
from holdfast.core.failures import StoredError
from holdfast.core.limits import FLEET_LIMIT, Limit
from holdfast.core.model import ExecutionStatus, JobStatus, Lane
from holdfast.core.pauses import Pause, PauseKind, narrowest

ERROR = StoredError(
    error_type="invalid_file",
    category=Category.PERMANENT,
    message="boom",
    stage="parse",
    timestamp=0.0,
    retry_count=0,
    user_message="File appears to be invalid or corrupted",
    guidance="Please re-upload the document.",
    rule="a rule",
    stack_trace="",
    final=True,
)


def sentence(status: ExecutionStatus, job_status: JobStatus | None, attempts: int = 0, **more: Any) -> str:
    known = {"step": "parse", "max_attempts": 4, "error": None, **more}
    return describe(status, job_status=job_status, attempts=attempts, **known)


@pytest.mark.parametrize(
    ("job_status", "attempts", "words"),
    [
        (JobStatus.QUEUED, 0, "Waiting to run parse"),
        (JobStatus.LEASED, 1, "Running parse"),
        (JobStatus.LEASED, 2, "Running parse (attempt 2/4)"),
        (JobStatus.RETRY, 1, "Retrying (attempt 1/3)"),
        (JobStatus.RETRY, 2, "Retrying (attempt 2/3)"),
    ],
    ids=str,
)
def test_a_running_execution_says_what_its_job_does(job_status: JobStatus, attempts: int, words: str) -> None:
    assert sentence(ExecutionStatus.RUNNING, job_status, attempts) == words


def test_an_ended_execution_says_how_it_ended() -> None:
    assert sentence(ExecutionStatus.COMPLETED, JobStatus.DONE) == "Complete"
    assert sentence(ExecutionStatus.CANCELLED, JobStatus.CANCELLED) == "Cancelled"


def test_a_failed_execution_says_where_and_why_and_what_to_do() -> None:
    assert sentence(ExecutionStatus.FAILED, JobStatus.DEAD, error=ERROR) == (
        "Failed at parse: File appears to be invalid or corrupted. Please re-upload the document."
    )


def test_the_number_of_a_retry_is_counted_among_the_retries_not_the_attempts() -> None:
    assert [retrying(failed, 4) for failed in (1, 2, 3)] == [
        "Retrying (attempt 1/3)",
        "Retrying (attempt 2/3)",
        "Retrying (attempt 3/3)",
    ]


def pause(kind: str, name: str, *, by: str = "ann", reason: str = "maintenance", since: float = 0.0) -> Pause:
    return Pause(kind=PauseKind(kind), name=name, by=by, reason=reason, since=since)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (pause("step", "p/parse"), "Waiting to run parse; paused by ann since 12:40: maintenance"),
        (pause("step", "p/parse", by="", reason=""), "Waiting to run parse; paused since 12:40"),
        (
            pause("lane", "bulk", by="", reason="so"),
            "Waiting to run parse; the bulk lane is paused since 12:40: so",
        ),
        (pause("playbook", "p", reason=""), "Waiting to run parse; playbook p is paused by ann since 12:40"),
        (pause("limit", "l", reason=""), "Waiting to run parse; limit l is paused by ann since 12:40"),
    ],
    ids=str,
)
def test_a_job_that_is_paused_says_by_whom_and_why(made: Pause, words: str) -> None:
    assert sentence(ExecutionStatus.RUNNING, JobStatus.QUEUED, hindrance=paused(made, "12:40")) == words


def test_what_runs_or_has_ended_is_not_told_as_hindered() -> None:
    hindrance = paused(pause("step", "p/parse"), "12:40")
    assert sentence(ExecutionStatus.RUNNING, JobStatus.LEASED, 1, hindrance=hindrance) == "Running parse"
    assert sentence(ExecutionStatus.COMPLETED, JobStatus.DONE, 1, hindrance=hindrance) == "Complete"


@pytest.mark.parametrize(
    ("lane", "manual", "bulk", "words"),
    [
        (Lane.MANUAL, 1, 4, ": limit l is full (5 of 5)"),
        (Lane.BULK, 5, 0, ": limit l is full (5 of 5)"),
        (Lane.BULK, 0, 7, ": limit l is full (7 of 5)"),
        (Lane.BULK, 0, 4, ": limit l is full for bulk work (4 of 5, 1 kept for manual work)"),
    ],
)
def test_a_full_limit_says_how_full_it_is(lane: Lane, manual: int, bulk: int, words: str) -> None:
    assert full(Limit("l", 5), lane, manual, bulk) == words
    waiting = sentence(ExecutionStatus.RUNNING, JobStatus.RETRY, 1, hindrance=words)
    assert waiting == f"Retrying (attempt 1/3){words}"


JOB: dict[str, Any] = {"path": "a/b", "step": "c", "lane": Lane.BULK, "limit": "l"}


@pytest.mark.parametrize(
    ("kind", "names", "others"),
    [
        ("step", ["a/b/c"], ["a/b", "c", "b/c", "a/b/cd"]),
        ("playbook", ["a/b"], ["a", "a/b/c", "b"]),
        ("lane", ["bulk"], ["manual"]),
        ("limit", ["l", FLEET_LIMIT], ["", "m"]),
    ],
)
def test_a_pause_holds_what_it_names_and_nothing_else(kind: str, names: list[str], others: list[str]) -> None:
    assert all(pause(kind, name).holds(**JOB) for name in names)
    assert not any(pause(kind, name).holds(**JOB) for name in others)


def test_of_several_pauses_the_narrowest_is_named_and_among_equals_the_oldest() -> None:
    lane, playbook, limit = pause("lane", "bulk"), pause("playbook", "p"), pause("limit", "l", since=9)
    fleet = pause("limit", FLEET_LIMIT, since=8)
    assert narrowest([]) is None
    assert narrowest([lane]) is lane
    assert narrowest([lane, limit, fleet]) is fleet
    assert narrowest([lane, limit, playbook]) is playbook
