"""What processes have counted, as it is kept for those who watch: sums that only grow.

Each process writes its counts so far under a `source` of its own, so nobody waits for anybody. A source that
has been silent for long is folded: its rows are added to those of the empty source, and are gone. The row
without a name is what a source stands and falls with: whoever writes or folds has it locked first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

LABELS_MAX = 1_000


class Tally(NamedTuple):
    """`labels` are the values of a counter's labels, as a JSON list. Values are whole numbers, so that their
    sum is the same in whatever order they are added."""

    name: str
    labels: str
    value: int


class TalliesStore(Protocol):
    """The part of a store that counts are kept in."""

    async def write_tallies(self, source: str, tallies: Sequence[Tally], now: float, *, is_new: bool) -> bool:
        """Write how much the source has counted so far; False, and nothing is written, where it has been
        folded since. A new one cannot have been."""

    async def fold_tallies(
        self, *, seen_before: float, source: str = "", others: Mapping[str, str] | None = None
    ) -> int:
        """Add up what sources have counted that were seen last before this time, and this one; how many
        those were. What several do at once is done once. Of a counter that has an entry in `others`, new
        labels are added to those once LABELS_MAX are kept."""

    async def tallies(self) -> list[Tally]:
        """Of all sources together."""
