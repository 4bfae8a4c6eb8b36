"""What a template may read at the place where it stands, checked when the playbook is registered.

A name that means nothing there would fail the execution, perhaps after hours: it is a fault now, with what it
may have been meant to be. The steps that a template reads become the `needs` of its own step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final, TypeVar, cast

from holdfast.playbook.document import Path
from holdfast.playbook.faults import NAMES_SHOWN_MAX, listed
from holdfast.playbook.graph import Graph
from holdfast.playbook.shape import Report
from holdfast.playbook.template import EXPRESSION_CHARS_MAX as CONDITION_CHARS_MAX
from holdfast.playbook.template import (
    Condition,
    ConditionInvalid,
    Reads,
    Text,
    compile_condition,
    compile_text,
    compile_value,
)
from holdfast.playbook.variables import EDGE_VARIABLES, STEP_VARIABLES, step_names_read

# What compiling all templates of a playbook may cost: some 40 µs for each character of an expression.
EXPRESSION_CHARS_MAX: Final = 150_000
TEMPLATES_MAX: Final = 10_000
# Steps times templates that may read any step: each such pair is looked at, and kept.
ALL_STEPS_READS_MAX: Final = 200_000
POLICY_VARIABLES: Final = frozenset(
    {"result", "attempt", "max_attempts", "error", "status_code", "success", "data", "response"}
    | {"execution_id", "step", "workload"}
)
Template = TypeVar("Template", Condition, Text)
_PLACE_IN_TEXT: Final = re.compile(r"line (\d+): ")
_EXPRESSION: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_NO_SECRETS: Final = (
    "Use it in a field of the step that needs it, or in that step's own `with`:"
    " there it is read by the worker, and never kept."
)  # fmt: skip


class Precedence:
    """Which steps can have ended before another starts: all pairs at once, a bit for each step."""

    def __init__(self, graph: Graph) -> None:
        self._names = list(graph.order)
        self._bit = {name: 1 << place for place, name in enumerate(self._names)}
        self._before = dict.fromkeys(self._names, 0)
        done: set[str] = set()
        for first in self._names:
            members = graph.members.get(graph.region.get(first, ""), [first])
            if first in done:
                continue
            done.update(members)
            inside = 0
            if graph.region.get(first) is not None:  # in a cycle each comes before each
                for name in members:
                    inside |= self._bit[name] | self._before[name]
                for name in members:
                    self._before[name] = inside
            for name in members:
                for link in graph.out[name]:
                    self._before[link.target] |= self._before[name] | self._bit[name]

    def is_before(self, step: str, other: str) -> bool:
        return bool(self._before.get(other, 0) & self._bit.get(step, 0))

    def before(self, step: str) -> list[str]:
        bits = self._before.get(step, 0)
        return [name for name in self._names if bits & self._bit[name]]


@dataclass(frozen=True, slots=True)
class Scope:
    """What can be read at one kind of place of one step."""

    step: str
    variables: frozenset[str]
    workload: frozenset[str] = frozenset()
    """Its keys, as bare names: of all steps the same, and there may be many."""
    inputs: frozenset[str] = frozenset()
    """Keys of the input, as bare names."""
    element: frozenset[str] = frozenset()
    own: bool = False
    """Also the step itself: behind its end."""
    steps: bool = True
    secrets: bool = False

    @property
    def described(self) -> str:
        keys = (self.workload | self.inputs) - self.variables
        first = nsmallest(NAMES_SHOWN_MAX, keys)
        return listed([*sorted(self.element), *first, *sorted(self.variables)], more=len(keys) - len(first))


STEP_SCOPE: Final = STEP_VARIABLES
EDGE_SCOPE: Final = STEP_VARIABLES | EDGE_VARIABLES


class Templates:
    """Checks the templates of a playbook, each in its scope."""

    def __init__(self, report: Report, graph: Graph) -> None:
        self._report = report
        self._control = graph.control
        self._steps = graph.out.keys() - graph.control
        """Those that have an output."""
        self._unreached = set(graph.unreachable)
        self._precedence = Precedence(graph)
        self._compiled: dict[tuple[object, str], Condition | Text | ConditionInvalid] = {}
        """All so far: aliases may repeat a template, and no other cache is sure to keep it."""
        self._seen: set[str] = set()
        self._chars = 0
        self._all_steps_reads = 0

    def value(self, value: Any, path: Path, scope: Scope) -> set[str]:
        """Check all texts in a value; the steps that they read."""
        needs: set[str] = set()
        before = len(self._report.faults.found)
        stack = [(value, path)]
        has_templates = False
        while stack:
            part, place = stack.pop()
            if isinstance(part, dict):
                stack += [(inner, (*place, key)) for key, inner in part.items()]
            elif isinstance(part, list):
                stack += [(inner, (*place, index)) for index, inner in enumerate(part)]
            elif isinstance(part, str) and "{" in part:
                has_templates = True
                needs |= self._checked(part, place, scope, compile_text)
        if has_templates and len(self._report.faults.found) == before and not self._is_spent:
            try:  # bounds that hold for all of it together
                compile_value(value, compile_text=lambda source: self._once(compile_text, source))
            except ConditionInvalid as error:
                self._report.add(path, *_sentences(error))
        return needs

    def condition(self, source: str, path: Path, scope: Scope) -> set[str]:
        return self._checked(source, path, scope, compile_condition)

    def _once(self, compile_: Callable[[str], Template], source: str) -> Template:
        key = compile_, source
        if key not in self._compiled:
            try:
                self._compiled[key] = compile_(source)
            except ConditionInvalid as error:
                self._compiled[key] = error
        found = self._compiled[key]
        if isinstance(found, ConditionInvalid):
            raise found.with_traceback(None)
        return cast(Template, found)

    def _checked(
        self, source: str, path: Path, scope: Scope, compile_: Callable[[str], Template]
    ) -> set[str]:
        if not self._afford(source, path, is_condition=compile_ is compile_condition):
            return set()
        try:
            found = self._once(compile_, source)
        except ConditionInvalid as error:
            self._refuse(error, path)
            return set()
        self._check_names(found.reads, path, scope)
        if found.reads.all_steps and not self._afford_all_steps(path):
            return set()
        if found.reads.secrets and not scope.secrets:
            names = listed(sorted(found.reads.secrets))
            self._report.add(path, f"The secret {names} would be kept in the store here.", _NO_SECRETS)
        known = [step for step in self._candidates(found.reads) if self._is_readable(step, scope)]
        return step_names_read(found, known, hidden=scope.element) - ({scope.step} if scope.own else set())

    def _candidates(self, reads: Reads) -> Iterable[str]:
        return self._steps if reads.all_steps else self._steps & (reads.names | reads.steps)

    def _afford(self, source: str, path: Path, *, is_condition: bool) -> bool:
        """Bounds what a playbook costs to register; each different template counts once."""
        if source in self._seen:
            return True
        if self._is_spent:
            return False  # told already
        self._seen.add(source)
        # A condition beyond its own limit is refused for that.
        chars = min(len(source), CONDITION_CHARS_MAX) if is_condition else _expression_chars(source)
        self._chars += chars
        if self._is_spent:
            allowed = (
                f"At most {TEMPLATES_MAX:,} different templates with {EXPRESSION_CHARS_MAX:,} characters of"
                " expressions; divide it into playbooks."
            )
            self._report.add(path, "The playbook has too many templates.", allowed)
            return False
        return True

    @property
    def _is_spent(self) -> bool:
        return len(self._seen) > TEMPLATES_MAX or self._chars > EXPRESSION_CHARS_MAX

    def _afford_all_steps(self, path: Path) -> bool:
        before = self._all_steps_reads
        self._all_steps_reads += len(self._steps)
        if self._all_steps_reads > ALL_STEPS_READS_MAX >= before:
            self._report.add(
                path,
                "Too many templates of the playbook may read the output of any of its steps.",
                "Name the step: `steps.name`; or divide it into playbooks.",
            )
        return self._all_steps_reads <= ALL_STEPS_READS_MAX

    def _refuse(self, error: ConditionInvalid, path: Path) -> None:
        message, allowed = _sentences(error)
        line = None
        if place := _PLACE_IN_TEXT.match(message):
            line = self._report.document.line_in(path, int(place[1]))
            message = message[place.end() :]
        self._report.add(path, f"{message[:1].upper()}{message[1:]}", allowed, line=line)

    def _is_readable(self, step: str, scope: Scope) -> bool:
        if not scope.steps:
            return False
        if scope.step in self._unreached:  # told elsewhere; what would lead to it is not known
            return True
        return (scope.own and step == scope.step) or self._precedence.is_before(step, scope.step)

    def _check_names(self, reads: Reads, path: Path, scope: Scope) -> None:
        for name in sorted(reads.names - scope.variables - scope.element - scope.inputs - scope.workload):
            if not (name in self._steps and self._is_readable(name, scope)):
                self._unknown(name, path, scope)
        for name in sorted(reads.steps):
            if not (name in self._steps and self._is_readable(name, scope)):
                self._unknown(name, path, scope, is_step=True)

    def _unknown(self, name: str, path: Path, scope: Scope, *, is_step: bool = False) -> None:
        if not self._report.faults.has_room_for_detail:
            self._report.add(path, f"There is no {name!r} here.")
            return
        earlier = [scope.step] if scope.own else []
        if scope.steps:
            earlier += [step for step in self._precedence.before(scope.step) if step in self._steps]
        if scope.steps and (name in self._steps or name in self._control):
            why = (
                "is control flow and has no output" if name in self._control else "cannot have ended by then"
            )
            message = f"Step {name!r} {why}."
            allowed = (
                f"outputs of {listed(earlier)}." if earlier else "No step with an output comes before it."
            )
            self._report.add(path, message, allowed)
            return
        keys = [*scope.element, *scope.variables, *scope.inputs, *scope.workload]
        known = earlier if is_step else [*earlier, *keys]
        near = self._report.faults.did_you_mean(name, known)
        allowed = "" if is_step else scope.described
        if earlier:
            allowed += f"{'; ' if allowed else ''}outputs of {listed(earlier)}"
        if not is_step and scope.steps:
            allowed += f"; for what may be missing, workload.{name} | default(…)"
        what = "step" if is_step else "variable"
        self._report.add(path, f"There is no {what} {name!r} here.{near}", f"{allowed}." if allowed else "")


def _sentences(error: ConditionInvalid) -> tuple[str, str]:
    message, allowed = str(error), error.guidance.removeprefix("allowed: ")
    return (message if message.endswith(".") else f"{message}."), (f"{allowed}." if allowed else "")


def _expression_chars(source: str) -> int:
    """How much of a text is in braces, told in one pass."""
    chars = end = 0
    while (begin := source.find("{{", end)) >= 0:
        end = source.find("}}", begin + 2) + 2
        if end < 2:
            return chars + len(source) - begin
        chars += end - begin
    return chars
