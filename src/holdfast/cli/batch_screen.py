"""A batch, shown to people: its steps, its gates in sentences, what failed, and lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.going_on import typed
from holdfast.cli.output import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    STATUS_STYLES,
    WAITING,
    ago,
    clipped,
    compact,
    counted,
    fields,
    hint,
    moment,
    say,
    sentence,
    span,
    table,
)

if TYPE_CHECKING:
    from holdfast.core.gates import BatchRow
    from holdfast.engine.batch_view import BarrierView, BatchItem, BatchView, Hindrance, WaveView
    from holdfast.store.interface import FailureGroup

STEP_STATUSES = ("pending", "in_progress", "completed", "failed", "skipped")
STATUS_STYLES_OF_BATCH = {"open": WAITING, "running": "", "finished": GOOD, "cancelled": DIM}
WORKLOAD_CHARS = 60
FAILURE_GROUPS = 20
ERROR_CHARS = 100


def show_batch(view: BatchView, failures: Sequence[FailureGroup]) -> None:
    say(f"Batch {view.id} of {view.path}: {told_state(view)}", HEAD)
    say()
    ended = view.closed_at if view.cancelled_at is None else view.cancelled_at
    by = f" by {view.cancelled_by}" if view.cancelled_by else ""
    fields(
        [
            ("status", view.status.value),
            ("version", view.version),
            ("lane", view.lane.value),
            ("mode", view.mode.value if view.mode.value != view.lane.value else None),
            ("key", view.idempotency_key),
            ("submitted", moment(view.created_at, view.at)),
            ("closed" if view.cancelled_at is None else f"cancelled{by}", moment(ended, view.at)),
            ("items", ", ".join(f"{count:,} {status}" for status, count in view.executions.items())),
            ("ends", f"about {moment(view.ends_at, view.at)}" if view.ends_at is not None else None),
        ]
    )
    say()
    table(
        ("step", *(status.replace("_", " ") for status in STEP_STATUSES)),
        [
            (step, *(f"{counts[status]:,}" for status in STEP_STATUSES))
            for step, counts in view.counts.items()
        ],
    )
    gates = list(told_gates(view))
    if gates:
        say()
        for line in gates:
            say(line)
    if view.hindrances:
        say()
        say("What it waits for", HEAD)
        for hindrance in view.hindrances:
            say(f"  {told_hindrance(hindrance)}", WAITING)
            say(f"    {remedy_of(hindrance)}")
    if failures:
        _show_failures(view, failures)


def _show_failures(view: BatchView, failures: Sequence[FailureGroup]) -> None:
    say()
    say("What failed", HEAD)
    for group in failures:
        say(f"  {told_failure(group)}", BAD)
        say(f"    {clipped(example_of(group), ERROR_CHARS)}")
        if group.guidance:
            say(f"    {group.guidance}")
    say()
    force = " --force" if failures[0].category == "permanent" else ""
    hint(f"One by one:        {typed(f'holdfast dead --list --batch {view.id}')}")
    hint(f"Start them again:  {typed(f'holdfast redrive --batch {view.id}{force}')}")


def told_failure(group: FailureGroup) -> str:
    what = f"{counted(group.executions, 'item')} failed at {group.step}: {group.user_message}"
    return f"{what} ({group.error_type}, {group.dead_reason})."


def example_of(group: FailureGroup) -> str:
    return f"For example execution {group.example}: {group.message}"


def told_hindrance(hindrance: Hindrance) -> str:
    return sentence(hindrance.message)


def remedy_of(hindrance: Hindrance) -> str:
    return typed(hindrance.action, app=" --app " in hindrance.action)


def told_state(view: BatchView) -> str:
    """The whole in one sentence."""
    ended = view.items - view.executions["running"]
    if view.status == "cancelled":
        by = f" by {view.cancelled_by}" if view.cancelled_by else ""
        return f"Cancelled{by}, {view.executions['completed']:,} of {counted(view.items, 'item')} completed"
    if view.status == "finished":
        failed = view.executions["failed"]
        lost = view.executions["cancelled"]
        parts = [f"{failed:,} failed"] * bool(failed) + [f"{lost:,} cancelled"] * bool(lost)
        return f"Over, {' and '.join(parts)} of {counted(view.items, 'item')}" if parts else "Complete"
    opening = "Open for more items, " if view.status == "open" else ""
    return f"{opening}{ended:,} of {counted(view.items, 'item')} ended"


def told_gates(view: BatchView) -> Iterator[str]:
    """What waits for what, in sentences; nothing of it once the batch is over."""
    if not view.is_over:
        yield from (told_barrier(barrier, view) for barrier in view.barriers)
        for wave in view.waves:
            yield from told_wave(wave, view.at)


def told_barrier(barrier: BarrierView, view: BatchView) -> str:
    what = f"The barrier before {barrier.step}"
    if barrier.opened_at is not None and barrier.scheduled_for is not None:
        begins = "began" if barrier.has_begun else "may begin since"
        if barrier.scheduled_for > view.at:
            begins = "begins"
        return (
            f"{what} opened {moment(barrier.opened_at, view.at)};"
            f" {barrier.step} {begins} {moment(barrier.scheduled_for, view.at)}."
            f"{_told_own_times(barrier, view)}"
        )
    delay = (
        f", and {barrier.step} begins {span(barrier.delay_seconds)} later" if barrier.delay_seconds else ""
    )
    waits_for = barrier.waits_for or 0
    until = [counted(waits_for, "more item has", "more items have") + " settled"] if waits_for else []
    if view.status == "open":
        until.append("the batch is closed")
        close = f"When all items are there:  {typed(f'holdfast batch close {view.id}')}"
        return f"{what} opens when {' and '.join(until)}{delay}. {close}"
    return f"{what} opens when {until[0]}{delay}." if until else f"{what} is about to open{delay}."


def _told_own_times(barrier: BarrierView, view: BatchView) -> str:
    if not barrier.own_times or barrier.own_at is None:
        return ""
    items = counted(barrier.own_times, "item that was", "items that were")
    one = barrier.own_times == 1
    wait = (
        f"{'waits' if one else 'wait'} for {'a time' if one else 'times'} of {'its' if one else 'their'} own"
    )
    first = "" if one else "the first "
    return f" {items} retried by hand {wait}, {first}{moment(barrier.own_at, view.at)}."


def told_wave(wave: WaveView, now: float) -> Iterator[str]:
    if wave.number > 1 and wave.available_at is not None and wave.available_at > now:
        yield f"Wave {wave.number - 1} of {wave.step} begins {moment(wave.available_at, now)}."
    if wave.waiting:
        jobs = counted(wave.waiting, "failed job waits", "failed jobs wait")
        others = counted(wave.at_work, "other has", "others have")
        yield f"Wave {wave.number} of {wave.step}: {jobs} until {others} ended."


def show_items(items: Sequence[BatchItem]) -> None:
    steps = list(items[0].tracking)
    table(
        ("item", "status", "workload", *steps, "error"),
        [
            (
                item.id,
                item.status.value,
                clipped(compact(item.workload), WORKLOAD_CHARS),
                *(_told_step(item.tracking[step]) for step in steps),
                clipped(_error_of(item.tracking.values()), ERROR_CHARS),
            )
            for item in items
        ],
        styles=[STATUS_STYLES.get(item.status.value, "") for item in items],
    )


def _told_step(document: dict[str, Any]) -> str:
    status = str(document["status"]).replace("_", " ")
    attempts = document["attempts"]
    return f"{status}, {counted(attempts, 'attempt')}" if attempts > 1 else status


def _error_of(documents: Iterable[dict[str, Any]]) -> str:
    return next((str(document["error"]) for document in documents if document["error"]), "")


def show_batches(rows: Sequence[BatchRow], now: float) -> None:
    from holdfast.engine.batch_view import status_of

    table(
        ("batch", "pipeline", "items", "lane", "state", "submitted", "key"),
        [
            (
                row.id,
                row.path,
                f"{row.items:,}",
                row.lane.value,
                status_of(row).value,
                ago(row.created_at, now),
                row.idempotency_key or "",
            )
            for row in rows
        ],
        styles=[STATUS_STYLES_OF_BATCH.get(status_of(row).value, "") for row in rows],
    )
    hint(f"How far one is:  {typed(f'holdfast batch status {rows[0].id}')}")


def batch_record(row: BatchRow) -> dict[str, Any]:
    """As JSON shows it in a list: without the counts of its gates."""
    import msgspec

    from holdfast.engine.batch_view import status_of

    record: dict[str, Any] = msgspec.to_builtins(row)
    del record["gates"], record["definition_id"], record["is_running"]
    return {**record, "state": status_of(row).value}
