"""The demo's events in plain words: one `Item` per input keeps what is known of it and tells each event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from holdfast.cli.demo_pipeline import STAGES
from holdfast.core.catalogue import Category
from holdfast.core.model import Event, EventType


class Tone(Enum):
    PLAIN = "plain"
    GOOD = "good"
    WAITING = "waiting"
    BAD = "bad"


class Line(NamedTuple):
    at: float
    input: str
    stage: str
    text: str
    tone: Tone = Tone.PLAIN


class Start(NamedTuple):
    """One attempt, and the process that ran it."""

    stage: str
    attempt: int
    pid: int


class Killed(NamedTuple):
    """The worker that was killed, and where its input was; `starts` counts the attempts until then."""

    pid: int
    input: str
    stage: str
    attempt: int
    progress: float
    starts: int


class Cell(NamedTuple):
    """What the live table shows of one stage; `until` is the moment a retry waits for."""

    text: str
    tone: Tone = Tone.PLAIN
    until: float | None = None


class Trouble(NamedTuple):
    """One failed attempt."""

    stage: str
    error_type: str
    category: str
    message: str
    rule: str
    user_message: str
    guidance: str
    is_final: bool


_ENDED = (EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED, EventType.EXECUTION_CANCELLED)


@dataclass(slots=True)
class Item:
    """One input on its way. `progress` is that of the attempt that runs."""

    name: str
    execution_id: int
    max_attempts: int
    last_event: str | None = None
    status: str = "running"
    resumed_from: str = ""
    kept: list[str] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    progress: float | None = None
    killed: Killed | None = None
    cells: dict[str, Cell] = field(default_factory=dict)
    _error: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ended(self) -> bool:
        return self.status != "running"

    def kill(self) -> Killed:
        """Its worker is killed now, and with it the attempt that runs."""
        stage, attempt, pid = self.starts[-1]
        self.killed = Killed(pid, self.name, stage, attempt, self.progress or 0.0, len(self.starts))
        self.progress = None
        self.cells[stage] = Cell("worker killed", Tone.BAD)
        return self.killed

    def see_progress(self, jobs: Iterable[tuple[str, int, float | None]]) -> None:
        """Of all its jobs, each with its stage and attempt, the one that was started last counts."""
        for stage, attempt, progress in jobs:
            if self.starts and (stage, attempt) == self.starts[-1][:2] and not self._is_cut_off():
                self.progress = progress

    def tell(self, event: Event) -> list[Line]:
        """Take note of an event; the lines to show for it, none where another event says it better."""
        self.last_event = event.id
        if event.type in _ENDED:
            self.status = event.type.removeprefix("execution_")
        elif event.type is EventType.MANUAL_RETRY:
            self.status = "running"
        line = getattr(self, f"_{event.type}", None)
        return [Line(event.at, self.name, event.step or "", *said) for said in line(event)] if line else []

    # One method per event type that has something to say.

    def _action_started(self, event: Event) -> list[tuple[str, Tone]]:
        stage, attempt = event.step or "", event.data["attempt"]
        self.attempts[stage] += 1
        self.starts.append(Start(stage, attempt, process_of(event.data["worker"])))
        self.progress = None
        self.cells[stage] = Cell(f"running {self._of(attempt)}")
        if not event.data["is_retry"]:
            return []
        text = f"attempt {self._of(attempt)} starts"
        if self._is_taken_over():
            kept = ", ".join(STAGES[: STAGES.index(stage)])
            text += f" in worker {self.starts[-1].pid}; {kept} is not run again"
        return [(text, Tone.PLAIN)]

    def _action_completed(self, event: Event) -> list[tuple[str, Tone]]:
        stage, attempt = event.step or "", event.data["attempt"]
        healed = attempt > 1
        self.progress = None
        self.cells[stage] = Cell("healed" if healed else "done", Tone.GOOD)
        return [(f"done at attempt {self._of(attempt)}: healed" if healed else "done", Tone.GOOD)]

    def _action_error(self, event: Event) -> list[tuple[str, Tone]]:
        self._error = event.data
        error = event.data
        self.troubles.append(
            Trouble(
                event.step or "",
                error["error_type"],
                error["category"],
                error["message"],
                error["rule"],
                error["user_message"],
                error["guidance"],
                error["final"],
            )
        )
        return []  # told with what follows from it

    def _step_retry(self, event: Event) -> list[tuple[str, Tone]]:
        self.retries += 1
        until = event.data["available_at"]
        self.cells[event.step or ""] = Cell("retry in", Tone.WAITING, until)
        said = f"{self._failed(event)}. Retrying in {event.data['delay']:.1f} s"
        return [(said, Tone.WAITING)]

    def _step_failed_terminal(self, event: Event) -> list[tuple[str, Tone]]:
        self.cells[event.step or ""] = Cell("failed", Tone.BAD)
        reason = str(event.data["dead_reason"]).replace("_", " ")
        return [
            (f"{self._failed(event)}. Not retried: {reason}", Tone.BAD),
            (f"what to do: {self._error['guidance']}", Tone.BAD),
        ]

    def _manual_retry(self, event: Event) -> list[tuple[str, Tone]]:
        self.resumed_from, self.kept = event.data["from_stage"], []
        for stage in STAGES[STAGES.index(self.resumed_from) :]:
            self.cells.pop(stage, None)
        return [(f"retried by hand, from {self.resumed_from}", Tone.PLAIN)]

    def _step_skipped(self, event: Event) -> list[tuple[str, Tone]]:
        stage = event.step or ""
        self.kept.append(stage)
        self.cells[stage] = Cell("kept", Tone.GOOD)
        return [(f"skipped: {event.data['reason'].replace('_', ' ')}, its result is kept", Tone.GOOD)]

    def _lease_lost(self, event: Event) -> list[tuple[str, Tone]]:
        return [(f"the lease of worker {process_of(event.data['worker'])} has run out", Tone.WAITING)]

    def _execution_completed(self, event: Event) -> list[tuple[str, Tone]]:
        return [("complete", Tone.GOOD)]

    def _is_cut_off(self) -> bool:
        return self.killed is not None and len(self.starts) == self.killed.starts

    def _is_taken_over(self) -> bool:
        return self.killed is not None and len(self.starts) == self.killed.starts + 1

    def _of(self, attempt: int) -> str:
        return f"{attempt}/{self.max_attempts}"

    def _failed(self, event: Event) -> str:
        error, attempt = self._error, self._of(self._error["attempt"])
        kind, words = f"{error['error_type']}, {error['category']}", str(error["user_message"])
        if error["category"] == Category.UNKNOWN:  # the catalogue has no words for it: its own must do
            kind, words = error["error_type"], f"{words}: {error['message']}"
        return f"attempt {attempt} failed: {words} ({kind}; {error['rule']})"


def process_of(worker_id: str) -> int:
    """A worker is named by its host, its process and a word of its own."""
    return int(worker_id.rsplit(":", 2)[1])


def what_happened(item: Item) -> str:
    """The summary's last column."""
    healed = Counter(trouble.error_type for trouble in item.troubles if not trouble.is_final)
    parts = []
    if item.killed is not None:
        parts.append(f"worker killed in {item.killed.stage}, went on there")
        healed = +(healed - Counter({"worker_lost": 1}))
    if healed:
        times = ", ".join(kind if count == 1 else f"{kind} x{count}" for kind, count in healed.items())
        parts.append(f"healed: {times}")
    final = [trouble for trouble in item.troubles if trouble.is_final]
    if final:
        parts.append(f"stopped at {final[-1].stage}: {final[-1].error_type}")
    if item.resumed_from:
        parts.append("repaired and retried by hand")
    return "; ".join(parts) or "nothing went wrong"


def as_record(item: Item) -> dict[str, Any]:
    """The item in the JSON summary."""
    return {
        "input": item.name,
        "execution_id": item.execution_id,
        "result": item.status,
        "attempts": {stage: item.attempts[stage] for stage in STAGES},
        "retries": item.retries,
        "errors": [trouble._asdict() for trouble in item.troubles],
        "retried_by_hand_from": item.resumed_from or None,
        "kept": item.kept,
        "summary": what_happened(item),
    }
