"""What people read while they wait: one plain sentence for the state an execution is in."""

from __future__ import annotations

from holdfast.core.failures import StoredError
from holdfast.core.model import ExecutionStatus, JobStatus


def describe(
    status: ExecutionStatus,
    *,
    step: str | None,
    job_status: JobStatus | None,
    attempts: int,
    max_attempts: int,
    error: StoredError | None,
) -> str:
    """`step` and what follows it tell of the current job, where there is one."""
    if status is ExecutionStatus.COMPLETED:
        return "Complete"
    if status is ExecutionStatus.CANCELLED:
        return "Cancelled"
    if status is ExecutionStatus.FAILED:
        assert error is not None
        return f"Failed at {error.stage}: {error.user_message}. {error.guidance}"
    if job_status is JobStatus.RETRY:
        return retrying(attempts, max_attempts)
    if job_status is JobStatus.LEASED:
        return f"Running {step}" + (f" (attempt {attempts}/{max_attempts})" if attempts > 1 else "")
    return f"Waiting to run {step}"


def retrying(attempts: int, max_attempts: int) -> str:
    """After n failed attempts the next retry is the n-th, of max_attempts - 1 there are."""
    return f"Retrying (attempt {attempts}/{max_attempts - 1})"
