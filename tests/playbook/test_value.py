"""JSON values with texts inside: walked, checked, and evaluated as one."""

from __future__ import annotations

import pytest

from holdfast.playbook.template import ConditionInvalid, TemplateFailed, compile_value
from holdfast.playbook.value import VALUE_DEPTH_MAX, VALUE_ITEMS_MAX

VARIABLES: dict[str, object] = {"url": "http://x", "n": 3, "rows": [{"id": 1}]}


def test_every_text_of_a_value_is_evaluated_and_no_key() -> None:
    value = compile_value(
        {
            "url": "{{ url }}/items",
            "json": {"rows": "{{ rows }}", "{{ n }}": ["{{ n }}", 1, None, True, 0.5, "plain"]},
            "timeout": 5,
        }
    )
    assert value.evaluate(VARIABLES) == {
        "url": "http://x/items",
        "json": {"rows": [{"id": 1}], "{{ n }}": [3, 1, None, True, 0.5, "plain"]},
        "timeout": 5,
    }
    assert value.names == {"url", "rows", "n"}
    assert not value.is_constant


@pytest.mark.parametrize(
    ("source", "expected"), [("{{ n }}", 3), (["{{ n }}"], [3]), ({"a": "{{ n }}"}, {"a": 3})]
)
def test_a_value_may_be_a_text_a_list_or_a_mapping(source: object, expected: object) -> None:
    value = compile_value(source)
    assert value.evaluate(VARIABLES) == expected
    assert value.source is source
    assert repr(value) == f"Value({source!r})"


@pytest.mark.parametrize(
    "source", [None, True, 5, 0.5, "plain", "", [], {}, [1, ["a"]], {"a": {"b": [None]}}]
)
def test_a_value_without_templates_is_passed_through_as_it_is(source: object) -> None:
    value = compile_value(source)
    assert value.is_constant
    assert value.evaluate({}) is source
    assert (value.names, value.secrets) == (frozenset(), frozenset())


def test_only_what_holds_a_template_is_made_anew() -> None:
    constant = {"b": [1]}
    source = {"a": "{{ n }}", "c": constant}
    result = compile_value(source).evaluate(VARIABLES)
    assert result["c"] is constant
    assert source == {"a": "{{ n }}", "c": {"b": [1]}}


def test_a_comment_is_gone_from_a_value_too() -> None:
    assert compile_value(["a{# gone #}"]).evaluate({}) == ["a"]


def test_a_value_knows_its_secrets_and_hands_the_lookup_on() -> None:
    value = compile_value(
        {"headers": {"Authorization": "Bearer {{ secret('T') }}"}, "x": ["{{ secret('U') }}"]}
    )
    assert value.secrets == {"T", "U"}
    assert value.evaluate({}, secrets=str.lower) == {"headers": {"Authorization": "Bearer t"}, "x": ["u"]}
    with pytest.raises(TemplateFailed, match="secrets are resolved on a worker") as caught:
        value.evaluate({})
    assert caught.value.place == "headers.Authorization"


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("{{ nothing }}", ""),
        ({"headers": {"X-Id": "a", "Authorization": "{{ nothing }}"}}, "headers.Authorization"),
        ([1, {"a": ["{{ n }}", "{{ nothing }}"]}], "[1].a[1]"),
        ({"k" * 500: "{{ nothing }}"}, "k" * 50),
    ],
)
def test_a_failure_names_the_place(source: object, place: str) -> None:
    with pytest.raises(TemplateFailed, match="'nothing' is undefined") as caught:
        compile_value(source).evaluate(VARIABLES)
    assert caught.value.place == place
    assert str(caught.value).startswith(f"{place}: `" if place else "`")


@pytest.mark.parametrize(
    ("source", "message", "allowed"),
    [
        ({"a": [1, "x\n{{ b + }}"]}, "a[1]: line 2: not an expression", "between {{ and }}"),
        ("{% if x %}", "line 1: a {% statement %}", "{{ expressions }}"),
        ({"a": b"x"}, "a: a bytes cannot stand in a value", "text, numbers"),
        ([{1, 2}], "[0]: a set cannot stand in a value", "lists and mappings"),
        ([0] * VALUE_ITEMS_MAX, "too many items", "at most 10000"),
        (["{{ " + "x" * 1_900 + " }}"] * 30, "[26]: the expressions of the value are too long", "50000"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_what_is_allowed(
    source: object, message: str, allowed: str
) -> None:
    with pytest.raises(ConditionInvalid) as caught:
        compile_value(source)
    assert message in str(caught.value)
    assert allowed in caught.value.guidance


def test_a_value_that_is_too_deep_or_holds_itself_is_refused() -> None:
    deep: object = "{{ n }}"
    for _ in range(VALUE_DEPTH_MAX):
        deep = [deep]
    assert compile_value(deep).names == {"n"}
    loop: dict[str, object] = {}
    loop["again"] = loop
    for source in ([deep], loop):
        with pytest.raises(ConditionInvalid, match="nested too deeply"):
            compile_value(source)
