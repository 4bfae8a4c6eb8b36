"""Medians, ratios, and the bars that Holdfast has set itself. Pure: from figures to verdicts.

A ratio above 1 means that Holdfast is ahead, whether more or less is better in that measure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.peers.measures import (
    BULK,
    CALLERS,
    DRAIN,
    DRAIN_TWO,
    EMBEDDED,
    ENQUEUE,
    LATENCY,
    MEASURES,
    RETRY,
    STEPS,
    Measure,
)

Table = Mapping[str, Mapping[str, float]]  # by measure, by contender: the median figure

POSTGRES, POSTGRES_BEST = "holdfast-postgresql", "holdfast-postgresql-best"
SQLITE, SQLITE_BEST = "holdfast-sqlite", "holdfast-sqlite-best"
BEST_OF = {POSTGRES: POSTGRES_BEST, SQLITE: SQLITE_BEST}
POSTGRES_PEERS = (
    "graphile-worker", "pg-boss", "pgqueuer", "procrastinate", "dbos-postgresql", "flexiq-postgresql",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """`got` and `got_by_default` are ratios, or figures where the bar is a figure. None: not measured."""

    text: str
    needed: float
    got: float | None
    got_by_default: float | None
    unit: str
    holds: bool | None
    goal: bool = False


def median(figures: Sequence[float]) -> float:
    return float(statistics.median(figures))


def percentile(figures: Sequence[float], part: float) -> float:
    """The smallest of the figures that `part` of them do not exceed."""
    ordered = sorted(figures)
    position = max(0, min(len(ordered) - 1, -int(-len(ordered) * part // 1) - 1))
    return ordered[position]


def spread(figures: Sequence[float]) -> float:
    """How far the highest is above the lowest, as a part of the lowest."""
    return max(figures) / min(figures) - 1 if figures else 0.0


def ratio(measure: Measure, ours: float | None, theirs: float | None) -> float | None:
    if not ours or not theirs:
        return None
    return ours / theirs if measure.more_is_better else theirs / ours


def best_of_ours(table: Table, measure: Measure, ours: str) -> float | None:
    """Holdfast at the better of its default and its best settings."""
    row = table.get(measure.name, {})
    found = [row[key] for key in (ours, BEST_OF[ours]) if key in row]
    if not found:
        return None
    return max(found) if measure.more_is_better else min(found)


def verdicts(table: Table) -> list[Verdict]:
    against = _Against(table)
    return [
        against.peer(DRAIN, POSTGRES, "pgqueuer", 1.5, "drain on PostgreSQL against PgQueuer"),
        against.peer(DRAIN, POSTGRES, "bullmq", 1.0, "drain on PostgreSQL against BullMQ"),
        against.peer(
            DRAIN, POSTGRES, "graphile-worker", 1.0, "drain on PostgreSQL, graphile-worker", goal=True
        ),
        against.two_processes(),
        against.peer(STEPS, POSTGRES, "dbos-postgresql", 20, "three steps on PostgreSQL against DBOS"),
        against.peer(STEPS, POSTGRES, "flexiq-postgresql", 10, "three steps on PostgreSQL against FlexiQ"),
        against.peer(STEPS, SQLITE, "flexiq-sqlite", 5, "three steps on SQLite against FlexiQ"),
        against.peer(RETRY, POSTGRES, "pg-boss", 1.0, "retries on PostgreSQL against pg-boss"),
        against.callers(),
        against.figure(BULK, POSTGRES, 40_000, "bulk enqueue on PostgreSQL"),
        against.figure(LATENCY, POSTGRES, 4.0, "pick-up on PostgreSQL, median"),
        against.figure(EMBEDDED, SQLITE, 2.0, "pick-up embedded on SQLite, median"),
        against.peer(DRAIN, SQLITE, "huey", 5, "drain on SQLite against huey as it comes"),
        against.peer(DRAIN, SQLITE, "huey-no-fsync", 5, "drain on SQLite, huey without fsync", goal=True),
        against.peer(DRAIN, SQLITE, "dbos-sqlite", 10, "drain on SQLite against DBOS"),
        *against.defaults(),
    ]


class _Against:
    def __init__(self, table: Table) -> None:
        self._table = table

    def peer(
        self, measure: Measure, ours: str, theirs: str, needed: float, text: str, *, goal: bool = False
    ) -> Verdict:
        peer = self._table.get(measure.name, {}).get(theirs)
        return self._ratio(measure, ours, peer, needed, text, goal)

    def callers(self) -> Verdict:
        """Many callers of ours against the best PostgreSQL peer one by one."""
        one_by_one = self._table.get(ENQUEUE.name, {})
        found = [one_by_one[key] for key in POSTGRES_PEERS if key in one_by_one]
        text = "enqueue from 100 callers against the best PostgreSQL peer one by one"
        return self._ratio(CALLERS, POSTGRES, max(found, default=None), 10, text, False)

    def two_processes(self) -> Verdict:
        def by(key: str) -> float | None:
            two, one = (self._table.get(measure.name, {}).get(key) for measure in (DRAIN_TWO, DRAIN))
            return two / one if two and one else None

        best = max((got for got in (by(POSTGRES), by(POSTGRES_BEST)) if got), default=None)
        return _verdict("drain by two processes against one", 1.2, best, by(POSTGRES), "x")

    def figure(self, measure: Measure, ours: str, needed: float, text: str) -> Verdict:
        default = self._table.get(measure.name, {}).get(ours)
        holds = None
        got = best_of_ours(self._table, measure, ours)
        if got is not None:
            holds = got >= needed if measure.more_is_better else got <= needed
        return Verdict(text, needed, got, default, measure.unit, holds)

    def defaults(self) -> list[Verdict]:
        found = []
        for measure in (DRAIN, STEPS):
            for ours, store in ((POSTGRES, "PostgreSQL"), (SQLITE, "SQLite")):
                default = self._table.get(measure.name, {}).get(ours)
                got = ratio(measure, default, best_of_ours(self._table, measure, ours))
                text = f"{MEASURES[measure.name].title.lower()} on {store}: the defaults against the best"
                found.append(_verdict(text, 0.7, got, got, "x"))
        return found

    def _ratio(
        self, measure: Measure, ours: str, theirs: float | None, needed: float, text: str, goal: bool
    ) -> Verdict:
        got = ratio(measure, best_of_ours(self._table, measure, ours), theirs)
        default = ratio(measure, self._table.get(measure.name, {}).get(ours), theirs)
        return _verdict(text, needed, got, default, "x", goal)


def _verdict(
    text: str, needed: float, got: float | None, default: float | None, unit: str, goal: bool = False
) -> Verdict:
    return Verdict(text, needed, got, default, unit, None if got is None else got >= needed, goal)


def counterpart(store: str) -> str:
    """Which Holdfast a peer stands beside."""
    return SQLITE if store == "sqlite" else POSTGRES
