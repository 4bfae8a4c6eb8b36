"""Jobs for workers in other languages: what they are handed, and what is refused on the way there."""

import json
from typing import Any

import msgspec
import pytest

from engine_scenario import START, Scenario, on_both_stores, stage
from holdfast.core.errors import InvalidInput, StoreUnavailable
from holdfast.core.model import Completed, Leased, Outcome, Report
from holdfast.engine.foreign import ForeignJob, foreign_jobs, handlers_of
from holdfast.playbook.load import load_playbook
from typed_attempt import attempted

HEAD = "apiVersion: holdfast/v1\nmetadata: {name: p}\n"


async def start(s: Scenario, workflow: str, workload: Any = None) -> int:
    await s.engine.publish(load_playbook(f"{HEAD}workflow:\n{workflow}").definition)
    return await s.submit(workload)


async def handed(s: Scenario, *, limit: int = 10) -> list[ForeignJob]:
    return await foreign_jobs(s.engine, (await s.engine.lease("node-1", None, limit)).jobs)


async def refused(s: Scenario, execution_id: int) -> tuple[str, str]:
    """Nothing was handed over, and the execution has failed: of what, in words."""
    assert await handed(s) == []
    error = (await s.execution(execution_id)).error
    assert error is not None and error.category == "permanent"
    return error.error_type, error.message


def completed_by(job: ForeignJob, result: str) -> Report:
    return Report(job.queue_id, job.fence, Completed(result))


def told(job: ForeignJob) -> dict[str, Any]:
    """As it comes out of an answer."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(job))
    return document


@on_both_stores
async def test_a_step_of_a_pipeline_comes_with_all_that_it_may_read(s: Scenario) -> None:
    await s.define(stage("a"), stage("b", attempts=2, timeout_seconds=5, limit="portal", lane="manual"))
    id_ = await s.submit({"n": 1})
    await s.complete(await s.lease_one(), '{"rows": [1, 2]}')
    [job] = await handed(s)
    document = told(job)
    assert document.pop("fence") == job.fence
    action = json.loads(document.pop("action"))
    assert document == {
        "queue_id": (await s.job(id_)).queue_id, "execution_id": id_, "path": "p", "step": "b",
        "handler": "p/b", "type": "", "attempt": 1, "max_attempts": 2, "round": 1, "lane": "manual",
        "element": None, "lease_until": START + 60, "timeout_seconds": 5.0, "alone": False, "input": {},
        "workload": {"n": 1}, "outputs": {"a": {"rows": [1, 2]}}, "secrets": [], "clear": [],
    }  # fmt: skip
    assert (action["type"], action["handler"], action["timeout"]) == ("python", "p/b", 5.0)
    assert (action["limit"], action["lane"], action["retry"]["max_attempts"]) == ("portal", "manual", 2)


@on_both_stores
async def test_config_and_input_come_rendered(s: Scenario) -> None:
    await start(
        s,
        """\
- step: first
  type: function
  call: m:f
  with: {n: "{{ workload.n }}"}
  next: {step: get, with: {page: 2}}
- step: get
  type: http
  url: "http://127.0.0.1/{{ workload.n }}/{{ first.data.name }}"
  params: {page: "{{ input.page }}", plain: 1}
  with: {attempt: "{{ attempt }}"}
""",
        {"n": 7},
    )
    [first] = await handed(s)
    assert (first.type, first.handler) == ("python", "python/m:f")
    assert told(first)["input"] == {"n": 7}
    assert json.loads(first.action)["call"] == "m:f"
    await s.report(completed_by(first, '{"name": "x"}'))
    [get] = await handed(s)
    action = json.loads(get.action)
    assert (action["url"], action["params"]) == ("http://127.0.0.1/7/x", {"page": 2, "plain": 1})
    assert (action["type"], action["handler"], action["method"]) == ("http", "type/http", "GET")
    assert told(get)["input"] == {"page": 2, "attempt": 1}
    assert told(get)["outputs"] == {"first": {"name": "x"}}
    assert get.secrets == []


@on_both_stores
async def test_an_element_comes_with_its_item_and_its_number(s: Scenario) -> None:
    await start(
        s,
        """\
