"""The model that pipelines and playbooks compile to: named steps, what leads from one to the next, and how
each may fail.

Python pipelines build it directly, YAML playbooks are compiled to it. A definition is plain data: it is
stored as JSON under a version of its path, so any process can decide about a job of any version, and two
definitions with equal content are one version. What a step leaves at its default is left out of that JSON, so
that a new field of the model makes no new version of what does not use it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import DefinitionInvalid, UnknownStep
from holdfast.core.limits import check_limit_name
from holdfast.core.model import HANDLER_CHARS_MAX, ClaimGroup, Lane
from holdfast.core.payload import check_name
from holdfast.core.retry import RetryPolicy, parse_duration
from holdfast.playbook.template import Combined, ConditionInvalid, compile_condition

STEP_TIMEOUT_SECONDS_DEFAULT = 3600.0
CONTROL = "control"
MAX_VISITS_MAX = 10_000
CONCURRENCY_MAX = 10_000
PRIORITY_DEFAULT = 5
_OPERATION_PRIORITY = {"request": 4, "download": 6}
_STEP_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_OPERATION = re.compile(r"[A-Za-z0-9_-]{0,50}")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """In a batch nobody begins the step before every item has got past the step `after`, or ended; then it
    begins, for all of them, `delay_seconds` later."""

    after: str
    delay_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.after, str) or not self.after:
            raise DefinitionInvalid(
                f"A barrier needs the name of the step that it waits for, not {self.after!r}.",
                guidance='For example barrier={"after": "request", "delay": "15m"}.',
            )
        delay_seconds = parse_duration(self.delay_seconds, field="delay of a barrier")
        object.__setattr__(self, "delay_seconds", delay_seconds)

    @classmethod
    def from_shorthand(cls, value: Barrier | Mapping[str, Any] | None, of: str) -> Barrier | None:
        """From `{"after": step, "delay": duration}`."""
        if value is None or isinstance(value, Barrier):
            return value
        odd = sorted(map(repr, value.keys() - {"after", "delay"})) if isinstance(value, Mapping) else []
        if odd:
            raise DefinitionInvalid(
                f"The barrier of step {of} has {', '.join(odd)}, which no barrier has.",
                guidance="Allowed are 'after', the step that it waits for, and 'delay', such as \"15m\".",
            )
        if not isinstance(value, Mapping) or "after" not in value:
            raise DefinitionInvalid(
                f"barrier of step {of} is not one: {value!r}.",
                guidance='For example barrier={"after": "request", "delay": "15m"}.',
            )
        return cls(after=value["after"], delay_seconds=value.get("delay", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What leads from a step to another once it has completed: always, or `when` the condition holds, or
    several of them. `with_` is handed on to it; it may have templates."""

    step: str
    when: str | Combined | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForEach:
    """The step runs once for each of the items, which are a list or an expression for one. At most
    `concurrency` of them are under way at once; with `fail_fast` the first that dies ends the step."""

    items: str | list[Any]
    as_: str = "item"
    concurrency: int | None = None
    fail_fast: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and (
            type(self.concurrency) is not int or self.concurrency not in range(1, CONCURRENCY_MAX + 1)
        ):
            raise DefinitionInvalid(
                f"The concurrency of a for_each is a whole number from 1 to {CONCURRENCY_MAX},"
                f" not {self.concurrency!r}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One stage: what a worker must offer to run it (`handler`), what comes next, and how it may fail.

    A `type` other than "" tells which of the built-in types runs it, with `config` as its own fields and
    `inputs` as what it is given beside what was handed on; texts in both may be templates. `needs` names the
    earlier steps whose outputs those read. A step of type "control" decides what comes next, and is never a
    job. Without `next` the step that is listed behind it follows."""

    name: str
    handler: str
    retry: RetryPolicy
    timeout_seconds: float = STEP_TIMEOUT_SECONDS_DEFAULT
    max_crashes: int = 3
    lane: Lane | None = None
    operation: str = ""
    priority: int | None = None
    limit: str = ""
    barrier: Barrier | None = None
    errors: tuple[ErrorRule, ...] = ()
    type: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    next: tuple[Edge, ...] | None = None
    on_error: str | None = None
    for_each: ForEach | None = None
    max_visits: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _STEP_NAME.fullmatch(self.name):
            raise DefinitionInvalid(
                f"Step name {self.name!r} is not allowed.",
                guidance="Begin with a letter or underscore, then letters (a-z, A-Z), digits, '_', '.' or"
                " '-'; 100 characters at most.",
            )
        if not self.is_control:
            check_name(self.handler, what=f"handler of step {self.name}", length_max=HANDLER_CHARS_MAX)
        timeout_seconds = parse_duration(self.timeout_seconds, field=f"timeout of step {self.name}")
        # Kept as one kind of number, so that 10, 10.0 and "10s" are one version of a definition.
        object.__setattr__(self, "timeout_seconds", timeout_seconds)
        if timeout_seconds <= 0:
            raise DefinitionInvalid(f"The timeout of step {self.name} must be longer than 0 seconds.")
        if not isinstance(self.operation, str) or not _OPERATION.fullmatch(self.operation):
            raise DefinitionInvalid(
                f"Operation {self.operation!r} of step {self.name} is not allowed.",
                guidance="Use letters (a-z, A-Z), digits, '_' and '-'; 50 characters at most.",
            )
        if self.priority is not None and (type(self.priority) is not int or self.priority not in range(10)):
            raise DefinitionInvalid(
                f"Priority {self.priority!r} of step {self.name} is not allowed.",
                guidance="Use 0 (first) to 9 (last).",
            )
        if self.limit != "":
            check_limit_name(self.limit, of=f"step {self.name}")
        if self.lane is not None and self.lane not in tuple(Lane):
            raise DefinitionInvalid(
                f"Lane {self.lane!r} of step {self.name} is not allowed.",
                guidance=f"Allowed are: {', '.join(Lane)}.",
            )
        if self.max_visits is not None and (
            type(self.max_visits) is not int or self.max_visits not in range(1, MAX_VISITS_MAX + 1)
        ):
            raise DefinitionInvalid(
                f"max_visits of step {self.name} must be a whole number from 1 to {MAX_VISITS_MAX}."
            )
        if type(self.max_crashes) is not int or self.max_crashes < 1:
            raise DefinitionInvalid(f"max_crashes of step {self.name} must be a whole number from 1.")
        for name in ("retry_when", "stop_when"):
            source = getattr(self.retry, name)
            try:
                if source is not None:
                    compile_condition(source)
            except ConditionInvalid as error:
                raise ConditionInvalid(
                    f"{name} of step {self.name}: {error}", guidance=error.guidance
                ) from error

    @property
    def is_control(self) -> bool:
        return self.type == CONTROL

    @property
    def targets(self) -> tuple[str, ...]:
        """The steps that its edges lead to, where it has edges."""
        return tuple(edge.step for edge in self.next or ())

    def claim_group(
        self, path: str, lane: Lane, *, alone: bool = False, handler: str | None = None
    ) -> ClaimGroup:
        rank = self.priority
        if rank is None:
            rank = _OPERATION_PRIORITY.get(self.operation, PRIORITY_DEFAULT)
        return ClaimGroup(
            handler or self.handler,
            self.lane or lane,
            rank,
            self.operation,
            self.limit,
            alone,
            path,
            self.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    path: str
    steps: tuple[Step, ...]
    errors: tuple[ErrorRule, ...] = ()
    workload: Mapping[str, Any] = field(default_factory=dict)
    entry: str = ""
    about: Literal["", "documents"] = ""
    """What people are told about its errors speaks of this."""
    is_linear: bool = field(init=False, repr=False, compare=False)
    """Each step is followed by the one listed behind it, and nothing else ever happens."""
    _positions: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not _PATH.fullmatch(self.path):
            raise DefinitionInvalid(
                f"Pipeline name {self.path!r} is not allowed.",
                guidance="Use letters (a-z, A-Z), digits, '_', '.', '-' and '/'; 200 characters at most.",
            )
        if not self.steps:
            raise DefinitionInvalid(f"Pipeline {self.path} has no steps.", guidance="Give it at least one.")
        names = [step.name for step in self.steps]
        object.__setattr__(self, "_positions", {name: place for place, name in enumerate(names)})
        if len(self._positions) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise DefinitionInvalid(
                f"Pipeline {self.path} has several steps named {', '.join(twice)}.",
                guidance="A step's name is its identity in the history: make each one unique.",
            )
        self._check_edges()
        object.__setattr__(self, "is_linear", self._leads_straight_on())
        for place, step in enumerate(self.steps):
            if step.barrier is not None and step.barrier.after not in names[:place]:
                raise DefinitionInvalid(
                    f"The barrier of step {step.name} waits for {step.barrier.after!r}, which is no step"
                    " before it.",
                    guidance=f"Steps before it are: {', '.join(names[:place])}."
                    if place
                    else "The first step cannot have one: nothing comes before it.",
                )

    def _check_edges(self) -> None:
        named = {self.entry} if self.entry else set()
        for step in self.steps:
            named.update(step.targets, step.needs, [step.on_error] if step.on_error else [])
        if unknown := sorted(named - self._positions.keys()):
            raise DefinitionInvalid(
                f"Playbook {self.path} leads to {', '.join(unknown)}, which it has no step for.",
                guidance=f"Its steps are: {', '.join(self._positions)}.",
            )

    def _leads_straight_on(self) -> bool:
        return self.entry in ("", self.steps[0].name) and all(
            step.next is None
            and step.on_error is None
            and step.for_each is None
            and step.max_visits is None
            and not step.is_control
            for step in self.steps
        )

    def step(self, name: str) -> Step:
        return self.steps[self.position(name)]

    def position(self, name: str) -> int:
        place = self._positions.get(name)
        if place is not None:
            return place
        known = ", ".join(step.name for step in self.steps)
        raise UnknownStep(f"Pipeline {self.path} has no step {name!r}.", guidance=f"Its steps are: {known}.")

    @property
    def has_gates(self) -> bool:
        """Whether some step of it waits for the other items of a batch, or for a time after one of them."""
        return any(step.barrier is not None or step.retry.wave for step in self.steps)

    def error_rules(self, step: Step) -> tuple[ErrorRule, ...]:
        """The most specific first: the step's own, then the pipeline's."""
        return step.errors + self.errors

    def to_json(self) -> str:
        document = {
            "path": self.path,
            "steps": [_step_to_dict(step) for step in self.steps],
            "errors": [rule.to_dict() for rule in self.errors],
            **({"workload": self.workload} if self.workload else {}),
            **({"entry": self.entry} if self.entry else {}),
            **({"about": self.about} if self.about else {}),
        }
        return msgspec.json.encode(document, order="sorted").decode()

    @classmethod
    def from_json(cls, text: str) -> Definition:
        document: dict[str, Any] = msgspec.json.decode(text)
        return cls(
            path=document["path"],
            steps=tuple(_step_from_dict(step) for step in document["steps"]),
            errors=tuple(ErrorRule.from_dict(rule) for rule in document["errors"]),
            workload=document.get("workload", {}),
            entry=document.get("entry", ""),
            about=document.get("about", ""),
        )


def content_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _step_to_dict(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "handler": step.handler,
        "retry": step.retry.to_dict(),
        "timeout_seconds": step.timeout_seconds,
        "max_crashes": step.max_crashes,
        "lane": step.lane,
        "operation": step.operation,
        "priority": step.priority,
        "limit": step.limit,
        "errors": [rule.to_dict() for rule in step.errors],
        **(
            {}
            if step.barrier is None
            else {"barrier": {"after": step.barrier.after, "delay": step.barrier.delay_seconds}}
        ),
        **_flow_to_dict(step),
    }


def _flow_to_dict(step: Step) -> dict[str, Any]:
    flow: dict[str, Any] = {
        "type": step.type,
        "config": step.config,
        "inputs": step.inputs,
        "needs": list(step.needs),
        "on_error": step.on_error,
        "max_visits": step.max_visits,
    }
    if step.for_each is not None:
        each = step.for_each
        flow["for_each"] = {
            "items": each.items,
            "as_": each.as_,
            "concurrency": each.concurrency,
            "fail_fast": each.fail_fast,
        }
    flow = {name: value for name, value in flow.items() if value}
    if step.next is not None:  # none at all is not the same as not said
        flow["next"] = [{"step": edge.step, "when": edge.when, "with_": edge.with_} for edge in step.next]
    return flow


def _step_from_dict(document: dict[str, Any]) -> Step:
    lane = document["lane"]
    return Step(
        **{
            **document,
            "retry": RetryPolicy.from_shorthand(document["retry"]),
            "lane": None if lane is None else Lane(lane),
            "barrier": Barrier.from_shorthand(document.get("barrier"), document["name"]),
            "errors": tuple(ErrorRule.from_dict(rule) for rule in document["errors"]),
            "needs": tuple(document.get("needs", ())),
            "next": None
            if (edges := document.get("next")) is None
            else tuple(Edge(**{**edge, "when": _when_from_json(edge.get("when"))}) for edge in edges),
            "for_each": None if (each := document.get("for_each")) is None else ForEach(**each),
        }
    )


def _when_from_json(when: str | dict[str, list[str]] | None) -> str | Combined | None:
    if isinstance(when, dict):
        return Combined(none=tuple(when["none"]), all=tuple(when["all"]))
    return when
