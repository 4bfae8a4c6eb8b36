"""Which variables a step's templates have, which of two of the same name wins, and which steps are read."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.playbook.template import (
    Condition,
    TemplateFailed,
    Text,
    Value,
    compile_condition,
    compile_text,
    compile_value,
)
from holdfast.playbook.variables import RESERVED_NAMES, edge_variables, step_names_read, step_variables

OUTPUTS: dict[str, object] = {
    "fetch": {"status_code": 200, "data": {"rows": [1, 2]}},
    "plain": {"rows": [3]},
    "number": 5,
    "zero": 0,
    "text": "abc",
    "items": [1, [2]],
    "nothing": None,
    "a-b.c": {"z": 1},
    "result": "of a step with an unlucky name",
}


def variables(**changed: Any) -> dict[str, object]:
    return step_variables(
        **{
            "workload": {"url": "http://x", "both": "workload", "fetch": "hidden", "workload": "hidden"},
            "input": {"rows": [1], "both": "input", "number": "hidden", "attempt": "hidden"},
            "outputs": OUTPUTS,
            "execution_id": "exec-1",
            "step": "store",
            "attempt": 2,
            "max_attempts": 3,
            **changed,
        }
    )


def value(source: str, given: dict[str, object] | None = None) -> Any:
    return compile_text("{{ " + source + " }}").evaluate(variables() if given is None else given)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("workload.url", "http://x"),
        ("input.rows", [1]),
        ("[execution_id, step, attempt, max_attempts]", ["exec-1", "store", 2, 3]),
        # keys as bare names, and who wins
        ("url", "http://x"),
        ("rows", [1]),
        ("both", "input"),
        ("fetch.status_code", 200),
        ("number", 5),
        ("attempt", 2),
        ("workload.both", "workload"),
        # `.data` is always there
        ("fetch.data", {"rows": [1, 2]}),
        ("fetch['data'].rows", [1, 2]),
        ("plain.data", {"rows": [3]}),
        ("plain.data.rows", [3]),
        ("number.data", 5),
        ("text.data", "abc"),
        ("items.data", [1, [2]]),
        ("nothing.data", None),
        ("(missing|default(number)).data", 5),
        ("(number if true else 1).data", 5),
        # in all else an output is what it is
        ("number + 1", 6),
        ("-number", -5),
        ("+number", 5),
        ("number == 5 and 5 == number and number in [5] and number > 4", True),
        ("not number", False),
        ("not zero", True),
        ("zero or 7", 7),
        ("number and 7", 7),
        ("nothing is none", True),
        ("nothing", None),
        ("items", [1, [2]]),
        ("[number, items, {number: text}]", [5, [1, [2]], {5: "abc"}]),
        ("items|length + text|length", 5),
        ("items[1]", [2]),
        ("items[zero]", 1),
        ("items[zero:1]", [1]),
        ("text ~ number ~ plain", 'abc5{"rows": [3]}'),
        ("plain|tojson", '{"rows": [3]}'),
        ("text|upper", "ABC"),
        ("['a', 'b']|join(text)", "aabcb"),
        ("[1]|map('default', number)", [1]),
        ("number is number and plain is mapping and text is string", True),
        ("number|default(1)", 5),
        ("1 if text else 2", 1),
        # steps by names that no expression can spell
        ("steps['a-b.c'].z", 1),
        ("steps['a-b.c'].data.z", 1),
        ("steps.number.data", 5),
        ("steps.number + 1", 6),
        ("steps[text[:0] ~ 'number'].data", 5),
        ("steps.result", "of a step with an unlucky name"),
        ("steps|length", 9),
        ("steps.missing|default('none')", "none"),
        ("'number' in steps", True),
        ("{'all': steps}.all.number", 5),
    ],
)
def test_what_a_step_may_read(source: str, expected: object) -> None:
    result = value(source)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("result", "'result' is undefined"),
        ("item", "'item' is undefined"),
        ("index", "'index' is undefined"),
        ("plain.other", "a mapping has no `other`"),
        ("number.other", "a number has no `other`"),
        ("number.data.data", "a number has no `data`"),
        ("workload.data", "a mapping has no `data`"),
        ("steps.data", "a mapping has no `data`"),
        ("steps.missing.data", "a mapping has no `missing`"),
        ("[number][0].data", "a number has no `data`"),
        ("[steps][0].number.data", "a number has no `data`"),
    ],
)
def test_what_a_step_may_not_read(source: str, reason: str) -> None:
    with pytest.raises(TemplateFailed, match=reason):
        value(source)


def test_all_outputs_can_be_handed_on_and_are_plain() -> None:
    result = value("steps")
    assert result == OUTPUTS
    assert type(result) is dict
    assert all(type(output) is type(OUTPUTS[name]) for name, output in result.items())


def test_an_element_of_a_for_each_is_there_under_its_name() -> None:
    given = variables(index=4, item={"id": 7})
    assert value("[item.id, index]", given) == [7, 4]
    given = variables(index=0, item=None, as_="fetch")
    assert value("[fetch, index]", given) == [None, 0]  # hides a step of the same name
    assert value("steps.fetch.status_code", given) == 200
    given = variables(index=0, item=1, as_="workload")
    assert value("workload.url", given) == "http://x"


def test_the_variables_of_the_caller_are_left_as_they_were() -> None:
    workload, input = {"a": 1}, {"b": 2}
    given = variables(workload=workload, input=input, outputs={})
    edge_variables(given, step="store", output=1)
    assert (workload, input) == ({"a": 1}, {"b": 2})
    assert "result" not in given


@pytest.mark.parametrize(
    ("output", "source", "expected"),
    [
        ({"status_code": 201, "data": [1]}, "[result.status_code, data, status_code]", [201, [1], 201]),
        ({"status_code": 201, "data": None}, "data", None),
        ({"rows": [1]}, "[data.rows, result.data.rows, status_code]", [[1], [1], None]),
        ([1, 2], "[data, result, result.data]", [[1, 2]] * 3),
        (5, "data + result", 10),
        (None, "[data, result, status_code]", [None, None, None]),
        ({"ok": True}, "[success, error, error == None]", [True, None, True]),
        ({"ok": True}, "store.ok and store.data.ok and steps.store.data.ok", True),
        ({"ok": True}, "[steps.number, number, url, attempt]", [5, 5, "http://x", 2]),
    ],
)
def test_what_the_next_of_a_step_may_read(output: object, source: str, expected: object) -> None:
    assert value(source, edge_variables(variables(), step="store", output=output)) == expected


def test_a_step_with_a_reserved_name_is_reached_through_steps_only() -> None:
    given = edge_variables(variables(step="data"), step="data", output={"data": 1, "x": 2})
    assert value("[data, steps.data.x, result.x]", given) == [1, 2, 2]


def test_the_reserved_names_are_those_that_always_mean_the_same() -> None:
    given = edge_variables(variables(workload={}, input={}, outputs={}), step="s", output=None)
    assert given.keys() - {"s"} == RESERVED_NAMES


KNOWN = ["fetch", "a-b", "data", "store", "other"]


@pytest.mark.parametrize(
    ("source", "steps"),
    [
        ("fetch.data", {"fetch"}),
        ("fetch if workload.x else other", {"fetch", "other"}),
        ("steps.fetch", {"fetch"}),
        ("steps['a-b'].data", {"a-b"}),
        ("steps['a-b'].data[store]", {"a-b", "store"}),
        ("data", set()),
        ("steps.data", {"data"}),
        ("steps[name]", set(KNOWN)),
        ("steps|length", set(KNOWN)),
        ("steps", set(KNOWN)),
        ("[steps][0].x", set(KNOWN)),
        ("steps.unknown ~ unknown", set()),
        ("input.fetch", set()),
        ("'fetch'", set()),
        ("{'fetch': 1}.fetch", set()),
    ],
)
def test_the_steps_that_are_read_are_known_before_anything_runs(source: str, steps: set[str]) -> None:
    compiled: list[Condition | Text | Value] = [
        compile_condition(source),
        compile_text("x{{ " + source + " }}"),
        compile_value({"a": ["{{ " + source + " }}", 1]}),
    ]
    for each in compiled:
        assert step_names_read(each, KNOWN) == steps


def test_a_name_that_is_hidden_is_no_step() -> None:
    text = compile_text("{{ fetch }}{{ steps.other }}")
    assert step_names_read(text, KNOWN, hidden={"fetch", "other"}) == {"other"}
    assert text.reads.steps - set(KNOWN) == set()