- step: fan
  type: function
  call: images:thumbnail
  for_each: {items: "{{ workload.names }}", as: name, concurrency: 2}
  with: {file: "{{ name }}.png"}
""",
        {"names": ["a", "b"]},
    )
    assert await handed(s) == []  # the list itself is made by one of Holdfast's own workers
    [root] = (await s.engine.lease("w", ["type/each"], 1)).jobs
    await s.complete(root, '["a", "b"]')
    jobs = await handed(s)
    assert [job.element for job in jobs] == [0, 1]
    assert [told(job)["input"] for job in jobs] == [
        {"name": "a", "index": 0, "file": "a.png"}, {"name": "b", "index": 1, "file": "b.png"},
    ]  # fmt: skip
    each = json.loads(jobs[0].action)["for_each"]
    assert each == {"items": "{{ workload.names }}", "as": "name", "fail_fast": False, "concurrency": 2}


SECRET_STEP = """\
- step: get
  type: http
  url: "http://127.0.0.1/{{ workload.name }}"
  headers: {Authorization: "Bearer {{ secret('API_TOKEN') }}", X: '{{ secret("other/key") }}'}
  with: {token: "{{ secret('API_TOKEN') if workload.name else '' }}"}
"""


@on_both_stores
async def test_a_secret_is_left_for_the_worker_to_fill_in(s: Scenario) -> None:
    await start(s, SECRET_STEP, {"name": "x"})
    [job] = await handed(s)
    assert json.loads(job.action)["headers"] == {
        "Authorization": "Bearer {{ secret('API_TOKEN') }}",
        "X": "{{ secret('other/key') }}",
    }
    assert told(job)["input"] == {"token": "{{ secret('API_TOKEN') }}"}
    assert job.secrets == ["API_TOKEN", "other/key"]


@on_both_stores
async def test_a_value_that_looks_like_the_place_of_a_secret_is_never_handed_on_as_one(s: Scenario) -> None:
    for braces in ("{{ ", "{{", "{{- ", "{{\n", "{{\x0b\t", "{{\N{NO-BREAK SPACE}"):
        name = f"{braces}secret('API_TOKEN') }}}}"
        id_ = await start(s, SECRET_STEP, {"name": name})
        assert await refused(s, id_) == (
            "validation_error",
            "A value that the step was given looks like the place of a secret.",
        )


@on_both_stores
async def test_without_secrets_any_value_is_handed_on_as_it_is(s: Scenario) -> None:
    step = '- {step: get, type: http, url: "http://127.0.0.1/{{ workload.name }}"}\n'
    await start(s, step, {"name": "{{ secret('API_TOKEN') }}"})
    [job] = await handed(s)
    assert json.loads(job.action)["url"] == "http://127.0.0.1/{{ secret('API_TOKEN') }}"
    assert job.secrets == []


@pytest.mark.parametrize(
    "template",
    [
        "{{ secret('KEY') | upper }}",
        "{{ secret('KEY') | length }}",
        "{{ secret('KEY') | replace('-', '') }}",
        "{{ secret('KEY') | trim }}",
        "{{ 'a' if 'b' in secret('KEY') else 'c' }}{{ secret('KEY') }}",
        "{{ secret('KEY')[:3] }}",
        "{{ input.key | upper }}",
    ],
)
@on_both_stores
async def test_a_secret_that_a_template_works_with_needs_holdfasts_own_worker(
    s: Scenario, template: str
) -> None:
    step = f"""\
- step: get
  type: http
  url: http://127.0.0.1
  headers: {{X: "{template}"}}
  with: {{key: "{{{{ secret('KEY') }}}}"}}
"""
    error_type, message = await refused(s, await start(s, step))
    assert error_type == "validation_error"
    assert message.startswith("A template does more with a secret than to write it (of KEY)")


@on_both_stores
async def test_a_query_with_templates_among_its_text_comes_in_parts(s: Scenario) -> None:
    query = "SELECT * FROM t WHERE name = {{ workload.name }} AND n > {{ workload.n }}"
    step = f'- {{step: ask, type: sql, url: "sqlite:///x.db", query: "{query}"}}\n'
    await start(s, step, {"name": "'; DROP TABLE t", "n": 3})
    [job] = await handed(s)
    assert json.loads(job.action)["query"] == [
        "SELECT * FROM t WHERE name = ",
        {"value": "'; DROP TABLE t", "text": "'; DROP TABLE t"},
        " AND n > ",
        {"value": 3, "text": "3"},
    ]


async def outcome_of(job: Leased) -> Outcome:
    """Of one of Holdfast's own workers."""
    return await attempted(job, functions={"m:f": lambda **given: given})


