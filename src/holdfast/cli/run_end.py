"""How a run ended: its result, or what went wrong in plain words and what to do next."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from holdfast.cli.code_places import places_in_trace
from holdfast.cli.options import URL_DEFAULT, URL_VARIABLE
from holdfast.cli.output import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WAITING,
    clipped,
    fields,
    hint,
    is_terminal,
    say,
    sentence,
    shown,
)
from holdfast.cli.run_story import Stand, StepStory, Story

if TYPE_CHECKING:
    from holdfast.engine import ExecutionView

RESULT_LINES_MAX = 60
PLACE_CHARS = 200
_STATUS = {Stand.TO_COME: "not_reached"}


def as_record(view: ExecutionView, story: Story) -> dict[str, Any]:
    import msgspec

    execution = view.execution
    return {
        "id": execution.id,
        "path": execution.path,
        "version": execution.version,
        "status": execution.status.value,
        "summary": view.summary,
        "result": view.result,
        "error": None if view.error is None else msgspec.to_builtins(view.error),
        "steps": [_step_record(step, story) for step in story.steps.values()],
    }


def _step_record(step: StepStory, story: Story) -> dict[str, Any]:
    record: dict[str, Any] = {
        "step": step.name,
        "type": story.definition.step(step.name).type,
        "status": _STATUS.get(step.stand, step.stand.value),
        "attempts": step.attempt,
        "max_attempts": step.max_attempts,
    }
    if step.visit > 1:
        record["visits"] = step.visit
    if step.has_elements:
        counts = step.counts
        record["elements"] = {"total": len(step.elements)} | {
            stand.value: counts[stand] for stand in counts if counts[stand]
        }
    error = step.error
    if error:
        record["error"] = {name: error.get(name) for name in ("error_type", "category", "message")}
    return record


def show_end(view: ExecutionView, story: Story, url: str, resume: str) -> None:
    """`resume` is what to type to go on with it."""
    execution, error = view.execution, view.error
    took = (story.ended_at or 0.0) - (story.started_at or 0.0)
    say()
    if view.status == "completed":
        say(f"Execution {execution.id} of {execution.path} completed in {_took(took)}.", GOOD)
        if view.result is not None:
            say()
            show_result(view.result, execution.id, url)
        say()
        hint(f"All about it:  holdfast status {execution.id}{at(url)}")
        return
    if view.status == "cancelled" or error is None:
        say(
            f"Execution {execution.id} of {execution.path} ended after {_took(took)}: {view.summary}", WAITING
        )
        return
    say(f"Execution {execution.id} of {execution.path} failed at {error.stage} after {_took(took)}.", BAD)
    say()
    fields(
        [
            ("what", sentence(error.user_message)),
            ("message", error.message),
            ("error", f"{error.error_type} ({error.category.value}; {error.rule})"),
            ("do", error.guidance),
        ]
    )
    for line in places_in_trace(error.stack_trace):
        say(f"  {clipped(line, PLACE_CHARS)}", DIM)
    say()
    go_on = resume
    if error.category.value == "permanent":
        go_on = f"holdfast retry {execution.id} --force{at(url)} && {resume}"
    hint(f"Go on at {error.stage}, once the cause is gone:")
    hint(f"  {go_on}")  # on a line of its own: a command that is wrapped cannot be copied
    if error.category.value != "transient":
        hint("A corrected playbook is run anew: an execution keeps the version it began with.")
    hint(f"All about it:  holdfast status {execution.id}{at(url)}")


def show_kept(view: ExecutionView, url: str, resume: str) -> None:
    """It was interrupted: nothing is lost, and nobody works on it now."""
    execution = view.execution
    say()
    say(
        f"Interrupted. Execution {execution.id} of {execution.path} is kept: {sentence(view.summary)}",
        WAITING,
    )
    hint(f"Go on with it:  {resume}")
    hint(f"Give it up:     holdfast cancel {execution.id}{at(url)}")


def told_cut_off(execution_id: int, resume: str) -> str:
    """For the end by a second Ctrl-C: what ran was not given back."""
    return (
        f"Cut off. Execution {execution_id} is kept; what ran has used up its attempt, and is free again when"
        f" its lease has run out.\nGo on with it:  {resume}"
    )


def show_result(result: Any, execution_id: int, url: str) -> None:
    say("Result", HEAD)
    lines = shown(json.dumps(result, indent=2, ensure_ascii=False)).split("\n")
    kept = lines[:RESULT_LINES_MAX] if is_terminal() else lines
    for line in kept:
        say(line)
    if len(kept) < len(lines):
        hint(f"… {len(lines) - len(kept):,} more lines:  holdfast status {execution_id} --json{at(url)}")


def resume_command(execution_id: int, url: str, file: str | None, folder: str) -> str:
    """Its functions are looked for beside the file, which is named where that is not the current folder."""
    import os

    is_elsewhere = file not in (None, "-") and folder != os.getcwd()
    named = f" {shlex.quote(str(file))}" if is_elsewhere else ""
    return f"holdfast run{named} --resume {execution_id}{at(url)}"


def at(url: str) -> str:
    """What must be typed to reach the same database."""
    import os

    usual = os.environ.get(URL_VARIABLE) or URL_DEFAULT
    from holdfast.core.masking import mask_secrets

    return "" if url == usual else f" --db {shlex.quote(mask_secrets(url))}"


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
