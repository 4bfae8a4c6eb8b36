"""How a run ended: its result, or what went wrong in plain words and what to do next."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.code_places import places_in_trace
from holdfast.cli.going_on import SAME_AGAIN, at, ends_the_same_again, forced_resume
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
        "steps": [step_record(step, story) for step in story.steps.values()],
    }


def step_record(step: StepStory, story: Story) -> dict[str, Any]:
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
        record["elements"] = _elements_record(step)
    error = step.error
    if error:
        record["error"] = {name: error.get(name) for name in ("error_type", "category", "message")}
    return record


def _elements_record(step: StepStory) -> dict[str, int]:
    """How many there are, and how many stand where; those that will not be begun are counted apart."""
    begun = Counter(work.stand for work in step.elements.values() if work.attempt or not step.not_run)
    record = {"total": step.total} | {stand.value: count for stand, count in begun.items()}
    return record | ({"not_run": step.not_run} if step.not_run else {})


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
    if ends_the_same_again(view):
        hint(SAME_AGAIN)
    else:
        is_permanent = error.category.value == "permanent"
        hint(f"Go on at {error.stage}, once the cause is gone:")
        # On a line of its own: a command that is wrapped cannot be copied.
        hint(f"  {forced_resume(execution.id, url, resume) if is_permanent else resume}")
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
        click.echo(line)  # as it is: a break inside of a text would not be JSON any more
    if len(kept) < len(lines):
        hint(f"… {len(lines) - len(kept):,} more lines:  holdfast status {execution_id} --json{at(url)}")


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
