"""A definition is plain data: what it may hold, how it is stored, and where its jobs stand in the order."""

from typing import Any

import pytest

from engine_scenario import stage
from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import DefinitionInvalid, InvalidInput, UnknownStep
from holdfast.core.model import ClaimGroup, Lane
from holdfast.core.retry import RetryPolicy
from holdfast.playbook.definition import Barrier, Definition, Step, content_hash

NOT_READY = ErrorRule(status=404, error_type="not_ready", category="transient")
ODD = ErrorRule(message="odd", error_type="odd_thing", category="permanent")


def full() -> Definition:
    return Definition(
        path="examples/full.v1",
        steps=(
            Step(
                name="request",
                handler="portal/request",
                retry=RetryPolicy(delays=[60, "3m"], stop_when="{{ attempt > 1 }}", retry_when="success"),
                timeout_seconds=90,
                max_crashes=2,
                lane=Lane.MANUAL,
                operation="request",
                priority=0,
                limit="portal",
                errors=(NOT_READY,),
            ),
            Step(
                name="end",
                handler="end",
                retry=RetryPolicy.once(),
                barrier=Barrier(after="request", delay_seconds="15m"),
            ),
        ),
        errors=(ODD,),
    )


def test_a_definition_survives_the_way_to_json_and_back() -> None:
    text = full().to_json()
    assert Definition.from_json(text) == full()
    assert Definition.from_json(text).to_json() == text


def test_equal_definitions_have_equal_content_and_others_do_not() -> None:
    assert content_hash(full().to_json()) == content_hash(full().to_json())
    plain = Definition(path="p", steps=(stage("a"),))
    longer = Definition(path="p", steps=(stage("a", timeout_seconds=5),))
    assert content_hash(plain.to_json()) != content_hash(longer.to_json())


@pytest.mark.parametrize("written", [90, 90.0, "90", "90s", "1m30s"], ids=repr)
def test_a_timeout_is_the_same_however_it_is_written(written: Any) -> None:
    step = stage("a", timeout_seconds=written)
    assert repr(step.timeout_seconds) == "90.0"
    assert Definition(path="p", steps=(step,)).to_json() == (
        Definition(path="p", steps=(stage("a", timeout_seconds=90.0),)).to_json()
    )


def test_a_step_runs_for_an_hour_at_most_unless_it_says_otherwise() -> None:
    assert stage("a").timeout_seconds == 3600.0
    assert stage("a").max_crashes == 3


@pytest.mark.parametrize("name", ["", "1a", "a b", "a'b", "é", 'a"', "a\n", "a" * 101, None], ids=ascii)
def test_a_step_name_that_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(DefinitionInvalid, match="is not allowed") as refusal:
        stage(name)
    assert "100 characters at most" in refusal.value.guidance


