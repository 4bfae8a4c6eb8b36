"""What a run shows, from the events it is told: where steps stand, the lines, the rows that fit a screen."""

from typing import Any

import pytest

from holdfast.cli.run_end import step_record
from holdfast.cli.run_screen import TreeRow, fitting, told_step, tree_rows
from holdfast.cli.run_story import Lease, Stand, Story, reason_of
from holdfast.core.model import Event, EventType
from holdfast.core.retry import RetryPolicy
from holdfast.playbook.definition import Definition, Edge, ForEach, Step

ERROR = {
    "attempt": 1,
    "error_type": "timeout",
    "category": "transient",
    "message": "too\nslow",
    "user_message": "Processing timed out",
}


def step(name: str, *to: str, **fields: Any) -> Step:
    known = {"handler": "type/http", "type": "http", "retry": RetryPolicy(max_attempts=3, jitter=False)}
    return Step(name=name, next=tuple(Edge(step=target) for target in to), **{**known, **fields})


class Told:
    """A story that is told, one event a second."""

    def __init__(self, *steps: Step) -> None:
        self.story = Story(7, Definition(path="p", steps=steps))
        self.now = 0.0

    def __call__(self, type_: str, name: str | None = None, **data: Any) -> list[str]:
        self.now += 1
        event = Event(f"1.{self.now:.0f}", 7, self.now, EventType(type_), name, data)
        return [f"{line.step}: {line.text}" for line in self.story.tell(event)]

    def shown(self, name: str) -> str:
        return told_step(self.story.steps[name], self.now)

    def stand(self, name: str) -> Stand:
        return self.story.steps[name].stand


def test_a_step_on_its_way() -> None:
    told = Told(step("a", "b"), step("b"))
    assert (told.stand("a"), told.shown("a")) == (Stand.TO_COME, "")
    assert told("step_started", "a") == []
    assert (told.stand("a"), told.shown("a")) == (Stand.QUEUED, "queued")
    assert told("action_started", "a", attempt=1) == ["a: attempt 1/3"]
    told.now += 4
    assert told.shown("a") == "attempt 1/3, 4 s"
    assert told("action_error", "a", **ERROR) == []
    assert told("step_retry", "a", attempt=1, delay=2.5, available_at=told.now + 3.5) == [
        "a: attempt 1/3 failed: Processing timed out (too slow). Retrying in 2.5 s."
    ]
    assert (told.stand("a"), told.shown("a")) == (
        Stand.RETRY,
        "attempt 2/3 in 2.5 s: Processing timed out (too slow)",
    )
    told("action_started", "a", attempt=2)
    assert told.shown("a").endswith("; before: Processing timed out (too slow)")
    assert told("action_completed", "a", attempt=2) == []
    assert told("step_completed", "a") == ["a: done, healed at attempt 2/3"]
    assert (told.stand("a"), told.shown("a")) == (Stand.DONE, "healed at attempt 2/3")
    assert not told.story.is_ended
    told("execution_completed")
    assert told.story.is_ended and told.story.ended_at == told.now


def test_an_attempt_that_is_told_twice_is_shown_once() -> None:
    told = Told(step("a"))
    told("step_started", "a")
    assert told("action_started", "a", attempt=1) and not told("action_started", "a", attempt=1)


def test_a_step_that_dies_says_why_it_is_not_retried() -> None:
    told = Told(step("a", "b"), step("b"))
    told("step_started", "a")
    told("action_started", "a", attempt=1)
    told("action_error", "a", **{**ERROR, "category": "permanent", "message": ""})
    [line] = told("step_failed_terminal", "a", dead_reason="not_retryable")
    assert line == "a: attempt 1/3 failed: Processing timed out. Not retried: not retryable."
    assert told.shown("a") == "failed, not retryable: Processing timed out"
    told("execution_failed", stage="a")
    assert (told.stand("b"), told.story.status) == (Stand.TO_COME, "failed")


