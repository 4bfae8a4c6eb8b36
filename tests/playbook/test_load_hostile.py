"""Whatever is handed in as a playbook: it loads, or PlaybookInvalid says why; and that within bounds."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.playbook import scope
from holdfast.playbook.document import BYTES_MAX, CHARS_MAX, DEPTH_MAX, VALUES_MAX, Path
from holdfast.playbook.faults import FAULTS_KEPT_MAX, PlaybookInvalid
from holdfast.playbook.load import load_playbook
from holdfast.playbook.text import CACHED_CHARS_MAX, Text, compile_text
from holdfast.playbook.text import _cached as compile_text_cached

GOOD = """\
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: good, path: examples/good}
workload: &load {base_url: "http://127.0.0.1:9000", cities: [a, b], n: 0x10}
defaults: {retry: {delays: [1s, 2s]}, timeout: 1m}
errors: [{status: 409, error_type: busy, category: transient}]
workflow:
  - step: start
    next: fetch
  - step: fetch
    type: http
    url: "{{ workload.base_url }}/flaky"
    retry: {max_attempts: 3, retry_when: "{{ status_code >= 500 }}"}
    max_visits: 3
    next:
      - {step: store, when: "{{ fetch.data.ok }}", with: {rows: "{{ fetch.data.rows }}"}}
      - {when: result.again, then: [fetch]}
      - {else: end}
  - step: store
    type: python
    for_each: {in: "{{ workload.cities }}", as: city, concurrency: 2}
    with: {city: "{{ city }}", rows: "{{ rows }}"}
    code: |
      def main(city, rows):
          return {"city": city}
    on_error: tell
  - step: tell
    type: shell
    command: [echo, "{{ error.message }}"]
