"""After the storm: the database, the log of events and the workers' ledgers, held against each other.

Everything is read straight from the tables. A violation is told with the rows that show it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faults.ledger import Death, Start, read_all
from faults.storm_worker import FRAGILE, STAGES, STURDY, has_effect
from faults.tables import select
from holdfast.core.model import NO_ELEMENT, Event, EventType
from holdfast.core.payload import decode_payload
from holdfast.core.replay import replay
from holdfast.store.rows import EventPlace, events_after

SHOWN_MAX = 5
LIVE = ("queued", "leased", "retry")


class ExecutionLine(NamedTuple):
    id: int
    path: str
    status: str
    round: int
    idempotency_key: str
    last_completed_stage: str | None
    workload: str


class JobLine(NamedTuple):
    id: int
    execution_id: int
    step: str
    round: int
    status: str
    attempts: int
    max_attempts: int
    leases: int
    fence: str | None
    lease_until: float | None
    dead_reason: str | None
    crashes: int
    settled_fence: str | None
    output: str | None
    finished_at: float | None


class Effect(NamedTuple):
    job: int
    execution: int
    step: str
    fence: str


class Lease(NamedTuple):
    """One lease of a job as the events tell it."""

    attempt: int
    worker: str
    end: EventType


_ENDS_A_LEASE = (
    EventType.ACTION_COMPLETED,
    EventType.ACTION_ERROR,
    EventType.LEASE_LOST,
    EventType.LEASE_RELEASED,
)


class Evidence:
    """Read once; `violations` is empty where every promise was kept."""

    def __init__(
        self,
        executions: Iterable[Sequence[Any]],
        jobs: Iterable[Sequence[Any]],
        events: Iterable[Sequence[Any]],
        effects: Iterable[Sequence[Any]],
        counted: int,
        folder: Path,
    ) -> None:
        self.executions = {line[0]: ExecutionLine(*line) for line in executions}
        self.jobs = {line[0]: JobLine(*line) for line in jobs}
        self.effects = [Effect(*line) for line in effects]
        self.counted = counted
        lines = read_all(folder)
        self.starts = [line for line in lines if isinstance(line, Start)]
        self.deaths = [line for line in lines if isinstance(line, Death)]
        self.logs: dict[int, list[Event]] = defaultdict(list)
        for row in events:
            self.logs[row[1]] += events_after([row], EventPlace(), 1_000)
        self._numbers = {
            line.id: int(decode_payload(line.workload)["number"]) for line in self.executions.values()
        }
        self._jobs_of: dict[int, list[JobLine]] = defaultdict(list)
        for job in self.jobs.values():
            self._jobs_of[job.execution_id].append(job)
        self._leases = {job.id: self._leases_of(job) for job in self.jobs.values()}
        self.late_starts = 0
        self.violations: list[str] = []

    @classmethod
    async def read(cls, url: str, folder: Path) -> Evidence:
        counted = await select(url, "SELECT coalesce(sum(n), 0) FROM counters")
        return cls(
            await select(url, f"SELECT {', '.join(ExecutionLine._fields)} FROM {{schema}}executions"),
            await select(url, f"SELECT {', '.join(JobLine._fields)} FROM {{schema}}jobs"),
            await select(url, "SELECT id, execution_id, at, body FROM {schema}events ORDER BY id"),
            await select(url, "SELECT job, execution, step, fence FROM effects"),
            int(counted[0][0]),
            folder,
        )

    def lost_workers(self) -> set[str]:
        """The workers that died with an attempt in their hands."""
        return {
            str(event.data["worker"])
            for log in self.logs.values()
            for event in log
            if event.type is EventType.LEASE_LOST
        }

    def count(self, kind: EventType) -> int:
        return sum(event.type is kind for log in self.logs.values() for event in log)

    def examine(self, submitted: int, *, effects: bool = True) -> list[str]:
        """Without `effects` where the handlers had no transactions to write any in."""
        keys = {line.idempotency_key for line in self.executions.values()}
        wanted = {str(number) for number in range(submitted)}
        self._tell("executions that were submitted and are not there", wanted - keys)
        self._tell("executions that are there twice", len(self.executions) - len(keys))
        self._tell("jobs of executions that are not there", self._jobs_of.keys() - self.executions.keys())
        self._examine_ends()
        self._examine_attempts()
        self._examine_logs()
        self._examine_starts()
        if effects:
            self._examine_effects()
        return self.violations

    def _tell(self, what: str, found: Any) -> None:
        if found:
            shown = sorted(found)[:SHOWN_MAX] if isinstance(found, (set, list)) else found
            number = len(found) if isinstance(found, (set, list)) else ""
            self.violations.append(f"{what}: {number} {shown}")

    def _examine_ends(self) -> None:
        """Every execution ends, the sturdy ones well; nothing is left leased."""
        lines = self.executions.values()
        self._tell("executions that did not end", [line for line in lines if line.status == "running"])
        self._tell(
            "sturdy executions that did not complete",
            [line for line in lines if line.path == STURDY and line.status != "completed"],
        )
        jobs = self.jobs.values()
        self._tell("jobs that are left to do", [job for job in jobs if job.status in LIVE])
        self._tell("leases that are left", [job for job in jobs if job.fence or job.lease_until])
        for line in lines:
            done = [job.step for job in self._jobs_of[line.id] if job.status == "done"]
            dead = [job for job in self._jobs_of[line.id] if job.status == "dead"]
            if line.status == "completed":
                self._tell(f"completed without all its stages: {line}", sorted(done) != sorted(STAGES))
                output = next((job.output for job in self._jobs_of[line.id] if job.step == STAGES[-1]), None)
                expected = str(self._numbers[line.id] + len(STAGES) - 1)
                self._tell(f"the wrong result of {line}: {output}", output != expected)
            elif line.status == "failed":
                self._tell(f"failed without one dead job: {line}", len(dead) != 1)

    def _examine_attempts(self) -> None:
        jobs = self.jobs.values()
        self._tell("attempts above the maximum", [job for job in jobs if job.attempts > job.max_attempts])
        for log in self.logs.values():
            for event in log:
                job = self._job_of(event)
                if job is not None and event.data.get("attempt", 0) > job.max_attempts:
                    self._tell("an event with an attempt above the maximum", str(event))
        dead = [job for job in jobs if job.status == "dead"]
        exhausted = [job for job in dead if job.dead_reason == "exhausted"]
        poisoned = [job for job in dead if job.dead_reason == "poisoned"]
        self._tell("dead for another reason", [job for job in dead if job not in exhausted + poisoned])
        self._tell("exhausted too early", [job for job in exhausted if job.attempts != job.max_attempts])
        for job in poisoned:
            lost = sum(lease.end is EventType.LEASE_LOST for lease in self._leases[job.id])
            self._tell(f"poisoned without its losses: {job}", not 0 < job.crashes < lost)

    def _examine_logs(self) -> None:
        for line in self.executions.values():
            log = replay(self.logs[line.id])
            state = (log.status, log.round, log.last_completed_stage)
            rows = (line.status, line.round, line.last_completed_stage)
            self._tell(f"the log of execution {line.id} says {state}, its row {rows}", state != rows)
            jobs = {
                (job.round, job.step, NO_ELEMENT): (job.status, job.attempts, job.dead_reason)
                for job in self._jobs_of[line.id]
            }
            replayed = {key: (job.status, job.attempts, job.dead_reason) for key, job in log.jobs.items()}
            self._tell(f"the log of execution {line.id} says {replayed}, its jobs {jobs}", replayed != jobs)
        for job in self.jobs.values():
            told_leases = len(self._leases[job.id])
            self._tell(
                f"leased {job.leases} times, {told_leases} in the log: {job}",
                not self._are_all_told(job, told_leases),
            )

    def _are_all_told(self, job: JobLine, told_leases: int) -> bool:
        return told_leases == job.leases

    def _examine_starts(self) -> None:
        """The ledgers against the rows: no fence twice, and nothing begun that was complete."""
        fences = Counter((start.job, start.fence) for start in self.starts)
        self._tell("fences used twice", [key for key, times in fences.items() if times > 1])
        unknown: list[Start] = []
        again: list[Start] = []
        given_back: list[Start] = []
        for start in self.starts:
            job, lease = self.jobs.get(start.job), self._lease_of(start)
            if job is None or lease is None:
                unknown.append(start)
                continue
            if job.status == "done" and start.lease_number > _number(job.settled_fence):
                again.append(start)
            if lease.end is EventType.LEASE_RELEASED:
                given_back.append(start)
            if lease.end is EventType.LEASE_LOST and start.at > (job.finished_at or start.at):
                self.late_starts += 1  # by a worker that was too slow to keep its lease: in vain
        self._tell("attempts that the log does not know", [str(start) for start in unknown])
        self._tell("completed stages that ran again", [str(start) for start in again])
        self._tell("attempts that began after they were given back", [str(start) for start in given_back])
        settled = {(job.id, job.settled_fence) for job in self.jobs.values() if job.status == "done"}
        self._tell("completed by an attempt that never began", settled - fences.keys())

    def _lease_of(self, start: Start) -> Lease | None:
        """The one under which it began, as the log tells it."""
        leases = self._leases.get(start.job, [])
        if start.lease_number > len(leases):
            return None
        lease = leases[start.lease_number - 1]
        return lease if (lease.attempt, lease.worker) == (start.attempt, start.worker) else None

    def _examine_effects(self) -> None:
        """Exactly the effects of the attempts that completed, each once."""
        found = Counter((effect.job, effect.execution, effect.step, effect.fence) for effect in self.effects)
        expected = {
            (job.id, job.execution_id, job.step, str(job.settled_fence))
            for job in self.jobs.values()
            if job.status == "done" and has_effect(job.step, self._numbers.get(job.execution_id, 1))
        }
        self._tell("effects that are there twice", [key for key, times in found.items() if times > 1])
        self._tell("effects of attempts that did not complete", found.keys() - expected)
        self._tell("effects that are missing", expected - found.keys())
        delivered = sum(job.status == "done" and job.step == "deliver" for job in self.jobs.values())
        self._tell(f"the counters say {self.counted}, completed are {delivered}", self.counted != delivered)

    def _job_of(self, event: Event) -> JobLine | None:
        for job in self._jobs_of[event.execution_id]:
            if job.step == event.step:
                return job
        return None

    def _leases_of(self, job: JobLine) -> list[Lease]:
        leases: list[Lease] = []
        for event in self.logs[job.execution_id]:
            if event.step != job.step:
                continue
            if event.type is EventType.ACTION_STARTED:
                leases.append(Lease(event.data["attempt"], event.data["worker"], EventType.ACTION_STARTED))
            elif event.type in _ENDS_A_LEASE and leases[-1].end is EventType.ACTION_STARTED:
                leases[-1] = leases[-1]._replace(end=event.type)
        return leases

    def summary(self) -> str:
        ends = Counter((line.path, line.status) for line in self.executions.values())
        told = ", ".join(f"{number} {path} {status}" for (path, status), number in sorted(ends.items()))
        assert {path for path, _ in ends} <= {STURDY, FRAGILE}
        return (
            f"{told}; {len(self.starts)} handlers begun, {self.count(EventType.LEASE_LOST)} attempts lost,"
            f" {self.count(EventType.LEASE_RELEASED)} given back, {self.late_starts} begun too late,"
            f" {len(self.effects)} effects"
        )


def _number(fence: str | None) -> int:
    return int(str(fence).partition("-")[0])
