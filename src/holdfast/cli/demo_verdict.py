"""The end of the demo: what is to be learnt from it, and whether it was what the demo promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.demo_pipeline import PIPELINE, STAGES, TABLE
from holdfast.cli.demo_service import CORRUPTED, LARGE
from holdfast.cli.demo_story import Item, Killed, Start, as_record

if TYPE_CHECKING:
    from holdfast import RetryRefused

# More than these is no surprise: a busy machine may add a timeout.
_EXPECTED_ERRORS = {
    "north.csv": "service_unavailable",
    "south.csv": "timeout",
    "east.csv": "connection_error",
    "west.csv": "rate_limit",
    "coast.csv": "unknown",
    CORRUPTED: "invalid_file",
    LARGE: "worker_lost",
}


class Stopped(Exception):
    """The demo cannot go on, and why."""


@dataclass(slots=True)
class Findings:
    """What one run of the demo has found. `rows` counts, by execution, what publish wrote."""

    items: list[Item] = field(default_factory=list)
    refusal: RetryRefused | None = None
    replaced_by: int | None = None
    rows: dict[int, int] = field(default_factory=dict)
    problem: str = ""

    @property
    def killed(self) -> Killed | None:
        return next((item.killed for item in self.items if item.killed is not None), None)

    @property
    def after_the_kill(self) -> list[Start]:
        """The attempts at the input whose worker was killed, from then on."""
        return [
            start
            for item in self.items
            if item.killed is not None
            for start in item.starts[item.killed.starts :]
        ]


def lessons(found: Findings) -> Iterator[str]:
    """What healed, what did not and what to do."""
    healed = [trouble for item in found.items for trouble in item.troubles if not trouble.is_final]
    retries = sum(item.retries for item in found.items)
    yield f"{len(healed)} errors healed by themselves, with {retries} retries."
    yield from _lesson_of_the_kill(found)
    for item in found.items:
        for trouble in item.troubles:
            if trouble.is_final:
                yield f"{item.name} could not heal: {trouble.user_message} ({trouble.message})."
                yield f"  {trouble.guidance}"
        if item.resumed_from:
            yield (
                f"  That was done, and it went on at {item.resumed_from};"
                f" {', '.join(item.kept)} was not run again."
            )
    if found.rows:
        rows = sum(found.rows.values())
        yield f"Rows in table {TABLE}: {rows} of {len(found.items)} inputs, {_how_often(found)}."


def _lesson_of_the_kill(found: Findings) -> Iterator[str]:
    killed = found.killed
    if killed is None:
        return
    yield f"Worker {killed.pid} was killed while {killed.input} was in {killed.stage}."
    after = found.after_the_kill
    if after and after[0].stage == killed.stage:
        again = {start.stage for start in after}
        kept = [stage for stage in STAGES[: STAGES.index(killed.stage)] if stage not in again]
        yield f"  Worker {after[0].pid} went on there; {', '.join(kept) or 'nothing'} was not run again."


def _how_often(found: Findings) -> str:
    return "each written once" if _is_each_written_once(found) else "not one for each"


def _is_each_written_once(found: Findings) -> bool:
    return bool(found.rows) and all(found.rows.get(item.execution_id) == 1 for item in found.items)


def surprises(found: Findings) -> Iterator[str]:
    """Where the run was not what the demo promises."""
    if found.problem:  # the rest follows from it
        yield found.problem
        return
    for item in found.items:
        if item.status != "completed":
            yield f"{item.name} is {item.status}."
        expected = _EXPECTED_ERRORS.get(item.name)
        if expected is not None and expected not in {trouble.error_type for trouble in item.troubles}:
            yield f"{item.name} did not meet {expected}."
    if found.refusal is None or found.refusal.code != "permanent_error":
        yield "The retry of a permanent error was not refused."
    if not any(item.name == CORRUPTED and item.kept == ["locate"] for item in found.items):
        yield f"{CORRUPTED} did not resume at fetch with locate kept."
    yield from _surprises_of_the_kill(found)
    if not _is_each_written_once(found):
        yield f"The rows in {TABLE} are not one for each input: {sorted(found.rows.values())}."


def _surprises_of_the_kill(found: Findings) -> Iterator[str]:
    killed = found.killed
    if killed is None:
        yield "No worker was killed."
        return
    after = found.after_the_kill
    if killed.stage != "fetch" or not after or {start.stage for start in after} != {"fetch", "publish"}:
        yield f"{killed.input} did not go on at fetch with locate kept."
    if killed.pid in {start.pid for start in after}:
        yield f"Worker {killed.pid} was killed and worked on."
    if found.replaced_by is None:
        yield f"No worker was started in place of {killed.pid}."


def as_json(found: Findings, problems: list[str], seconds: float) -> dict[str, Any]:
    refusal = found.refusal
    return {
        "as_expected": not problems,
        "problems": problems,
        "pipeline": PIPELINE,
        "stages": list(STAGES),
        "duration_seconds": round(seconds, 3),
        "items": [as_record(item) for item in found.items],
        "killed_worker": _killed_record(found),
        "rows_written": sum(found.rows.values()),
        "refused_retry": refusal
        and {"code": refusal.code, "message": str(refusal), "guidance": refusal.guidance},
    }


def _killed_record(found: Findings) -> dict[str, Any] | None:
    killed = found.killed
    if killed is None:
        return None
    after = found.after_the_kill
    return {
        "pid": killed.pid,
        "input": killed.input,
        "stage": killed.stage,
        "attempt": killed.attempt,
        "progress": round(killed.progress, 3),
        "replaced_by": found.replaced_by,
        "taken_over_by": after[0].pid if after else None,
        "stages_run_after": list(dict.fromkeys(start.stage for start in after)),
    }
