"""What a definition answers about the order of its steps."""

import pytest

from engine_scenario import stage
from holdfast.core.errors import UnknownStep
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition

THREE = Definition(path="p", steps=(stage("a"), stage("b"), stage("c")))


def test_the_first_step_is_the_first_written() -> None:
    assert plan.first_step(THREE).name == "a"


def test_each_step_leads_to_the_next_and_the_last_one_nowhere() -> None:
    following = [plan.step_after(THREE, name) for name in "abc"]
    assert [step and step.name for step in following] == ["b", "c", None]


def test_the_steps_before_one_are_those_whose_outputs_it_reads() -> None:
    assert [plan.steps_before(THREE, name) for name in "abc"] == [(), ("a",), ("a", "b")]


def test_the_steps_between_two_include_both() -> None:
    assert plan.steps_between(THREE, "a", "b") == ("a", "b")
    assert plan.steps_between(THREE, "c", "c") == ("c",)


def test_an_unknown_step_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownStep, match="Pipeline p has no step 'x'") as refusal:
        plan.step_after(THREE, "x")
    assert refusal.value.guidance == "Its steps are: a, b, c."
