"""Playbooks of the noetl.io/v1 shape load as they are."""

from __future__ import annotations

import pytest

from holdfast.playbook.load import load_playbook
from holdfast.playbook.template import Combined

HELLO = """\
apiVersion: noetl.io/v1
kind: Playbook
metadata:
  name: hello_world
  path: tests/hello_world
  version: 1.0.0
workload:
  message: Hello there
workbook: []
workflow:
  - step: start
    desc: Begin
    next:
      - step: greet
  - step: greet
    desc: Say it
    tool: python
    args:
      text: "{{ workload.message }}"
    code: |
      def main(text):
          return {"status": "ok", "text": text}
    next:
      - step: end
  - step: end
    desc: Done
"""

WEATHER = """\
apiVersion: noetl.io/v1
kind: Playbook
metadata: {name: weather_alerts, path: tests/weather_alerts, description: Warn where it is hot}
workload:
  city: {name: Oslo, lat: 59.9, lon: 10.7}
  base_url: http://127.0.0.1:9000/v1
  threshold: 25
workflow:
- step: start
  type: start
  next: fetch
- step: fetch
  type: http
  method: GET
  endpoint: "{{ workload.base_url }}/forecast"
  headers: {User-Agent: weather/1.0}
  data:
    query:
      latitude: "{{ workload.city.lat }}"
      longitude: "{{ workload.city.lon }}"
      hourly: temperature_2m
  retry:
    max_attempts: 5
    initial_delay: 2.0
    max_delay: 30.0
    backoff_multiplier: 2.0
    jitter: true
    retry_when: "{{ status_code != none and status_code >= 500 }}"
    stop_when: "{{ status_code == 404 }}"
  next:
  - step: evaluate
    when: "{{ success and data.hourly is defined }}"
    data:
      readings: "{{ fetch.data.hourly }}"
  - step: end
    when: "{{ not success }}"
- step: evaluate
  type: python
  code: |
    import statistics

    LIMIT = 25

    def main(input_data):
        values = input_data["readings"]["temperature_2m"]
        text = f"{{{len(values)}}}"
        return {"alert": max(values) > LIMIT, "median": statistics.median(values), "text": text}
  next:
  - when: "{{ evaluate.alert }}"
    then:
    - step: report
      with: {median: "{{ evaluate.median }}"}
  - else:
    - step: end
- step: report
  type: python
  input: {city: "{{ workload.city.name }}", median: "{{ median }}"}
  code: |
    def main(city, median):
        return f"{city}: {median}"
  next: end
- step: end
  type: end
"""

DUCKDB = """\
apiVersion: noetl.io/v1
kind: Playbook
name: duckdb_totals
path: tests/duckdb_totals
version: "0.2"
description: Sums in memory
workload:
  test_query: SELECT 42 AS answer
workflow:
- step: start
  next: [sums, asked]
- step: sums
  tool: duckdb
  commands: |
    CREATE TABLE sales (region TEXT, amount INTEGER);
    INSERT INTO sales VALUES ('north', 3), ('north', 4), ('south', 5);
    SELECT region, sum(amount) AS total FROM sales GROUP BY region ORDER BY region;
  next: end
- step: asked
  tool: duckdb
  query: "{{ workload.test_query }}"
  next: end
- step: end
  tool: python
  with: {rows: "{{ sums.data }}", answer: "{{ asked.data[0].answer }}"}
  code: |
    def main(rows, answer):
        return {"rows": rows, "answer": answer}
"""

POSTGRES = """\
apiVersion: noetl.io/v1
kind: Playbook
metadata: {name: users_to_postgres, path: data_transfer/users_to_postgres}
workload: {api: http://127.0.0.1:9000/users}
workflow:
- step: start
  desc: Start
  next:
  - step: create_table
- step: create_table
  type: postgres
  auth: pg_local
  command: |
    CREATE TABLE IF NOT EXISTS users (id INTEGER PRIMARY KEY, name TEXT);
  next:
  - step: fetch_users
- step: fetch_users
  type: http
  method: GET
  url: "{{ workload.api }}"
  retry: true
  next:
  - step: insert_users
    when: "{{ fetch_users.data | length > 0 }}"
    data: {users: "{{ fetch_users.data }}"}
  - step: end
    when: "{{ fetch_users.data | length == 0 }}"
- step: insert_users
  type: postgres
  auth: pg_local
  query: |
    INSERT INTO users SELECT (u ->> 'id')::int, u ->> 'name' FROM jsonb_array_elements(:users::jsonb) AS u
  params: {users: "{{ input.users | tojson }}"}
  next: end
- step: end
  desc: Count them
  type: postgres
  auth: pg_local
  command: SELECT count(*) AS users FROM users WHERE '{{ execution_id }}' <> ''
"""

