"""What a playbook's YAML compiles to: all forms of the language, and that faults are told together."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.errors import DefinitionInvalid
from holdfast.core.model import Lane
from holdfast.playbook.definition import Barrier, Definition, Edge, ForEach, Step
from holdfast.playbook.faults import FAULTS_SHOWN_MAX, PlaybookInvalid
from holdfast.playbook.graph import Graph
from holdfast.playbook.load import load_playbook
from holdfast.playbook.template import Combined

SPEC = """\
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: fetch_and_store, path: examples/fetch_and_store, owner: somebody}
workload: {base_url: "http://127.0.0.1:9000"}
defaults: {retry: 3}
workflow:
  - step: start
    next: fetch
  - step: fetch
    type: http
    url: "{{ workload.base_url }}/flaky"
    timeout: 10
    retry: {max_attempts: 3, initial_delay: 1, retry_when: "{{ status_code >= 500 }}"}
    next:
      - step: store
        when: "{{ fetch.data.ok }}"
        with: {rows: "{{ fetch.data.rows }}"}
      - end
  - step: store
    type: python
    call: my_handlers:store
  - step: end
"""


def loaded(workflow: str, head: str = "") -> Definition:
    text = f"apiVersion: holdfast/v1\nmetadata: {{name: flow}}\n{head}workflow:\n{workflow}"
    return load_playbook(text).definition


def one(*lines: str, head: str = "") -> Step:
    """The only step of a playbook, with these lines."""
    return loaded("- step: one\n" + "".join(f"  {line}\n" for line in lines), head).steps[0]


def sleeping(*lines: str, head: str = "") -> Step:
    return one("type: sleep", "seconds: 1", *lines, head=head)


def edges(*lines: str) -> list[tuple[str, str | None, Any]]:
    """What the first of three steps leads to."""
    text = "- step: one\n" + "".join(f"  {line}\n" for line in lines) + "- step: two\n- step: three\n"
    return [(edge.step, edge.when, edge.with_) for edge in loaded(text).steps[0].next or ()]


def refused(text: str) -> PlaybookInvalid:
    with pytest.raises(PlaybookInvalid) as caught:
        load_playbook(text, name="flow.yaml")
    return caught.value


# the whole


def test_the_example_of_the_contract() -> None:
    playbook = load_playbook(SPEC)
    definition = playbook.definition
    assert playbook.source == SPEC
    assert playbook.path == definition.path == "examples/fetch_and_store"
    assert definition.workload == {"base_url": "http://127.0.0.1:9000"}
    assert not definition.is_linear
    assert [(step.name, step.type, step.handler) for step in definition.steps] == [
        ("start", "control", "control"),
        ("fetch", "http", "type/http"),
        ("store", "python", "python/my_handlers:store"),
        ("end", "control", "control"),
    ]
    fetch, store = definition.step("fetch"), definition.step("store")
    assert fetch.config == {"method": "GET", "url": "{{ workload.base_url }}/flaky"}
    assert fetch.timeout_seconds == 10.0
    assert (fetch.retry.max_attempts, fetch.retry.retry_when) == (3, "{{ status_code >= 500 }}")
    assert fetch.next == (
        Edge(step="store", when="fetch.data.ok", with_={"rows": "{{ fetch.data.rows }}"}),
        Edge(step="end"),
    )
    assert store.retry.max_attempts == 3  # by the defaults
    assert store.next == ()  # without `next` a branch ends: it does not fall through


def test_a_definition_survives_being_stored() -> None:
    definition = load_playbook(SPEC).definition
    assert Definition.from_json(definition.to_json()) == definition


def test_the_same_text_gives_the_same_version_also_after_a_detour() -> None:
    first, second = load_playbook(SPEC), load_playbook(load_playbook(SPEC).source)
    assert first == second
    assert first.definition.to_json() == second.definition.to_json()


def test_spellings_of_the_same_give_one_version() -> None:
    plain = loaded("- {step: one, type: sleep, seconds: 10, timeout: 60, retry: 3}\n")
    other = loaded('- {step: one, tool: sleep, duration: "10s", timeout: 1m, retry: {max_attempts: 3}}\n')
    assert plain.to_json() == other.to_json()
    braces = loaded('- {step: one, next: [{step: end, when: "{{ workload.x }}"}]}\n- step: end\n')
    bare = loaded("- {step: one, next: [{step: end, when: workload.x}]}\n- step: end\n")
    assert braces.to_json() == bare.to_json()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_bytes_are_read_with_and_without_a_mark_of_their_order(encoding: str) -> None:
    text = SPEC.replace("somebody", "Zoë → 日本")
    assert load_playbook(text.encode(encoding)) == load_playbook(text)


def test_the_catalog_path_is_the_name_where_none_is_given() -> None:
    assert loaded("- step: one\n").path == "flow"


# flow


def test_a_straight_chain_needs_no_planner() -> None:
    definition = loaded(
        "- {step: a, type: sleep, seconds: 1, next: b}\n"
        "- {step: b, type: sleep, seconds: 1, next: [{step: c}]}\n"
        "- {step: c, type: sleep, seconds: '{{ b.seconds }}', next: end}\n"
    )
    assert definition.is_linear
    assert [step.next for step in definition.steps] == [None, None, None]
    assert definition.step("c").needs == ("b",)


def test_a_single_step_is_a_chain() -> None:
    assert loaded("- {step: a, type: sleep, seconds: 1}\n").is_linear


@pytest.mark.parametrize(
    "second",
    [
        "{step: b, next: c}",
        "{step: b, type: sleep, seconds: 1, next: [{step: c, when: 'true'}]}",
        "{step: b, type: sleep, seconds: 1, next: [{step: c, with: {x: 1}}]}",
        "{step: b, type: sleep, seconds: 1, next: [c, c]}",
        "{step: b, type: sleep, seconds: 1, next: c, on_error: c}",
        "{step: b, type: sleep, seconds: 1, next: c, for_each: [1]}",
        "{step: b, type: sleep, seconds: 1, next: c, max_visits: 2}",
    ],
)
def test_anything_more_than_a_chain_is_planned(second: str) -> None:
    definition = loaded(
        "- {step: a, type: sleep, seconds: 1, next: b}\n"
        f"- {second}\n"
        "- {step: c, type: sleep, seconds: 1}\n"
    )
    assert not definition.is_linear
    assert all(step.next is not None for step in definition.steps)


def test_start_is_the_entry_wherever_it_stands() -> None:
    definition = loaded("- {step: work, type: sleep, seconds: 1}\n- {step: start, next: work}\n")
    assert definition.entry == "start"
    assert Graph(definition).order == {"start": 0, "work": 1}


def test_an_edge_to_end_needs_no_such_step() -> None:
    definition = loaded(
        "- {step: a, type: sleep, seconds: 1, next: [{step: end, when: a.seconds > 1}, b]}\n- step: b\n"
    )
    assert definition.step("a").targets == ("b",)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["next: [two, three]"], [("two", None, {}), ("three", None, {})]),
        (["next: {step: two, when: 'true'}", "max_visits: 1"], None),
        (
            ["next: [two, {step: three, when: workload.x, with: {a: 1}}]"],
            [("two", None, {}), ("three", "workload.x", {"a": 1})],
        ),
        (
            ["next: [{step: two, data: {a: 1}}, {step: three, payload: {b: 2}}]"],
            [("two", None, {"a": 1}), ("three", None, {"b": 2})],
        ),
        (
            ["next: [{step: two, input: {a: 1}}, {step: three, args: {b: 2}}]"],
            [("two", None, {"a": 1}), ("three", None, {"b": 2})],
        ),
        (
            ["next: [{step: two, when: true}, {step: three, when: false}]"],
            [("two", None, {}), ("three", "false", {})],
        ),
        (
            ["next: [{when: workload.x, then: two}, {else: [three]}]"],
            [("two", "workload.x", {}), ("three", Combined(none=("workload.x",)), {})],
        ),
        (
            [
                "next:",
                "- when: workload.x",
                "  with: {a: 1, b: 1}",
                "  then: [{step: two, when: workload.y, with: {b: 2}}, three]",
            ],
            [
                ("two", Combined(all=("workload.x", "workload.y")), {"a": 1, "b": 2}),
                ("three", "workload.x", {"a": 1, "b": 1}),
            ],
        ),
    ],
    ids=[
        "names",
        "mapping",
        "items",
        "data and payload",
        "input and args",
        "constants",
        "then and else",
        "nested",
    ],
)
def test_all_forms_of_next(lines: list[str], expected: list[Any] | None) -> None:
    if expected is None:
        definition = loaded("- {step: one, next: {step: two, when: 'true'}}\n- step: two\n")
        assert definition.steps[0].next == (Edge(step="two", when="true"),)
    else:
        assert edges(*lines) == expected


def test_a_cycle_with_a_bound_is_allowed() -> None:
    definition = loaded(
        "- {step: ask, type: sleep, seconds: 1, max_visits: 5, next: {step: wait, when: result.seconds}}\n"
        "- {step: wait, type: sleep, seconds: '{{ ask.seconds }}', next: ask}\n"
    )
    assert definition.step("ask").max_visits == 5
    assert definition.step("wait").needs == ("ask",)


def test_a_handler_of_errors_reads_the_error_as_its_input() -> None:
    definition = loaded(
        "- {step: work, type: sleep, seconds: 1, on_error: tell}\n"
        "- step: tell\n  type: python\n  call: a:b\n"
        "  with: {why: '{{ error.message }}', all: '{{ input.error }}'}\n"
    )
    assert definition.step("work").on_error == "tell"
    assert not definition.is_linear


# the fields of a step


def test_the_queue_is_told_what_the_step_or_the_defaults_say() -> None:
    head = "defaults: {lane: bulk, limit: portal, priority: 7, operation: download, timeout: 5m}\n"
    step = sleeping(head=head)
    assert (step.lane, step.limit, step.priority, step.operation) == (Lane.BULK, "portal", 7, "download")
    assert step.timeout_seconds == 300.0
    own = sleeping(
        "lane: manual", "limit: other", "priority: 0", "operation: request", "timeout: 2h", head=head
    )
    assert (own.lane, own.limit, own.priority, own.operation) == (Lane.MANUAL, "other", 0, "request")
    assert own.timeout_seconds == 7200.0


@pytest.mark.parametrize(
    ("retry", "attempts"),
    [
        ("", 1),
        ("retry:", 1),
        ("retry: true", 3),
        ("retry: false", 1),
        ("retry: 5", 5),
        ("retry: {delays: [1m, 3m]}", 3),
    ],
)
def test_shorthands_of_retry(retry: str, attempts: int) -> None:
    assert sleeping(retry).retry.max_attempts == attempts


def test_a_step_may_opt_out_of_the_default_policy() -> None:
    assert sleeping(head="defaults: {retry: 4}\n").retry.max_attempts == 4
    assert sleeping("retry: false", head="defaults: {retry: 4}\n").retry.max_attempts == 1


def test_rules_for_errors_of_the_step_and_of_the_playbook() -> None:
    rule = "{status: 409, error_type: busy, category: transient, guidance: Wait.}"
    definition = loaded(
        f"- {{step: one, type: sleep, seconds: 1, errors: [{rule}]}}\n",
        "errors: [{exception: KeyError, error_type: lost}]\n",
    )
    [own] = definition.steps[0].errors
    assert (own.status, own.error_type, own.category, own.guidance) == (
        409,
        "busy",
        Category.TRANSIENT,
        "Wait.",
    )
    assert [rule.error_type for rule in definition.error_rules(definition.steps[0])] == ["busy", "lost"]


def test_barrier_and_wave_in_a_chain() -> None:
    definition = loaded(
        "- {step: request, type: sleep, seconds: 1, next: download}\n"
        "- {step: download, type: sleep, seconds: 1, barrier: {after: request, delay: 15m},\n"
        "   retry: {wave: true}}\n"
    )
    assert definition.step("download").barrier == Barrier(after="request", delay_seconds=900.0)
    assert definition.has_gates and definition.is_linear


def test_control_steps_that_only_lead_on_are_in_nobodys_way_at_a_barrier() -> None:
    definition = loaded(
        "- {step: start, next: request}\n"
        "- {step: request, type: sleep, seconds: 1, next: between}\n"
        "- {step: between, next: download}\n"
        "- {step: download, type: sleep, seconds: 1, barrier: {after: request}, next: end}\n"
        "- step: end\n"
    )
    assert definition.is_linear and [step.name for step in definition.steps] == ["request", "download"]
    waving = loaded(
        "- {step: start, next: a}\n"
        "- {step: a, type: sleep, seconds: 1, retry: {wave: true}, next: end}\n"
        "- step: end\n"
    )
    assert [step.name for step in waving.steps] == ["a"]


@pytest.mark.parametrize("word", ["with", "data", "payload", "input", "args"])
def test_words_for_the_input_of_a_step(word: str) -> None:
    assert one("type: python", "call: a:b", f"{word}: {{x: 1}}").inputs == {"x": 1}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("'{{ workload.list }}'", ForEach(items="{{ workload.list }}")),
        ("workload.list", ForEach(items="{{ workload.list }}")),
        ("[1, '{{ workload.x }}']", ForEach(items=[1, "{{ workload.x }}"])),
        ("[]", ForEach(items=[])),
        (
            "{in: '{{ workload.list }}', as: city, concurrency: 4, fail_fast: true}",
            ForEach(items="{{ workload.list }}", as_="city", concurrency=4, fail_fast=True),
        ),
        ("{items: [1]}", ForEach(items=[1])),
    ],
)
def test_all_forms_of_for_each(written: str, expected: ForEach) -> None:
    assert sleeping(f"for_each: {written}").for_each == expected


def test_the_elements_of_a_for_each_read_item_and_index() -> None:
    step = one(
        "type: http",
        "url: 'http://127.0.0.1/{{ city.name }}/{{ index }}/{{ zoom }}'",
        "with: {zoom: '{{ city.zoom }}'}",
        "for_each: {in: '{{ workload.cities }}', as: city}",
    )
    assert step.handler == "type/http"


@pytest.mark.parametrize(
    ("lines", "config"),
    [
        (
            ["type: http", "url: http://a/", "method: post", "json: [1]"],
            {"method": "POST", "url": "http://a/", "json": [1]},
        ),
        (
            ["type: http", "endpoint: http://a/", "params: {q: 1}"],
            {"method": "GET", "url": "http://a/", "params": {"q": 1}},
        ),
        (
            ["type: http", "url: http://a/", "method: PUT", "data: {a: 1}"],
            {"method": "PUT", "url": "http://a/", "json": {"a": 1}},
        ),
        (
            ["type: http", "url: http://a/", "data: {a: 1}"],
            {"method": "GET", "url": "http://a/", "params": {"a": 1}},
        ),
        (
            ["type: http", "url: http://a/", "method: POST", "data: {body: {a: 1}, query: {b: 2}}"],
            {"method": "POST", "url": "http://a/", "json": {"a": 1}, "params": {"b": 2}},
        ),
        (
            [
                "type: http",
                "url: http://a/",
                "auth: {type: bearer, token: '{{ secret(\"T\") }}'}",
                "headers: '{{ workload.headers }}'",
                "follow_redirects: false",
                "response_bytes_max: 10",
                "save_to: a.bin",
            ],
            {
                "method": "GET",
                "url": "http://a/",
                "auth": {"type": "bearer", "token": '{{ secret("T") }}'},
                "headers": "{{ workload.headers }}",
                "follow_redirects": False,
                "response_bytes_max": 10,
                "save_to": "a.bin",
            },
        ),
        (["type: python", "call: my.module:function"], {"call": "my.module:function"}),
        (["type: python", "code: 'x = {{1}}'"], {"code": "x = {{1}}"}),
        (
            ["type: sql", "url: sqlite:///a.db", "query: SELECT :a", "params: {a: 1}", "rows_max: 5"],
            {"url": "sqlite:///a.db", "query": "SELECT :a", "params": {"a": 1}, "rows_max": 5},
        ),
        (
            ["type: sql", "url: '{{ secret(\"DB\") }}'", "sql: SELECT ?", "params: [1]"],
            {"url": '{{ secret("DB") }}', "query": "SELECT ?", "params": [1]},
        ),
        (
            ["type: duckdb", "commands: [CREATE TABLE a (b INT);, SELECT 1]"],
            {"url": "duckdb://", "query": "CREATE TABLE a (b INT);\nSELECT 1"},
        ),
        (
            ["type: duckdb", "database: a.duckdb", "command: SELECT 1"],
            {"url": "duckdb:///a.duckdb", "query": "SELECT 1"},
        ),
        (
            ["type: duckdb", "database: ':memory:'", "command: SELECT 1"],
            {"url": "duckdb://", "query": "SELECT 1"},
        ),
        (
            ["type: sqlite", "database: a.db", "query: SELECT 1"],
            {"url": "sqlite:///a.db", "query": "SELECT 1"},
        ),
        (
            ["type: postgres", "auth: pg", "query: SELECT 1"],
            {"url": '{{ secret("pg") }}', "query": "SELECT 1"},
        ),
        (
            ["type: postgres", "url: postgresql://u@h/d", "query: SELECT 1"],
            {"url": "postgresql://u@h/d", "query": "SELECT 1"},
        ),
        (
            ["type: shell", "command: [echo, 1, true]", "env: {A: x}", "cwd: /tmp", "stdin: {a: 1}"],
            {"command": ["echo", 1, True], "env": {"A": "x"}, "cwd": "/tmp", "stdin": {"a": 1}},
        ),
        (["type: shell", "command: 'echo $A'", "shell: true"], {"command": "echo $A", "shell": True}),
        (["type: sleep", "seconds: 1h30m"], {"seconds": 5400.0}),
        (["type: sleep", "seconds: '{{ workload.pause }}'"], {"seconds": "{{ workload.pause }}"}),
        (["type: playbook", "path: examples/child", "version: 2"], {"path": "examples/child", "version": 2}),
        (["type: playbook", "path: '{{ workload.child }}'"], {"path": "{{ workload.child }}"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_canonical_fields_of_each_type(lines: list[str], config: dict[str, Any]) -> None:
    assert one(*lines).config == config


def test_handlers_tell_workers_what_they_need_leave_for() -> None:
    assert one("type: python", "code: x = 1").handler == "code/python"
    assert one("type: shell", "command: [ls]").handler == "code/shell"
    assert one("type: sleep", "seconds: 1").handler == "type/sleep"
    assert one("type: playbook", "path: a").handler == "type/playbook"


# templates


def test_needs_are_the_steps_that_a_steps_own_templates_read() -> None:
    definition = loaded(
        "- {step: a, type: sleep, seconds: 1, next: b-c}\n"
        "- {step: b-c, type: sleep, seconds: 1, next: d}\n"
        "- {step: d, type: sleep, seconds: 1, next: [{step: e, when: a.seconds > 1}]}\n"
        "- step: e\n  type: http\n  url: http://a/\n  for_each: '{{ d.list }}'\n"
        "  with: {x: '{{ steps[\"b-c\"].seconds }}'}\n"
    )
    assert definition.step("d").needs == ()  # an edge is not the step's own
    assert definition.step("e").needs == ("b-c", "d")


def test_bare_names_are_keys_of_what_was_handed_on_and_of_the_workload() -> None:
    definition = loaded(
        "- {step: a, type: sleep, seconds: 1, next: [{step: b, with: {rows: '{{ result }}'}}]}\n"
        "- step: b\n  type: http\n  url: '{{ base }}/{{ rows }}/{{ own }}'\n  with: {own: 1}\n",
        "workload: {base: http://a}\n",
    )
    assert definition.step("b").needs == ()


def test_a_step_name_hides_a_key_of_the_same_name() -> None:
    definition = loaded(
        "- {step: a, type: sleep, seconds: 1, next: [{step: b, with: {a: 1}}]}\n"
        "- {step: b, type: sleep, seconds: '{{ a.seconds }}'}\n"
    )
    assert definition.step("b").needs == ("a",)


def test_the_element_hides_a_step_of_the_same_name() -> None:
    definition = loaded(
        "- {step: item, type: sleep, seconds: 1, next: b}\n"
        "- {step: b, type: sleep, seconds: '{{ item }}', for_each: [1]}\n"
    )
    assert definition.step("b").needs == ()


# faults


def test_faults_are_told_together_in_the_order_of_their_lines() -> None:
    error = refused(
        "apiVersion: holdfast/v3\n"
        "metadata: {name: broken}\n"
        "workflow:\n"
        "- step: start\n"
        "  next: fecth\n"
        "- step: fetch\n"
        "  type: http\n"
        "  url: '{{ workload.a }}/{{ bse }}'\n"
        "  retry: {max_attempts: 0}\n"
        "  next: [{step: store, when: 'fetch.ok ='}]\n"
        "- step: store\n"
        "  type: slq\n"
        "- step: lost\n"
        "  type: sleep\n"
        "  seconds: 1\n"
    )
    assert [(fault.line, fault.field) for fault in error.faults] == [
        (1, "apiVersion"),
        (5, "step start, next"),
        (9, "step fetch, retry.max_attempts"),
        (10, "step fetch, next[0].when"),
        (12, "step store, type"),
        (13, "step lost"),
    ]
    assert str(error).splitlines()[1] == (
        "flow.yaml:5: step start, next: There is no step 'fecth'. Did you mean 'fetch'?"
        " Allowed: start, fetch, store, lost."
    )


def test_templates_are_checked_beside_other_faults_of_the_same_file() -> None:
    error = refused(
        "apiVersion: holdfast/v1\n"
        "workflow:\n"
        "- {step: a, type: http, next: b}\n"
        "- {step: b, type: sleep, seconds: '{{ nobody }}', next: c}\n"
        "- {step: c, type: shell, command: ls}\n"
    )
    assert [(fault.line, fault.field) for fault in error.faults] == [
        (1, "metadata"),
        (3, "step a"),
        (4, "step b, seconds"),
        (5, "step c, command"),
    ]


def test_only_so_many_faults_are_shown_and_the_rest_is_counted() -> None:
    steps = "".join(f"- {{step: s{number}, type: nothing}}\n" for number in range(3_000))
    error = refused(f"apiVersion: holdfast/v1\nmetadata: {{name: a}}\nworkflow:\n{steps}")
    lines = str(error).splitlines()
    assert len(lines) == FAULTS_SHOWN_MAX + 1
    assert lines[0].startswith("flow.yaml:4: step s0, type: ")
    assert "more" in lines[-1]


def test_a_refusal_survives_the_way_to_another_process() -> None:
    error = refused("apiVersion: holdfast/v1\n")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.faults, copy.code) == (str(error), error.faults, "playbook_invalid")
    assert isinstance(error, DefinitionInvalid)


def test_a_password_in_a_url_is_not_told() -> None:
    error = refused(
        "apiVersion: holdfast/v1\nmetadata: {name: a}\nworkflow:\n"
        "- {step: a, type: sql, query: x, url: 'mysql://me:hunter2@h/d'}\n"
    )
    assert "hunter2" not in str(error)


def test_the_faults_of_one_step_hide_no_fault_of_another() -> None:
    error = refused(
        "apiVersion: holdfast/v1\nmetadata: {name: a}\nworkflow:\n"
        "- {step: a, type: sleep, seconds: 1, timeout: never, next: b}\n"
        "- {step: b, type: sleep, seconds: '{{ a.seconds + }}', next: c}\n"
        "- {step: c, type: sleep, seconds: '{{ z }}'}\n"
    )
    assert [fault.line for fault in error.faults] == [4, 5, 6]


def test_a_fault_of_the_defaults_is_told_once() -> None:
    steps = "".join(f"- {{step: s{n}, type: sleep, seconds: 1, next: s{n + 1}}}\n" for n in range(50))
    error = refused(
        "apiVersion: holdfast/v1\nmetadata: {name: a}\ndefaults: {retry: {retry_when: nothing > 1}}\n"
        f"workflow:\n{steps}- {{step: s50, type: sleep, seconds: 1}}\n"
    )
    assert [(fault.line, fault.field) for fault in error.faults] == [(3, "defaults.retry.retry_when")]


def test_a_step_whose_name_is_wrong_is_one_fault() -> None:
    error = refused(
        "apiVersion: holdfast/v1\nmetadata: {name: a}\nworkflow:\n- {step: one, next: a b}\n- {step: a b}\n"
    )
    assert [fault.field for fault in error.faults] == ["step a b, step"]


def test_a_step_that_nothing_leads_to_is_one_fault_whatever_it_reads() -> None:
    error = refused(
        "apiVersion: holdfast/v1\nmetadata: {name: a}\nworkflow:\n- {step: a, type: sleep, seconds: 1}\n"
        "- {step: b, type: sleep, seconds: '{{ a.seconds }}', next: c}\n"
        "- {step: c, type: sleep, seconds: '{{ b.seconds }}'}\n"
    )
    assert [(fault.line, fault.field) for fault in error.faults] == [(5, "step b")]


@pytest.mark.parametrize("field", ["type", "tool"])
def test_a_function_is_what_python_is_with_a_call(field: str) -> None:
    text = SPEC.replace("type: python", f"{field}: function")
    assert text != SPEC
    assert load_playbook(text).definition == load_playbook(SPEC).definition
