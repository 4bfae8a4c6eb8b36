"""Which steps come before which, asked for all pairs at once, and for one by its graph: the same answer."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.retry import RetryPolicy
from holdfast.playbook.definition import Definition, Edge, Step
from holdfast.playbook.graph import Graph
from holdfast.playbook.scope import Precedence


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20), st.sets(st.integers(0, 7)))
def test_precedence_is_what_the_graph_says_step_by_step(
    pairs: list[tuple[int, int]], dying: set[int]
) -> None:
    names = [f"s{number}" for number in range(8)]
    graph = Graph(
        Definition(
            path="random",
            steps=tuple(
                Step(
                    name=name,
                    handler="control",
                    retry=RetryPolicy.once(),
                    next=tuple(Edge(step=names[end]) for start, end in pairs if start == number),
                    on_error=names[(number * 3 + 1) % 8] if number in dying else None,
                )
                for number, name in enumerate(names)
            ),
        )
    )
    precedence = Precedence(graph)
    for name in graph.order:
        assert set(precedence.before(name)) == graph.before(name)
        assert {other for other in names if precedence.is_before(other, name)} == graph.before(name)
    for name in graph.unreachable:
        assert precedence.before(name) == []
