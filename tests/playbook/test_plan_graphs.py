"""The planner on random graphs: thousands of playbooks, each walked in a random order of ends.

What is expected is told by an oracle that knows nothing of joins and counters: a brute-force computation,
from which steps have ended and what each of them decided, of which steps must be under way right now.
"""

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import pytest

from engine_scenario import stage
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition, Edge, Step
from holdfast.playbook.graph import Graph, Link
from holdfast.playbook.plan import Ended, Inputs, Pass, Skip, Start, State, TooManyVisits

SEEDS = 400
STATE_CHARS_PER_STEP = 400


class Script(NamedTuple):
    """What every step of an acyclic graph does, decided beforehand: how it ends, and which edges it fires."""

    ends: dict[str, Ended]
    decisions: dict[str, tuple[Inputs | None, ...]]

    def fires(self, link: Link) -> bool:
        if link.is_error:
            return self.ends[link.source] is Ended.DIED
        return self.ends[link.source] is Ended.COMPLETED and self._decided(link) is not None

    def _decided(self, link: Link) -> Inputs | None:
        return self.decisions[link.source][link.place]


def step(name: str, *targets: str, **fields: object) -> Step:
    """A step whose edges lead to these steps."""
    return stage(name, next=tuple(Edge(step=target) for target in targets), **fields)


def graph_of(steps: Iterable[Step]) -> Graph:
    """Of the steps that can be reached."""
    steps = tuple(steps)
    unreachable = Graph(Definition(path="p", steps=steps)).unreachable
    return Graph(Definition(path="p", steps=tuple(step for step in steps if step.name not in unreachable)))


def random_graph(r: random.Random, *, cyclic: bool = False) -> Graph:
    names = [f"s{number}" for number in range(r.randint(1, 14))]
    steps = []
    for place, name in enumerate(names):
        pool = names if cyclic and r.random() < 0.3 else names[place + 1 :]
        targets = [r.choice(pool) for _ in range(r.randint(0, 3))] if pool else []
        if place + 1 < len(names) and r.random() < 0.7:
            targets.append(names[place + 1])
        steps.append(
            step(
                name,
                *targets,
                on_error=r.choice(pool) if pool and r.random() < 0.2 else None,
                type="control" if r.random() < 0.2 else "",
                max_visits=r.randint(1, 4) if cyclic else None,
            )
        )
    return graph_of(steps)


def random_script(r: random.Random, graph: Graph) -> Script:
    chance = r.random()
    ends, decisions = {}, {}
    for name, links in graph.out.items():
        has_handler = any(link.is_error for link in links) and name not in graph.control
        ends[name] = Ended.DIED if has_handler and r.random() < 0.4 else Ended.COMPLETED
        decisions[name] = tuple(
            {f"{name}/{link.place}": 1} if r.random() < chance else None
            for link in links
            if not link.is_error
        )
    return Script(ends, decisions)


def started_by(graph: Graph, script: Script) -> set[str]:
    """Which steps start sooner or later: from the entry along all edges that fire."""
    started = {graph.entry}
    while True:
        further = {
            link.target
            for name in started
            for link in graph.out[name]
            if script.fires(link) and link.target not in started
        }
        if not further:
            return started
        started |= further


def sources_of(graph: Graph) -> dict[str, set[str]]:
    sources: dict[str, set[str]] = {name: set() for name in graph.out}
    for name, links in graph.out.items():
        for link in links:
            sources[link.target].add(name)
    return sources


def expected_under_way(graph: Graph, script: Script, ended: set[str]) -> tuple[set[str], set[str]]:
    """The jobs that must be under way once exactly these have ended, and the steps that are past."""
    started, sources = started_by(graph, script), sources_of(graph)
    past: set[str] = set()
    while True:
        further = {
            name
            for name in graph.out
            if name not in past
            and sources[name] <= past
            and (name in ended or name not in started or name in graph.control)
        }
        if not further:
            break
        past |= further
    live = {
        name for name in started if name not in graph.control and name not in past and sources[name] <= past
    }
    return live, past