"""

SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def words(text: str) -> list[str]:
    return text.split()


WORDS = st.sampled_from(
    [
        *words(
            "step type http next when with retry for_each workflow apiVersion holdfast/v1 on_error start url"
        ),
        *words("&a *a !!str << | > { } [ ] ' \" # % --- ... null true 1 1e999 0x .nan \\ {{ }} a end <text>"),
        *("{{ a }}", "? ", "- ", ": ", "\n", "  ", "\t", "\x00", "\ud7ff", "é", "\u2028"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | WORDS, inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        *words("step desc type tool next max_visits with data for_each on_error retry timeout lane priority"),
        *words("limit barrier errors url method json auth code call query params command shell seconds path"),
        *words("version nonsense <text>"),
    ]
)
TYPES = st.sampled_from(
    ["http", "python", "sql", "duckdb", "postgres", "shell", "sleep", "playbook", "end", "x"]
)


def loads_or_is_refused(source: str | bytes) -> None:
    try:
        playbook = load_playbook(source)
    except PlaybookInvalid as error:
        assert error.faults
        assert all(fault.line >= 1 and fault.message for fault in error.faults)
    else:
        assert playbook.definition.steps


def flow_yaml(value: object) -> str:
    """JSON is YAML, but for what JSON itself does not know."""
    return json.dumps(value)


def test_the_good_one_is_good() -> None:
    assert len(load_playbook(GOOD).definition.steps) == 4


@SETTINGS
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    loads_or_is_refused(text)


@SETTINGS
@given(st.binary(max_size=300))
def test_any_bytes(raw: bytes) -> None:
    loads_or_is_refused(raw)


@SETTINGS
@given(st.lists(WORDS, max_size=40).map("".join))
def test_any_words_of_the_language_in_any_order(text: str) -> None:
    loads_or_is_refused("apiVersion: holdfast/v1\nmetadata: {name: a}\nworkflow:\n- step: a\n" + text)


@SETTINGS
@given(st.integers(0, len(GOOD)))
def test_a_good_one_that_was_cut_off(end: int) -> None:
    loads_or_is_refused(GOOD[:end])


@SETTINGS
@given(st.integers(0, len(GOOD)), st.integers(0, 30), WORDS | st.text(max_size=5))
def test_a_good_one_with_something_replaced(start: int, length: int, new: str) -> None:
    loads_or_is_refused(GOOD[:start] + new + GOOD[start + length :])


@SETTINGS
@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=6), min_size=1, max_size=4), TYPES)
def test_fields_with_any_values(steps: list[dict[str, object]], kind: str) -> None:
    for number, step in enumerate(steps):
        step.setdefault("step", f"s{number}")
        step.setdefault("type", kind)
    document = {"apiVersion": "holdfast/v1", "metadata": {"name": "a"}, "workflow": steps}
    loads_or_is_refused(flow_yaml(document))


@SETTINGS
@given(st.dictionaries(st.sampled_from(["workload", "defaults", "errors", "metadata", "kind", "name"]), JSON))
def test_a_head_with_any_values(head: dict[str, object]) -> None:
    loads_or_is_refused(flow_yaml({"apiVersion": "holdfast/v1", **head, "workflow": [{"step": "a"}]}))


HEAD = "apiVersion: holdfast/v1\nmetadata: {name: big}\nworkflow:\n"


def many(line: str, count: int) -> str:
    return HEAD + "".join(
        line.replace("#", str(number)).replace("@", str(number + 1)) for number in range(count)
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 1_000_000, "nested too deeply"),
        ("{" * 1_000_000, "nested too deeply"),
        ("- " * 500_000, "nested too deeply"),
        ("? " * 500_000, "nested too deeply"),
        ("a: &a " * 100_000, "not YAML"),
        ("[" + "1," * 500_000 + "]", "too many values"),
        ("a: 1\n" * 200_000, "given twice"),
        ("a: &a [1, 1]\n" + "".join(f"k{n}: *a\n" for n in range(70_000)), "too many values"),
        ("a: &a '" + "x" * 200_000 + "'\nb: [" + "*a, " * 3_000 + "]\n", "too many characters"),
        ("a: &a {b: '" + "x" * 200_000 + "'}\nb: [" + "*a, " * 3_000 + "]\n", "too many characters"),
        ("a: &a '" + "y" * 300_000 + "'\nb:\n" + "  ? *a\n  : 1\n" * 200, "is given twice"),
        (
            f"description: &a {'x' * 20_000}\n"
            + many("- {step: s#, type: sleep, seconds: 1, limit: *a, next: s@}\n", 90)
            + "- {step: s90, type: sleep, seconds: 1}\n",
            "is not allowed",
        ),
        (
            f"apiVersion: holdfast/v1\nname: '{'é' * 400_000}'\nworkflow: [{{step: a}}]\n",
            "cannot be its path",
        ),
        ("x: " + "9" * 1_000_000, "cannot be kept"),
        ("x: '" + "\\" * 1_000_000, "not YAML"),
        ("x" * (BYTES_MAX + 1), "At most 1,048,576"),
        (many("- {step: s#, type: sleep, seconds: 1, next: t@}\n", 10_000), "There is no step"),
        (many("- {step: s#, type: nothing}\n", 10_000), "There is no type"),
        (many("- {step: s#, type: sleep, seconds: 1}\n", 10_000), "Nothing leads to"),
        (HEAD + "- {step: a, " + ", ".join(f"k{n}: 1" for n in range(50_000)) + "}", "There is no field"),
        ("".join(f"a{n}: &x{n} 1\n" for n in range(40_000)) + "b: *no\n" * 2_000, "stands for nothing"),
        (
            many("- {step: s#, type: sleep, seconds: '{{ steps[workload.k] }}', next: s@}\n", 9_000),
            "of any of its",
        ),
    ],
    ids=words(
        "brackets braces dashes keys anchors values doubles aliases texts mappings long_keys limits name"
        " digits escapes size nexts types orphans fields unknown_aliases readers_of_all"
    ),
)
def test_what_is_large_costs_little_to_refuse(text: str, says: str) -> None:
    with pytest.raises(PlaybookInvalid) as caught:
        load_playbook(text)
    assert says in str(caught.value)
    assert len(caught.value.faults) <= FAULTS_KEPT_MAX
    assert len(str(caught.value)) < 200_000


def test_templates_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "EXPRESSION_CHARS_MAX", 1_000)
    texts = ", ".join(f"k{number}: '{{{{ {number} + 1 }}}}'" for number in range(200))
    with pytest.raises(PlaybookInvalid, match="too many templates") as caught:
        load_playbook(f"{HEAD}- {{step: a, type: sleep, seconds: 1, with: {{{texts}}}}}")
    assert len(caught.value.faults) == 1
    same = ", ".join(f"k{number}: '{{{{ workload.x + 1 }}}}'" for number in range(200))
    load_playbook(f"{HEAD}- {{step: a, type: sleep, seconds: 1, with: {{{same}}}}}")  # each counts once


@pytest.mark.parametrize("ways", ["c: c", "c: d, d: c"])
def test_control_steps_do_not_lead_round_by_themselves(ways: str) -> None:
    # Nothing would be done between two visits: all of them would come at once.
    steps = "- {step: a, type: sleep, seconds: 0, next: c}\n"
    for way in ways.split(", "):
        name, target = way.split(": ")
        steps += (
            f"- {{step: {name}, max_visits: 10000, next: [{{step: {target}, when: execution_id > 0}}]}}\n"
        )
    with pytest.raises(PlaybookInvalid, match="lead round and do nothing"):
        load_playbook(HEAD + steps)
    load_playbook(
        HEAD + "- {step: c, next: a}\n- {step: a, type: sleep, seconds: 0, max_visits: 2, next: c}\n"
    )


def test_the_largest_that_are_allowed() -> None:
    chain = many("- {step: s#, type: sleep, seconds: 1, next: s@}\n", 9_999)
    definition = load_playbook(
        chain + "- {step: s9999, type: sleep, seconds: '{{ s9998.seconds }}'}\n"
    ).definition
    assert definition.is_linear and len(definition.steps) == 10_000
    code = "x" * 900_000
    step = load_playbook(f"{HEAD}- step: a\n  type: python\n  code: {code}\n").definition.steps[0]
    assert step.config["code"] == code


def test_bounds_of_depth_and_values_are_those_that_are_told() -> None:
    def deep(levels: int) -> str:
        return f"{HEAD}- step: a\nworkload: {{a: {'[' * levels}{']' * levels}}}\n"

    load_playbook(deep(DEPTH_MAX - 1))
    with pytest.raises(PlaybookInvalid, match="nested too deeply"):
        load_playbook(deep(DEPTH_MAX))
    values = f"{HEAD}- step: a\nworkload: {{a: [{'1,' * (VALUES_MAX - 20)}]}}\n"
    load_playbook(values)
    with pytest.raises(PlaybookInvalid, match="too many values"):
        load_playbook(values.replace("[1,", "[" + "1," * 30))
    half = "x" * (CHARS_MAX // 4)
    texts = f"{HEAD}- step: a\nworkload: {{a: &a {half}, b: *a, c: *a}}\n"
    load_playbook(texts)
    with pytest.raises(PlaybookInvalid, match=r"too many characters\. At most 2,097,152"):
        load_playbook(texts.replace("c: *a", "c: *a, d: *a"))


def test_code_that_would_break_a_parser_does_not_break_this_one() -> None:
    """In a process of its own with a bound on memory: a crash would take the tests with it."""
    script = (
        "from holdfast.playbook.load import load_playbook\n"
        "from holdfast.playbook.faults import PlaybookInvalid\n"
        f"head = {HEAD!r}\n"
        "for code in ('-' * 90_000 + '1', 'a' + '.a' * 40_000, '1' + '+1' * 40_000, '(' * 90_000,\n"
        "             'lambda:' * 10_000 + '1', 'f\"' + '{' * 90_000, 'x = ' * 20_000 + '1',\n"
        "             'not ' * 20_000 + '1'):\n"
        "    try:\n"
        "        load_playbook(head + '- step: a\\n  type: python\\n  code: |\\n    ' + code + '\\n')\n"
        "    except PlaybookInvalid as error:\n"
        "        assert 'not Python' in str(error), error\n"
    )
    limit = 1024 * 1024 * 1024
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr


def test_an_aliased_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def counting(source: str) -> Text:
        compiled.append(source)
        return compile_text(source)

    monkeypatch.setattr(scope, "compile_text", counting)
    long = "x{{ workload.a }}" + " " * CACHED_CHARS_MAX
    aliases = ", ".join(f"t{number}: *t" for number in range(60))
    load_playbook(f"{HEAD}- {{step: a, type: sleep, seconds: 1, with: {{t: &t '{long}', {aliases}}}}}\n")
    assert compiled == [long]


def test_what_is_beyond_the_bound_for_all_templates_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "EXPRESSION_CHARS_MAX", 1_000)
    compile_text_cached.cache_clear()
    texts = ", ".join(f"k{number}: '{{{{ {number} + 1 }}}}'" for number in range(900))
    with pytest.raises(PlaybookInvalid, match="too many templates"):
        load_playbook(f"{HEAD}- {{step: a, type: sleep, seconds: 1, with: {{{texts}}}}}")
    assert compile_text_cached.cache_info().misses < 150


def test_the_keys_of_a_workload_are_gathered_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    scopes: list[scope.Scope] = []
    checked = scope.Templates.value

    def noting(self: scope.Templates, value: object, path: Path, where: scope.Scope) -> set[str]:
        scopes.append(where)
        return checked(self, value, path, where)

    monkeypatch.setattr(scope.Templates, "value", noting)
    chain = many("- {step: s#, type: sleep, seconds: '{{ a }}', next: s@}\n", 100)
    load_playbook(chain + "- {step: s100, type: sleep, seconds: 1}\nworkload: {a: 1, b: 2}\n")
    assert len(scopes) > 100
    assert len({id(where.workload) for where in scopes}) == 1
    assert scopes[0].workload == {"a", "b"}
