"""From the models of the language to the one definition that the engine runs.

    steps ──▶ edges ──▶ graph: is all of it reached, does it end ──▶ templates in their scopes ──▶ Definition

Whatever can be checked is, also where a part is wrong: an edge to a name that is nearly a step's is followed
as if it were written right, so that one slip of the pen is one fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.core.errors import HoldfastError
from holdfast.core.model import Lane
from holdfast.core.retry import RetryPolicy, parse_duration
from holdfast.playbook.definition import (
    CONTROL,
    STEP_TIMEOUT_SECONDS_DEFAULT,
    Barrier,
    Definition,
    Edge,
    ForEach,
    Step,
)
from holdfast.playbook.document import Path
from holdfast.playbook.edges import WrittenCondition, WrittenEdge, next_of
from holdfast.playbook.faults import listed, suggestion, value_shown
from holdfast.playbook.graph import Graph
from holdfast.playbook.language import (
    INPUT_FIELDS,
    PATH_CHARS,
    ActionFields,
    Defaults,
    ForEachFields,
    Head,
    HttpStep,
    RetryFields,
    is_path,
    is_step_name,
)
from holdfast.playbook.scope import EDGE_SCOPE, POLICY_VARIABLES, STEP_SCOPE, Scope, Templates
from holdfast.playbook.shape import Report, WrittenStep
from holdfast.playbook.step_config import Config, Value, config_of, handler_of
from holdfast.playbook.template import Combined
from holdfast.playbook.variables import INDEX_NAME, ITEM_NAME, RESERVED_NAMES

# Each `else` is kept with all conditions that it is the opposite of.
COMBINED_CHARS_MAX: Final = 1_000_000
START: Final = "start"
END: Final = "end"
_NOT_A_NAME: Final = frozenset(
    {"self", "true", "false", "none", "and", "or", "not", "in", "is", "if", "else"}
)
_STRAIGHT: Final = (
    "In a batch only playbooks whose steps follow each other in one line can be held together: each `next`"
    " names the step behind it, without conditions, `with`, on_error or for_each."
)


@dataclass(slots=True)
class _Node:
    """A step on its way: what was written, and what it leads to."""

    written: WrittenStep
    edges: list[WrittenEdge] = field(default_factory=list)
    ends: list[WrittenEdge] = field(default_factory=list)
    """To `end`, which needs no step of its own: nothing follows there."""
    conditions: list[WrittenCondition] = field(default_factory=list)
    on_error: str | None = None
    handed: set[str] = field(default_factory=set)
    """Keys of the input that edges to it hand on."""

    @property
    def name(self) -> str:
        return self.written.name

    @property
    def path(self) -> Path:
        return self.written.path

    @property
    def is_control(self) -> bool:
        return self.written.kind == CONTROL


def compile_playbook(report: Report, head: Head | None, steps: Sequence[WrittenStep]) -> Definition | None:
    """Adds what is wrong to the report; a definition where nothing is."""
    compiler = _Compiler(report, head, steps)
    return compiler.definition()


class _Compiler:
    def __init__(self, report: Report, head: Head | None, steps: Sequence[WrittenStep]) -> None:
        self._report = report
        self._head = head
        self._defaults = (head.defaults if head else None) or Defaults()
        workload = report.document.value.get("workload")
        self._workload: dict[str, Any] = workload if isinstance(workload, dict) else {}
        self._workload_keys = frozenset(self._workload)
        self._nodes: dict[str, _Node] = {}
        self._misnamed: set[str] = set()
        self._policies_checked: set[Path] = set()
        self._combined_chars = 0
        self._is_whole = True
        """What leads where is known for certain."""
        for step in steps:
            self._add(step)
        self._names = tuple(self._nodes)
        self._positions = {name: place for place, name in enumerate(self._names)}

    def definition(self) -> Definition | None:
        self._check_workload()
        path = self._playbook_path()
        if not self._nodes:
            return None
        for node in self._nodes.values():
            self._read_edges(node)
        entry = START if START in self._nodes else next(iter(self._nodes))
        graph = self._graph(entry)
        self._check_graph(graph)
        is_straight = self._is_straight(entry)
        templates = Templates(self._report, graph)
        steps = [self._step(node, templates, is_straight) for node in self._nodes.values()]
        if is_straight:  # its control steps decide nothing, and a batch counts jobs
            steps = [step for step in steps if step is not None and not step.is_control]
        if self._report.faults.found or self._head is None:
            return None
        try:
            return Definition(
                path=path,
                steps=tuple(step for step in steps if step is not None),
                errors=tuple(rule.rule() for rule in self._head.errors or ()),
                workload=self._workload,
                entry="" if entry == next(iter(self._nodes)) else entry,
                about=(self._head.metadata and self._head.metadata.about) or "",
            )
        except HoldfastError as error:  # a rule of the model that is not told better above
            self._report.add((), str(error), error.guidance)
            return None

    # the playbook as a whole

    def _add(self, step: WrittenStep) -> None:
        if not is_step_name(step.name):  # told already
            self._is_whole = False
            self._misnamed.add(step.name)
            return
        if (first := self._nodes.get(step.name)) is not None:
            line = self._report.document.line((*first.path, "step"))
            message = f"There is a step {step.name!r} already, in line {line}."
            self._report.add(
                (*step.path, "step"), message, "A step's name is its identity: make each one unique."
            )
            return
        if step.name in RESERVED_NAMES and step.kind not in (CONTROL, None):
            message = f"{step.name!r} cannot be the name of a step: templates read something else by it."
            self._report.add((*step.path, "step"), message, f"any but {listed(sorted(RESERVED_NAMES))}.")
        self._nodes[step.name] = _Node(step)

    def _playbook_path(self) -> str:
        head = self._head
        if head is None:
            return ""
        metadata = head.metadata
        path = (metadata.path if metadata else None) or head.path
        name = (metadata.name if metadata else None) or head.name
        if path is None and name is None:
            self._report.add(("metadata",), "The playbook has no name.", "metadata: {name: …, path: …}.")
        elif path is None and not is_path(name or ""):
            place = ("metadata", "name") if metadata and metadata.name else ("name",)
            message = f"The name {value_shown(name)} cannot be its path in the catalog."
            allowed = f"{PATH_CHARS} for a path; give one beside such a name."
            self._report.add(place, message, allowed)
        return path or name or ""

    def _check_workload(self) -> None:
        stack: list[tuple[Any, Path]] = [(self._workload, ("workload",))]
        while stack:
            part, path = stack.pop()
            if isinstance(part, dict):
                stack += [(value, (*path, key)) for key, value in part.items()]
            elif isinstance(part, list):
                stack += [(value, (*path, index)) for index, value in enumerate(part)]
            elif isinstance(part, str) and "{{" in part and "}}" in part:
                message = "The workload is data: a template in it is never evaluated."
                self._report.add(
                    path, message, "Write the value; a start may give another (--set name=value)."
                )

    # what leads where

    def _read_edges(self, node: _Node) -> None:
        written = next_of(self._report, node.written)
        self._is_whole &= written.is_whole
        node.conditions = written.conditions
        for edge in written.edges:
            if isinstance(edge.when, Combined) and not self._afford(edge.when, node):
                break
            if edge.step == END and END not in self._nodes:
                node.ends.append(edge)
                continue
            target = self._target(edge.step, edge.path)
            if target is not None:
                node.edges.append(edge.to(target))
                self._nodes[target].handed |= edge.with_.keys()
        on_error = node.written.raw.get("on_error")
        if not node.is_control and isinstance(on_error, str):
            node.on_error = self._target(on_error, (*node.path, "on_error"))
            if node.on_error is not None:
                self._nodes[node.on_error].handed.add("error")

    def _afford(self, when: Combined, node: _Node) -> bool:
        before = self._combined_chars
        if before <= COMBINED_CHARS_MAX:
            self._combined_chars += when.chars
        if self._combined_chars <= COMBINED_CHARS_MAX:
            return True
        self._is_whole = False
        if before <= COMBINED_CHARS_MAX:
            message = f"The conditions unfold to more than {COMBINED_CHARS_MAX:,} characters."
            allowed = "An `else` counts as all conditions beside it: use fewer, or compute one in a step."
            self._report.add((*node.path, "next"), message, allowed)
        return False

    def _target(self, name: str, path: Path) -> str | None:
        if name in self._nodes:
            return name
        if name in self._misnamed:
            return None
        near = self._report.faults.nearest(name, self._nodes)
        message = f"There is no step {value_shown(name)}.{suggestion(near)}"
        self._report.add(path, message, f"{listed(self._nodes)}.")
        self._is_whole &= near is not None
        return near

    def _graph(self, entry: str) -> Graph:
        """Of what could be read: a definition in which only names and edges count."""
        retry = RetryPolicy.once()
        return Graph(
            Definition(
                path="graph",
                entry=entry,
                steps=tuple(
                    Step(
                        name=node.name,
                        handler=CONTROL,
                        retry=retry,
                        type=CONTROL if node.is_control else "",
                        next=tuple(Edge(step=edge.step) for edge in node.edges),
                        on_error=node.on_error,
                        # A step that is wrong may well have a bound; it is looked at again once it is right.
                        max_visits=node.written.model.max_visits if node.written.model else 1,
                    )
                    for node in self._nodes.values()
                ),
            )
        )

    def _check_graph(self, graph: Graph) -> None:
        if self._is_whole and graph.unreachable:
            led_to = {link.target for name in graph.unreachable for link in graph.out[name]}
            first = [name for name in graph.unreachable if name not in led_to]
            for name in first or graph.unreachable[:1]:  # not those that only follow from them
                self._tell_unreachable(name)
        if cycle := graph.unguarded_cycle():
            message = f"The steps lead round without a bound: {_way_round(cycle)}."
            allowed = f"Give one of them `max_visits`, how often it may run: for example step {cycle[0]}."
            self._report.add((*self._nodes[cycle[0]].path, "next"), message, allowed)
        elif cycle := graph.idle_cycle():
            message = f"The steps lead round and do nothing on the way: {_way_round(cycle)}."
            allowed = "Put a step with a type into it, such as a sleep, or let it lead on."
            self._report.add((*self._nodes[cycle[0]].path, "next"), message, allowed)

    def _tell_unreachable(self, name: str) -> None:
        place = self._positions[name]
        before = self._names[place - 1] if place else None
        message, allowed = "Nothing leads to this step.", "Name it in `next` of another, or remove it."
        if before is not None and self._nodes[before].written.raw.get("next") is None and before != END:
            message += f" Step {before} before it has no `next`, and so ends its branch."
            allowed = f"Write `next: {name}` in step {before}, or remove this one."
        self._report.add(self._nodes[name].path, message, allowed)

    def _is_straight(self, entry: str) -> bool:
        """Whether each step is followed by the one behind it in the file, and nothing else ever happens. With
        control steps among them that is of use to gates alone."""
        nodes = list(self._nodes.values())
        if any(node.is_control for node in nodes) and not any(self._has_gate(node) for node in nodes):
            return False
        if entry != nodes[0].name or not self._is_whole:
            return False
        for node, following in zip(nodes, [*nodes[1:], None], strict=True):
            plain = [edge for edge in node.edges if edge.when is None and not edge.with_]
            expected = [] if following is None else [following.name]
            if (
                len(plain) != len(node.edges)
                or [edge.step for edge in node.edges] != expected
                or any(
                    node.written.raw.get(name) is not None for name in ("on_error", "for_each", "max_visits")
                )
            ):
                return False
        return True

    def _has_gate(self, node: _Node) -> bool:
        retry = node.written.raw.get("retry")
        if retry is None:
            retry = self._report.document.value.get("defaults")
            retry = retry.get("retry") if isinstance(retry, dict) else None
        has_wave = isinstance(retry, dict) and retry.get("wave") is True
        return not node.is_control and (node.written.raw.get("barrier") is not None or has_wave)

    # each step

    def _step(self, node: _Node, templates: Templates, is_straight: bool) -> Step | None:
        base = Scope(node.name, STEP_SCOPE, workload=self._workload_keys, inputs=frozenset(node.handed))
        edge_variables = STEP_SCOPE if node.is_control else EDGE_SCOPE
        self._check_edges(node, templates, replace(base, variables=edge_variables, own=not node.is_control))
        model = node.written.model
        if model is None:
            return None
        next_ = None if is_straight else tuple(_edge(edge) for edge in node.edges)
        if not isinstance(model, ActionFields):
            return _built(
                self._report,
                node,
                name=node.name,
                handler=handler_of(CONTROL, model),
                retry=RetryPolicy.once(),
                type=CONTROL,
                next=next_,
                max_visits=model.max_visits,
            )
        for_each = self._for_each(node, model)
        element = frozenset({for_each.as_, INDEX_NAME}) if for_each else frozenset[str]()
        needs: set[str] = set()
        if for_each is not None:
            place = _for_each_place(node, model)
            needs |= templates.value(for_each.items, place, base)
        may_hide = node.written.kind != "playbook"
        inputs = self._inputs(node, model)
        own = replace(base, element=element, secrets=may_hide)
        for key, value in inputs.value.items():
            needs |= templates.value(value, (*inputs.path, key), own)
        config = config_of(self._report, node.written)
        needs |= _config_needs(config, templates, replace(own, inputs=own.inputs | inputs.value.keys()))
        retry = self._retry(node, model, templates)
        self._check_gates(node, model, retry, is_straight)
        return _built(
            self._report,
            node,
            name=node.name,
            handler=handler_of(str(node.written.kind), model),
            retry=retry,
            type=str(node.written.kind),
            config={name: config[name].value for name in sorted(config)},
            inputs=inputs.value,
            needs=tuple(sorted(needs, key=self._positions.__getitem__)),
            next=next_,
            on_error=node.on_error,
            for_each=for_each,
            max_visits=model.max_visits,
            errors=tuple(rule.rule() for rule in model.errors or ()),
            **self._queueing(model),
        )

    def _queueing(self, model: ActionFields) -> dict[str, Any]:
        """Whatever is the step's own, else the playbook's default."""
        written: dict[str, Any] = {
            name: getattr(self._defaults, name) if (own := getattr(model, name)) is None else own
            for name in ("timeout", "lane", "operation", "priority", "limit", "max_crashes")
        }
        timeout = written.pop("timeout")
        given = {name: value for name, value in written.items() if value is not None}
        if "lane" in given:
            given["lane"] = Lane(given["lane"])
        if model.barrier is not None:
            delay = parse_duration(model.barrier.delay)
            given["barrier"] = Barrier(after=model.barrier.after, delay_seconds=delay)
        return {"timeout_seconds": STEP_TIMEOUT_SECONDS_DEFAULT if timeout is None else timeout, **given}

    def _retry(self, node: _Node, model: ActionFields, templates: Templates) -> RetryPolicy:
        path: Path = (*node.path, "retry")
        written = model.retry
        if written is None:
            path, written = ("defaults", "retry"), self._defaults.retry
        policy = written.policy() if isinstance(written, RetryFields) else RetryPolicy.from_shorthand(written)
        if path not in self._policies_checked:  # the defaults are many steps' own
            self._policies_checked.add(path)
            for name in ("retry_when", "stop_when"):
                if (source := getattr(policy, name)) is not None:
                    templates.condition(
                        source, (*path, name), Scope(node.name, POLICY_VARIABLES, steps=False)
                    )
        return policy

    def _check_gates(self, node: _Node, model: ActionFields, retry: RetryPolicy, is_straight: bool) -> None:
        if not is_straight and self._is_whole:
            for is_used, place in ((model.barrier is not None, "barrier"), (retry.wave, "retry")):
                if is_used:
                    what = "`wave`" if place == "retry" else "A barrier"
                    message = f"{what} cannot be used in a playbook that branches."
                    self._report.add((*node.path, place), message, _STRAIGHT)
        if model.barrier is not None:
            names = self._names[: self._positions[node.name]]
            before = [name for name in names if not self._nodes[name].is_control]
            if model.barrier.after not in before:
                near = self._report.faults.did_you_mean(model.barrier.after, before)
                message = f"{value_shown(model.barrier.after)} is no step before this one.{near}"
                allowed = f"{listed(before)}." if before else "The first step cannot have a barrier."
                self._report.add((*node.path, "barrier", "after"), message, allowed)

    def _check_edges(self, node: _Node, templates: Templates, scope: Scope) -> None:
        for condition in node.conditions:
            templates.condition(condition.source, condition.path, scope)
        for edge in (*node.edges, *node.ends):
            for key, value in edge.with_.items():
                templates.value(value, (*edge.with_path, key), scope)

    def _inputs(self, node: _Node, model: ActionFields) -> Value:
        fields = [name for name in INPUT_FIELDS if node.written.raw.get(name) is not None]
        if isinstance(model, HttpStep):  # its own words for what it sends
            fields = [name for name in fields if name not in ("data", "payload")]
        for extra in fields[1:]:
            message = f"`{fields[0]}` and `{extra}` are written together, and are the same."
            self._report.add((*node.path, extra), message, "Keep one of them.")
        if not fields:
            return Value({}, node.path)
        return Value(node.written.raw[fields[0]], (*node.path, fields[0]))

    def _for_each(self, node: _Node, model: ActionFields) -> ForEach | None:
        written = model.for_each
        if written is None:
            return None
        if not isinstance(written, ForEachFields):
            written = ForEachFields(items=written)
        items = written.items if written.items is not None else written.in_
        name = written.as_
        if name in RESERVED_NAMES or name in _NOT_A_NAME or (name in self._nodes and name != ITEM_NAME):
            what = "a step's" if name in self._nodes else "used for something else"
            message = f"The name {name!r} is {what}."
            self._report.add((*node.path, "for_each", "as"), message, "any other name, such as item.")
        if isinstance(items, str):
            items = items if "{{" in items else f"{{{{ {items} }}}}"
        return ForEach(
            items=items or [], as_=name, concurrency=written.concurrency, fail_fast=written.fail_fast
        )


def _for_each_place(node: _Node, model: ActionFields) -> Path:
    path: Path = (*node.path, "for_each")
    if isinstance(model.for_each, ForEachFields):
        return (*path, "items" if model.for_each.items is not None else "in")
    return path


def _config_needs(config: Config, templates: Templates, scope: Scope) -> set[str]:
    needs: set[str] = set()
    for name, value in config.items():
        if name not in ("code", "call"):  # Python has braces of its own: code is no template
            needs |= templates.value(value.value, value.path, scope)
    return needs


def _edge(edge: WrittenEdge) -> Edge:
    return Edge(step=edge.step, when=edge.when, with_=dict(edge.with_))


def _built(report: Report, node: _Node, **fields: Any) -> Step | None:
    try:
        return Step(**fields)
    except HoldfastError as error:
        # Told better before, where it can be: this keeps a rule of the model from being missed.
        if not any(fault.field.startswith(report.field(node.path)) for fault in report.faults.found):
            report.add(node.path, str(error), error.guidance)
        return None


def _way_round(cycle: list[str]) -> str:
    return " → ".join(cycle if len(cycle) <= 12 else [*cycle[:6], "…", *cycle[-5:]])