def again(state: State) -> State:
    """As the store gives it back."""
    copy = State.from_json(state.to_json())
    assert copy == state
    return copy


@pytest.mark.parametrize("part", range(4))
def test_what_is_under_way_is_what_the_decisions_so_far_demand(part: int) -> None:
    for seed in range(part, SEEDS * 4, 4):
        r = random.Random(seed)
        graph = random_graph(r)
        script = random_script(r, graph)

        def decide(name: str, _: Inputs, script: Script = script) -> tuple[Inputs | None, ...]:
            return script.decisions[name]

        ended: set[str] = set()
        seen: list[str] = []
        state, moves = plan.begin(graph, decide)
        while True:
            seen += [move.step for move in moves]
            live, past = expected_under_way(graph, script, ended)
            assert set(state.live) == live, seed
            assert all(visit == 1 for visit in state.live.values())
            # What has begun or is past was told of, each once, whatever it is.
            assert sorted(seen) == sorted(past | live), seed
            # What is kept is what is open: steps some of whose edges are resolved and others not.
            assert set(state.joins) <= {name for name in graph.out if name not in past | live}
            assert len(state.to_json()) < STATE_CHARS_PER_STEP * (1 + len(state.live) + len(state.joins))
            if not state.live:
                break
            step_ = r.choice(sorted(state.live))
            ended.add(step_)
            state = again(state)
            moves = plan.ended(graph, state, step_, script.ends[step_], decide, {"error": step_})
        assert state == State(handled=state.handled), seed
        assert set(seen) == set(graph.out)


def test_a_join_is_handed_what_the_branches_that_led_to_it_handed_on() -> None:
    for seed in range(SEEDS):
        r = random.Random(seed)
        graph = random_graph(r)
        script = random_script(r, graph)
        state, moves = plan.begin(graph, lambda name, _, script=script: script.decisions[name])
        open_ = list(moves)
        while open_:
            move = open_.pop(r.randrange(len(open_)))
            if not isinstance(move, Start):
                continue
            expected: Inputs = {}
            for name in graph.order:
                for link in graph.out[name]:
                    if link.target == move.step and name in started_by(graph, script) and script.fires(link):
                        expected |= (
                            {"error": name} if link.is_error else script.decisions[name][link.place] or {}
                        )
            assert move.inputs.keys() == expected.keys(), seed
            open_ += plan.ended(
                graph,
                state,
                move.step,
                script.ends[move.step],
                lambda name, _, script=script: script.decisions[name],
                {"error": move.step},
            )


def test_an_execution_is_resumed_where_it_stood() -> None:
    for seed in range(SEEDS):
        r = random.Random(seed)
        graph = random_graph(r)
        script = random_script(r, graph)

        def decide(name: str, _: Inputs, script: Script = script) -> tuple[Inputs | None, ...]:
            return script.decisions[name]

        state, _ = plan.begin(graph, decide)
        kept: dict[str, int] = {}
        died: dict[str, Inputs] = {}
        for _ in range(r.randint(0, len(graph.out))):
            if not state.live:
                break
            name = r.choice(sorted(state.live))
            if script.ends[name] is Ended.DIED:
                died[name] = {"error": name}
            else:
                kept[name] = 1
            plan.ended(graph, state, name, script.ends[name], decide, {"error": name})
        resumed, moves = plan.resumed(graph, kept, died, {}, decide)
        assert resumed == state, seed
        assert {move.step for move in moves if isinstance(move, Start)} == set(state.live), seed


