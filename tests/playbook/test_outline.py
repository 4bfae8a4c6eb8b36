"""A definition in words: the tree of its steps, and the timeline of their attempts."""

from typing import Any

import pytest

from holdfast.core.retry import RetryPolicy
from holdfast.playbook.definition import Barrier, Definition, Edge, ForEach, Step
from holdfast.playbook.outline import duration, outline, timeline, total_delay, tree


def step(name: str, *to: str | Edge, **fields: Any) -> Step:
    """A step that leads to these, and to nothing where none is given."""
    edges = tuple(edge if isinstance(edge, Edge) else Edge(step=edge) for edge in to)
    policy = {"retry": RetryPolicy.once(), "handler": f"p/{name}", "type": "control", **fields}
    return Step(name=name, next=edges, **policy)  # type: ignore[arg-type]


def drawn(*steps: Step) -> str:
    rows = tree(Definition(path="p", steps=steps))
    return "\n".join(f"{row.prefix}{row.text}" for row in rows)


def when(target: str, condition: str, **handed: Any) -> Edge:
    return Edge(step=target, when=condition, with_=handed)


def test_a_chain_stays_at_the_left() -> None:
    assert drawn(step("a", "b"), step("b", "c"), step("c")) == "a\nb\nc"


def test_branches_are_drawn_until_they_meet() -> None:
    text = drawn(
        step("a", when("b", "x > 1", rows="{{ a }}"), "c"),
        step("b", "d"),
        step("c", "e"),
        step("e", "d"),
        step("d", "end"),
        step("end"),
    )
    assert text == "a\n ├─ when x > 1, with rows\n │  b\n └─ always\n    c\n    e\nd  joins e, b\nend"


def test_a_way_out_is_a_line_and_not_a_branch() -> None:
    steps = [step(f"s{n}", when("end", "bad"), f"s{n + 1}") for n in range(50)]
    text = drawn(*steps, step("s50", "end"), step("end"))
    assert text.startswith("s0\n ├─ when bad ▶ end\n ├─ always ▼\ns1\n")
    assert "\ns50\nend  joins s0, s1, s2, s3 and 47 more" in text
    assert max(len(line) - len(line.lstrip(" │")) for line in text.splitlines()) <= 1


def test_what_handles_errors_is_drawn_behind_the_rest() -> None:
    text = drawn(step("a", "b", on_error="alarm"), step("b", on_error="alarm"), step("alarm"))
    assert text == "a\nb\n\nalarm  when a, b fail"


def test_a_cycle_tells_where_it_goes_back_and_how_often() -> None:
    text = drawn(step("a", "b", max_visits=5), step("b", when("a", "again"), "end"), step("end"))
    assert text == "a\nb\n ├─ when again ↺ a, 5 visits at most\nend"


def test_branches_that_lie_too_deep_are_drawn_by_themselves() -> None:
    steps = []
    for n in range(40):
        steps += [
            step(f"s{n}", f"s{n + 1}", f"t{n}"),
            step(f"t{n}", "u"),
        ]
    text = drawn(*steps, step("s40", "u"), step("u"))
    assert max(len(line) - len(line.lstrip(" │")) for line in text.splitlines()) < 40
    for n in range(41):
        assert sum(line.lstrip(" │") == f"s{n}" for line in text.splitlines()) == 1


def test_every_step_is_drawn_once_whatever_the_graph() -> None:
    steps = [step(f"s{n}", *(f"s{m}" for m in (n + 1, n + 3, 2 * n + 1) if n < m < 30)) for n in range(30)]
    rows = [row.step for row in tree(Definition(path="p", steps=tuple(steps))) if row.step]
    assert sorted(rows) == sorted(f"s{n}" for n in range(30))


@pytest.mark.parametrize(
    ("policy", "line", "waits"),
    [
        (RetryPolicy.once(), "●", (0, 0)),
        (RetryPolicy(jitter=False), "● ─1s─ ● ─2s─ ●", (3, 3)),
        (RetryPolicy(max_attempts=2), "● ─0.5s to 1.5s─ ●", (0.5, 1.5)),
        (RetryPolicy(delays=[60, 180, 5400]), "● ─1m─ ● ─3m─ ● ─90m─ ●", (5640, 5640)),
        (
            RetryPolicy(max_attempts=20, jitter=False, max_delay=30),
            "● ─1s─ ● ─2s─ ● ─4s─ ● ─8s─ ● ─ … ─ ● ─30s─ ●",
            (31 + 14 * 30, 31 + 14 * 30),
        ),
    ],
)
def test_the_timeline_has_a_dot_for_each_attempt_and_what_is_waited_between(
    policy: RetryPolicy, line: str, waits: tuple[float, float]
) -> None:
    assert timeline(policy) == line
    assert total_delay(policy) == waits


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0s"), (0.25, "0.25s"), (1, "1s"), (60, "1m"), (90, "90s"), (125, "2m 5s"), (3600, "1h"),
     (5400, "90m"), (10_804.5, "3h 4s"), (90_000, "25h"), (200_000, "2d 7h")],
)  # fmt: skip
def test_durations_are_written_as_in_a_playbook(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_the_outline_tells_what_a_step_does_and_how_it_may_fail() -> None:
    steps = (
        step(
            "fetch",
            "each",
            type="http",
            config={"method": "POST", "url": "{{ workload.base }}/a"},
            retry=RetryPolicy(jitter=False, retry_when="status_code >= 500", stop_when="attempt > 2"),
            timeout_seconds=10,
            on_error="alarm",
            limit="portal",
            priority=3,
        ),
        step(
            "each",
            "wait",
            type="shell",
            config={"command": ["echo", "{{ item }}"]},
            for_each=ForEach(items="{{ fetch.data }}", concurrency=3, fail_fast=True),
        ),
        step("wait", "child", type="sleep", config={"seconds": "5m"},
             barrier=Barrier(after="each", delay_seconds=900)),
        step("child", "query", type="playbook", config={"path": "other", "version": 2}),
        step("query", "code", type="sql", config={"query": "SELECT 1\n  FROM t"}),
        step("code", "call", type="python", config={"code": "def main(): ..."}),
        step("call", type="python", config={"call": "m:f"},
             retry=RetryPolicy(max_attempts=3, unknown_attempts=1)),
        step("alarm"),
    )  # fmt: skip
    text = outline(Definition(path="p", steps=steps, workload={"base": "http://x", "long": "y" * 300}))
    assert text.startswith('workload\n    base: "http://x"\n    long: "yyy')
    for line in (
        "fetch  http POST {{ workload.base }}/a",
        "    ● ─1s─ ● ─2s─ ●  3 attempts: 3s of waiting, at most 33s with their running",
        "    tried again only when status_code >= 500",
        "    given up when attempt > 2",
        "    timeout 10s for each attempt",
        "    when it fails for good ▶ alarm",
        "    limit portal, priority 3",
        "each  shell echo {{ item }}",
        "    for each item of {{ fetch.data }}, 3 at a time; the first that dies ends it",
        "wait  sleep 5m",
        "    waits until the whole batch has got past each, then 15m",
        "child  playbook other, version 2",
        "query  sql SELECT 1 FROM t",
        "code  python inline code",
        "call  python m:f",
        "    given up after 1 error of unknown kind",
        "alarm  when fetch fails",
    ):
        assert line in text.splitlines(), f"{line!r} is not in\n{text}"
    assert max(map(len, text.splitlines())) < 130
