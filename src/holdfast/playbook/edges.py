"""What a step leads to, from all the forms of `next`.

    next: store                                          a name
    next: [store, {step: tell, when: …, with: {…}}]      a list; all that match are taken
    next: [{when: …, then: [a, b]}, {else: c}]           the same steps under one condition, and the rest

They all become plain edges. Of a `next` whose shape is wrong, which is told elsewhere, as much is read as can
be; and never more than a step may lead to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from holdfast.playbook.document import Path
from holdfast.playbook.language import EDGES_MAX, INPUT_FIELDS
from holdfast.playbook.shape import Report, WrittenStep
from holdfast.playbook.template import EXPRESSION_CHARS_MAX, Combined


@dataclass(frozen=True, slots=True)
class WrittenEdge:
    """`path` is where its target is named."""

    step: str
    path: Path
    when: str | Combined | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)
    with_path: Path = ()

    def to(self, step: str) -> WrittenEdge:
        return self if step == self.step else replace(self, step=step)


class WrittenCondition(NamedTuple):
    source: str
    path: Path


class WrittenNext(NamedTuple):
    """`conditions` is each of them once, where it was written. `is_whole`: all of it could be read."""

    edges: list[WrittenEdge]
    conditions: list[WrittenCondition]
    is_whole: bool


def next_of(report: Report, step: WrittenStep) -> WrittenNext:
    written, path = step.raw.get("next"), (*step.path, "next")
    reading = _Reading(report)
    edges = [] if written is None else list(islice(reading.edges(written, path), EDGES_MAX + 1))
    if len(edges) > EDGES_MAX:
        reading.is_whole = False
        if step.model is not None:  # else its shape is wrong, and a list that is too long is told as that
            report.add(path, f"It leads to more than {EDGES_MAX:,} steps.", "Divide it into steps.")
    return WrittenNext(edges[:EDGES_MAX], reading.conditions, reading.is_whole)


class _Reading:
    def __init__(self, report: Report) -> None:
        self._report = report
        self.conditions: list[WrittenCondition] = []
        self.is_whole = True

    def edges(self, written: Any, path: Path) -> Iterator[WrittenEdge]:
        items = list(_items(written, path))
        asked = [_condition(item.get("when")) for item, _ in items if isinstance(item, dict)]
        others = dict.fromkeys(text for text in asked if text is not None)
        for item, place in items:
            if isinstance(item, dict) and "else" in item:
                yield from self._else(item, place, others)
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
        outer = WrittenEdge("", path, self._when(item, path), handed, with_path)
        if isinstance(item.get("step"), str):
            yield replace(outer, step=item["step"], path=(*path, "step"))
        elif "then" in item:
            yield from self._inner(item["then"], (*path, "then"), outer)
        else:
            self.is_whole = False

    def _else(self, item: Mapping[str, Any], path: Path, others: Collection[str]) -> Iterator[WrittenEdge]:
        if not others:
            self._report.add(
                (*path, "else"), "There is no `when` beside this `else`.", "{when: …, then: steps}."
            )
            self.is_whole = False
            return
        handed, with_path = self._handed(item, path)
        none_of_them = Combined(none=tuple(filter(_is_short, others)))
        outer = WrittenEdge("", path, none_of_them, handed, with_path)
        yield from self._inner(item["else"], (*path, "else"), outer)

    def _inner(self, written: Any, path: Path, outer: WrittenEdge) -> Iterator[WrittenEdge]:
        """The steps under a condition; a condition of their own is added to it."""
        for item, place in _items(written, path):
            if isinstance(item, dict) and ("then" in item or "else" in item):
                self._report.add(place, "A `then` or `else` cannot stand in another.", "{step, when, with}.")
                self.is_whole = False
                continue
            for edge in self._item(item, place):
                yield replace(
                    edge,
                    when=_both(outer.when, edge.when),
                    with_={**outer.with_, **edge.with_},
                    with_path=edge.with_path or outer.with_path,
                )

    def _when(self, item: Mapping[str, Any], path: Path) -> str | None:
        """None where it always holds, or is none that can be."""
        written = item.get("when")
        source = None if written is True else _condition(written)
        if source is not None and isinstance(written, str):
            self.conditions.append(WrittenCondition(source, (*path, "when")))
        return source if source is not None and _is_short(source) else None

    def _handed(self, item: Mapping[str, Any], path: Path) -> tuple[Mapping[str, Any], Path]:
        given = [name for name in INPUT_FIELDS if item.get(name) is not None]
        for extra in given[1:]:
            message = f"`{given[0]}` and `{extra}` are written together, and are the same."
            self._report.add((*path, extra), message, "Keep one of them.")
        if not given or not isinstance(item[given[0]], dict):
            return {}, ()
        return item[given[0]], (*path, given[0])


def _items(written: Any, path: Path) -> Iterator[tuple[Any, Path]]:
    if isinstance(written, list):
        # What is behind the last that is allowed is refused, and not read.
        return ((item, (*path, index)) for index, item in enumerate(written[: EDGES_MAX + 1]))
    return iter([(written, path)])


def _condition(written: Any) -> str | None:
    """As an expression without braces; None where there is none."""
    if isinstance(written, bool):
        return "true" if written else "false"
    if not isinstance(written, str):
        return None
    text = written.strip()
    if text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1:
        return text[2:-2].strip("-+").strip() if text[2:-2].strip("-+").strip() else text
    return written


def _is_short(source: str) -> bool:
    """A longer one is refused, and carried no further: other edges would hold it again and again."""
    return len(source) <= EXPRESSION_CHARS_MAX


def _both(outer: str | Combined | None, own: str | Combined | None) -> str | Combined | None:
    if outer is None or own is None:
        return own if outer is None else outer
    assert isinstance(own, str)  # one step alone has no `else` in it
    if isinstance(outer, Combined):
        return replace(outer, all=(*outer.all, own))
    return Combined(all=(outer, own))
