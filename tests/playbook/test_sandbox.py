"""Nothing that an author writes gets out of the sandbox or blows it up: not as a condition, not in a text,
not in a value.

A corpus of escapes and bombs, and whatever Hypothesis makes up: each gives plain data or one of our errors,
within its budget, and touches nothing outside.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expression_corpus import BOMBS, ESCAPES, EXPRESSIONS, LARGE, PLAIN, TEXT_ESCAPES, TOKENS, VARIABLES
from holdfast.core.errors import HoldfastError
from holdfast.playbook import sandbox
from holdfast.playbook.evaluation import BUDGET
from holdfast.playbook.expression import Budget, compile_expressions
from holdfast.playbook.template import (
    EXPRESSION_CHARS_MAX,
    ConditionFailed,
    ConditionInvalid,
    TemplateFailed,
    compile_condition,
    compile_text,
    compile_value,
)
from holdfast.playbook.text import Setting
from holdfast.playbook.text import _cached as compile_text_cached
from holdfast.playbook.text_parts import split_text
from holdfast.playbook.unfolding import Given
from holdfast.playbook.variables import edge_variables, step_variables

MEMORY_BYTES_MAX: Final = 10_000_000
# Generous, for slow machines that measure coverage too: it proves that there is a bound.
SECONDS_MAX: Final = 5

Form = Callable[[str, Mapping[str, object]], object]


def as_condition(source: str, variables: Mapping[str, object]) -> object:
    return compile_condition(source).evaluate(variables)


def as_expression(source: str, variables: Mapping[str, object]) -> object:
    return compile_text("{{ " + source + " }}").evaluate(variables)


def among_text(source: str, variables: Mapping[str, object]) -> object:
    return compile_text("x{{ " + source + " }}").evaluate(variables)


def in_a_value(source: str, variables: Mapping[str, object]) -> object:
    template = "{{ " + source + " }}"
    return compile_value({"a": [template, "b" + template], "c": template}).evaluate(variables)


FORMS: Final[list[Form]] = [as_condition, as_expression, among_text, in_a_value]
OUR_ERRORS: Final = (ConditionInvalid, ConditionFailed, TemplateFailed)


# What Python tells its audit hooks of, that no expression may do. A hook stays for ever, so it is asked for
# only while an expression is evaluated.
_OUTSIDE: Final = (
    "open",
    "os.",
    "import",
    "subprocess.",
    "socket.",
    "shutil.",
    "ctypes.",
    "sqlite3.",
    "exec",
)
_watching: list[str] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _watching is not None and event.startswith(_OUTSIDE):
        _watching.append(f"{event} {arguments!r}"[:200])


sys.addaudithook(_watch)


def touched_outside(evaluate: Callable[[], object]) -> tuple[object, list[str]]:
    """What an evaluation gives, and what it did outside of itself."""
    global _watching
    touched: list[str] = []
    _watching = touched
    try:
        return evaluate(), touched
    finally:
        _watching = None


def test_the_watch_sees_a_file_that_is_opened() -> None:
    def read() -> str:
        with open(__file__) as file:
            return file.read(1)

    assert any(line.startswith("open") for line in touched_outside(read)[1])


# --- No way out ---------------------------------------------------------------------------------------------


def test_the_corpus_is_large() -> None:
    assert len(set(ESCAPES)) > 150
    assert len(set(BOMBS)) > 100


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", ESCAPES)
def test_no_expression_gets_out_of_the_sandbox(source: str, form: Form) -> None:
    with pytest.raises(OUR_ERRORS):
        form(source, VARIABLES)


@pytest.mark.parametrize("source", TEXT_ESCAPES)
def test_no_text_gets_out_of_the_sandbox(source: str) -> None:
    with pytest.raises(OUR_ERRORS):
        compile_text(source).evaluate(VARIABLES)
    with pytest.raises(OUR_ERRORS):
        compile_value([{"a": source}]).evaluate(VARIABLES)


def test_the_sandbox_refuses_to_call_even_what_the_guard_did_not_see() -> None:
    environment = sandbox.ENVIRONMENT
    assert not environment.globals
    assert not environment.is_safe_callable(len)


# --- Bounded memory and time --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", BOMBS, ids=range(len(BOMBS)))
def test_no_expression_grows_or_lasts_beyond_its_budget(source: str) -> None:
    assert len(source) <= EXPRESSION_CHARS_MAX

    def evaluate_anyway() -> None:
        with suppress(*OUR_ERRORS):
            in_a_value(source, LARGE)

    started = time.thread_time()  # what it takes, not how long the machine makes it wait
    evaluate_anyway()
    assert time.thread_time() - started < SECONDS_MAX
    tracemalloc.start()
    try:
        evaluate_anyway()  # compiled already
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX


def test_one_budget_covers_all_texts_of_a_value() -> None:
    half = "{{ t ~ 'x' }}"
    assert len(compile_value([half]).evaluate(LARGE)[0]) > 1_000_000
    with pytest.raises(TemplateFailed, match="too much data") as caught:
        compile_value({"first": half, "second": half}).evaluate(LARGE)
    assert caught.value.place == "second"


def cost(source: str, **variables: object) -> int:
    """In units of the budget, of which a second has some 20 million."""
    budget = Budget()
    compile_condition(source).evaluate(variables, budget)
    return BUDGET - budget.left


@pytest.mark.parametrize(
    ("slow", "quick", "nanoseconds"),
    [
        ("([1.1e300]*1000)|map('round', 30)", "([1.1]*1000)|map('round', 30)", 14_000),
        ("(['x'*1000]*1000)|map('int')", "(['x']*1000)|map('int')", 4_000),
        ("w|map(attribute='a.a.a.a.a.a.a.a.a.a')", "w|map(attribute='a')", 9_000),
        ("([1.1]*1000)|tojson", "([1]*1000)|tojson", 1_000),
        ("[2**1000]*1000 == [1]", "[1]*1000 == [1]", 100),
    ],
)
def test_what_takes_longer_costs_more(slow: str, quick: str, nanoseconds: int) -> None:
    deep: object = 1
    for _ in range(10):
        deep = {"a": deep}
    more = cost(slow, w=[deep] * 1_000) - cost(quick, w=[deep] * 1_000)
    assert more / 1_000 >= nanoseconds / 50


def test_each_evaluation_costs_something_also_where_nothing_is_read_or_made() -> None:
    assert cost("true") > 0


def test_variables_are_not_copied_for_each_expression() -> None:
    variables: dict[str, object] = {"a": 1}
    assert compile_expressions([("a", 1)], of_condition=False).evaluation(variables).parent is variables


@pytest.mark.parametrize(
    "source",
    [
        ("{{ [" + "a[b]," * 390 + "] }}") * 2,
        ("{{ [" + "a~b," * 490 + "] }}") * 2,
        "{{ " + "'a'~" * 60 + "'' }}" + "{{ x }}" * 199,
        "{{ '" + "\\'" * 999,
        "{{ '" + "\\'" * 40_000 + "}}",
        "{{ {" * 20_000,
        "{#" * 40_000,
        "{%s" * 30_000,
        "${#" * 30_000 + "{{ 1 }}",
        "{{ 1 }}" * 201,
        "{{" * 50_000,
        "}}" * 50_000 + "{{ 1 }}",
        ("x" * 400 + "{{ x }}\n") * 199,
        "{{ x -}}" + " " * 90_000 + "{{- x }}",
    ],
    ids=range(14),
)
def test_compiling_a_text_is_bounded_too(source: str) -> None:
    def compile_anyway() -> None:
        compile_text_cached.cache_clear()
        with suppress(ConditionInvalid):
            compile_text(source)

    started = time.thread_time()
    compile_anyway()
    seconds = time.thread_time() - started
    tracemalloc.start()
    try:
        compile_anyway()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX
    assert seconds < SECONDS_MAX


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("source", ["x == y", "x ~ ''", "1 in x", "x|string", "x|join", "x|tojson", "x|sort"])
def test_data_that_holds_itself_ends_the_evaluation_and_not_the_process(source: str, form: Form) -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(TemplateFailed):
        form(source, {"x": loop, "y": [loop]})


def test_a_text_of_nothing_but_marks_is_searched_for_their_ends_once() -> None:
    class Searched(str):
        searches = 0

        def find(self, *arguments: object) -> int:
            type(self).searches += 1
            return super().find(*arguments)  # type: ignore[arg-type]

    split_text(Searched("{#{%s" * 1_000), expressions_max=1)
    assert Searched.searches == 2


def test_an_expression_met_deep_in_the_stack_is_refused_and_ends_nothing() -> None:
    source = "{{ " + " or ".join(["a"] * 60) + " }}"

    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        else:
            compile_text(source)

    refused = 0
    for left in range(sys.getrecursionlimit() - 600, sys.getrecursionlimit(), 10):
        try:
            deeper(left)
        except ConditionInvalid as error:
            refused += 1
            assert "nested too deeply" in str(error)
        except RecursionError:
            break  # the stack ended before the text was looked at
        compile_text_cached.cache_clear()
    assert refused


# --- Whatever is written, it has a value or there is a reason -----------------------------------------------

PLAIN_TYPES: Final = (type(None), bool, int, float, str)


def assert_plain(value: object) -> None:
    if type(value) is list:
        for item in value:
            assert_plain(item)
    elif type(value) is dict:
        for key, item in value.items():
            assert type(key) in PLAIN_TYPES
            assert_plain(item)
    else:
        assert type(value) in PLAIN_TYPES


SECRET: Final = "s3cr3t-canary"
STEP: Final = edge_variables(
    step_variables(
        workload={"base_url": "http://127.0.0.1:9000", "limit": "12.5", "list": [1, "a", None]},
        input={"rows": [{"id": 1}, {"id": 2}]},
        outputs={"fetch": {"data": {"ok": True}}, "count": 3, "a-b": [1, 2]},
        execution_id="exec-1",
        step="store",
        index=0,
        item={"id": 7},
    ),
    step="store",
    output={"status_code": 200, "text": "ok"},
)
# With every variable of a retry condition; but tuples are no JSON, so no step is given one.
JSON_VARIABLES: Final[dict[str, object]] = {
    **VARIABLES,
    **STEP,
    "error": VARIABLES["error"],
    "data": {"ok": True, "rows": [{"id": 1}, {"id": 2}], "codes": [500, 502], "none": None},
}


def answer(source: str, **changed: object) -> None:
    """As a condition: yes, no, or one of two errors."""
    with suppress(ConditionInvalid, ConditionFailed):
        condition = compile_condition(source)
        result, touched = touched_outside(lambda: condition.evaluate(VARIABLES | changed))
        assert type(result) is bool
        assert not touched


def value_of(source: str, **changed: object) -> None:
    """As a text and in a value: plain data, or one of two errors; a secret is in no message."""
    variables = JSON_VARIABLES | changed
    for whole in (source, "{{ " + source + " }}", "x{{ " + source + " }}y"):
        try:
            text = compile_text(whole)
            compiled = compile_value({"a": [whole]})
            budget = Budget()
            setting = Setting(variables, lambda name: SECRET, budget, Given())
            evaluate = partial(text.evaluate_in, setting)
            result, touched = touched_outside(evaluate)
            assert 0 <= budget.left <= BUDGET
            assert not touched
            assert_plain(result)
            assert compiled.evaluate(variables, lambda name: SECRET) == {"a": [result]} or result != result
        except (ConditionInvalid, TemplateFailed) as error:
            assert isinstance(error, HoldfastError)
            assert SECRET not in f"{error} {error.guidance}"


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS)
def test_any_expression_gives_a_value_or_a_reason(source: str) -> None:
    answer(source)
    answer("{{ " + source + " }}")
    value_of(source)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.text(max_size=200), TOKENS))
def test_any_text_gives_a_value_or_a_reason(source: str) -> None:
    answer(source)
    value_of(source)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, PLAIN, PLAIN)
def test_any_data_gives_a_value_or_a_reason(source: str, data: object, result: object) -> None:
    answer(source, data=data, result=result)
    value_of(source, data=data, result=result)


TEMPLATES = st.one_of(TOKENS, EXPRESSIONS.map(lambda source: "{{ " + source + " }}"))
VALUES = st.recursive(
    TEMPLATES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEMPLATES, inner, max_size=3)
)


@settings(max_examples=200, deadline=None)
@given(PLAIN | VALUES)
def test_any_value_gives_a_value_or_a_reason(value: object) -> None:
    with suppress(ConditionInvalid, TemplateFailed):
        assert_plain(compile_value(value).evaluate(JSON_VARIABLES))


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_text_without_marks_stays_as_it_is(text: str) -> None:
    source = text.replace("{", "(")
    assert compile_text(source).evaluate({}) == source
    assert (
        compile_text(source + "{{ 'x' }}" + source).evaluate({}) == source + "x" + source
        or not source.strip()
    )
