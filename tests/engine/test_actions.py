"""What a job of the queue is to do, as JSON text."""

import json

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.playbook.load import load_playbook

PLAYBOOK = """\
apiVersion: holdfast/v1
metadata: {name: flow}
workflow:
- step: get
  type: http
  url: "http://127.0.0.1/{{ workload.n }}"
  headers: {Authorization: "Bearer {{ secret('TOKEN') }}"}
  retry: {max_attempts: 3, initial_delay: 5s, retry_when: "status_code == 503"}
  timeout: 2m
  limit: portal
  lane: manual
  for_each: {items: "{{ workload.items }}", as: one}
"""


@on_both_stores
async def test_an_action_has_the_fields_of_the_step_as_written_and_its_policy(s: Scenario) -> None:
    await s.engine.publish(load_playbook(PLAYBOOK).definition)
    await s.submit(path="flow")
    [job] = (await s.engine.queue()).items
    [action] = await s.engine.actions([job])
    assert json.loads(action) == {
        "type": "http",
        "handler": "type/http",
        "method": "GET",
        "url": "http://127.0.0.1/{{ workload.n }}",
        "headers": {"Authorization": "Bearer {{ secret('TOKEN') }}"},
        "retry": {
            "max_attempts": 3, "initial_delay": 5.0, "backoff_multiplier": 2.0, "max_delay": 60.0,
            "jitter": True, "unknown_attempts": 3, "wave": False, "retry_when": "status_code == 503",
        },
        "timeout": 120.0,
        "limit": "portal",
        "lane": "manual",
        "for_each": {"items": "{{ workload.items }}", "as": "one", "fail_fast": False},
    }  # fmt: skip


@on_both_stores
async def test_each_job_has_the_action_of_its_own_version(s: Scenario) -> None:
    await s.define(stage("a", attempts=2))
    await s.submit()
    await s.define(stage("a", attempts=4, delays=["1m", 90, "1h"]))
    await s.submit()
    jobs = (await s.engine.queue()).items
    for engine in (s.engine, s.another_engine()):
        first, second, again = map(json.loads, await engine.actions([*jobs, jobs[0]]))
        assert first == again
        assert (first["type"], first["handler"], first["timeout"]) == ("python", "p/a", 3600.0)
        assert first["retry"]["max_attempts"] == 2
        assert second["retry"]["delays"] == [60.0, 90.0, 3600.0]
        assert {"limit", "lane", "for_each"}.isdisjoint(first)
    assert await s.engine.actions([]) == []
