"""What a person should know of a document that was read: a few sentences, however many things are odd."""

from __future__ import annotations

WARNINGS_MAX = 20


class Warnings:
    def __init__(self) -> None:
        self._told: list[str] = []
        self._more = 0

    def add(self, sentence: str) -> None:
        if sentence in self._told:
            return
        if len(self._told) < WARNINGS_MAX:
            self._told.append(sentence)
        else:
            self._more += 1

    def told(self) -> list[str]:
        if not self._more:
            return self._told
        return [*self._told, f"There are {self._more:,} more warnings like these."]


def numbers_shown(numbers: list[int]) -> str:
    """Many numbers as a few: 1-3, 7 and 9-12."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in spans]
    if len(shown) > 10:
        return f"{', '.join(shown[:10])} and others"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
