"""A definition in words for people: its steps as a tree, and what each of them does when it fails.

    fetch  http GET {{ workload.base_url }}/flaky
        ● ─1s─ ● ─2s─ ●  3 attempts: 3s of waiting, at most 33s with their running
     ├─ when {{ fetch.data.ok }}
     │  store  python my_handlers:store
     └─ always ▶ end
    end  joins fetch, store

A step is drawn once. Branches are drawn until they meet again; what handles errors, and what lies too deep,
is drawn by itself behind the rest. The text is the same for the same definition, so that two can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.core.masking import mask_secrets
from holdfast.core.retry import JITTER_HIGH, JITTER_LOW, RetryPolicy
from holdfast.playbook.definition import STEP_TIMEOUT_SECONDS_DEFAULT, Definition, Edge, Step
from holdfast.playbook.graph import Graph, Link

DEPTH_MAX = 6
SHOWN_ATTEMPTS_MAX = 6
TEXT_CHARS_MAX = 100
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


class Row(NamedTuple):
    """A line of the tree: `prefix` draws the branches it stands in. `step` is the step that it stands for."""

    prefix: str
    text: str
    step: str | None = None


def outline(definition: Definition, workload: Mapping[str, Any] | None = None) -> str:
    """The whole definition as text: what it is given (this workload, or its own), its steps, and how each may
    fail. Passwords in URLs are masked."""
    lines = []
    given = definition.workload if workload is None else workload
    if given:
        lines += ["workload", *(f"    {name}: {_short(value)}" for name, value in given.items()), ""]
    for row in tree(definition):
        lines.append(f"{row.prefix}{row.text}")
        if row.step is not None:
            inside = f"{row.prefix}    "
            lines += [inside + detail for detail in details(definition.step(row.step))]
    if definition.errors:
        lines += ["", f"{_counted(len(definition.errors), 'error rule')} of its own for all steps"]
    return mask_secrets("\n".join(line.rstrip() for line in lines) + "\n")


# the tree


def tree(definition: Definition, *, with_summaries: bool = True) -> list[Row]:
    """The steps in the order in which they can come, with what leads from one to the next."""
    return _Tree(definition, Graph(definition), with_summaries).rows


class _Tree:
    def __init__(self, definition: Definition, graph: Graph, with_summaries: bool) -> None:
        self.rows: list[Row] = []
        self._definition = definition
        self._graph = graph
        self._with_summaries = with_summaries
        self._meets = _meets(graph)
        self._drawn: set[str] = set()
        self._later: list[str] = []
        self._sources: dict[str, list[str]] = {name: [] for name in graph.out}
        for name in graph.order:
            for link in graph.out[name]:
                if not graph.is_back(link) and name not in self._sources[link.target]:
                    self._sources[link.target].append(name)
        self._draw(graph.entry, "", None, 0)
        # What handles errors and what was too deep; and what nothing leads to, where it was not checked.
        for name in self._later:
            self._draw_apart(name)
        for name in graph.out:
            self._draw_apart(name)

    def _draw_apart(self, name: str) -> None:
        if name not in self._drawn:
            self.rows.append(Row("", ""))
            self._draw(name, "", None, 0)

    def _draw(self, name: str | None, prefix: str, until: str | None, depth: int) -> None:
        """This step and what follows it, up to the one where its branches meet the others."""
        while name is not None and name != until:
            if name in self._drawn:
                self.rows.append(Row(prefix, f"▶ {name}"))
                return
            self._draw_step(name, prefix)
            ways = [link for link in self._graph.out[name] if not self._graph.is_back(link)]
            for link in (link for link in ways if link.is_error):
                self._later.append(link.target)
            ways = [link for link in ways if not link.is_error]
            if not ways:
                return
            meet = self._meets[name]
            inner = [link for link in ways if link.target != meet]
            if len(ways) == 1 and not self._label(ways[0]):
                name = ways[0].target
            elif len(inner) <= 1:
                # One way goes on, the others leave: a line with exits, instead of ever deeper branches.
                for link in ways:
                    going = (
                        " ▼" if link in inner or (link.target == meet and not inner) else f" ▶ {link.target}"
                    )
                    self.rows.append(Row(prefix, f" ├─ {self._label(link) or 'always'}{going}"))
                name = inner[0].target if inner else meet
            else:
                self._draw_branches(ways, prefix, meet, depth)
                name = meet

    def _draw_branches(self, ways: list[Link], prefix: str, meet: str | None, depth: int) -> None:
        for place, link in enumerate(ways):
            is_last = place == len(ways) - 1
            label = f"{' └─' if is_last else ' ├─'} {self._label(link) or 'always'}"
            inside = prefix + ("    " if is_last else " │  ")
            if link.target == meet or link.target in self._drawn or depth >= DEPTH_MAX:
                self.rows.append(Row(prefix, f"{label} ▶ {link.target}"))
                self._later.append(link.target)
            else:
                self.rows.append(Row(prefix, label))
                self._draw(link.target, inside, meet, depth + 1)

    def _draw_step(self, name: str, prefix: str) -> None:
        self._drawn.add(name)
        told = [summary(self._definition.step(name))] if self._with_summaries else []
        handled = [
            source
            for source in self._sources[name]
            if any(link.is_error and link.target == name for link in self._graph.out[source])
        ]
        led = [source for source in self._sources[name] if source not in handled]
        if handled:
            told.append(f"when {_listed(handled)} {'fails' if len(handled) == 1 else 'fail'}")
        if len(led) > 1 or (led and handled):
            told.append(f"joins {_listed(led)}")
        text = f"{name}  {', '.join(filter(None, told))}".rstrip()
        self.rows.append(Row(prefix, text, name))
        for link in self._graph.out[name]:
            if self._graph.is_back(link):
                bound = self._definition.step(link.target).max_visits
                visits = f", {_counted(bound, 'visit')} at most" if bound else ""
                self.rows.append(Row(prefix, f" ├─ {self._label(link) or 'always'} ↺ {link.target}{visits}"))

    def _label(self, link: Link) -> str:
        edges = self._definition.step(link.source).next
        if link.is_error:
            return "on error"
        return "" if edges is None else _edge_label(edges[link.place])


def _edge_label(edge: Edge) -> str:
    told = [] if edge.when is None else [f"when {_short_text(str(edge.when))}"]
    if edge.with_:
        told.append(f"with {', '.join(edge.with_)}")
    return ", ".join(told)


def _meets(graph: Graph) -> dict[str, str | None]:
    """For each step the first one that all ways from it lead through; None where that is the end. Ways for
    errors do not count: they leave."""
    meets: dict[str, str | None] = {}
    depth: dict[str | None, int] = {None: 0}
    for name in reversed(graph.order):
        targets = [link.target for link in graph.out[name] if not link.is_error and not graph.is_back(link)]
        meet: str | None = targets[0] if targets else None
        for target in targets[1:]:
            other: str | None = target
            while meet != other:
                if depth[meet] >= depth[other]:
                    meet = meets[meet] if meet is not None else None
                else:
                    other = meets[other] if other is not None else None
        meets[name] = meet
        depth[name] = depth[meet] + 1
    return meets


# a step


def summary(step: Step) -> str:
    """What it does, in a line."""
    return "" if step.is_control else f"{step.type} {_short_text(_told_config(step))}".strip()


def _told_config(step: Step) -> str:
    config = step.config
    match step.type:
        case "http":
            return f"{config.get('method', 'GET')} {config.get('url', '')}"
        case "python":
            return str(config.get("call") or "inline code")
        case "sql":
            return str(config.get("query", ""))
        case "shell":
            return _command(config)
        case "sleep":
            return str(config.get("seconds", ""))
        case "playbook":
            version = f", version {config['version']}" if config.get("version") else ""
            return f"{config.get('path', '')}{version}"
    return json.dumps(dict(config), ensure_ascii=False) if config else ""


def _command(config: Mapping[str, Any]) -> str:
    command = config.get("command", "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


def details(step: Step) -> list[str]:
    """How it runs and how it may fail; what it leaves at its default is not told."""
    if step.is_control:
        return []
    told = []
    if step.for_each is not None:
        each = step.for_each
        items = each.items if isinstance(each.items, str) else _counted(len(each.items), "item")
        at_once = f", {each.concurrency} at a time" if each.concurrency else ""
        fast = "; the first that dies ends it" if each.fail_fast else ""
        told.append(f"for each {each.as_} of {_short_text(items)}{at_once}{fast}")
    told += retry_lines(step.retry, step.timeout_seconds)
    if step.timeout_seconds != STEP_TIMEOUT_SECONDS_DEFAULT:
        told.append(f"timeout {duration(step.timeout_seconds)} for each attempt")
    if step.on_error is not None:
        told.append(f"when it fails for good ▶ {step.on_error}")
    if step.barrier is not None:
        delay = f", then {duration(step.barrier.delay_seconds)}" if step.barrier.delay_seconds else ""
        told.append(f"waits until the whole batch has got past {step.barrier.after}{delay}")
    queue = {"lane": step.lane, "operation": step.operation, "limit": step.limit}
    words = [f"{name} {value}" for name, value in queue.items() if value]
    words += [] if step.priority is None else [f"priority {step.priority}"]
    told += [", ".join(words)] if words else []
    if step.errors:
        told.append(f"{_counted(len(step.errors), 'error rule')} of its own")
    return told


def retry_lines(policy: RetryPolicy, timeout_seconds: float) -> list[str]:
    return list(_retry_lines(policy, timeout_seconds))


def _retry_lines(policy: RetryPolicy, timeout_seconds: float) -> Iterator[str]:
    attempts = policy.max_attempts
    if attempts == 1:
        yield "●  one attempt"
    else:
        low, high = total_delay(policy)
        yield (
            f"{timeline(policy)}  {attempts} attempts: {_between(low, high)} of waiting,"
            f" at most {duration(high + attempts * timeout_seconds)} with their running"
        )
    if policy.retry_when is not None:
        yield f"tried again only when {_short_text(policy.retry_when)}"
    if policy.stop_when is not None:
        yield f"given up when {_short_text(policy.stop_when)}"
    if policy.unknown_attempts < attempts:
        yield f"given up after {_counted(policy.unknown_attempts, 'error')} of unknown kind"
    if policy.wave:
        yield "in a batch those that failed are tried again together"


def timeline(policy: RetryPolicy) -> str:
    """The attempts as dots with the delays between them: `● ─1s─ ● ─2s─ ●`."""
    retries = range(1, policy.max_attempts)
    waits = [f"─{_between(*_delay(policy, attempt))}─" for attempt in retries[:SHOWN_ATTEMPTS_MAX]]
    if len(retries) > SHOWN_ATTEMPTS_MAX:
        waits[-2:] = ["─ … ─", f"─{_between(*_delay(policy, retries[-1]))}─"]
    return " ".join(["●", *(f"{wait} ●" for wait in waits)])


def total_delay(policy: RetryPolicy) -> tuple[float, float]:
    """The least and the most that is waited between all attempts, unless a service asks for more."""
    delays = [_delay(policy, attempt) for attempt in range(1, policy.max_attempts)]
    return sum(low for low, _ in delays), sum(high for _, high in delays)


def _delay(policy: RetryPolicy, attempt: int) -> tuple[float, float]:
    return policy.delay_after(attempt, JITTER_LOW), policy.delay_after(attempt, JITTER_HIGH)


def _between(low: float, high: float) -> str:
    return duration(high) if low == high else f"{duration(low)} to {duration(high)}"


def duration(seconds: float) -> str:
    """As people write it in a playbook: `0.5s`, `90s`, `15m`, `2h`; longer ones in two units: `3h 5m`."""
    for unit, length in _UNITS:
        if seconds < 2 * length and seconds != length:
            continue
        whole, rest = divmod(seconds, length)
        told = f"{whole:.0f}{unit}"
        # The smaller of two units is rounded down: nobody plans for seconds among days.
        for smaller, size in (*_UNITS, ("s", 1)):
            if size < length and rest >= size:
                return f"{told} {rest // size:.0f}{smaller}"
        return told
    return f"{round(seconds, 2):g}s"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _counted(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _short(value: object) -> str:
    return _short_text(json.dumps(value, ensure_ascii=False))


def _short_text(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_CHARS_MAX else f"{line[: TEXT_CHARS_MAX - 1]}…"