@pytest.mark.parametrize(
    "step",
    [
        '{step: get, type: http, url: "http://127.0.0.1/{{ workload.nothing }}"}',
        '{step: get, type: http, url: "http://127.0.0.1", headers: {A: "{{ 1 // workload.zero }}"}}',
        '{step: f, type: function, call: "m:f", with: {a: {b: "{{ workload.nothing.more }}"}}}',
        '{step: ask, type: sql, url: "sqlite:///x.db", query: "SELECT {{ workload.nothing }} + 1"}',
    ],
)
@on_both_stores
async def test_a_template_that_fails_is_reported_as_holdfasts_own_worker_would(
    s: Scenario, step: str
) -> None:
    by_worker = await start(s, f"- {step}\n", {"zero": 0})
    [job] = (await s.engine.lease("w", None, 1)).jobs
    [ack] = await s.report(Report(job.queue_id, job.fence, await outcome_of(job)))
    assert ack.accepted
    by_server = await s.submit({"zero": 0})
    healthy = await s.submit({"zero": 1, "nothing": {"more": 1}})
    assert [job.execution_id for job in await handed(s)] == [healthy]
    expected, found = [(await s.execution(id_)).error for id_ in (by_worker, by_server)]
    assert expected is not None and expected.error_type == "template_error"
    assert found == expected
    assert (await s.job(by_server)).status == "dead"


@on_both_stores
async def test_where_the_failure_cannot_be_stored_the_jobs_are_given_back(s: Scenario) -> None:
    await start(s, '- {step: get, type: http, url: "http://127.0.0.1/{{ workload.nothing }}"}\n')
    id_ = await s.submit({"nothing": "x"})
    jobs = (await s.engine.lease("w", None, 10)).jobs
    report = s.engine.report

    async def away(reports: Any) -> Any:
        raise StoreUnavailable("gone")

    s.engine.report = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await foreign_jobs(s.engine, jobs)
    s.engine.report = report  # type: ignore[method-assign]
    assert await s.state(id_) == "queued 0/1"
    assert [job.execution_id for job in await handed(s)] == [id_]


@on_both_stores
async def test_what_an_earlier_round_left_is_named_to_be_cleared(s: Scenario) -> None:
    await s.define(stage("a", attempts=1), stage("b", attempts=1))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    await s.fail(await s.lease_one())
    await s.retry(id_, from_stage="a")
    [job] = await handed(s)
    assert (job.step, job.round, job.clear) == ("a", 2, ["b", "a"])


@on_both_stores
async def test_no_jobs_are_no_answer(s: Scenario) -> None:
    assert await foreign_jobs(s.engine, []) == []


def test_what_a_lease_names_is_turned_into_the_keys_of_jobs() -> None:
    names = ["http", "sql", "duckdb", "python", "shell", "images:thumbnail", "resize", "reports/fetch",
             "type/http", "python/a/b", "type/sleep"]  # fmt: skip
    assert handlers_of(names) == [
        "type/http", "type/sql", "type/sql", "code/python", "code/shell", "python/images:thumbnail",
        "python/resize", "reports/fetch", "type/http", "python/a/b", "type/sleep",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "names nothing that the worker could run"),
        ([""], "The type must be a non-empty string"),
        (["a\0"], "cannot be printed"),
        (["x" * 501], "501 characters long"),
        ([7], "must be a non-empty string"),
        (["http", "sleep"], "Steps of type sleep are run by Holdfast's own workers alone"),
        (["playbook"], "Holdfast's own workers alone"),
        (["function"], "not given functions that it does not name"),
    ],
)
def test_a_lease_that_names_nothing_of_use_is_refused(names: list[Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        handlers_of(names)
