"""Who is measured: where its adapter is, what it promises, which settings it may choose from, and how its own
tables are asked whether anything is left to do.

A contender is measured at the best of several settings. The first turns try them all; the best one is then
measured in the rounds. A measure with candidates of its own chooses among those, all others share the choice
of the drain. Those that are likely to win come first: a quick run tries only two.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.peers.measures import (
    BULK,
    CALLERS,
    DRAIN,
    DRAIN_TWO,
    EMBEDDED,
    ENQUEUE,
    LATENCY,
    QUICK_DIVISOR,
    RETRY,
    STEPS,
    Measure,
    least,
)

Store = Literal["postgresql", "sqlite", "broker"]
Settings = Mapping[str, Any]

ADAPTERS = Path(__file__).parent / "adapters"
IN_MEMORY = "none: the broker keeps all in memory and loses it in a crash"
POSTGRES_DURABLE = "full: fsync and synchronous_commit on"
ALL_MEASURES = frozenset({DRAIN.name, BULK.name, ENQUEUE.name, CALLERS.name, LATENCY.name, RETRY.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """`adapter` is a file in adapters/. `left` is the question whether anything is left: a query, or commands
    to the broker whose numbers are added; none means that Holdfast itself is asked."""

    key: str
    name: str
    package: str
    adapter: Path
    store: Store
    durability: str
    keeps: str
    measures: frozenset[str]
    left: str | tuple[str, ...] | None
    candidates: Sequence[Settings] = ({},)
    own_candidates: Mapping[str, Sequence[Settings]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    ours: bool = False

    @property
    def runs_on_node(self) -> bool:
        return self.adapter.suffix == ".mjs"

    def settings_for(self, measure: Measure) -> Sequence[Settings]:
        return self.own_candidates.get(measure.name, self.candidates)

    def choice_of(self, measure: Measure) -> str:
        """The measure whose choice of a setting holds for this one."""
        return measure.name if measure.name in self.own_candidates else DRAIN.name

    def size(self, measure: Measure, quick: bool) -> int:
        size = self.sizes.get(measure.name, measure.size)
        return size if not quick else max(size // QUICK_DIVISOR, min(size, least(measure)))

    def version(self, node_root: Path) -> str | None:
        """What is installed, or none."""
        if self.runs_on_node:
            description = node_root / "node_modules" / self.package / "package.json"
            try:
                described = json.loads(description.read_text())
            except FileNotFoundError:
                return None
            return str(described["version"])
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def _holdfast(
    key: str, name: str, store: Store, durability: str, measures: set[str], best: bool
) -> Contender:
    best_candidates: list[Settings] = [
        {"uvloop": True},
        {"concurrency": 64, "uvloop": True},
        {"concurrency": 256, "uvloop": True},
        {"concurrency": 64},
    ]
    return Contender(
        key=key,
        name=name,
        package="holdfast",
        adapter=ADAPTERS / "holdfast_engine.py",
        store=store,
        durability=durability,
        keeps="everything: jobs, results, every event",
        measures=frozenset(measures),
        left=None,
        candidates=best_candidates if best else ({},),
        sizes={STEPS.name: 10_000, ENQUEUE.name: 2_000, CALLERS.name: 20_000},
        ours=True,
    )


SQLITE_FULL = "full: WAL with synchronous=FULL"
OURS = (
    _holdfast(
        "holdfast-postgresql",
        "Holdfast",
        "postgresql",
        POSTGRES_DURABLE,
        {*ALL_MEASURES, DRAIN_TWO.name, STEPS.name},
        best=False,
    ),
    _holdfast(
        "holdfast-postgresql-best",
        "Holdfast, tuned",
        "postgresql",
        POSTGRES_DURABLE,
        {DRAIN.name, DRAIN_TWO.name, BULK.name, CALLERS.name, RETRY.name, STEPS.name},
        best=True,
    ),
    _holdfast(
        "holdfast-sqlite",
        "Holdfast, SQLite",
        "sqlite",
        SQLITE_FULL,
        {*ALL_MEASURES, EMBEDDED.name, STEPS.name},
        best=False,
    ),
    _holdfast(
        "holdfast-sqlite-best",
        "Holdfast, SQLite, tuned",
        "sqlite",
        SQLITE_FULL,
        {DRAIN.name, BULK.name, RETRY.name, STEPS.name},
        best=True,
    ),
)

_FLEXIQ_CANDIDATES: list[Settings] = [
    {"threads": 16, "claim": 100, "poll_ms": 1},
    {"handlers": "async", "threads": 4, "at_once": 1_000, "claim": 200, "poll_ms": 1},
    {"poll_ms": 1},
]
_DBOS_CANDIDATES: list[Settings] = [{"handlers": "plain"}, {"handlers": "async"}]

PEERS = (
    Contender(
        key="graphile-worker",
        name="graphile-worker",
        package="graphile-worker",
        adapter=ADAPTERS / "graphile_worker_peer.mjs",
        store="postgresql",
        durability=POSTGRES_DURABLE,
        keeps="nothing: finished jobs are deleted",
        measures=ALL_MEASURES,
        left="SELECT EXISTS (SELECT 1 FROM graphile_worker._private_jobs)",
        candidates=[
            {"concurrency": 50, "localQueue": 500, "batchDelayMs": 50},
            {"concurrency": 24, "localQueue": 500, "batchDelayMs": 0},
            {"concurrency": 10},
        ],
        own_candidates={LATENCY.name: [{"concurrency": 10}]},
    ),
    Contender(
        key="pg-boss",
        name="pg-boss",
        package="pg-boss",
        adapter=ADAPTERS / "pg_boss_peer.mjs",
        store="postgresql",
        durability=POSTGRES_DURABLE,
        keeps="finished jobs",
        measures=ALL_MEASURES,
        left="SELECT EXISTS (SELECT 1 FROM pgboss.job WHERE state < 'completed'"
        " AND name IN ('noop', 'retry', 'latency'))",
        candidates=[{"batch": 1_000}, {"batch": 500}, {"batch": 100}],
        own_candidates={LATENCY.name: [{"batch": 10, "notify": True}]},
    ),
    Contender(
        key="bullmq",
        name="BullMQ",
        package="bullmq",
        adapter=ADAPTERS / "bullmq_peer.mjs",
        store="broker",
        durability=IN_MEMORY,
        keeps="nothing: finished jobs are removed",
        measures=ALL_MEASURES,
        left=("LLEN bull:bench:wait", "LLEN bull:bench:active", "ZCARD bull:bench:delayed"),
        candidates=[{"concurrency": 100}, {"concurrency": 500}, {"concurrency": 50}],
        sizes={DRAIN.name: 30_000},
    ),
    Contender(
        key="pgqueuer",
        name="PgQueuer",
        package="pgqueuer",
        adapter=ADAPTERS / "pgqueuer_peer.py",
        store="postgresql",
        durability=POSTGRES_DURABLE,
        keeps="one log line per change of state; finished jobs are deleted",
        measures=ALL_MEASURES,
        left="SELECT EXISTS (SELECT 1 FROM pgqueuer)",
        candidates=[
            {"batch": 500, "uvloop": True},
            {"batch": 1_000, "uvloop": True},
            {"batch": 100, "uvloop": True},
            {"batch": 10},
        ],
        sizes={DRAIN.name: 30_000},
    ),
    Contender(
        key="procrastinate",
        name="Procrastinate",
        package="procrastinate",
        adapter=ADAPTERS / "procrastinate_peer.py",
        store="postgresql",
        durability=POSTGRES_DURABLE,
        keeps="finished jobs and their events (deleted where the setting says so)",
        measures=ALL_MEASURES,
        left="SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
        candidates=[
            {"concurrency": 10},
            {"concurrency": 30},
            {"concurrency": 10, "delete_jobs": "successful"},
        ],
        sizes={DRAIN.name: 2_000, CALLERS.name: 3_000},
    ),
    Contender(
        key="dbos-postgresql",
        name="DBOS",
        package="dbos",
        adapter=ADAPTERS / "dbos_peer.py",
        store="postgresql",
        durability=POSTGRES_DURABLE,
        keeps="finished workflows and the results of their steps",
        measures=frozenset({DRAIN.name, ENQUEUE.name, LATENCY.name, RETRY.name, STEPS.name}),
        left="SELECT EXISTS (SELECT 1 FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED'))",
        candidates=_DBOS_CANDIDATES,
        own_candidates={STEPS.name: _DBOS_CANDIDATES},
        sizes={DRAIN.name: 1_500, STEPS.name: 400, ENQUEUE.name: 600},
    ),
    Contender(
        key="dbos-sqlite",
        name="DBOS, SQLite",
        package="dbos",
        adapter=ADAPTERS / "dbos_peer.py",
        store="sqlite",
        durability="full: SQLite's own defaults, a rollback journal with synchronous=FULL",
        keeps="finished workflows and the results of their steps",
        measures=frozenset({DRAIN.name, ENQUEUE.name, LATENCY.name, RETRY.name, STEPS.name}),
        left="SELECT EXISTS (SELECT 1 FROM workflow_status WHERE status IN ('PENDING', 'ENQUEUED'))",
        candidates=_DBOS_CANDIDATES,
        own_candidates={STEPS.name: _DBOS_CANDIDATES},
        sizes={DRAIN.name: 1_000, STEPS.name: 300, ENQUEUE.name: 600},
    ),
    Contender(
        key="flexiq-postgresql",
        name="FlexiQ",
        package="flexiq",
        adapter=ADAPTERS / "flexiq_peer.py",
        store="postgresql",
        durability=POSTGRES_DURABLE,
        keeps="finished jobs and the results of their steps",
        measures=frozenset({DRAIN.name, BULK.name, ENQUEUE.name, LATENCY.name, RETRY.name, STEPS.name}),
        left="SELECT EXISTS (SELECT 1 FROM flexiq.jobs WHERE status < 2)",
        candidates=_FLEXIQ_CANDIDATES,
        own_candidates={STEPS.name: _FLEXIQ_CANDIDATES},
        sizes={DRAIN.name: 2_000, STEPS.name: 700},
    ),
    Contender(
        key="flexiq-sqlite",
        name="FlexiQ, SQLite",
        package="flexiq",
        adapter=ADAPTERS / "flexiq_peer.py",
        store="sqlite",
        durability="WAL with synchronous=NORMAL: the last commits may go in a power cut",
        keeps="finished jobs and the results of their steps",
        measures=frozenset({DRAIN.name, BULK.name, ENQUEUE.name, LATENCY.name, RETRY.name, STEPS.name}),
        left="SELECT EXISTS (SELECT 1 FROM jobs WHERE status < 2)",
        candidates=_FLEXIQ_CANDIDATES,
        own_candidates={STEPS.name: _FLEXIQ_CANDIDATES},
        sizes={DRAIN.name: 4_000, STEPS.name: 1_200},
    ),
    Contender(
        key="celery",
        name="Celery",
        package="celery",
        adapter=ADAPTERS / "celery_peer.py",
        store="broker",
        durability=IN_MEMORY,
        keeps="nothing",
        measures=frozenset({DRAIN.name, ENQUEUE.name, LATENCY.name, RETRY.name, STEPS.name}),
        left=("LLEN celery", "HLEN unacked"),
        candidates=[
            {"pool": "prefork", "processes": 2, "prefetch": 64},
            {"pool": "solo", "prefetch": 64},
            {"pool": "threads", "processes": 4, "prefetch": 64},
        ],
        sizes={DRAIN.name: 2_500, STEPS.name: 500},
    ),
    Contender(
        key="huey",
        name="huey, SQLite",
        package="huey",
        adapter=ADAPTERS / "huey_peer.py",
        store="sqlite",
        durability="full for the queue (SQLite's own default, synchronous=FULL); a task is gone when taken",
        keeps="nothing",
        measures=frozenset({DRAIN.name, ENQUEUE.name, LATENCY.name, RETRY.name}),
        left="SELECT EXISTS (SELECT 1 FROM task) OR EXISTS (SELECT 1 FROM schedule)",
        candidates=[{"threads": 1}, {"threads": 4}],
        own_candidates={LATENCY.name: [{"threads": 1}, {"threads": 1, "poll_seconds": 0.005}]},
        sizes={DRAIN.name: 4_000},
    ),
    Contender(
        key="huey-no-fsync",
        name="huey, SQLite, no fsync",
        package="huey",
        adapter=ADAPTERS / "huey_peer.py",
        store="sqlite",
        durability="synchronous=OFF: a power cut may lose or damage the queue",
        keeps="nothing",
        measures=frozenset({DRAIN.name, ENQUEUE.name, RETRY.name}),
        left="SELECT EXISTS (SELECT 1 FROM task) OR EXISTS (SELECT 1 FROM schedule)",
        candidates=[{"threads": 1, "fsync": False}, {"threads": 4, "fsync": False}],
        sizes={DRAIN.name: 6_000},
    ),
)
CONTENDERS = {contender.key: contender for contender in (*OURS, *PEERS)}
