"""What a step leads to, from all the forms of `next`.

    next: store                                          a name
    next: [store, {step: tell, when: …, with: {…}}]      a list; all that match are taken
    next: [{when: …, then: [a, b]}, {else: c}]           the same steps under one condition, and the rest

They all become plain edges. Of a `next` whose shape is wrong, which is told elsewhere, as much is read as can
be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.playbook.document import Path
from holdfast.playbook.language import INPUT_FIELDS
from holdfast.playbook.shape import Report, WrittenStep


@dataclass(frozen=True, slots=True)
class WrittenEdge:
    """`path` is where its target is named."""

    step: str
    path: Path
    when: str | None = None
    when_path: Path = ()
    with_: Mapping[str, Any] = field(default_factory=dict)
    with_path: Path = ()

    def to(self, step: str) -> WrittenEdge:
        return self if step == self.step else replace(self, step=step)


def edges_of(report: Report, step: WrittenStep) -> tuple[list[WrittenEdge], bool]:
    """And whether all of them could be read."""
    reading = _Reading(report)
    written = step.raw.get("next")
    edges = [] if written is None else list(reading.edges(written, (*step.path, "next")))
    return edges, reading.is_whole


class _Reading:
    def __init__(self, report: Report) -> None:
        self._report = report
        self.is_whole = True

    def edges(self, written: Any, path: Path) -> Iterator[WrittenEdge]:
        items = [(written, path)]
        if isinstance(written, list):
            items = [(item, (*path, index)) for index, item in enumerate(written)]
        conditions = [
            text
            for item, _ in items
            if isinstance(item, dict) and (text := _condition(item.get("when"))) is not None
        ]
        for item, place in items:
            if isinstance(item, dict) and "else" in item:
                yield from self._else(item, place, conditions)
            else:
                yield from self._item(item, place)

    def _item(self, item: Any, path: Path) -> Iterator[WrittenEdge]:
        if isinstance(item, str):
            yield WrittenEdge(item, path)
            return
        if not isinstance(item, dict):
            self.is_whole = False
            return
        handed, with_path = self._handed(item, path)
        outer = WrittenEdge("", path, _condition(item.get("when")), (*path, "when"), handed, with_path)
        if isinstance(item.get("step"), str):
            yield replace(outer, step=item["step"], path=(*path, "step"))
        elif "then" in item:
            yield from self._inner(item["then"], (*path, "then"), outer)
        else:
            self.is_whole = False

    def _else(self, item: Mapping[str, Any], path: Path, conditions: list[str]) -> Iterator[WrittenEdge]:
        if not conditions:
            self._report.add(
                (*path, "else"), "There is no `when` beside this `else`.", "{when: …, then: steps}."
            )
            self.is_whole = False
            return
        handed, with_path = self._handed(item, path)
        none_of_them = " and ".join(f"not ({text})" for text in conditions)
        outer = WrittenEdge("", path, none_of_them, (*path, "else"), handed, with_path)
        yield from self._inner(item["else"], (*path, "else"), outer)

    def _inner(self, written: Any, path: Path, outer: WrittenEdge) -> Iterator[WrittenEdge]:
        """The steps under a condition; a condition of their own is added to it."""
        for item, place in (
            [(item, (*path, index)) for index, item in enumerate(written)]
            if isinstance(written, list)
            else [(written, path)]
        ):
            if isinstance(item, dict) and ("then" in item or "else" in item):
                self._report.add(place, "A `then` or `else` cannot stand in another.", "{step, when, with}.")
                self.is_whole = False
                continue
            for edge in self._item(item, place):
                yield replace(
                    edge,
                    when=_both(outer.when, edge.when),
                    when_path=edge.when_path if edge.when is not None else outer.when_path,
                    with_={**outer.with_, **edge.with_},
                    with_path=edge.with_path or outer.with_path,
                )

    def _handed(self, item: Mapping[str, Any], path: Path) -> tuple[Mapping[str, Any], Path]:
        given = [name for name in INPUT_FIELDS if item.get(name) is not None]
        for extra in given[1:]:
            message = f"`{given[0]}` and `{extra}` are written together, and are the same."
            self._report.add((*path, extra), message, "Keep one of them.")
        if not given or not isinstance(item[given[0]], dict):
            return {}, ()
        return item[given[0]], (*path, given[0])


def _condition(written: Any) -> str | None:
    """As an expression without braces; None where it always holds."""
    if isinstance(written, bool):
        return None if written else "false"
    if not isinstance(written, str):
        return None
    text = written.strip()
    if text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1:
        return text[2:-2].strip("-+").strip() if text[2:-2].strip("-+").strip() else text
    return written


def _both(first: str | None, second: str | None) -> str | None:
    if first is None or second is None:
        return second if first is None else first
    return f"({first}) and ({second})"