def test_elements_are_counted_and_told_when_they_fail() -> None:
    told = Told(step("a", for_each=ForEach(items="x"), on_error="b"), step("b", type="control"))
    told("step_started", "a")
    assert told("action_started", "a", attempt=1) == ["a: starts"]
    assert told("action_completed", "a", attempt=1, elements=4) == ["a: 4 to do"]
    assert told.shown("a").endswith(" 0/4")
    for element in range(3):
        assert told("action_started", "a", attempt=1, element=element) == []
    told("action_completed", "a", attempt=1, element=0)
    told("action_error", "a", element=1, **ERROR)
    [line] = told("step_retry", "a", element=1, attempt=1, delay=1.0, available_at=told.now + 2)
    assert line.startswith("a[1]: attempt 1/3 failed")
    assert told.shown("a").endswith(" 1/4, 1 to retry: Processing timed out (too slow)")
    told("action_started", "a", attempt=2, element=1)
    assert told("action_completed", "a", attempt=2, element=1) == ["a[1]: healed at attempt 2/3"]
    told("action_error", "a", element=2, **ERROR)
    told("step_failed_terminal", "a", element=2, dead_reason="exhausted")
    told("step_skipped", "a", element=3, reason="a failed")
    assert told.stand("a") is Stand.RUNNING
    told("step_started", "b", control=True)
    assert told.stand("a") is Stand.FAILED
    assert told.shown("a") == "3/4, 1 failed, 1 not run: Processing timed out (too slow)"
    assert step_record(told.story.steps["a"], told.story)["elements"] == {
        **{"total": 4, "done": 2, "failed": 1},
        "not_run": 1,
    }


def test_a_fan_that_completes_tells_how_many_healed() -> None:
    told = Told(step("a", for_each=ForEach(items="x")))
    told("step_started", "a")
    told("action_completed", "a", attempt=1, elements=2)
    for element in range(2):
        told("action_started", "a", attempt=element + 1, element=element)
        told("action_completed", "a", attempt=element + 1, element=element)
    assert told("step_completed", "a") == ["a: done: 2 of 2, 1 of them healed"]
    assert told.shown("a") == "2 of 2, 1 of them healed"


def test_of_a_fan_that_is_resumed_the_elements_that_were_done_count() -> None:
    told = Told(step("a", for_each=ForEach(items="x", fail_fast=True)))
    told("step_started", "a")
    told("action_started", "a", attempt=1)
    told("action_completed", "a", attempt=1, elements=3)
    told("action_started", "a", attempt=1, element=0)
    told("action_completed", "a", attempt=1, element=0)
    told("action_started", "a", attempt=1, element=1)
    told("action_error", "a", element=1, **ERROR)
    told("step_failed_terminal", "a", element=1, dead_reason="exhausted")
    told("step_skipped", "a", element=2, reason="a failed")
    told("execution_failed")
    told("manual_retry", from_stage="a")
    told("step_started", "a", elements=[1, 2])
    assert told.shown("a").endswith(" 1/3")
    for element in (1, 2):
        told("action_started", "a", attempt=1, element=element)
        told("action_completed", "a", attempt=1, element=element)
    assert told("step_completed", "a") == ["a: done: 3 of 3"]
    record = step_record(told.story.steps["a"], told.story)
    assert (record["attempts"], record["elements"]) == (1, {"total": 3, "done": 3})


def test_a_fan_that_begins_anew_counts_anew() -> None:
    told = Told(step("a", for_each=ForEach(items="x")))
    told("step_started", "a")
    told("action_completed", "a", attempt=1, elements=2)
    told("action_started", "a", attempt=1, element=0)
    told("action_completed", "a", attempt=1, element=0)
    told("execution_failed")
    told("manual_retry", from_stage="a")
    told("step_started", "a")
    assert (told.stand("a"), told.shown("a")) == (Stand.QUEUED, "queued")


