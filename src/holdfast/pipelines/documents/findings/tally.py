"""How often each thing was found, and where: bounded, whatever is counted.

Once there are too many different things the rarest half of them is forgotten. What occurs again and again
comes back at once, and what was forgotten had been seen about once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from holdfast.pipelines.documents.findings.finding import CHUNKS_MAX

Key = TypeVar("Key", bound=Hashable)

KEPT_MAX = 20_000


@dataclass(slots=True)
class Sightings:
    text: str
    """As it was written where it was first found."""
    context: str
    order: int
    count: int = 0
    chunks: list[int] = field(default_factory=list)

    def add(self, chunk: int) -> None:
        self.count += 1
        if len(self.chunks) < CHUNKS_MAX and (not self.chunks or self.chunks[-1] != chunk):
            self.chunks.append(chunk)

    def join(self, other: Sightings) -> None:
        if other.order < self.order:
            self.text, self.context, self.order = other.text, other.context, other.order
        self.count += other.count
        self.chunks = sorted({*self.chunks, *other.chunks})[:CHUNKS_MAX]


class Tally(Generic[Key]):
    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self.seen: dict[Key, Sightings] = {}
        self._kept_max = kept_max
        self._order = 0

    def add(self, key: Key, chunk: int, text: str, context: Callable[[], str] = str) -> None:
        sightings = self.seen.get(key)
        if sightings is None:
            if len(self.seen) >= self._kept_max:
                self._forget()
            self._order += 1
            sightings = self.seen[key] = Sightings(text, context(), self._order)
        sightings.add(chunk)

    def _forget(self) -> None:
        by_weight = sorted(self.seen.items(), key=lambda item: (-item[1].count, item[1].order))
        self.seen = dict(by_weight[: self._kept_max // 2])
