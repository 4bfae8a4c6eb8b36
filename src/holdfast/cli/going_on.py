"""How to go on: what to type to reach the same place, and where, after a failure, that cannot help."""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import ADDRESS, SERVER_VARIABLE, URL_DEFAULT, URL_VARIABLE
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


def typed(command: str, *, app: bool = False) -> str:
    """This command as it must be typed to reach what the one that runs was asked about. That of a worker with
    an `app` names a server always: its program's own place counts before the environment."""
    from holdfast.addresses import is_server

    context = click.get_current_context(silent=True)
    url = None if context is None else context.meta.get(ADDRESS)
    if url is None or (app and not is_server(url)):
        return command
    return f"{command}{_option(url) if app else at(url)}"


def at(url: str) -> str:
    """What must be typed to reach the same database, or the same server."""
    from holdfast.addresses import is_server

    usual = os.environ.get(SERVER_VARIABLE) or os.environ.get(URL_VARIABLE) or URL_DEFAULT
    if url == (usual.rstrip("/") if is_server(usual) else usual):
        return ""
    return _option(url)


def _option(url: str) -> str:
    from holdfast.addresses import is_server
    from holdfast.core.masking import mask_secrets

    return f" {'--server' if is_server(url) else '--db'} {shlex.quote(mask_secrets(url))}"