def test_the_child_of_a_retried_step_is_that_of_its_last_attempt() -> None:
    told = Told(step("a", type="playbook"))
    told("step_started", "a")
    told("action_started", "a", attempt=1)
    told("lease_released", "a", attempt=1, reason="child")
    assert told.story.steps["a"].unseen == [1]
    first = told.story.steps["a"].child = Story(8, Definition(path="q", steps=(step("inner"),)))
    told("action_started", "a", attempt=1)
    assert told.story.steps["a"].child is first  # the same attempt goes on with what its child returned
    told("action_error", "a", **ERROR)
    told("step_retry", "a", attempt=1, delay=1.0, available_at=told.now + 1)
    told("action_started", "a", attempt=2)
    assert told.story.steps["a"].child is None and told.story.steps["a"].former == [first]


def test_what_another_process_has_says_so() -> None:
    told = Told(step("a", retry=RetryPolicy(max_attempts=2)))
    told("step_started", "a")
    told("action_started", "a", attempt=1, worker="host:1:x")
    told.story.steps["a"].work.lease = Lease(told.now + 50)
    assert told.shown("a") == "held by another process, perhaps lost; if so, tried again in 50 s"
    told("action_started", "a", attempt=2, worker="host:1:x")
    told.story.steps["a"].work.lease = Lease(told.now - 1)
    assert told.shown("a") == "held by another process, perhaps lost; if so, fails soon"
    told.story.steps["a"].work.lease = Lease(told.now + 50, is_renewed=True)
    assert told.shown("a") == "runs in another process"


def test_of_elements_that_another_process_has_the_number_is_told() -> None:
    told = Told(step("a", for_each=ForEach(items="x")))
    told("step_started", "a")
    told("action_completed", "a", attempt=1, elements=3)
    for element in (0, 1):
        told("action_started", "a", attempt=1, element=element, worker="host:1:x")
    told.story.steps["a"].elements[1].lease = Lease(told.now + 9)
    held = "1 held by another process, perhaps lost; if so, tried again in 9 s"
    assert told.shown("a").endswith(f" 0/3, {held}")


def test_what_leads_to_an_error_handler_is_said_above_it() -> None:
    told = Told(step("a", on_error="alarm"), step("alarm"))
    labels = [row.label.rstrip() for row in tree_rows(told.story, told.now)]
    assert labels == ["a", "when a fails", "alarm"]


def test_a_long_name_leaves_room_for_what_is_told() -> None:
    long = "a_name_that_goes_on_" * 4
    told = Told(step(long, "b"), step("b"))
    told("step_started", long)
    told("action_started", long, attempt=1)
    told("step_started", "b")
    first, second = tree_rows(told.story, told.now, columns=60)
    assert (first.label, first.told) == (f"{long[:19]}…", "attempt 1/3, 1 s")
    assert second.label == "b".ljust(20)
    [deep] = tree_rows(Told(step(long)).story, 0.0, outer=" │  " * 8, columns=60)
    assert deep.label.endswith(long)  # nothing is told of it


def test_sleeping_and_waiting_for_a_child() -> None:
    told = Told(step("a", "b", type="sleep", config={"seconds": 10}), step("b", "c"), step("c"))
    told("step_started", "a")
    assert told.shown("a") == "sleeps, 10.0 s to go"
    told("step_started", "b")
    told("action_started", "b", attempt=1)
    assert told("lease_released", "b", attempt=1, reason="sleep", seconds=5) == ["b: sleeps for 5 s"]
    told.now += 1
    assert (told.stand("b"), told.shown("b")) == (Stand.ASIDE, "sleeps, 4.0 s to go")
    told("step_started", "c")
    told("action_started", "c", attempt=1)
    told("lease_released", "c", attempt=1, reason="child")
    assert told.shown("c") == "waits for a child execution"
    told.story.steps["c"].child = Story(8, Definition(path="q", steps=(step("inner"),)))
    assert told.shown("c") == "waits for execution 8"
    labels = [row.label.rstrip() for row in tree_rows(told.story, told.now)]
    assert labels == ["a", "b", "c", "  ┊ inner"]
    assert told("action_started", "c", attempt=1) == []  # the same attempt goes on


