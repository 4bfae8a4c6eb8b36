"""Texts with expressions in them: what their values are, how they are written out, and what is refused."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from holdfast.core.errors import DefinitionInvalid, UnknownName
from holdfast.playbook.template import ConditionInvalid, TemplateFailed, compile_text, error_value
from holdfast.playbook.text import CACHED_CHARS_MAX, TEXT_CHARS_MAX

VARIABLES: dict[str, object] = {
    "workload": {"url": "http://x", "n": 3, "half": 0.5, "list": [1, "a"], "none": None, "yes": True},
    "rows": [{"id": 1}, {"id": 2}],
    "error": error_value("Refused", type="connection_error", category="transient"),
}


def value(source: str, **changed: object) -> Any:
    return compile_text(source).evaluate(VARIABLES | changed)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # one expression alone: its value as it is
        ("{{ workload.n }}", 3),
        ("{{ workload.half * 2 }}", 1.0),
        ("{{ workload.list }}", [1, "a"]),
        ("{{ rows }}", [{"id": 1}, {"id": 2}]),
        ("{{ workload.none }}", None),
        ("{{ workload.yes }}", True),
        ("{{ workload.n > 5 }}", False),
        ("{{ '3' }}", "3"),
        ("  {{ workload.n }}\n", 3),
        ("{{workload.n}}", 3),
        ("{{- workload.n -}}", 3),
        ("{# the number #}{{ workload.n }}{# of rows #}\n", 3),
        ("{{ {'a': {'b': [1]}} }}", {"a": {"b": [1]}}),
        ("{{ {'a': {'b': {}}}}}", {"a": {"b": {}}}),
        ("{{ rows|map(attribute='id') }}", [1, 2]),
        ("{{ workload.n if workload.yes else none }}", 3),
        ("{{ None }}", None),
        ("{{ True }}", True),
        ("{{ [False, none] }}", [False, None]),
        ("{{\n  workload.n\n  + 1\n}}", 4),
        # JSON knows no tuples and no errors
        ("{{ (1, (2,)) }}", [1, [2]]),
        ("{{ () }}", []),
        ("{{ error }}", "Refused"),
        ("{{ [error, {'e': error, error: 1}] }}", ["Refused", {"e": "Refused", "Refused": 1}]),
        ("{{ error.type }}", "connection_error"),
        # among other text: written out, what is no text as JSON
        ("{{ workload.url }}/items?n={{ workload.n }}", "http://x/items?n=3"),
        ("{{ workload.n }}{{ workload.half }}", "30.5"),
        ("n={{ workload.none }}, {{ workload.yes }}, {{ false }}", "n=null, true, false"),
        ("{{ workload.list }}!", '[1, "a"]!'),
        ("{{ rows[0] }}!", '{"id": 1}!'),
        ("{{ error }}!", "Refused!"),
        ("{{ '' }}{{ '' }}", ""),
        # what is between is kept to the character
        ("a\r\n{{ 1 }}\rb\n\n", "a\r\n1\rb\n\n"),
        (" {{ 1 }} {{ 2 }} ", " 1 2 "),
        ("a {{- 1 -}} b {{- 2 }} c", "a1b2 c"),
        ("a{{ 1 -}} {# gone #} b", "a1b"),
        ("a{# gone #}b", "ab"),
        ("{# gone #}", ""),
        ("", ""),
        ("  ", "  "),
        ("no marks } } }} %} #}", "no marks } } }} %} #}"),
        ("{ {1} }", "{ {1} }"),
        # the marks themselves
        ("{{ '{{' }} x {{ '}}' }}", "{{ x }}"),
        ("{{ '{%' }}{{ \"{#\" }}", "{%{#"),
        ("{{ 'it''s' ~ \"}}\" }}", "its}}"),
        ("{{ 'a\\'}}b' }}", "a'}}b"),
        # what a shell and Python write
        ("n=${#list[@]}; echo {{ workload.n }}", "n=${#list[@]}; echo 3"),
        ("'{%s}' % {{ workload.n }}", "'{%s}' % 3"),
        ("{'a': {'b': {{ workload.n }}}}", "{'a': {'b': 3}}"),
    ],
)
def test_the_value_of_a_text(source: str, expected: object) -> None:
    result = value(source)
    assert result == expected
    assert type(result) is type(expected)


def test_a_list_of_any_size_passes_through_as_it_is() -> None:
    rows = [{"id": number} for number in range(200_000)]
    assert value("{{ fetch.rows }}", fetch={"rows": rows}) is rows


@pytest.mark.parametrize(
    ("source", "names", "secrets"),
    [
        ("plain", set(), set()),
        ("{{ 1 }}", set(), set()),
        ("{{ a.b }}/{{ c[d] }}", {"a", "c", "d"}, set()),
        ("{{ a|default(b) }}{# {{ c }} #}", {"a", "b"}, set()),
        ("Bearer {{ secret('TOKEN') }}", set(), {"TOKEN"}),
        ("{{ user ~ ':' ~ secret('A') ~ secret(\"b/c.d-e\") }}", {"user"}, {"A", "b/c.d-e"}),
    ],
)
def test_a_text_knows_what_it_reads(source: str, names: set[str], secrets: set[str]) -> None:
    text = compile_text(source)
    assert text.names == names
    assert text.secrets == secrets
    assert text.source == source
    assert repr(text) == f"Text({source!r})"


def test_a_text_without_expressions_is_constant() -> None:
    assert compile_text("plain").is_constant
    assert compile_text("a{# gone #}").is_constant
    assert not compile_text("{{ 1 }}").is_constant
    long = "x" * (TEXT_CHARS_MAX + 1)
    assert compile_text(long).evaluate({}) is not None


def test_a_text_is_compiled_once_unless_it_is_long() -> None:
    assert compile_text("{{ a }}!") is compile_text("{{ a }}!")
    long = "{{ a }}" + "x" * CACHED_CHARS_MAX
    assert compile_text(long) is not compile_text(long)


@pytest.mark.parametrize(
    ("source", "message", "allowed"),
    [
        ("{% if a %}b{% endif %}", "line 1: a {% statement %} cannot stand in a text", "{{ a if condition"),
        ("a\n\n{%- set x = 1 %}", "line 3: a {% statement %}", "'{%'"),
        ("{% for x in rows", "line 1: a {% statement %}", "for a loop a step"),
        ("a\n{{ b", "line 2: an expression begins with {{ and has no end", "'{{'"),
        ("{{ '}}", "line 1: not an expression: unexpected char", "between {{ and }}"),
        ("{{ '}}'", "line 1: an expression begins with {{ and has no end", "}} at its end"),
        ("{{ f(a }}", "line 1: not an expression: `(` is not closed", "brackets that match"),
        ("{{ [a) }}", "line 1: not an expression: `[` is not closed", "brackets that match"),
        ("{{ a }", "line 1: not an expression: `}` closes nothing", "brackets that match"),
        ("{{ a)\n }}", "line 1: not an expression: `)` closes nothing", "brackets that match"),
        ("{{ }}", "line 1: not an expression", "{{ workload.url }}"),
        ("x\n{{ a\n b }}", "line 3: not an expression: there is more", "between {{ and }}"),
        ("x\r\n{{ a + }}", "line 2: not an expression", "between {{ and }}"),
        ("x\n{{ a\n|nope }}", "line 3: unknown filter `nope`", "tojson"),
        ("x\n{{ a._b }}", "line 2: `_b` begins with an underscore", "do not"),
        ("x\n{{ a.b() }}", "line 2: calls are not allowed", 'secret("NAME")'),
        ("x\n{{ " + "(" * 21 + ")" * 21 + "}}", "line 2: the expression is nested too deeply", "20 brackets"),
        ("x\n{{ " + "-" * 1_900 + "1 }}", "line 2: the expression is nested too deeply", "64 operations"),
        ("{{ " + "x" * 2_001 + " }}", "no end within 2000 characters", "at most 2000"),
        ("{{ x }}" * 201, "more than 200 expressions", "at most 200"),
        (("{{ " + "x" * 1_900 + " }}") * 6, "11412 characters long", "at most 4000 together"),
        ("{{ x }}" + "x" * TEXT_CHARS_MAX, "100007 characters long", "at most 100000"),
        ("{{ secret() }}", "`secret` takes the name of one secret", 'secret("NAME")'),
        ("{{ secret(name) }}", "`secret` takes the name of one secret", 'secret("NAME")'),
        ("{{ secret('A', 'B') }}", "`secret` takes the name of one secret", 'secret("NAME")'),
        ("{{ secret(name='A') }}", "`secret` takes the name of one secret", 'secret("NAME")'),
        ("{{ secret(1) }}", "`secret` takes the name of one secret", 'secret("NAME")'),
        ("{{ secret('../x') }}", "`../x` cannot be the name of a secret", "letters"),
        ("{{ secret('a/../../x') }}", "`a/../../x` cannot be the name of a secret", "letters"),
        ("{{ secret('a//b') }}", "`a//b` cannot be the name of a secret", "letters"),
        ("{{ rows[secret('A')] }}", "a secret cannot be a key", "any other value"),
        ("{{ rows|map(attribute=secret('A')) }}", "a secret cannot be a key or a name", "any other value"),
    ],
)
def test_a_wrong_text_is_refused_with_its_line_and_what_is_allowed(
    source: str, message: str, allowed: str
) -> None:
    with pytest.raises(ConditionInvalid) as caught:
        compile_text(source)
    assert message in str(caught.value)
    assert allowed in caught.value.guidance
    assert isinstance(caught.value, DefinitionInvalid)


def test_a_text_at_its_limits_is_accepted() -> None:
    assert value("{{ 1 }}" * 200) == "1" * 200
    assert value("{{ '" + "x" * 1_996 + "' }}") == "x" * 1_996
    padding = "x" * (TEXT_CHARS_MAX - 7)
    assert value("{{ 1 }}" + padding) == "1" + padding


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ nothing }}", "'nothing' is undefined"),
        ("a {{ nothing }}", "'nothing' is undefined"),
        ("{{ workload.nothing }}", "a mapping has no `nothing`"),
        ("{{ [workload.nothing] }}", "a mapping has no `nothing`"),
        ("{{ 1 / 0 }}", "zero"),
        ("{{ hostile }}", "only plain data can be used"),
        ("{{ [hostile] }}", "only plain data can be used"),
    ],
)
def test_a_text_without_a_value_fails_and_says_why(source: str, reason: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        value(source, hostile=object())
    assert f"`{source}` has no value: " in str(caught.value)
    assert reason in str(caught.value)
    assert caught.value.code == "template_failed"
    assert caught.value.place == ""


# --- Secrets ------------------------------------------------------------------------------------------------

SECRETS = {"TOKEN": "s3cr3t-of-20-letters", "SHORT": "q", "EMPTY": ""}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ secret('TOKEN') }}", "s3cr3t-of-20-letters"),
        ("Bearer {{ secret('TOKEN') }}", "Bearer s3cr3t-of-20-letters"),
        ("{{ workload.url ~ '/' ~ secret('SHORT') }}", "http://x/q"),
        ("{{ secret('EMPTY')|default('none', true) }}", "none"),
        ("{{ {'token': secret('SHORT')} }}", {"token": "q"}),
    ],
)
def test_a_secret_is_looked_up_where_there_is_something_to_look_it_up_with(
    source: str, expected: object
) -> None:
    assert compile_text(source).evaluate(VARIABLES, SECRETS.__getitem__) == expected
    with pytest.raises(TemplateFailed, match="secrets are resolved on a worker"):
        compile_text(source).evaluate(VARIABLES)


def test_only_the_secrets_that_are_reached_are_looked_up() -> None:
    asked: list[str] = []

    def lookup(name: str) -> str:
        asked.append(name)
        return SECRETS[name]

    text = compile_text("{{ secret('TOKEN') if workload.n > 5 else secret('SHORT') }}")
    assert text.evaluate(VARIABLES, lookup) == "q"
    assert asked == ["SHORT"]


def test_a_variable_cannot_take_the_place_of_secrets() -> None:
    text = compile_text("{{ secret('TOKEN') }}{{ secret }}")
    assert text.evaluate({"secret": "mine"}, SECRETS.__getitem__) == "s3cr3t-of-20-lettersmine"


def test_an_unknown_secret_is_told_in_the_words_of_who_looked() -> None:
    def lookup(name: str) -> str:
        raise UnknownName(f"There is no secret {name}.", guidance="Set HOLDFAST_SECRET_TOKEN.")

    with pytest.raises(TemplateFailed, match="There is no secret TOKEN") as caught:
        compile_text("{{ secret('TOKEN') }}").evaluate({}, lookup)
    assert caught.value.guidance == "Set HOLDFAST_SECRET_TOKEN."


def test_a_lookup_that_fails_is_not_quoted() -> None:
    def lookup(name: str) -> str:
        raise ValueError(f"{SECRETS[name]} is odd")

    with pytest.raises(TemplateFailed, match=r"the secret TOKEN cannot be read \(ValueError\)") as caught:
        compile_text("{{ secret('TOKEN') }}").evaluate({}, lookup)
    assert SECRETS["TOKEN"] not in "".join(traceback.format_exception(caught.value))


def test_a_secret_that_is_no_text_is_refused() -> None:
    with pytest.raises(TemplateFailed, match="the secret TOKEN is not text"):
        compile_text("{{ secret('TOKEN') }}").evaluate({}, lambda name: 5)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "source",
    [
        "{{ secret('TOKEN') + 1 }}",
        "{{ secret('TOKEN')['x'] }}",
        "{{ secret('TOKEN')|sum }}",
        "{{ secret('TOKEN')|round }}",
        "{{ [secret('TOKEN')]|map('nope') }}",
        "{{ [secret('TOKEN'), 1]|sort }}",
        "{{ {secret('TOKEN'): 1}.x }}",
        "{{ secret('TOKEN')[:'a'] }}",
        "{{ secret('TOKEN') }}{{ nothing }}",
        "{{ 'x' is divisibleby secret('TOKEN') }}",
        "{{ secret('TOKEN') and workload[key] }}",
    ],
)
def test_no_message_and_no_trace_of_a_failure_holds_a_secret(source: str) -> None:
    variables = VARIABLES | {"key": SECRETS["TOKEN"]}  # the same text from elsewhere
    with pytest.raises(TemplateFailed) as caught:
        compile_text(source).evaluate(variables, SECRETS.__getitem__)
    assert SECRETS["TOKEN"] not in "".join(traceback.format_exception(caught.value))
