"""The one sentence that people read about an execution."""

from typing import Any

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.describe import describe, retrying
from holdfast.core.failures import StoredError
from holdfast.core.model import ExecutionStatus, JobStatus

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
