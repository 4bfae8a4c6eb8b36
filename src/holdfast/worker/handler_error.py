"""What a handler raised, as the failure that is reported, whether it ran in the worker or in a child."""

from __future__ import annotations

import concurrent.futures.thread
import time
from pathlib import Path

import msgspec

from holdfast.core.failures import Failure, failure_from_exception
from holdfast.core.model import Leased
from holdfast.core.sizes import shown_bytes
from holdfast.worker.bounded_process import is_out_of_memory

_OURS = (
    str(Path(__file__).parent) + "/",
    str(Path(__file__).parent.parent / "step_function.py"),
    str(Path(__file__).parent.parent / "playbook" / "rendering.py"),
    str(Path(__file__).parent.parent / "testing") + "/",
    concurrent.futures.thread.__file__,
)


def failure_of(error: BaseException, job: Leased, memory_bytes: int | None = None) -> Failure:
    """The error as the handler's author sees it: without the frames of ours that led to the handler."""
    trace = error.__traceback__
    while trace is not None and is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    failure = failure_from_exception(error.with_traceback(trace), now=time.time())
    if memory_bytes is not None and is_out_of_memory(error):
        limit = shown_bytes(memory_bytes)
        message = f"Step {job.step} needed more memory than its limit of {limit}."
        return msgspec.structs.replace(failure, message=message, error_type="memory_limit")
    if isinstance(error, SystemExit):
        return msgspec.structs.replace(failure, message=f"Step {job.step} called exit({error.code!r}).")
    return failure


def is_ours(file: str) -> bool:
    """What leads from a worker to a handler."""
    return file.startswith(_OURS)


def timed_out(job: Leased) -> Failure:
    return Failure(
        message=f"Step {job.step} did not finish within its timeout of {job.timeout_seconds:g} s.",
        exception="TimeoutError",
        exception_types=("builtins.TimeoutError",),
    )
