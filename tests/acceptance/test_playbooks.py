"""Playbooks as people write them, from YAML to the last event: a real HTTP server, a real worker, both
stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import Holdfast
from holdfast.core.model import Event, ExecutionStatus
from holdfast.playbook.load import load_playbook
from running import run
from scripted_server import ScriptedServer

WITHIN = 120.0

FLAKY = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: flaky, path: flaky}
workload: {base_url: ""}
workflow:
  - step: start
    next: fetch
  - step: fetch
    type: http
    url: "{{ workload.base_url }}/flaky"
    retry:
      max_attempts: 3
      initial_delay: 1
      backoff_multiplier: 2
      jitter: false
      retry_when: "{{ status_code >= 500 }}"
    next:
      - step: store
        when: "{{ fetch.data.ok }}"
        with: {rows: "{{ fetch.data.rows }}"}
      - end
  - step: store
    type: http
    method: POST
    url: "{{ workload.base_url }}/store"
    json: {rows: "{{ rows }}"}
    next: end
  - step: end
"""

WHOLE = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: whole, path: whole}
workload: {base_url: ""}
defaults: {retry: {max_attempts: 2, initial_delay: 0.1, jitter: false}}
workflow:
  - step: start
    next: [list, broken]
  - step: list
    type: http
    url: "{{ workload.base_url }}/list"
    next: each
  - step: each
    type: http
    for_each: {items: "{{ list.data }}", as: name, concurrency: 2}
    url: "{{ workload.base_url }}/item/{{ name }}"
    next:
      - step: child
        when: "{{ each | length == 3 }}"
        with: {base_url: "{{ workload.base_url }}"}
      - step: never
        when: "{{ each | length > 3 }}"
  - step: never
    type: sleep
    seconds: 3600
    next: end
  - step: child
    type: playbook
    path: small
    next: nap
  - step: nap
    type: sleep
    seconds: 0.2
    next: poll
  - step: poll
    type: http
    max_visits: 5
    url: "{{ workload.base_url }}/poll"
    next:
      - step: poll
        when: "{{ not poll.data.ready }}"
      - step: report
        when: "{{ poll.data.ready }}"
  - step: broken
    type: http
    url: "{{ workload.base_url }}/broken"
    on_error: repair
    next: report
  - step: repair
    type: http
    method: POST
    url: "{{ workload.base_url }}/repair"
    json: {what: "{{ input.error.step }}"}
    next: report
  - step: report
    type: http
    method: POST
    url: "{{ workload.base_url }}/report"
    json: {names: "{{ list.data }}", child: "{{ child.data.data }}", repaired: "{{ repair.status_code }}"}
    next: end
  - step: end
"""

SMALL = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: small, path: small}
workload: {base_url: ""}
workflow:
  - step: only
    type: http
    url: "{{ workload.base_url }}/small"
"""


async def ended(url: str, server: ScriptedServer, *sources: str) -> tuple[Any, list[Event]]:
    """Submit the first of these playbooks and wait for its end: its view and its events."""
    async with Holdfast(url) as hf:
        engine = await hf.engine()
        for source in sources:
            await engine.register(load_playbook(source).definition)
        path = load_playbook(sources[0]).path
        execution = await hf.submit(path, {"base_url": server.url})
        async with hf.working():
            return await execution.wait(WITHIN), await execution.events()


def told(events: list[Event], shown: Callable[[Event], Any]) -> list[Any]:
    return [words for event in events if (words := shown(event)) is not None]


def of_fetch(event: Event) -> Any:
    """What the log says of the step and of the execution's end, with what matters of it."""
    match event.type:
        case "action_started":
            said = (event.data["attempt"], "is_retry") if event.data["is_retry"] else (event.data["attempt"],)
        case "step_retry":
            said = (event.data["delay"],)
        case _:
            said = ()
    if event.step not in ("fetch", None) and event.type != "step_started":
        return None
    name = event.type.value if event.step in ("fetch", None) else f"{event.type.value} {event.step}"
    return (name, *said)


