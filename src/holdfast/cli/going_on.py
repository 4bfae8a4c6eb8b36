"""How to go on with an execution that failed or was interrupted: what to type, and where that cannot help."""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING

from holdfast.cli.options import URL_DEFAULT, URL_VARIABLE
from holdfast.cli.output import sentence, wall_time

if TYPE_CHECKING:
    from holdfast.core.errors import RetryRefused
    from holdfast.engine import ExecutionView

# Errors that follow from the playbook and what is kept: its version, its workload, its outputs, its visits.
_OF_WHAT_IS_KEPT = frozenset({"max_visits", "playbook_error", "template_error"})
SAME_AGAIN = (
    "A retry would end in the same way: an execution keeps the version it began with. Run the corrected"
    " playbook anew."
)


def ends_the_same_again(view: ExecutionView) -> bool:
    """Whether a retry from the failed stage, forced or not, can only fail as it did."""
    error = view.error
    if error is None or error.error_type not in _OF_WHAT_IS_KEPT:
        return False
    # A child is started anew, with its playbook as that is then.
    return not any(job.step == error.stage and job.handler == "type/playbook" for job in view.jobs)


def advised(refusal: RetryRefused, view: ExecutionView, command: str, forced: str) -> RetryRefused:
    """The refusal of `command`, with what to type and when. `forced` is what goes on all the same."""
    before = f"{sentence(refusal.guidance)} ".lstrip()
    if refusal.code == "permanent_error" and ends_the_same_again(view):
        refusal.guidance = before + SAME_AGAIN
    elif refusal.code == "permanent_error":
        refusal.guidance = f"{before}Retry it with --force, once the cause is repaired:\n  {forced}"
    elif refusal.code == "cooldown" and refusal.retry_after is not None:
        ready_at = wall_time(time.time() + refusal.retry_after)
        refusal.guidance = f"In {refusal.retry_after:.0f} seconds, at {ready_at}, type:\n  {command}"
    return refusal


def resume_command(execution_id: int, url: str, file: str | None, folder: str) -> str:
    """Its functions are looked for beside the file, which is named where that is not the current folder."""
    is_elsewhere = file not in (None, "-") and folder != os.getcwd()
    named = f" {shlex.quote(str(file))}" if is_elsewhere else ""
    return f"holdfast run{named} --resume {execution_id}{at(url)}"


def forced_resume(execution_id: int, url: str, resume: str) -> str:
    """The same for a permanent error, whose cause has been repaired."""
    return f"holdfast retry {execution_id} --force{at(url)} && {resume}"


def at(url: str) -> str:
    """What must be typed to reach the same database."""
    from holdfast.core.masking import mask_secrets

    usual = os.environ.get(URL_VARIABLE) or URL_DEFAULT
    return "" if url == usual else f" --db {shlex.quote(mask_secrets(url))}"
