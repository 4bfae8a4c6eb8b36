"""sleep, playbook and each: steps that hold no slot while they wait, and the items of a for_each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.model import Deferred
from typed_attempt import failure_of, judged, leased, outcome_of, result_of

# sleep


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(90, 90.0), ("90s", 90.0), ("1h30m", 5400.0), (0.5, 0.5), ("{{ workload.wait }}", 7.0)],
)
def test_a_sleep_is_deferred_and_then_complete(written: Any, seconds: float) -> None:
    options: dict[str, Any] = {"config": {"seconds": written}, "workload": {"wait": 7}}
    assert outcome_of(leased("type/sleep", **options)) == Deferred(until_seconds=seconds)
    assert result_of(leased("type/sleep", parked={"slept": seconds}, **options)) == {"seconds": seconds}


def test_a_sleep_of_no_time_needs_no_deferring() -> None:
    assert result_of(leased("type/sleep", config={"seconds": 0})) == {"seconds": 0}


@pytest.mark.parametrize("written", [None, -1, "soon", True, [], "400d", "NaN", 1e300])
def test_what_is_no_time_to_sleep_is_refused(written: Any) -> None:
    assert (
        judged(failure_of(leased("type/sleep", config={"seconds": written}))).category is Category.PERMANENT
    )


# playbook


def child(**told: Any) -> dict[str, Any]:
    return {"child": {"id": 99, "status": "completed", "result": None, "error": None, **told}}


def playbook_failure(parked: Any) -> Any:
    return failure_of(leased("type/playbook", config={"path": "other"}, parked=parked))


def test_a_child_is_asked_for_with_the_step_s_input_as_its_workload() -> None:
    job = leased(
        "type/playbook",
        config={"path": "teams/{{ workload.team }}", "version": 3},
        input={"a": 1},
        inputs={"b": "{{ a + 1 }}"},
        workload={"team": "blue"},
    )
    outcome = outcome_of(job)
    assert isinstance(outcome, Deferred) and outcome.child is not None and outcome.until_seconds is None
    assert json.loads(outcome.child) == {"path": "teams/blue", "version": 3, "workload": {"a": 1, "b": 2}}


def test_a_child_that_completed_gives_its_result() -> None:
    job = leased("type/playbook", config={"path": "other"}, parked=child(result={"rows": 3}))
    assert result_of(job) == {"execution_id": 99, "data": {"rows": 3}}


@pytest.mark.parametrize("category", list(Category))
def test_a_child_that_failed_passes_its_error_on(category: Category) -> None:
    error = {
        "error_type": "tide",
        "category": category.value,
        "message": "too high",
        "stage": "land",
        "user_message": "The tide is high",
        "guidance": "Wait.",
    }
    told = playbook_failure(child(status="failed", error=error))
    assert told.message == "Child execution 99 of playbook other failed at land: too high"
    classification = judged(told)
    assert (classification.error_type, classification.category) == ("tide", category)
    assert (classification.user_message, classification.guidance) == ("The tide is high", "Wait.")


def test_a_child_that_failed_without_a_word_is_an_unknown_error() -> None:
    assert judged(playbook_failure(child(status="failed"))).category is Category.UNKNOWN


def test_a_child_that_was_cancelled_is_a_permanent_error() -> None:
    classification = judged(playbook_failure(child(status="cancelled")))
    assert (classification.error_type, classification.category) == ("child_cancelled", Category.PERMANENT)


def test_a_child_that_could_not_be_started_is_told_as_the_engine_told_it() -> None:
    told = playbook_failure(
        {"refused": {"message": "There is no playbook other.", "guidance": "Register it."}}
    )
    assert (told.message, told.guidance) == ("There is no playbook other.", "Register it.")
    assert judged(told).category is Category.PERMANENT


@pytest.mark.parametrize(
    "config", [{}, {"path": 3}, {"path": "x", "version": "new"}, {"path": "x", "version": 0}]
)
def test_what_names_no_playbook_is_refused(config: dict[str, Any]) -> None:
    assert judged(failure_of(leased("type/playbook", config=config))).category is Category.PERMANENT


def test_a_workload_that_is_too_large_for_a_child_is_refused() -> None:
    job = leased("type/playbook", config={"path": "other"}, input={"text": "x" * 2_000_000})
    told = failure_of(job)
    assert "limit is 1,048,576 bytes" in told.message
    assert judged(told).category is Category.PERMANENT


# each


def items(for_each: Any, **options: Any) -> Any:
    return result_of(leased("type/each", for_each=json.dumps(for_each), **options))


@pytest.mark.parametrize("written", ["workload.rows", "{{ workload.rows }}", " {{workload.rows}} "])
def test_items_are_what_the_expression_yields(written: str) -> None:
    rows = [{"id": 1}, "two", None, [3]]
    assert items(written, workload={"rows": rows}) == rows


def test_items_may_be_a_list_with_templates() -> None:
    assert items(["{{ workload.a }}", 2], workload={"a": 1}) == [1, 2]


def test_items_may_be_read_from_an_earlier_step_and_from_what_was_handed_on() -> None:
    assert items("fetch.data.ids + input.more", outputs={"fetch": {"ids": [1]}}, input={"more": [2]}) == [
        1,
        2,
    ]


def test_the_step_s_own_with_is_left_to_its_elements() -> None:
    assert items("workload.rows", workload={"rows": [1]}, inputs={"id": "{{ item.id }}"}) == [1]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("workload.text", "must be a list, not a str"),
        ("workload.mapping", "are a mapping"),
        ("workload.number", "must be a list, not an int"),
        ("workload.nothing", "must be a list, not a NoneType"),
        ("workload.missing", "missing"),
    ],
)
def test_items_that_are_no_list_are_refused(written: str, message: str) -> None:
    workload = {"text": "abc", "mapping": {"a": 1}, "number": 3, "nothing": None}
    told = failure_of(leased("type/each", for_each=json.dumps(written), workload=workload))
    assert message in told.message
    assert judged(told).category is Category.PERMANENT


def test_too_many_items_are_refused() -> None:
    job = leased("type/each", for_each='"workload.rows"', workload={"rows": [0] * 100_001})
    assert "100,001 items; at most 100,000" in failure_of(job).message