@pytest.mark.parametrize("name", ["a", "_", "parse-2.x", "A" * 100], ids=ascii)
def test_a_step_name_is_letters_digits_and_a_little_punctuation(name: str) -> None:
    assert stage(name).name == name


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("timeout_seconds", 0, "timeout of step a must be longer than 0"),
        ("timeout_seconds", "soon", "timeout of step a cannot be 'soon'"),
        ("timeout_seconds", -1, "timeout of step a"),
        ("priority", 10, "Priority 10 of step a is not allowed"),
        ("priority", -1, "Priority -1"),
        ("priority", "high", "Priority 'high'"),
        ("lane", "express", "Lane 'express' of step a is not allowed"),
        ("max_crashes", 0, "max_crashes of step a must be a whole number from 1"),
        ("max_crashes", 1.5, "max_crashes of step a"),
        ("priority", True, "Priority True"),
        ("priority", 1.0, "Priority 1.0"),
        ("operation", 5, "Operation 5 of step a is not allowed"),
        ("max_crashes", True, "max_crashes of step a"),
        ("retry_when", "{{ 1 +", "retry_when of step a: .*not an expression"),
        ("stop_when", "open(1)", "stop_when of step a: .*calls are not allowed"),
    ],
    ids=repr,
)
def test_a_wrong_field_of_a_step_is_refused_with_its_name(field: str, value: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        stage("a", **{field: value})


@pytest.mark.parametrize("path", ["", "/a", "a b", "a" * 201, "é", "a\0", None], ids=ascii)
def test_a_path_that_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(DefinitionInvalid, match=r"Pipeline name .* is not allowed") as refusal:
        Definition(path=path, steps=(stage("a"),))
    assert "200 characters at most" in refusal.value.guidance


@pytest.mark.parametrize("operation", ["two words", "a" * 51, "a\0", "é"], ids=ascii)
def test_an_operation_that_is_no_word_is_refused(operation: str) -> None:
    with pytest.raises(DefinitionInvalid, match=r"Operation .* of step a is not allowed"):
        stage("a", operation=operation)


def test_a_pipeline_without_steps_is_refused() -> None:
    with pytest.raises(DefinitionInvalid, match="Pipeline p has no steps"):
        Definition(path="p", steps=())


def test_steps_of_one_name_are_refused_by_name() -> None:
    with pytest.raises(DefinitionInvalid, match="several steps named a, b"):
        Definition(path="p", steps=(stage("b"), stage("a"), stage("b"), stage("a"), stage("c")))


def test_a_step_is_found_by_name_and_an_unknown_one_refused_with_the_known() -> None:
    assert full().step("end").handler == "end"
    with pytest.raises(UnknownStep, match="no step 'strat'") as refusal:
        full().step("strat")
    assert refusal.value.guidance == "Its steps are: request, end."


def test_the_rules_of_the_step_come_before_those_of_the_pipeline() -> None:
    definition = full()
    assert definition.error_rules(definition.step("request")) == (NOT_READY, ODD)
    assert definition.error_rules(definition.step("end")) == (ODD,)


def test_a_job_stands_in_the_lane_of_its_execution_unless_its_step_has_one() -> None:
    assert stage("a").claim_group("p", Lane.BULK) == ClaimGroup("p/a", "bulk", 5, path="p", step="a")
    assert stage("a", lane=Lane.MANUAL).claim_group("p", Lane.BULK).lane == "manual"


def test_requests_come_before_other_work_and_downloads_after_it() -> None:
    ranks = [
        stage("a", operation=name).claim_group("p", Lane.BULK).rank for name in ("request", "", "download")
    ]
    assert ranks == [4, 5, 6]
    assert stage("a", operation="download", priority=0).claim_group("p", Lane.BULK).rank == 0


def test_a_claim_group_tells_all_that_a_worker_must_offer() -> None:
    step = stage("a", operation="request", limit="portal")
    group = step.claim_group("p", Lane.BULK, alone=True)
    assert group == ClaimGroup("p/a", "bulk", 4, "request", "portal", True, "p", "a")


def test_a_barrier_waits_for_a_step_before_its_own() -> None:
    barrier = Barrier(after="b", delay_seconds=5)
    with pytest.raises(DefinitionInvalid, match="waits for 'b', which is no step before it") as refusal:
        Definition(path="p", steps=(stage("a"), stage("c", barrier=barrier), stage("b")))
    assert refusal.value.guidance == "Steps before it are: a."
    with pytest.raises(DefinitionInvalid, match="no step before it") as refusal:
        Definition(path="p", steps=(stage("b", barrier=barrier),))
    assert "first step cannot have one" in refusal.value.guidance
    Definition(path="p", steps=(stage("b"), stage("a"), stage("c", barrier=barrier)))


@pytest.mark.parametrize(
    "wrong",
    [
        "request",
        {},
        {"delay": 5},
        {"after": ""},
        {"after": 5},
        {"after": "a", "wait": 5},
        {"after": "a", "delay": -1},
    ],
)
def test_what_is_no_barrier_is_told(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        Barrier.from_shorthand(wrong, "download")


def test_what_no_barrier_has_is_named_with_what_it_may_have() -> None:
    with pytest.raises(
        InvalidInput, match="The barrier of step download has 'dealy', which no barrier has"
    ) as told:
        Barrier.from_shorthand({"after": "request", "dealy": "15m"}, "download")
    assert "Allowed are 'after'" in told.value.guidance and "'delay'" in told.value.guidance


def test_a_barrier_may_be_written_short() -> None:
    barrier = Barrier.from_shorthand({"after": "a", "delay": "15m"}, "b")
    assert barrier == Barrier(after="a", delay_seconds=900.0)
    assert Barrier.from_shorthand(barrier, "b") is barrier
    assert Barrier.from_shorthand(None, "b") is None


def test_a_step_without_a_barrier_is_stored_as_it_was_before_there_were_any() -> None:
    assert "barrier" not in Definition(path="p", steps=(stage("a"),)).to_json()


@pytest.mark.parametrize("wrong", ["por tal", "max_concurrency", 5, "x" * 101])
def test_what_cannot_be_a_limit_is_told(wrong: Any) -> None:
    with pytest.raises(DefinitionInvalid, match="Limit"):
        stage("a", limit=wrong)