def test_503_and_503_and_200_are_told_as_three_attempts_and_the_next_step_starts(store_url: str) -> None:
    with ScriptedServer() as server:
        server.answer("/flaky", 503)
        server.answer("/flaky", 503)
        server.answer("/flaky", 200, json={"ok": True, "rows": [1, 2]})
        server.answer("/store", 200, json={"stored": 2})
        view, events = run(ended(store_url, server, FLAKY))
    assert told(events, of_fetch) == [
        ("execution_started",),
        ("step_started start",),
        ("step_started",),
        ("action_started", 1),
        ("action_error",),
        ("step_retry", 1.0),
        ("action_started", 2, "is_retry"),
        ("action_error",),
        ("step_retry", 2.0),
        ("action_started", 3, "is_retry"),
        ("action_completed",),
        ("step_completed",),
        ("step_started store",),
        ("step_started end",),
        ("execution_completed",),
    ]
    assert view.status is ExecutionStatus.COMPLETED
    assert view.result["data"] == {"stored": 2}
    [fetch] = [job for job in view.jobs if job.step == "fetch"]
    assert (fetch.status, fetch.attempts, fetch.max_attempts) == ("done", 3, 3)
    assert [request.body for request in server.requests if request.path == "/store"] == [b'{"rows":[1,2]}']


def test_a_third_503_is_exhausted_terminal_and_the_end_of_the_execution(store_url: str) -> None:
    with ScriptedServer() as server:
        server.answer("/flaky", 503)
        view, events = run(ended(store_url, server, FLAKY))
    assert told(events, of_fetch) == [
        ("execution_started",),
        ("step_started start",),
        ("step_started",),
        ("action_started", 1),
        ("action_error",),
        ("step_retry", 1.0),
        ("action_started", 2, "is_retry"),
        ("action_error",),
        ("step_retry", 2.0),
        ("action_started", 3, "is_retry"),
        ("action_error",),
        ("step_retry_exhausted",),
        ("step_failed_terminal",),
        ("execution_failed",),
    ]
    assert view.status is ExecutionStatus.FAILED
    [job] = view.jobs
    assert (job.step, job.status, job.attempts, job.max_attempts) == ("fetch", "dead", 3, 3)
    assert job.dead_reason == "exhausted"
    assert len(server.requests) == 3


def test_a_playbook_branches_fans_out_calls_polls_repairs_and_joins(store_url: str) -> None:
    with ScriptedServer() as server:
        server.answer("/list", 200, json=["a", "b", "c"])
        server.answer("/item/a", 200, json=1)
        server.answer("/item/b", 503)
        server.answer("/item/b", 200, json=2)
        server.answer("/item/c", 200, json=3)
        server.answer("/small", 200, json={"from": "the child"})
        server.answer("/poll", 200, json={"ready": False})
        server.answer("/poll", 200, json={"ready": True})
        server.answer("/broken", 404)
        server.answer("/repair", 200, json={})
        server.answer("/report", 200, json={"reported": True})
        view, _events = run(ended(store_url, server, WHOLE, SMALL))
    assert view.status is ExecutionStatus.COMPLETED, view.summary
    assert view.result["data"] == {"reported": True}
    bodies = {request.path: request.body for request in server.requests}
    assert bodies["/repair"] == b'{"what":"broken"}'
    assert bodies["/report"] == b'{"names":["a","b","c"],"child":{"from":"the child"},"repaired":200}'
    asked = sorted(request.path for request in server.requests)
    assert asked == [
        "/broken", "/item/a", "/item/b", "/item/b", "/item/c", "/list", "/poll", "/poll", "/repair",
        "/report", "/small",
    ]  # fmt: skip
    states = {(job.step, job.visit, job.element): job.status.value for job in view.jobs}
    assert states["broken", 1, -1] == "dead"
    assert set(states.values()) == {"done", "dead"}
    assert [job.attempts for job in view.jobs if (job.step, job.element) == ("each", 1)] == [2]
