"""The text that Prometheus reads, made of what was counted: every metric with its type and what it means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from holdfast.core.model import ExecutionStatus, Lane
from holdfast.engine.tallies import (
    ATTEMPT,
    BOUNDS,
    BUCKET,
    COUNT,
    DEAD,
    DEAD_REASONS,
    ENDED,
    ENDLESS,
    LEASE_LATENCY,
    RETRIES,
    STARTED,
    STEP_ATTEMPT,
    SUM,
    TICKS_PER_SECOND,
    TRANSACTION,
    AttemptOutcome,
    Key,
    Verb,
)
from holdfast.server.counting import Watched
from holdfast.server.services import Services

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "holdfast_"

Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]

_ENDS = [status.value for status in ExecutionStatus if status is not ExecutionStatus.RUNNING]
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def of_database(*, is_up: bool, seconds: float | None, pauses: int | None) -> Iterator[str]:
    """Whether it answers, how fast it did just now, and what it said."""
    yield from gauge("store_up", "Whether the database answers.", [({}, int(is_up))])
    if seconds is not None:
        yield from gauge("store_seconds", "A small question to the database, just now.", [({}, seconds)])
    if pauses is not None:
        yield from gauge("paused", "Pauses: steps, playbooks, lanes or limits.", [({}, pauses)])


def of_server(services: Services, seconds: float) -> Iterator[str]:
    """What only this server knows."""
    info = {"version": services.version, "database": services.kind}
    yield from gauge("info", "What this server is.", [(info, 1)])
    yield from gauge("schema_version", "Of the database.", [({}, services.schema_version)])
    yield from gauge("server_seconds", "Since this server was started.", [({}, round(seconds, 3))])
    yield from gauge("leases_waiting", "Lease calls that wait for work here.", [({}, services.desk.waiting)])
    yield from gauge("stream_listeners", "Open event streams here.", [({}, services.live.listeners)])
    requests = [({"status": str(status)}, count) for status, count in sorted(services.requests.items())]
    yield from counter("http_requests_total", "Requests that this server has answered.", requests)


def of_work(watched: Watched, age: float) -> Iterator[str]:
    """How much there is, counted so many seconds ago, and what has happened since the database was made."""
    yield from _gauges(watched, age)
    yield from _counters(watched.sums)


def _gauges(watched: Watched, age: float) -> Iterator[str]:
    now = watched.gauges
    jobs = [({"status": status, "lane": lane}, count) for (status, lane), count in now.jobs.items()]
    yield from gauge("jobs", "Open jobs; those held wait at a barrier or for a wave.", jobs)
    waits = [({"lane": lane}, round(seconds, 3)) for lane, seconds in now.oldest_ready_seconds.items()]
    yield from gauge("oldest_ready_seconds", "How long the oldest ready job has waited; 0: none does.", waits)
    told = "Ready jobs that no living worker offers to do, and no pause keeps."
    yield from gauge("unoffered_jobs", told, [({}, now.unoffered)])
    executions = [({"status": status.value}, count) for status, count in now.executions.items()]
    yield from gauge("executions", "Executions that run, or have failed and wait for somebody.", executions)
    yield from gauge("workers", "Living workers.", [({}, now.workers)])
    yield from gauge("worker_slots", "How many jobs living workers run at once.", [({}, now.slots)])
    in_use = [({"limit": row.name}, row.leased_manual + row.leased_bulk) for row in now.limits]
    yield from gauge("limit_in_use", "Jobs that run under a limit.", in_use)
    set_ = [
        ({"limit": row.name}, row.max_concurrency) for row in now.limits if row.max_concurrency is not None
    ]
    yield from gauge("limit_max", "How many may.", set_)
    yield from gauge("counts_age_seconds", "How old these counts are.", [({}, round(age, 3))])


def _counters(sums: Mapping[Key, int]) -> Iterator[str]:
    yield from counter(
        "executions_started_total", "Executions submitted.", [({}, sums.get((STARTED, ()), 0))]
    )
    yield from counter("executions_ended_total", "Executions ended.", _by_label(sums, ENDED, "status", _ENDS))
    attempts = _attempts(sums)
    yield from counter(
        "attempts_total", "Attempts ended.", [({"outcome": outcome}, n) for outcome, n in attempts.items()]
    )
    yield from counter(
        "retries_total", "Failed attempts to be retried.", _by_label(sums, RETRIES, "error_type")
    )
    dead = _by_label(sums, DEAD, "reason", DEAD_REASONS)
    yield from counter("dead_total", "Jobs that nothing retries any more, and passed deadlines.", dead)
    for name, label, known, about in (
        (LEASE_LATENCY, "lane", Lane, "From when a job was ready to its lease."),
        (ATTEMPT, "outcome", AttemptOutcome, "From the lease of an attempt to its end."),
        (TRANSACTION, "verb", Verb, "Transactions of the store that lease, settle or submit."),
    ):
        yield from _histogram(sums, name, label, [item.value for item in known], about)
    yield from _steps(sums)


def _by_label(sums: Mapping[Key, int], name: str, label: str, known: Iterable[str] = ()) -> Samples:
    """What is known to come is told as 0 until it does, so that its first time is seen as a change."""
    found = dict.fromkeys(known, 0)
    found |= {labels[0]: value for (told, labels), value in sums.items() if told == name}
    return [({label: value}, count) for value, count in found.items()]


def _buckets(sums: Mapping[Key, int], name: str, known: Iterable[str]) -> dict[str, dict[str, int]]:
    """By label and bound; the bounds of other versions are among them."""
    found: dict[str, dict[str, int]] = {
        label: dict.fromkeys((*map(str, BOUNDS), ENDLESS), 0) for label in known
    }
    for (told, labels), value in sums.items():
        if told == name + BUCKET:
            label, bound = labels
            found.setdefault(label, {ENDLESS: 0})[bound] = value
    return found


def _attempts(sums: Mapping[Key, int]) -> dict[str, int]:
    return {
        outcome: sum(buckets.values())
        for outcome, buckets in _buckets(sums, ATTEMPT, [item.value for item in AttemptOutcome]).items()
    }


def _histogram(
    sums: Mapping[Key, int], name: str, label: str, known: Iterable[str], about: str
) -> Iterator[str]:
    yield from _head(name, "histogram", about)
    for value, buckets in _buckets(sums, name, known).items():
        bounds = sorted(buckets, key=float)
        counts = list(accumulate(buckets[bound] for bound in bounds))
        for bound, count in zip(bounds, counts, strict=True):
            yield _sample(name + BUCKET, {label: value, "le": bound}, count)
        yield _sample(name + SUM, {label: value}, _seconds(sums.get((name + SUM, (value,)), 0)))
        yield _sample(name + COUNT, {label: value}, counts[-1])


def _steps(sums: Mapping[Key, int]) -> Iterator[str]:
    yield from _head(STEP_ATTEMPT, "summary", "Completed and failed attempts of each step.")
    for (name, labels), value in sums.items():
        if name == STEP_ATTEMPT + COUNT:
            step = dict(zip(("path", "step"), labels, strict=True))
            yield _sample(STEP_ATTEMPT + SUM, step, _seconds(sums.get((STEP_ATTEMPT + SUM, labels), 0)))
            yield _sample(STEP_ATTEMPT + COUNT, step, value)


def _seconds(ticks: int) -> float:
    return ticks / TICKS_PER_SECOND


def gauge(name: str, about: str, samples: Samples) -> Iterator[str]:
    return _family(name, "gauge", about, samples)


def counter(name: str, about: str, samples: Samples) -> Iterator[str]:
    return _family(name, "counter", about, samples)


def _family(name: str, kind: str, about: str, samples: Samples) -> Iterator[str]:
    yield from _head(name, kind, about)
    for labels, value in samples:
        yield _sample(name, labels, value)


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {about}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{label}="{text.translate(_ESCAPED)}"' for label, text in labels.items())
    return f"{PREFIX}{name}{{{told}}} {value}" if told else f"{PREFIX}{name} {value}"
