"""One execution, shown to people or as JSON; and waiting for its end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.code_places import places_in_trace
from holdfast.cli.going_on import SAME_AGAIN, ends_the_same_again, typed
from holdfast.cli.outages import through_outages
from holdfast.cli.output import (
    BAD,
    DIM,
    HEAD,
    STATUS_STYLES,
    clipped,
    compact,
    fields,
    hint,
    is_terminal,
    moment,
    say,
    shown,
    span,
    stage_name,
    table,
    wall_time,
)
from holdfast.core.gates import BARRIER, BatchRow
from holdfast.core.model import Event, EventType

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.core.model import ExecutionRow, JobRow, RetryNote
    from holdfast.engine import ExecutionView

POLL_SECONDS = 0.5
CELL_CHARS = 100
ELEMENTS_SHOWN_MAX = 10
_NOT_PLAIN = ("dead", "leased", "retry")
PLACE_CHARS = 200


async def ended(engine: AnyEngine, execution_id: int, within: float | None, *, quiet: bool) -> ExecutionView:
    """The execution once it has ended, or as it is after `within` seconds. Whoever watches a terminal
    is told of each change."""
    deadline = None if within is None else time.monotonic() + within
    told = ""
    ticket = engine.work_ticket()
    view = await engine.view(execution_id)  # at once, or not at all: the address may be wrong
    while view.status == "running":
        if view.summary != told and not quiet and sys.stderr.isatty():
            told = view.summary
            click.echo(f"{wall_time(time.time())}  {told}", err=True)
        remaining = POLL_SECONDS if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            break
        seconds = min(remaining, POLL_SECONDS)
        ticket, view = await through_outages(
            partial(_later, engine, execution_id, ticket, seconds), until=deadline
        )
    return view


async def _later(
    engine: AnyEngine, execution_id: int, ticket: int, seconds: float
) -> tuple[int, ExecutionView]:
    await engine.wait_for_work(ticket, seconds)
    return engine.work_ticket(), await engine.view(execution_id)


def as_record(view: ExecutionView) -> dict[str, Any]:
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(view.execution)
    return {
        **record,
        "summary": view.summary,
        "stage": view.stage,
        "outputs": view.outputs,
        "result": view.result,
        "jobs": msgspec.to_builtins(view.jobs),
        "skipped": view.skipped,
    }


async def failed_stages(engine: AnyEngine, view: ExecutionView) -> list[str]:
    """Where each of the failed attempts that are kept was: of a step that runs for each of many, at which
    element. The notes of them do not say that; the history does, in the same order."""
    notes = view.execution.retry_history
    if not notes or not any(job.element >= 0 for job in view.jobs):
        return [note.stage for note in notes]
    errors: list[Event] = []
    last = None
    while page := await engine.events(view.id, after=last):
        last = page[-1].id
        errors += [event for event in page if event.type is EventType.ACTION_ERROR]
    stages = []
    for note, event in zip(notes, errors[-len(notes) :], strict=False):
        known = (event.step, event.data.get("attempt"), event.data.get("timestamp"))
        is_same = known == (note.stage, note.attempt, note.timestamp)
        stages.append(stage_name(note.stage, event.data.get("element")) if is_same else note.stage)
    return stages


def show_execution(
    view: ExecutionView, now: float, batch: BatchRow | None = None, stages: Sequence[str] = ()
) -> None:
    """`stages` are those of its failed attempts."""
    execution, error = view.execution, view.error
    summary = view.summary
    if error is not None and error.final:  # what to do has a line of its own below
        summary = f"Failed at {error.stage}: {error.user_message}."
    say(f"Execution {execution.id} of {execution.path}: {summary}", HEAD)
    say()
    took = (execution.finished_at or now) - execution.created_at
    retries = []
    if execution.retry_count:
        retries.append(f"{execution.retry_count} automatic")
    if execution.manual_retries:
        retries.append(f"{execution.manual_retries} by hand")
    fields(
        [
            ("status", execution.status.value),
            ("version", execution.version),
            ("lane", execution.lane.value),
            ("mode", execution.mode.value if execution.mode.value != execution.lane.value else None),
            ("batch", _batch_of(execution, batch)),
            ("started for", None if execution.parent_id is None else f"execution {execution.parent_id}"),
            ("key", _key_of(execution)),
            ("submitted", moment(execution.created_at, now)),
            ("ended", moment(execution.finished_at, now)),
            ("took" if execution.finished_at else "for", span(took)),
            ("deadline", moment(execution.deadline_at, now) if execution.finished_at is None else None),
            ("round", execution.round if execution.round > 1 else None),
            ("retries", ", ".join(retries)),
            ("workload", clipped(compact(execution.workload), CELL_CHARS)),
        ]
    )
    say()
    _show_stages(view, now)
    if error is not None:
        say()
        say("What went wrong" if error.final else "Last error", HEAD)
        fields(
            [
                ("what", f"{error.user_message}." if not error.final else None),
                ("message", error.message),
                ("error", f"{error.error_type} ({error.category.value}; {error.rule})"),
                ("do", error.guidance),
                ("stage", error.stage),
                ("when", moment(error.timestamp, now)),
            ]
        )
        for line in places_in_trace(error.stack_trace):
            say(f"  {clipped(line, PLACE_CHARS)}", DIM)
    if view.outputs:
        say()
        say("Outputs", HEAD)
        fields((step, clipped(compact(output), CELL_CHARS)) for step, output in view.outputs.items())
    if execution.retry_history and (len(execution.retry_history) > 1 or error is None):
        say()
        _show_failed_attempts(execution, stages)
    current = view.jobs[-1]
    if batch is not None and batch.closed_at is None and current.held_by == BARRIER:
        say()
        close = typed(f"holdfast batch close {batch.id}")
        hint(f"Batch {batch.id} is open. When all its items are there:  {close}")
    if execution.status == "failed":
        assert error is not None
        force = " --force" if error.category.value == "permanent" else ""
        say()
        if ends_the_same_again(view):
            hint(SAME_AGAIN)
        else:
            retry = typed(f"holdfast retry {execution.id}{force}")
            hint(f"Retry from {error.stage}, once the cause is gone:  {retry}")


def _show_failed_attempts(execution: ExecutionRow, stages: Sequence[str]) -> None:
    say("Failed attempts", HEAD)
    notes = execution.retry_history
    named = stages if len(stages) == len(notes) else [note.stage for note in notes]
    table(
        ("when", "stage", "attempt", "error", "message"),
        [
            (wall_time(note.timestamp), stage, note.attempt, note.error_type, _message(note))
            for stage, note in zip(named, notes, strict=True)
        ],
    )
    if any(_message(note).endswith("…") for note in notes):
        hint(f"All of their messages:  {typed(f'holdfast events {execution.id}')}")


def _message(note: RetryNote) -> str:
    return clipped(note.message, CELL_CHARS)


def _show_stages(view: ExecutionView, now: float) -> None:
    rounds = view.execution.round > 1
    rows, styles = [], []
    made = Counter((job.round, job.step, job.visit) for job in view.jobs if job.element >= 0)
    for job, elements in _shown_jobs(view.jobs):
        row: list[object] = [job.round] if rounds else []
        if elements:
            counts = Counter("waiting" if one.held_by else one.status.value for one in elements)
            told = ", ".join(f"{count:,} {status}" for status, count in counts.items())
            rows.append([*row, f"{job.step}[…]", told, "", "", ""])
            styles.append("")
            continue
        state = f"dead, {job.dead_reason.value}" if job.dead_reason else job.status.value
        if (count := made.get((job.round, job.step, job.visit))) and job.element < 0:
            state = f"made the list: {count:,}"  # how the step itself goes, its elements tell
        name = stage_name(job.step, job.element, job.visit)
        attempts = f"{job.attempts}/{job.max_attempts}"
        rows.append([*row, name, state, attempts, _when(job, now), job.worker_id or ""])
        superseded = job.round < view.execution.round and job.status == "dead"
        styles.append("dim" if superseded else STATUS_STYLES.get(job.status.value, ""))
    for step, reason in view.skipped.items():
        if view.error is not None and step == view.error.stage:
            continue  # it failed; only elements of it were skipped
        rows.append([*([view.execution.round] if rounds else []), step, "skipped", "", reason, ""])
        styles.append("dim")
    head = ("stage", "status", "attempts", "when", "worker")
    table(("round", *head) if rounds else head, rows, styles=styles)


def _shown_jobs(jobs: Sequence[JobRow]) -> Iterator[tuple[JobRow, list[JobRow]]]:
    """The jobs that have a row of their own. Many elements of one step are counted in a row for all of them,
    and of those only some that need attention follow."""
    groups: dict[tuple[int, str, int], list[JobRow]] = {}
    for job in jobs:
        if job.element >= 0:
            groups.setdefault((job.round, job.step, job.visit), []).append(job)
    for job in jobs:
        elements = groups.get((job.round, job.step, job.visit), []) if job.element >= 0 else []
        if len(elements) <= ELEMENTS_SHOWN_MAX:
            yield job, []
        elif job is elements[0]:
            yield job, elements
            apart = [one for one in elements if one.status in _NOT_PLAIN and one.held_by is None]
            yield from ((one, []) for one in apart[:ELEMENTS_SHOWN_MAX])


def _when(job: JobRow, now: float) -> str:
    if job.finished_at is not None:
        return moment(job.finished_at, now)
    if job.status == "leased":
        until = f"until {wall_time(job.lease_until or now)}"
        return until if job.progress is None else f"{job.progress:.0%}, {until}"
    if job.held_by is not None:
        return f"held by {job.held_by}"
    if job.available_at > now:
        return moment(job.available_at, now)
    return f"ready for {span(now - job.available_at)}"


def _batch_of(execution: ExecutionRow, batch: BatchRow | None) -> str | None:
    key = f", key {batch.idempotency_key}" if batch is not None and batch.idempotency_key else ""
    return None if execution.batch_id is None else f"{execution.batch_id}{key}"


def _key_of(execution: ExecutionRow) -> str | None:
    """As it was given; stored, the key of an item begins with its batch, in which alone it holds. That of a
    child nobody has given."""
    key = execution.idempotency_key
    if key is None or execution.parent_id is not None:
        return None
    return key.removeprefix(f"batch {execution.batch_id}: ")


def tell_left_waiting(view: ExecutionView) -> None:
    """On stderr: the wait was over before the execution was."""
    text = f"Execution {view.id} has not ended: {shown(view.summary)}"
    click.secho(text, fg=BAD if is_terminal() else None, err=True)


def tell_submitted(execution_id: int, path: str, *, created: bool) -> None:
    if created:
        say(f"Execution {execution_id} of {path} is submitted.")
    else:
        say(f"Execution {execution_id} of {path} was submitted before with this key; nothing was added.")