class CyclicWalk:
    """One walk of a graph with cycles. What a step decides is drawn at each visit anew."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.graph = random_graph(self.r, cyclic=True)
        self._chance = self.r.random()
        self.last: dict[str, tuple[Inputs | None, ...]] = {}
        self.died: dict[str, Inputs] = {}
        self.visits: dict[str, list[int]] = {}
        self.skipped: list[str] = []
        self.state = State()

    def decide(self, name: str, _: Inputs) -> tuple[Inputs | None, ...]:
        self.last[name] = tuple(
            {f"{name}/{link.place}": 1} if self.r.random() < self._chance else None
            for link in self.graph.out[name]
            if not link.is_error
        )
        self.died.pop(name, None)
        return self.last[name]

    def begin(self) -> None:
        self.state, moves = plan.begin(self.graph, self.decide)
        self._seen(moves)

    def end_one(self) -> None:
        name = self.r.choice(sorted(self.state.live))
        how = Ended.COMPLETED
        if any(link.is_error for link in self.graph.out[name]) and self.r.random() < 0.3:
            how = Ended.DIED
            self.died[name] = {"error": name}
            self.last.pop(name, None)
        self.state = again(self.state)
        self._seen(plan.ended(self.graph, self.state, name, how, self.decide, {"error": name}))

    def _seen(self, moves: Iterable[Start | Pass | Skip]) -> None:
        for move in moves:
            if isinstance(move, Start):
                self.visits.setdefault(move.step, []).append(move.visit)
            elif isinstance(move, Skip):
                self.skipped.append(move.step)

    def fired(self, link: Link) -> bool:
        """At the last visit of the step that it leaves."""
        if link.is_error:
            return link.source in self.died
        return link.source in self.last and self.last[link.source][link.place] is not None


def test_cycles_end_and_visit_each_step_as_often_as_they_may() -> None:
    ends = {"completed": 0, "too many visits": 0}
    for seed in range(SEEDS * 2):
        walk = CyclicWalk(seed)
        graph, steps = walk.graph, 0
        assert graph.unguarded_cycle() is None
        try:
            walk.begin()
            while walk.state.live:
                walk.end_one()
                steps += 1
                assert steps <= 4 * len(graph.out), seed
        except TooManyVisits as error:
            ends["too many visits"] += 1
            assert error.max_visits == graph.max_visits[error.step]
            assert error.step in graph.region, seed
            continue
        ends["completed"] += 1
        for name, visits in walk.visits.items():
            assert visits == list(range(1, len(visits) + 1)), seed
            assert len(visits) <= (graph.max_visits[name] or 1)
            assert len(visits) == 1 or name in graph.region
        state = walk.state
        assert not (state.live or state.joins or state.regions or state.each), seed
        assert state.failing is None and not state.stragglers
        for name in graph.out:
            if name in graph.region or name == graph.entry:
                continue
            leading = [link for links in graph.out.values() for link in links if link.target == name]
            taken = any(walk.fired(link) for link in leading)
            has_run = name in walk.visits or (name in graph.control and name in walk.last)
            assert has_run == taken, (seed, name)
            assert walk.skipped.count(name) == (not taken), (seed, name)
    assert min(ends.values()) > SEEDS / 10, "both are to be seen"


def test_an_execution_is_resumed_behind_its_cycles_where_it_stood() -> None:
    compared = 0
    for seed in range(SEEDS * 2):
        walk = CyclicWalk(seed)
        graph = walk.graph
        try:
            walk.begin()
            for _ in range(walk.r.randint(0, 20)):
                if walk.state.live:
                    walk.end_one()
        except TooManyVisits:
            continue
        state = walk.state
        if state.regions or any(name in graph.region for name in state.live):
            continue  # a cycle that is under way is gone through again, from its beginning
        kept = {name: visits[-1] for name, visits in walk.visits.items() if name in walk.last}
        kept |= {name: visit for name, visit in state.visits.items() if name in graph.control}
        resumed, _ = plan.resumed(
            graph, kept, walk.died, state.left, lambda name, _, walk=walk: walk.last[name]
        )
        assert resumed.live == state.live, seed
        assert resumed.joins == state.joins, seed
        assert resumed.left == state.left, seed
        assert not resumed.regions
        compared += bool(state.left)
    assert compared > SEEDS / 10


def test_the_way_out_of_a_cycle_by_a_control_step_is_gone_again_with_what_was_handed_to_it() -> None:
    graph = graph_of(
        [
            step("poll", "check", max_visits=5),
            step("check", "poll", "store", type="control"),
            step("store"),
        ]
    )
    handed: list[tuple[str, Inputs]] = []

    def decide(name: str, inputs: Inputs) -> tuple[Inputs | None, ...]:
        handed.append((name, inputs))
        if name == "poll":
            return ({"state": "ready"},)
        return (None, {"rows": 3}) if inputs.get("state") == "ready" else ({}, None)

    state, moves = plan.resumed(graph, {"poll": 4, "check": 4}, {}, {"poll": ["check/1"]}, decide)
    assert moves == [Start("store", 1, {"rows": 3})]
    assert state.visits == {"poll": 4, "check": 4}
    assert handed == [("poll", {}), ("check", {"state": "ready"})]


def test_an_exit_that_fired_stands_where_its_step_is_skipped_in_the_next_iteration() -> None:
    graph = graph_of(
        [
            step("poll", "alert", "poll", max_visits=9),
            step("alert", "note", max_visits=9),
            step("note", "poll", "tell", max_visits=9),
            step("tell"),
        ]
    )
    decisions: dict[str, tuple[Inputs | None, ...]] = {"poll": ({}, {}), "alert": ({},), "note": (None, {})}

    def decide(name: str, _: Inputs) -> tuple[Inputs | None, ...]:
        return decisions[name]

    state, _ = plan.begin(graph, decide)
    for name in ("poll", "alert", "note"):
        plan.ended(graph, state, name, Ended.COMPLETED, decide)
    assert state.live == {"poll": 2}
    decisions["poll"] = (None, None)
    moves = plan.ended(graph, state, "poll", Ended.COMPLETED, decide)
    assert Start("tell", 1, {}) in moves


# what a graph tells of its steps


def closure(graph: Graph) -> dict[str, set[str]]:
    """Which steps can be reached from each, by squaring the relation until nothing is added."""
    reach = {name: {link.target for link in links} for name, links in graph.out.items()}
    for _ in graph.out:
        reach = {name: found.union(*(reach[other] for other in found)) for name, found in reach.items()}
    return reach


def test_before_and_behind_are_the_closure_of_the_edges() -> None:
    for seed in range(300):
        graph = random_graph(random.Random(seed), cyclic=seed % 2 == 0)
        reach = closure(graph)
        for name in graph.out:
            assert graph.behind(name) == reach[name], seed
            assert graph.before(name) == {other for other in graph.out if name in reach[other]}, seed
            assert (name in graph.region) == (name in reach[name]), seed


def test_a_cycle_is_unguarded_where_none_of_its_steps_bounds_its_visits() -> None:
    found = 0
    for seed in range(SEEDS):
        r = random.Random(seed)
        graph = random_graph(r, cyclic=True)
        graph.max_visits = {name: r.choice([None, None, 3]) for name in graph.out}
        free = {
            name: [link for link in links if graph.max_visits[link.target] is None]
            for name, links in graph.out.items()
            if graph.max_visits[name] is None
        }
        cycle = graph.unguarded_cycle()
        # Take away what leads nowhere until nothing is left, or only cycles and what leads to them.
        while leaf := next(
            (name for name, links in free.items() if not any(link.target in free for link in links)), None
        ):
            del free[leaf]
        assert (cycle is not None) == bool(free), seed
        if cycle is not None:
            found += 1
            assert cycle[0] == cycle[-1] and len(set(cycle)) == len(cycle) - 1
            assert all(graph.max_visits[name] is None for name in cycle)
            for one, other in pairwise(cycle):
                assert other in {link.target for link in graph.out[one]}
    assert found > SEEDS / 20


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ([step("a", "b"), step("b")], ["b"]),
        ([step("a", "b", "c"), step("b"), step("c")], ["b", "c"]),
        ([step("a", "b"), step("b", "end"), step("end", type="control")], ["b"]),
        ([step("a", "a", max_visits=3)], ["a"]),
        ([step("a", on_error="b"), step("b")], ["b"]),
        # a cycle: what leads out of it, itself or by a control step; all of it where nothing does
        ([step("a", "b", "end"), step("b", "a", max_visits=3), step("end", type="control")], ["a"]),
        (
            [
                step("a", "b"),
                step("b", "check", max_visits=3),
                step("check", "a", "end", type="control"),
                step("end", type="control"),
            ],
            ["b"],
        ),
        ([step("a", "b"), step("b", "a", max_visits=3)], ["a", "b"]),
        ([step("a", "b", "c"), step("b", "a", max_visits=3), step("c")], ["c"]),
    ],
)
def test_the_result_is_that_of_the_steps_behind_which_nothing_comes(
    steps: list[Step], last: list[str]
) -> None:
    assert sorted(graph_of(steps).last()) == last


def choosing(name: str, *targets: str, **fields: object) -> Step:
    """A step whose edges are taken where their conditions hold."""
    edges = tuple(Edge(step=target, when="workload.x") for target in targets)
    return stage(name, next=edges, **fields)


@pytest.mark.parametrize(
    ("steps", "ends", "completed", "result"),
    [
        ([step("a", "b"), step("b")], ["b"], ["b"], ["b"]),
        # a condition that did not hold, an error that did not come
        ([step("a", "b"), choosing("b", "c"), step("c")], ["b", "c"], ["b"], ["b"]),
        ([step("a", "b"), choosing("b", "c"), step("c")], ["b", "c"], ["b", "c"], ["c"]),
        ([step("a", on_error="b"), step("b")], ["a", "b"], ["a"], ["a"]),
        ([step("a", on_error="b"), step("b")], ["a", "b"], ["b"], ["b"]),
        # one of two branches ends early
        (
            [step("a", "b", "c"), choosing("b", "d"), step("c"), step("d")],
            ["b", "c", "d"],
            ["b", "c"],
            ["b", "c"],
        ),
        # by way of control steps: surely, and by a choice
        (
            [step("a", "b"), step("b", "go"), step("go", "c", type="control"), step("c")],
            ["c"],
            ["c"],
            ["c"],
        ),
        (
            [step("a", "b"), step("b", "go"), choosing("go", "c", type="control"), step("c")],
            ["b", "c"],
            ["b"],
            ["b"],
        ),
        # a loop that is left by nothing, and one that is
        ([choosing("a", "b", "c"), step("b", "a", max_visits=3), step("c")], ["a", "c"], ["a"], ["a"]),
        ([choosing("a", "b", "c"), step("b", "a", max_visits=3), step("c")], ["a", "c"], ["a", "c"], ["c"]),
    ],
)
def test_the_result_is_that_of_the_last_steps_that_were_taken(
    steps: list[Step], ends: list[str], completed: list[str], result: list[str]
) -> None:
    graph = graph_of(steps)
    assert sorted(graph.ends()) == ends
    assert sorted(graph.result_steps(completed)) == result


def test_the_last_steps_of_a_long_playbook_are_found_in_one_pass() -> None:
    names = [f"s{number}" for number in range(5_000)]
    steps = [choosing(name, after) for name, after in pairwise(names)]
    graph = graph_of([*steps, step(names[-1])])
    asked: list[str] = []
    out = graph.out

    class Counted(dict[str, list[Link]]):
        def __getitem__(self, name: str) -> list[Link]:
            asked.append(name)
            return out[name]

    graph.out = Counted(out)
    assert graph.last() == [names[-1]]
    assert graph.result_steps(names[:4_000]) == [names[3_999]]
    assert len(asked) < 10 * len(names)
