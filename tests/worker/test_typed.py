"""The worker's side of steps with a type: what it offers, what their templates see, and functions."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Context
from holdfast.core.catalogue import Category
from holdfast.core.errors import InvalidInput, TransientError
from holdfast.worker.typed import Leave, typed_handlers
from typed_attempt import failure_of, judged, leased, result_of

# what is offered


def test_a_worker_offers_code_and_shell_only_with_leave() -> None:
    always = {"type/http", "type/sql", "type/sleep", "type/playbook", "type/each"}
    assert set(typed_handlers(environ={})) == always
    assert set(typed_handlers(Leave(code=True), environ={})) == always | {"code/python"}
    assert set(typed_handlers(Leave(shell=True), environ={})) == always | {"code/shell"}
    assert set(typed_handlers(functions={"m:f": print}, environ={})) == always | {"python/m:f"}


def test_a_wrong_setting_is_refused_where_the_worker_is_made() -> None:
    for wrong in ("lots", "1MB"):
        with pytest.raises(InvalidInput, match="HOLDFAST_CODE_MEMORY"):
            typed_handlers(environ={"HOLDFAST_CODE_MEMORY": wrong})


# functions


def call(function: Any, input: dict[str, Any], **options: Any) -> Any:
    return result_of(leased("python/m:f", input=input, **options), functions={"m:f": function})


def test_a_function_is_given_the_input_by_the_names_of_its_parameters() -> None:
    def plain(rows: list[int], limit: int = 2) -> list[int]:
        return rows[:limit]

    def whole(input_data: dict[str, Any]) -> Any:
        return input_data

    def rest(rows: Any, **others: Any) -> Any:
        return others

    def with_context(rows: Any, ctx: Any) -> Any:
        return [ctx.execution_id, ctx.step, ctx.attempt]

    def annotated(where: Context) -> Any:
        return where.execution_id

    async def asynchronous(rows: Any) -> Any:
        return len(rows)

    given = {"rows": [1, 2, 3], "more": "x"}
    assert call(plain, given) == [1, 2]
    assert call(whole, given) == given
    assert call(rest, given) == {"more": "x"}
    assert call(with_context, given) == [12, "work", 1]
    assert call(annotated, given) == 12
    assert call(asynchronous, given) == 3


def test_an_input_cannot_stand_in_for_the_context() -> None:
    assert call(lambda ctx: ctx.step, {"ctx": "forged"}) == "work"


def test_a_plain_function_runs_in_a_thread() -> None:
    main = threading.get_ident()
    assert call(lambda: threading.get_ident() != main, {}) is True


def test_a_parameter_that_the_input_lacks_is_a_permanent_error_that_names_it() -> None:
    def store(rows: Any, table: Any) -> None:
        raise AssertionError("must not be called")

    told = failure_of(leased("python/m:f", input={"rows": 1}), functions={"m:f": store})
    assert told.message == "store() asks for table, and the step's input has rows."
    assert judged(told).error_type == "validation_error"


def test_what_a_function_raises_is_told_with_its_own_trace() -> None:
    def flaky() -> None:
        raise TransientError("later", retry_after=5)

    told = failure_of(leased("python/m:f"), functions={"m:f": flaky})
    assert (told.retry_after, judged(told).category) == (5, Category.TRANSIENT)
    assert "in flaky" in told.stack_trace and "worker/typed.py" not in told.stack_trace


# templates


def seen(expression: str, **options: Any) -> Any:
    options["inputs"] = {"value": f"{{{{ {expression} }}}}"}
    return result_of(leased("python/m:f", **options), functions={"m:f": lambda value: value})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("workload.a", 1),
        ("a", 1),
        ("input.b", 2),
        ("b", 2),
        ("both", "of the input"),
        ("fetch.status_code", 200),
        ("fetch.data.rows", [1, 2]),
        ("plain.data", [3]),
        ("steps.fetch.status_code", 200),
        ("[execution_id, step, attempt, max_attempts]", [12, "work", 1, 3]),
    ],
)
def test_a_template_sees_the_workload_the_input_and_earlier_steps(expression: str, value: Any) -> None:
    workload = {"a": 1, "both": "of the workload"}
    given = {"b": 2, "both": "of the input"}
    outputs = {"fetch": {"status_code": 200, "data": {"rows": [1, 2]}}, "plain": [3]}
    assert seen(expression, workload=workload, input=given, outputs=outputs) == value


def test_an_element_sees_its_item_and_index_and_so_does_its_function() -> None:
    element: dict[str, Any] = {"item": '{"id": 5}', "item_name": "row", "element": 3, "input": {"index": 3}}
    assert seen("[row.id, index]", **element) == [5, 3]
    assert call(lambda row, index: [row, index], element.pop("input"), **element) == [{"id": 5}, 3]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"url": "{{ fetch.data.missing }}"}, "with.url: `{{ fetch.data.missing }}` has no value"),
        ({"a": {"b": ["{{ nobody }}"]}}, "with.a.b[0]: `{{ nobody }}` has no value"),
        ({"n": "{{ 1 / 0 }}"}, "with.n: "),
    ],
)
def test_a_template_without_a_value_is_permanent_and_names_its_field(inputs: Any, message: str) -> None:
    told = failure_of(
        leased("python/m:f", inputs=inputs, outputs={"fetch": {"data": {}}}), functions={"m:f": lambda: 1}
    )
    assert told.message.startswith(message)
    assert (judged(told).error_type, judged(told).category) == ("template_error", Category.PERMANENT)


def test_a_template_of_the_config_without_a_value_names_its_field() -> None:
    told = failure_of(leased("type/http", config={"url": "{{ workload.base }}/x"}))
    assert told.message.startswith("url: `{{ workload.base }}/x` has no value")


def test_a_workload_that_is_no_mapping_is_none_to_read_from() -> None:
    assert seen("input.b", workload=[1, 2], input={"b": 1}) == 1


# queries


def asked(query: str, **options: Any) -> Any:
    return leased("type/sql", config={"url": "sqlite://{{ '/' }}:memory:", "query": query}, **options)


def test_a_template_in_a_query_is_a_value_and_never_sql() -> None:
    hostile = "x'; SELECT 'pasted' AS a --"
    job = asked("SELECT '{{ v }}' AS a, {{ v }} AS b, {{ attempt }} AS n", workload={"v": hostile})
    assert result_of(job)["data"] == [{"a": hostile, "b": hostile, "n": 1}]
    told = failure_of(asked("SELECT {{ workload.nothing }} AS a"))
    assert told.message.startswith("query: `SELECT {{ workload.nothing }} AS a` has no value")


def test_a_query_that_is_one_template_is_the_text_that_it_yields() -> None:
    assert result_of(asked("{{ workload.q }}", workload={"q": "SELECT 42 AS a"}))["data"] == [{"a": 42}]


def test_a_secret_in_a_query_is_masked_in_what_comes_back() -> None:
    job = asked("SELECT 'a {{ secret(\"KEY\") }}' AS a")
    output = result_of(job, environ={"HOLDFAST_SECRET_KEY": "it's-a-secret"})
    assert output["data"] == [{"a": "a ***"}]