RETRY = """\
apiVersion: noetl.io/v1
kind: Playbook
metadata: {name: retry_http_then_route, path: tests/retry/http_then_route}
workload: {url: http://127.0.0.1:9000/status/503, enabled: true}
workflow:
- step: start
  tool: router
  next:
  - step: call
    when: "{{ workload.enabled }}"
  - step: skipped
    when: "{{ not enabled }}"
- step: call
  tool: http
  method: POST
  url: "{{ workload.url }}"
  payload: {request: "{{ execution_id }}", tries: 3}
  timeout: 10
  retry: 3
  next:
  - step: summary
    payload: {code: "{{ call.status_code }}", error: "{{ error != None }}"}
- step: skipped
  tool: python
  code: |
    result = {"skipped": True}
  next: summary
- step: summary
  tool: python
  code: |
    def main(input_data):
        return input_data
  next: end
"""


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (HELLO, {"start": "control", "greet": "code/python", "end": "control"}),
        (
            WEATHER,
            {
                "start": "control",
                "fetch": "type/http",
                "evaluate": "code/python",
                "report": "code/python",
                "end": "control",
            },
        ),
        (DUCKDB, {"start": "control", "sums": "type/sql", "asked": "type/sql", "end": "code/python"}),
        (
            POSTGRES,
            {
                "start": "control",
                "create_table": "type/sql",
                "fetch_users": "type/http",
                "insert_users": "type/sql",
                "end": "type/sql",
            },
        ),
        (
            RETRY,
            {"start": "control", "call": "type/http", "skipped": "code/python", "summary": "code/python"},
        ),
    ],
    ids=["hello", "weather", "duckdb", "postgres", "retry"],
)
def test_it_loads_unchanged(text: str, steps: dict[str, str]) -> None:
    playbook = load_playbook(text)
    assert {step.name: step.handler for step in playbook.definition.steps} == steps


def test_the_path_of_an_older_playbook_stands_at_the_top() -> None:
    playbook = load_playbook(DUCKDB)
    assert (playbook.path, playbook.description) == ("tests/duckdb_totals", "Sums in memory")


def test_data_of_an_http_step_is_its_query_or_its_body() -> None:
    fetch = load_playbook(WEATHER).definition.step("fetch")
    assert fetch.config == {
        "method": "GET",
        "url": "{{ workload.base_url }}/forecast",
        "headers": {"User-Agent": "weather/1.0"},
        "params": {
            "latitude": "{{ workload.city.lat }}",
            "longitude": "{{ workload.city.lon }}",
            "hourly": "temperature_2m",
        },
    }
    call = load_playbook(RETRY).definition.step("call")
    assert call.config["json"] == {"request": "{{ execution_id }}", "tries": 3}
    assert call.inputs == {}


def test_duckdb_without_a_url_is_in_memory_and_auth_of_postgres_is_a_secret() -> None:
    assert load_playbook(DUCKDB).definition.step("sums").config["url"] == "duckdb://"
    created = load_playbook(POSTGRES).definition.step("create_table")
    assert created.config["url"] == '{{ secret("pg_local") }}'
    assert created.config["query"].startswith("CREATE TABLE")


def test_then_and_else_are_edges_with_conditions() -> None:
    edges = load_playbook(WEATHER).definition.step("evaluate").next
    assert edges is not None
    assert [(edge.step, edge.when) for edge in edges] == [
        ("report", "evaluate.alert"),
        ("end", Combined(none=("evaluate.alert",))),
    ]
    assert edges[0].with_ == {"median": "{{ evaluate.median }}"}


def test_braces_of_code_are_its_own() -> None:
    assert 'f"{{{len(values)}}}"' in load_playbook(WEATHER).definition.step("evaluate").config["code"]
