"""Conditions: what authors may write, what they may not, and which data they work on."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expression_corpus import LARGE, VARIABLES
from holdfast.core.errors import DefinitionInvalid, HoldfastError
from holdfast.playbook.template import (
    EXPRESSION_CHARS_MAX,
    Condition,
    ConditionFailed,
    ConditionInvalid,
    TemplateFailed,
    compile_condition,
    compile_text,
)


def ask(source: str, **changed: object) -> bool:
    return compile_condition(source).evaluate(VARIABLES | changed)


TRUE = [
    # the variables of the specification
    "result.state == 'busy'",
    "attempt < max_attempts",
    "error",
    "'refused' in error",
    "error == 'Connection refused by 10.0.0.1'",
    "error.type == 'connection_error'",
    "error.category == 'transient'",
    "error.message == error",
    "error['type'] == 'connection_error'",
    "error|lower != error",
    "error[0] == 'C'",
    "status_code >= 500",
    "not success",
    "data.ok",
    "response.headers['Retry-After']|int == 30",
    "execution_id == 'exec-1'",
    "step in ['fetch', 'store']",
    "workload.base_url ~ '/x' == 'http://127.0.0.1:9000/x'",
    # braces and layout
    "{{ status_code >= 500 }}",
    "  {{status_code >= 500}}\n",
    "{{- data.ok -}}",
    "{{+ data.ok }}",
    "{{\n  status_code >= 500\n  and attempt < 3\n}}",
    "{'a': 1} == {'a': 1}",
    "{{ {'a': 1}['a'] == 1 }}",
    # logic and comparisons
    "status_code == 503 or nothing_of_that_name",
    "not (status_code == 404)",
    "status_code if data.ok else 0",
    "500 <= status_code < 600",
    "not (500 <= status_code < 503)",
    "status_code not in [200, 404]",
    "status_code != 404 and status_code > 500 and 5 <= 5",
    "'id' in data.rows[0]",
    "{'id': 1} in data.rows",
    "'x' not in result",
    "data.pair == (1, 2)",
    "data.codes == [500, 502]",
    "data != none",
    "'b' > 'a'",
    "[1, 2] < [1, 3]",
    "data.none is none",
    # items
    "data.rows[0].id == 1",
    "data.rows.1.id == 2",
    "data.rows[-1]['id'] == 2",
    "data.rows[5] is not defined",
    "data.rows[-3] is not defined",
    "data.rows[attempt] is undefined",
    "result.items == 'a key, not a method'",
    "data.keys is undefined",
    "error.upper is undefined",
    "data.rows.append is undefined",
    "data.rows['append'] is undefined",
    "data.none.anything is undefined",
    "response.text[:5] == 'Quota'",
    "data.codes[::-1] == [502, 500]",
    "data.pair[1:] == (2,)",
    # arithmetic and joining
    "1 + 2 * 3 - 4 / 2 == 5",
    "7 // 2 == 3 and 7 % 2 == 1 and 2 ** 10 == 1024",
    "2 ** -1 == 0.5",
    "1 ** 9999999 == 1 and 0 ** 9999999 == 0 and (-1) ** 3 == -1",
    "-attempt == -2 and +attempt == 2",
    "'a' + 'b' == 'ab' and 'ab' * 2 == 'abab' and 2 * 'ab' == 'abab'",
    "[1] + [2] == [1, 2] and [1] * 2 == [1, 1] and (1,) + (2,) == (1, 2)",
    "error + '!' == error ~ '!'",
    # text as it is, the rest as JSON writes it
    "'n=' ~ 1 ~ 2.5 ~ true ~ none == 'n=12.5truenull'",
    "[1, 'a', none, {'k': [2]}] ~ '' == '[1, \"a\", null, {\"k\": [2]}]'",
    "(1,) ~ (1, 2) ~ () == '[1][1, 2][]'",
    "{1: 2, true: 3, none: 4} ~ '' == '{\"1\": 3, \"null\": 4}'",
    # spelled as in Python or as in JSON
    "True is true and False is false and None is none and data.none == None",
    # filters
    "missing|default(3) == 3",
    "missing|default == ''",
    "other|default(missing)|default(1) == 1",
    "data.none|default(4, true) == 4",
    "data.none|default(4) is none",
    "data.rows|length == 2 and data|count == 5 and step|length == 5",
    "'exceeded' in response.text|lower and 'QUOTA' in response.text|upper",
    "' x '|trim == 'x' and 12|upper == '12'",
    "'42'|int == 42 and '4.9'|int == 4 and 'x'|int == 0 and 'x'|int(7) == 7 and none|int(5) == 5",
    "4.9|int == 4 and 'inf'|int(1) == 1 and '1e400'|int(2) == 2",
    "workload.limit|float == 12.5 and 'x'|float == 0.0 and [1]|float(1.5) == 1.5 and 2|float == 2.0",
    "7|string == '7' and error|string == error",
    "[3, 1, 2]|first == 3 and [3, 1, 2]|last == 2 and 'abc'|first == 'a'",
    "[]|first|default('none') == 'none' and []|last is undefined and []|max is undefined",
    "missing.of.that|default(7) == 7 and missing[0].rows is undefined and data.no.such|default('x') == 'x'",
    "-3|abs == 3 and 2.567|round(1) == 2.6 and 2.4|round == 2 and 1234|round(-2) == 1200",
    "data.codes|max == 502 and data.codes|min == 500 and data.codes|sum == 1002 and []|sum == 0",
    "['b', 'a', error]|min == error and ['a', error]|max == 'a'",
    "['a', 1, [2]]|join(', ') == 'a, 1, [2]' and ['a', 'b']|join == 'ab'",
    "nothing|d(3) == 3 and 'aB'|capitalize == 'Ab'",
    'data.rows|tojson == \'[{"id": 1}, {"id": 2}]\' and error|tojson|first == \'"\'',
    "'a\"b'|tojson == '\"a\\\\\"b\"'",
    "'a-b-c'|replace('-', '+') == 'a+b+c' and 'ab'|replace('', '.') == '.a.b.' and 11|replace(1, 2) == '22'",
    "'a,b'|split(',') == ['a', 'b'] and ' a  b '|split == ['a', 'b']",
    "'a b/\N{LATIN SMALL LETTER E WITH ACUTE}?'|urlencode == 'a%20b/%C3%A9%3F'",
    "{'q': 'a b/c', 'n': 1}|urlencode == 'q=a%20b%2Fc&n=1' and {}|urlencode == ''",
    "data.pair|list == [1, 2] and 'ab'|list == ['a', 'b'] and {'a': 1}|list == ['a']",
    "{'a': 1}|items == [['a', 1]] and {'a': 1}|items|first|last == 1",
    "[3, 1, 2]|sort == [1, 2, 3] and [3, 1]|sort(reverse=true) == [3, 1]",
    "['b', 'B', 'a']|sort|first == 'B'",
    "data.rows|sort(true, 'id')|map(attribute='id') == [2, 1] and []|sort == []",
    "[2, 1, 2, 'a', none, 'a']|unique == [2, 1, 'a', none]",
    "[2**70, 2.0**70, 0-2**70, 2**70, 2**70+1, 1, 1.0, true]|unique == [2**70, 0-2**70, 2**70+1, 1]",
    "[1, 2]|reverse == [2, 1] and 'ab'|reverse == 'ba'",
    "data.rows|map(attribute='id')|sum == 3 and [[1, {'a': 5}]]|map(attribute='1.a')|first == 5",
    "[{'a': 1}, {}]|map(attribute='a', default=0) == [1, 0] and [[7]]|map(attribute=0)|first == 7",
    "['1', '2']|map('int')|sum == 3 and [1.25]|map('round', 1) == [1.2] and []|map('int') == []",
    "[0, 1, '', 'a']|select == [1, 'a'] and [0, 1]|reject == [0]",
    "[1, 2, 3]|select('gt', 1)|reject('divisibleby', 3) == [2]",
    "data.rows|selectattr('id') == data.rows and data.rows|rejectattr('id', 'equalto', 1) == [{'id': 2}]",
    "data.rows|selectattr('missing', 'defined') == [] and data.rows|rejectattr('x.y', 'defined')|length == 2",
    # tests
    "status_code is defined and missing is not defined and missing is undefined",
    "data.none is none and data is not none",
    "true is true and false is false and 1 is not true",
    "true is boolean and 1 is not boolean",
    "1 is number and 1.5 is number and true is not number and '1' is not number",
    "1 is integer and 1.5 is not integer and true is not integer and 1.5 is float",
    "step is string and error is string and 1 is not string",
    "data is mapping and data.rows is not mapping",
    "data.rows is sequence and data.pair is sequence and 1 is not sequence",
    "attempt is divisibleby 2 and attempt is not divisibleby(3)",
    "1 is eq 1 and 1 is equalto(1) and 1 is ne 2 and 1 is in [1] and 'b' is not in 'a'",
    "2 is gt 1 and 2 is greaterthan(1) and 2 is ge 2 and 1 is lt 2 and 1 is lessthan(2) and 1 is le 1",
    # strings count as true unless they say otherwise
    "'yes'",
    "'falsehood'",
    "'nope'",
    "'0.0'",
]

FALSE = [
    "status_code < 500",
    "success",
    "data.none",
    "[]",
    "{}",
    "0",
    "''",
    "'   '",
    "'false'",
    "' FALSE '",
    "'0'",
    "'No'",
    "'off'",
    "workload.flag",
    "error.type == 'timeout'",
    "1 < 2 < 2",
    "1 == '1'",
    "[1] == (1,)",
]


@pytest.mark.parametrize("source", TRUE)
def test_a_condition_that_holds(source: str) -> None:
    assert ask(source) is True


@pytest.mark.parametrize("source", FALSE)
def test_a_condition_that_does_not_hold(source: str) -> None:
    assert ask(source) is False


def test_the_condition_of_a_step_reads_the_results_of_other_steps() -> None:
    assert compile_condition("{{ fetch.data.ok }}").evaluate({"fetch": {"data": {"ok": True}}}) is True


def test_a_condition_keeps_its_source_and_is_compiled_once() -> None:
    condition = compile_condition("{{ attempt > 1 }}")
    assert isinstance(condition, Condition)
    assert condition.source == "{{ attempt > 1 }}"
    assert repr(condition) == "Condition('{{ attempt > 1 }}')"
    assert compile_condition("{{ attempt > 1 }}") is condition


def test_a_variable_named_like_a_part_of_the_machinery_is_just_a_variable() -> None:
    names = ("result", "context", "environment", "loop", "super", "caller", "range", "undefined", "l_0_x")
    for name in names:
        assert compile_condition(f"{name} == 7").evaluate({name: 7}) is True


FAILS = [
    ("nothing", "'nothing' is undefined"),
    ("nothing >= 500", "'nothing' is undefined"),
    ("not nothing", "'nothing' is undefined"),
    ("nothing or true", "'nothing' is undefined"),
    ("nothing.of.that", "'nothing' is undefined"),
    ("nothing is none", "'nothing' is undefined"),
    ("nothing is string", "'nothing' is undefined"),
    ("nothing in [1]", "'nothing' is undefined"),
    ("nothing ~ 'x'", "'nothing' is undefined"),
    ("nothing + 1", "'nothing' is undefined"),
    ("-nothing", "'nothing' is undefined"),
    ("[nothing]", "'nothing' is undefined"),
    ("(1, nothing)|length", "'nothing' is undefined"),
    ("{'a': nothing}", "'nothing' is undefined"),
    ("{nothing: 1}", "'nothing' is undefined"),
    ("data[nothing]", "'nothing' is undefined"),
    ("nothing|lower", "'nothing' is undefined"),
    ("[1]|join(nothing)", "'nothing' is undefined"),
    ("[1]|join(d=nothing)", "'nothing' is undefined"),
    ("data.nothing", "a mapping has no `nothing`"),
    ("data.nothing.deeper", "a mapping has no `nothing`"),
    ("data.none.x", "none has no `x`"),
    ("status_code.real", "a number has no `real`"),
    ("error.upper", "text has no `upper`"),
    ("data.rows[7]", "a list has no `7`"),
    ("[]|first", "it is empty"),
    ("[]|min", "the list is empty"),
    ("data.none >= 500", "`>=` cannot compare none with a number"),
    ("'503' >= 500", "`>=` cannot compare text with a number"),
    ("1 in 'text'", "`in` cannot compare a number with text"),
    ("1 not in 5", "`not in` cannot compare a number with a number"),
    ("[1] in data", "`in` cannot compare a list with a mapping"),
    ("data < data", "`<` cannot compare a mapping with a mapping"),
    ("'a' + 1", "`+` cannot take text and a number"),
    ("[1] + (2,)", "`+` cannot take a list and a list"),
    ("'a' - 'b'", "`-` cannot take text and text"),
    ("'a' * 'b'", "`*` cannot take text and text"),
    ("'a' * 1.5", "`*` cannot take text and a number"),
    ("none * none", "`*` cannot take none and none"),
    ("'%s' % 1", "formatting with `%`"),
    ("1 / 0", "zero"),
    ("1 // 0", "zero"),
    ("1 % 0", "zero"),
    ("1 is divisibleby 0", "zero"),
    ("0 ** -1", "negative power"),
    ("(-8) ** 0.5", "this is a complex"),
    ("1e308 ** 2", "out of range"),
    ("-'x'", "`-` as a sign cannot take text"),
    ("+none", "`+` as a sign cannot take none"),
    ("1e308 * 10", "too large for a number"),
    ("[1e308, 1e308]|sum", "too large for a number"),
    ("number ~ ''", "cannot be written"),
    ("data[[1]]", "a list cannot be a key"),
    ("data[1, 2]", "a list cannot be a key"),
    ("{[1]: 2}", "unhashable"),
    ("data[1:2]", "only text and lists have slices"),
    ("'abc'['a':]", "slice indices"),
    ("'abc'[::0]", "zero"),
    ("5|length", "a number has no length"),
    ("5|first", "text or a list is needed"),
    ("5|sum", "a list is needed"),
    ("['a']|sum", "only numbers can be added up"),
    ("'x'|abs", "a number is needed"),
    ("1.5|round('x')", "rounding takes up to 30 digits"),
    ("['a', 1]|max", "neither all numbers nor all text"),
    ("[none]|min", "neither all numbers nor all text"),
    ("data['_pri' ~ 'vate']", "begin with an underscore"),
    ("5|list", "a number cannot become a list"),
    ("5|items", "only a mapping has items"),
    ("5|reverse", "text or a list is needed"),
    ("5|split", "only text can be split"),
    ("'a'|split('')", "empty separator"),
    ("[1, 'a']|sort", "neither all numbers nor all text"),
    ("[[1], [2]]|sort", "neither all numbers nor all text"),
    ("data.rows|sort(attribute='x')", "a mapping has no `x`"),
    ("[[1]]|unique", "can be compared for `unique`"),
    ("data.rows|map(attribute='x')", "a mapping has no `x`"),
    ("data.rows|map(attribute=none)", "`map` takes either"),
    ("data.rows|map(attribute=[1])", "an attribute is the name of a key"),
    ("data.rows|map('nope')", "there is no filter `nope`"),
    ("data.rows|map(1)", "there is no filter `a number`"),
    ("data.rows|select('nope')", "there is no test `nope`"),
    ("data.rows|selectattr('x')", "a mapping has no `x`"),
    ("{1: 2} < 1", "`<` cannot compare a mapping with a number"),
]


@pytest.mark.parametrize(("source", "reason"), FAILS)
def test_a_condition_without_an_answer_fails_and_says_why(source: str, reason: str) -> None:
    with pytest.raises(ConditionFailed) as caught:
        ask(source, number=math.inf)
    assert reason in str(caught.value)
    assert f"`{source}`" in str(caught.value)


def test_a_failure_is_one_of_ours_and_names_its_code() -> None:
    with pytest.raises(HoldfastError) as caught:
        ask("nothing")
    assert caught.value.code == "condition_failed"


def test_a_reason_is_cut_short() -> None:
    with pytest.raises(ConditionFailed) as caught:
        ask("data[key]", key="k" * 100_000)
    assert len(str(caught.value)) < 1_000
    with pytest.raises(ConditionFailed) as caught:
        ask("1 / 0 if key else " + "x" * 1_900, key=1)
    assert len(str(caught.value)) < 1_000


INVALID = [
    ("", "not an expression", "one Jinja2 expression"),
    ("{{ }}", "not an expression", "one Jinja2 expression"),
    ("status_code >=", "line 1: not an expression", "one Jinja2 expression"),
    ("{{ a\n  and\n  ) }}", "line 3: not an expression", "one Jinja2 expression"),
    ("\n\n{{ a b }}", "line 3: not an expression: there is more", "one Jinja2 expression"),
    ("{{ a }} and {{ b }}", "not an expression", "one Jinja2 expression"),
    ("a }} {% for x in y %}", "not an expression", "no statement"),
    ("{% if a %}1{% endif %}", "not an expression", "no statement"),
    ("{# note #}", "not an expression", "no statement"),
    ("'unclosed", "not an expression", "one Jinja2 expression"),
    ("[1, 2", "not an expression", "one Jinja2 expression"),
    ("foo()", "calls are not allowed", "filters: abs"),
    ("data.items()", "calls are not allowed", "default"),
    ("x|nope", "line 1: unknown filter `nope`", "abs, capitalize, count, d, default"),
    ("x is nope", "unknown test `nope`", "boolean, defined"),
    ("x|_compare('eq', 1)", "unknown filter `_compare`", "abs"),
    ("x|default(1, true, 3)", "filter `default`: too many", "default(default_value='', boolean=False)"),
    ("x|default(nope=1)", "unexpected keyword argument", "default(default_value=''"),
    ("x|default(boolean=1, boolean=2)", "given twice", "default("),
    ("x|lower(1)", "filter `lower`: too many", "lower()"),
    ("x is divisibleby", "test `divisibleby`: missing", "divisibleby(num)"),
    ("x|default(*y)", "`*` and `**` arguments", "written out"),
    ("x|default(**y)", "`*` and `**` arguments", "written out"),
    ("secret('TOKEN')", "a condition cannot use a secret", "resolved on the worker"),
    ("workload.a['\\ud800']", "line 1: a text holds half of a character", "the character itself"),
    ("'\\ud83d\\ude00' in error", "a text holds half of a character", "'\\U0001f600'"),
    ("steps['\\ud800']", "a text holds half of a character", "the character itself"),
    ("_x", "`_x` begins with an underscore", "do not"),
    ("x._y", "`_y` begins with an underscore", "do not"),
    ("x['_y']", "`_y` begins with an underscore", "do not"),
    ("x['_' 'y']", "`_y` begins with an underscore", "do not"),
    ("self", "the name `self` is reserved", "any other name"),
    ("\N{LATIN SMALL LIGATURE FI}", "is reserved", "any other name"),
    ("a if b", "an `if` has no `else`", "`a if condition else b`"),
    ("x[1:2, 3]", "`slice` cannot stand here", "names, literals"),
    ("9" * 400, "the number is too large", "1024 bits"),
    ("0x" + "f" * 300, "the number is too large", "1024 bits"),
    ("1e999", "the number is too large", "1024 bits"),
    ("(" * 21 + "1" + ")" * 21, "nested too deeply", "20 brackets"),
    ("not " * 100 + "x", "nested too deeply", "64 operations"),
    (" or ".join(["x"] * 100), "nested too deeply", "x in [1, 2]"),
    ("-" * 1_990 + "1", "nested too deeply", "20 brackets"),
    ("x" * (EXPRESSION_CHARS_MAX + 1), "2001 characters long", "at most 2000 characters"),
]


@pytest.mark.parametrize(("source", "message", "allowed"), INVALID)
def test_a_wrong_condition_is_refused_with_what_is_allowed(source: str, message: str, allowed: str) -> None:
    with pytest.raises(ConditionInvalid) as caught:
        compile_condition(source)
    assert message in str(caught.value)
    assert allowed in caught.value.guidance
    assert isinstance(caught.value, DefinitionInvalid)


def test_the_deepest_condition_allowed_still_compiles_and_runs() -> None:
    # Given a source at both limits, then it leaves room on the stack for its callers.
    assert ask(" or ".join(["success"] * 63 + ["data.ok"])) is True
    assert ask("not " * 62 + "data.ok") is True
    assert ask("(" * 20 + "data.ok" + ")" * 20) is True
    assert ask("[" * 20 + "]" * 20) is True


# --- Nothing but plain data gets in -------------------------------------------------------------------------


class Hostile:
    touched = False

    def __bool__(self) -> bool:
        type(self).touched = True
        return True

    def __eq__(self, other: object) -> bool:
        type(self).touched = True
        return True

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> bool:
        type(self).touched = True
        return True


class Text(str):
    pass


@pytest.mark.parametrize("value", [Hostile(), object, len, Text("x"), b"x", {1}, 1j, range(3), iter("x")])
@pytest.mark.parametrize(
    "source",
    ["x", "x or true", "not x", "x == 1", "x is defined", "x|default(1)", "[x]", "x ~ ''", "x|string"],
)
def test_a_variable_that_is_not_plain_data_is_refused_before_it_is_touched(
    source: str, value: object
) -> None:
    with pytest.raises(ConditionFailed, match="only plain data"):
        ask(source, x=value)
    assert not Hostile.touched


@pytest.mark.parametrize(
    "source",
    [
        "x.a",
        "x['a']",
        "x.a or true",
        "x.b[0]",
        "x.b|first",
        "not x.b|last",
        "x == {'a': 1, 'b': [1]}",
        "1 in x.b",
        "[x.b] == [[1]]",
        "x ~ ''",
        "x.b|join",
        "x.b|string",
        "x.b|max",
        "x.b|sum",
        "x.b[:] == [1]",
        "x.b + [1] == [1, 1]",
    ],
)
def test_what_is_not_plain_data_is_refused_wherever_an_expression_reaches_it(source: str) -> None:
    with pytest.raises(ConditionFailed, match="only plain data"):
        ask(source, x={"a": Hostile(), "b": [Hostile()]})
    assert not Hostile.touched


def test_what_an_expression_does_not_reach_is_not_looked_at() -> None:
    assert ask("status_code == 503 and x.ok", x={"ok": True, "other": Hostile()}, y=Hostile()) is True
    assert not Hostile.touched


def test_evaluation_leaves_the_variables_as_they_were() -> None:
    variables: dict[str, object] = {"a": [3, 1], "b": {"k": [1]}}
    assert compile_condition("a + [1] != a and a * 2 and b ~ a and a|max == 3").evaluate(variables) is True
    assert variables == {"a": [3, 1], "b": {"k": [1]}}


# --- How much data ------------------------------------------------------------------------------------------


def test_large_data_is_read_as_long_as_it_is_within_the_budget() -> None:
    for source in (
        "'b' not in t",
        "'b' not in t|lower",
        "t ~ 'x' != t",
        "2 not in n",
        "n|max == 1",
        "n|sum == n|length",
        "texts == texts",
        "m['7'] == [7]",
        "'7' in m and 'x' not in m",
        "texts|first|length == 100",
        "t|trim|length == 1048576",
        "'b' in t or 'c' in t or 'd' in t or t",
        "m is mapping and empty",
    ):
        assert compile_condition(source).evaluate(LARGE) is True, source


@pytest.mark.parametrize("source", ["x == y", "x ~ ''", "1 in x", "x|string", "x|join"])
def test_data_that_holds_itself_ends_the_evaluation_and_not_the_process(source: str) -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ConditionFailed):
        compile_condition(source).evaluate({"x": loop, "y": [loop]})


@pytest.mark.parametrize("source", ["x == y", "x ~ ''", "x|string", "x|join"])
def test_data_nested_beyond_the_stack_ends_the_evaluation_and_not_the_process(source: str) -> None:
    deep: list[object] = []
    twin: list[object] = []
    for _ in range(20_000):
        deep, twin = [deep], [twin]
    with pytest.raises(ConditionFailed):
        compile_condition(source).evaluate({"x": deep, "y": twin})


FINITE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(FINITE)
def test_data_written_as_text_reads_as_json(value: object) -> None:
    assert compile_condition("[value]|string == expected and [value]|tojson == expected").evaluate(
        {"value": value, "expected": json.dumps([value], ensure_ascii=False)}
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("1", set()),
        ("a", {"a"}),
        ("a.b[c]|default(d) is divisibleby e", {"a", "c", "d", "e"}),
        ("{{ none if steps.x.data else True }}", {"steps"}),
        ("{'k': v} == [w, (x,)]", {"v", "w", "x"}),
    ],
)
def test_a_condition_knows_the_names_that_it_reads(source: str, names: set[str]) -> None:
    assert compile_condition(source).names == names


@pytest.mark.parametrize("key", ["\ud800", "a\0b", "\udfff\ud800"])
def test_the_reason_can_be_stored_whatever_it_quotes(key: str) -> None:
    with pytest.raises(ConditionFailed, match="a mapping has no `") as caught:
        compile_condition("data[key]").evaluate({"data": {}, "key": key})
    assert "\0" not in str(caught.value).encode().decode()
    with pytest.raises(TemplateFailed, match="a mapping has no `") as failed:
        compile_text("{{ data[key] }}").evaluate({"data": {}, "key": key})
    assert "\0" not in str(failed.value).encode().decode()
    with pytest.raises(TemplateFailed, match="half of a character"):
        compile_text("{{ '\U0001f600' ~ (key|urlencode) }}").evaluate({"key": "\ud800"})
