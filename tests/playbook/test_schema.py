"""The JSON Schema that editors use: in step with the language, and no stricter than the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from holdfast.playbook.faults import PlaybookInvalid
from holdfast.playbook.load import load_playbook
from holdfast.playbook.schema import playbook_schema

FILE = Path(__file__).parents[2] / "docs" / "reference" / "playbook.schema.json"

GOOD = """\
apiVersion: holdfast/v1
metadata: {name: good, owner: somebody}
workload: {url: http://127.0.0.1}
defaults: {retry: true, timeout: 5m}
errors: [{status: 409, error_type: busy}]
workflow:
- step: start
  type: start
  next: [fetch, {step: ask, when: workload.url, with: {a: 1}}]
- step: fetch
  tool: http
  url: "{{ workload.url }}"
  retry: {delays: [1, 2s]}
  auth: {type: basic, username: a, password: b}
  next: {step: end}
- {step: ask, type: duckdb, query: SELECT 1, params: [1], next: [{when: ask.data, then: pause}, {else: end}]}
- {step: pause, type: sleep, seconds: 1m, for_each: {in: [1], as: x}, next: end}
- step: end
"""


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(playbook_schema())


def faults(validator: Draft202012Validator, document: Any) -> set[str]:
    return {error.json_path for error in validator.iter_errors(document)}


def test_the_file_is_what_the_models_say() -> None:
    """Write it again with: python -m holdfast.playbook.schema > docs/reference/playbook.schema.json"""
    assert json.loads(FILE.read_text()) == playbook_schema()


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(playbook_schema())


def test_every_field_has_a_description() -> None:
    schema = playbook_schema()
    without = [
        f"{name}.{field}"
        for name, definition in {"Playbook": schema, **schema["$defs"]}.items()
        if not name.endswith("Auth")
        for field, described in definition.get("properties", {}).items()
        if not described.get("description")
    ]
    assert without == []


def test_a_good_playbook_passes(validator: Draft202012Validator) -> None:
    assert faults(validator, yaml.safe_load(GOOD)) == set()


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("apiVersion: holdfast/v1", "apiVersion: holdfast/v9", "$.apiVersion"),
        ("workload:", "worklaod:", "$"),
        ("tool: http", "tool: htpp", "$.workflow[1].tool"),
        ("  retry:", "  retyr:", "$.workflow[1]"),
        ("query:", "url2: 1, query:", "$.workflow[2]"),
        ("type: start", "type: start\n  url: x", "$.workflow[0]"),
        ("- step: end", "- type: end", "$.workflow[4]"),
        ("timeout: 5m", "timeout: [5]", "$.defaults.timeout"),
        ("type: basic", "type: digest", "$.workflow[1].auth"),
    ],
)
def test_an_editor_marks_the_place(validator: Draft202012Validator, old: str, new: str, place: str) -> None:
    assert place in faults(validator, yaml.safe_load(GOOD.replace(old, new, 1)))


NULLED = """\
apiVersion: holdfast/v1
kind:
metadata: {name: empty, path: , description: }
workload:
defaults: {retry: , timeout: , lane: , limit: }
errors:
workflow:
- step: a
  desc:
  type: sleep
  seconds: 1
  duration:
  with:
  retry: {max_attempts: , delays: , retry_when: , jitter: , initial_delay: }
  timeout:
  lane:
  priority:
  barrier:
  for_each:
  on_error:
  next: [{step: b, when: , with: }]
- {step: b, type: http, url: "http://127.0.0.1", auth: , headers: , json: , method: , retry: , next: }
"""


def test_what_is_left_empty_passes_where_it_loads(validator: Draft202012Validator) -> None:
    load_playbook(NULLED)
    assert faults(validator, yaml.safe_load(NULLED)) == set()
    head = "apiVersion: holdfast/v1\nname: a\nmetadata:\ndefaults:\nworkflow: [{step: a}]\n"
    load_playbook(head)
    assert faults(validator, yaml.safe_load(head)) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("retry: {delays: [1, 2s]}", "retry: {delays: []}"),
        ("retry: {delays: [1, 2s]}", "retry: {retry_when: ''}"),
        ("timeout: 5m", "timeout: 0"),
        ("errors: [{status: 409, error_type: busy}]", "errors: [null]"),
        ("- step: end", "- step:"),
    ],
)
def test_what_the_loader_refuses_an_editor_marks(validator: Draft202012Validator, old: str, new: str) -> None:
    changed = GOOD.replace(old, new, 1)
    with pytest.raises(PlaybookInvalid):
        load_playbook(changed)
    assert faults(validator, yaml.safe_load(changed))
