"""`when`, `then` and `else`: which ways are taken, as the stored definition has them."""

from __future__ import annotations

import pytest

from holdfast.playbook.definition import Definition, Edge
from holdfast.playbook.document import CHARS_MAX
from holdfast.playbook.faults import PlaybookInvalid
from holdfast.playbook.language import EDGES_MAX
from holdfast.playbook.load import load_playbook
from holdfast.playbook.outline import outline
from holdfast.playbook.template import Combined, ConditionFailed, compile_condition
from holdfast.playbook.variables import step_variables

NAMES = ("yes", "no", "other")


def flow(next_: str) -> str:
    steps = "".join(f"- {{step: {name}, type: sleep, seconds: 0}}\n" for name in NAMES)
    reached = "- {step: all, next: [yes, no, other]}\n"  # whatever the tested step leads to
    return (
        "apiVersion: holdfast/v1\nmetadata: {name: branches}\nworkload: {flag: 1, n: 1}\n"
        f"workflow:\n- step: start\n  next: [all, {{step: start2}}]\n{reached}"
        f"- step: start2\n  next: {next_}\n{steps}"
    )


def edges_of(next_: str) -> tuple[Edge, ...]:
    definition = load_playbook(flow(next_)).definition
    stored = Definition.from_json(definition.to_json())
    assert stored == definition
    return stored.step("start2").next or ()


def taken(next_: str, **workload: object) -> list[str]:
    variables = step_variables(workload=workload, input={}, outputs={}, execution_id=1, step="start2")
    return [
        edge.step
        for edge in edges_of(next_)
        if edge.when is None or compile_condition(edge.when).evaluate(variables)
    ]


@pytest.mark.parametrize("flag", ["false", "0", "no", "off", "", " False ", False, 0, None, []])
def test_else_is_taken_exactly_where_the_conditions_beside_it_are_not(flag: object) -> None:
    choice = '[{step: yes, when: "{{ workload.flag }}"}, {else: no}]'
    assert taken(choice, flag=flag) == ["no"]
    assert taken(choice, flag="true") == taken(choice, flag="x") == taken(choice, flag=[0]) == ["yes"]


@pytest.mark.parametrize(("outer", "inner"), [("false", "true"), ("true", "false"), ("no", "no")])
def test_a_step_under_then_needs_both_conditions_as_each_counts_alone(outer: str, inner: str) -> None:
    both = "{when: workload.outer, then: [{step: yes, when: workload.inner}, {step: no}]}"
    assert taken(both, outer=outer, inner=inner) == (["no"] if outer == "true" else [])
    assert taken(both, outer="true", inner="true") == ["yes", "no"]


def test_an_else_with_a_condition_of_its_own_needs_that_too() -> None:
    choice = "[{step: yes, when: workload.flag}, {else: [{step: no, when: workload.n}, other]}]"
    assert taken(choice, flag="off", n="no") == ["other"]
    assert taken(choice, flag="off", n="1") == ["no", "other"]
    assert taken(choice, flag="on", n="1") == ["yes"]


def test_a_condition_that_is_always_true_is_taken_and_so_the_else_is_not() -> None:
    assert taken("[{step: yes, when: true}, {step: other, when: false}, {else: no}]") == ["yes"]
    assert taken("[{step: yes, when: false}, {else: no}]") == ["no"]


def test_items_without_a_condition_do_not_count_for_else() -> None:
    assert taken("[yes, {step: other, when: workload.n > 5}, {else: no}]", n=1) == ["yes", "no"]


def test_many_conditions_beside_one_else_are_not_nested() -> None:
    items = ", ".join(f"{{step: yes, when: 'workload.n == {number}'}}" for number in range(500))
    assert taken(f"[{items}, {{else: no}}]", n=499) == ["yes"]
    assert taken(f"[{items}, {{else: no}}]", n=500) == ["no"]


def test_conditions_are_asked_in_order_and_only_as_far_as_needed() -> None:
    choice = "[{step: yes, when: workload.n}, {step: other, when: workload.missing}, {else: no}]"
    whens = [edge.when for edge in edges_of(choice)]
    assert whens[2] == Combined(none=("workload.n", "workload.missing"))
    condition = compile_condition(whens[2])
    assert not condition.evaluate({"workload": {"n": True}})
    with pytest.raises(ConditionFailed, match=r"`workload\.missing` has no answer"):
        condition.evaluate({"workload": {"n": False}})
    assert condition.names == {"workload"}


def test_a_single_condition_is_stored_as_it_always_was() -> None:
    assert [edge.when for edge in edges_of('[{step: yes, when: "{{ workload.n }}"}, no]')] == [
        "workload.n",
        None,
    ]


def test_people_see_combined_conditions_as_one() -> None:
    choice = "[{when: workload.flag, then: [{step: yes, when: workload.n}]}, {else: no}]"
    shown = outline(load_playbook(flow(choice)).definition)
    assert "when (workload.flag) and (workload.n)" in shown
    assert "when not (workload.flag)" in shown


def test_a_wrong_condition_is_told_once_where_it_stands() -> None:
    with pytest.raises(PlaybookInvalid) as caught:
        load_playbook(
            flow("[{when: 'workload.n >', then: [yes, other, {step: no, when: nope}]}, {else: no}]")
        )
    assert [fault.field for fault in caught.value.faults] == [
        "step start2, next[0].then[2].when",
        "step start2, next[0].when",
    ]


def test_a_condition_that_never_leads_anywhere_is_checked_too() -> None:
    with pytest.raises(PlaybookInvalid, match="no variable 'nope'"):
        load_playbook(flow("[{when: nope, then: []}, {else: no}]"))


# --- Bounds -------------------------------------------------------------------------------------------------


def test_a_condition_that_is_too_long_is_refused_before_it_is_combined() -> None:
    long = "workload.n" + " + 1" * 90_000
    items = "{step: yes, when: workload.n}, " * 400
    with pytest.raises(PlaybookInvalid, match="The condition is 360010 characters long") as caught:
        load_playbook(flow(f"[{{when: '{long}', then: [{items}]}}, {{else: [{items}]}}]"))
    assert [fault.field for fault in caught.value.faults] == ["step start2, next[0].when"]


def test_a_step_leads_to_a_bounded_number_of_others() -> None:
    inner = "[" + "yes, " * 600 + "]"
    choice = f"[{{when: workload.n, then: {inner}}}, {{else: {inner}}}]"
    with pytest.raises(PlaybookInvalid, match="leads to more than 1,000 steps"):
        load_playbook(flow(choice))
    assert len(edges_of(choice.replace("yes, " * 600, "yes, " * 500))) == EDGES_MAX


def test_else_unfolds_to_a_bounded_number_of_characters() -> None:
    conditions = ", ".join(
        f"{{step: yes, when: 'workload.n == {number} or workload.flag'}}" for number in range(400)
    )
    assert len(conditions) < CHARS_MAX
    with pytest.raises(PlaybookInvalid, match="conditions unfold to more than 1,000,000") as caught:
        load_playbook(flow(f"[{conditions}, {{else: [{'no, ' * 400}]}}]"))
    assert sum("unfold" in fault.message for fault in caught.value.faults) == 1
    assert len(edges_of(f"[{conditions}, {{else: [no, other]}}]")) == 402