def test_a_loop_and_what_is_not_taken() -> None:
    told = Told(step("a", "a", "b", max_visits=3), step("b"))
    told("step_started", "a")
    told("step_completed", "a")
    assert told("step_started", "a", visit=2) == ["a: visit 2"]
    assert told.shown("a") == "visit 2: queued"
    told("step_completed", "a", visit=2)
    assert told.shown("a") == "2 visits"
    assert told("step_skipped", "b", reason="not taken") == []
    assert (told.stand("b"), told.shown("b")) == (Stand.SKIPPED, "not taken")


def test_a_retry_by_hand_keeps_what_was_done() -> None:
    told = Told(step("a", "b"), step("b"))
    for name in ("a", "b"):
        told("step_started", name)
        told("action_started", name, attempt=1)
    told("step_completed", "a")
    told("action_error", "b", **ERROR)
    told("step_failed_terminal", "b", dead_reason="exhausted")
    told("execution_failed")
    assert told("manual_retry", from_stage="b") == [": retried by hand, from b"]
    assert told("step_skipped", "a", reason="already_completed") == ["a: kept, it was completed before"]
    assert (told.stand("a"), told.stand("b"), told.story.status) == (Stand.DONE, Stand.TO_COME, "running")


def test_what_was_under_way_at_the_end_is_cancelled() -> None:
    told = Told(step("a", "b"), step("b"))
    told("step_started", "a")
    told("execution_cancelled")
    assert (told.stand("a"), told.shown("a"), told.stand("b")) == (
        Stand.CANCELLED,
        "cancelled",
        Stand.TO_COME,
    )


def test_events_of_steps_that_are_not_known_and_of_new_kinds_change_nothing() -> None:
    told = Told(step("a"))
    assert told("step_started", "elsewhere") == []
    assert told("barrier_opened", "a", scheduled_for=1.0) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({}, ""),
        ({"user_message": "Access denied", "message": "", "category": "permanent"}, "Access denied"),
        ({"user_message": "Odd", "message": "a  b\nc.", "category": "unknown"}, "Odd: a b c"),
        ({"user_message": "", "message": "only this", "category": "permanent"}, "only this"),
    ],
)
def test_a_reason_is_the_catalogues_words_and_the_errors_own(error: dict[str, Any], words: str) -> None:
    assert reason_of(error) == words


def rows(*stands: Stand | None) -> list[TreeRow]:
    return [TreeRow("", str(place), "", "", stand) for place, stand in enumerate(stands)]


def labels(shown: list[TreeRow]) -> list[str]:
    return [row.label for row in shown]


def test_a_tree_that_fits_is_shown_whole() -> None:
    assert len(fitting(rows(*[Stand.DONE] * 10), 10)) == 10


def test_of_a_tall_tree_the_part_that_moves_is_shown() -> None:
    many = rows(*[Stand.DONE] * 50, Stand.RUNNING, *[Stand.TO_COME] * 49)
    shown = labels(fitting(many, 12))
    assert len(shown) == 12 and "50" in shown
    assert shown[0] == "47 more steps above, 47 done" and shown[-1] == "43 more steps below"
    ended = rows(*[Stand.DONE] * 20, Stand.FAILED, *[Stand.TO_COME] * 20)
    assert "20" in labels(fitting(ended, 12))
    done = labels(fitting(rows(*[Stand.DONE] * 20), 12))
    assert done == ["10 more steps above, 10 done", *map(str, range(10, 20))]
    early = rows(Stand.FAILED, *[Stand.DONE] * 30, Stand.RUNNING)
    assert "1 failed" in labels(fitting(early, 8))[0]
    assert len(fitting(many, 1)) == 3
