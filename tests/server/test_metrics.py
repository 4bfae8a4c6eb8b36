"""What Prometheus is told: every metric with its type and labels, read by Prometheus' own parser."""

import asyncio
import math
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_scenario import stage
from holdfast.core.limits import FLEET_LIMIT
from holdfast.core.model import ExecutionStatus
from holdfast.engine import Engine
from holdfast.engine.gauges import Gauges
from holdfast.engine.tallies import ATTEMPT, BOUNDS, BUCKET, RETRIES, STEP_ATTEMPT
from holdfast.server import api_watching, prometheus
from holdfast.server.counting import Watched
from holdfast.store import store_from_url
from running import eventually, run
from serving import Served, on_a_server, serving

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

METRICS: dict[str, tuple[str, set[str]]] = {
    "holdfast_store_up": ("gauge", set()),
    "holdfast_store_seconds": ("gauge", set()),
    "holdfast_paused": ("gauge", set()),
    "holdfast_jobs": ("gauge", {"status", "lane"}),
    "holdfast_oldest_ready_seconds": ("gauge", {"lane"}),
    "holdfast_unoffered_jobs": ("gauge", set()),
    "holdfast_executions": ("gauge", {"status"}),
    "holdfast_workers": ("gauge", set()),
    "holdfast_worker_slots": ("gauge", set()),
    "holdfast_limit_in_use": ("gauge", {"limit"}),
    "holdfast_limit_max": ("gauge", {"limit"}),
    "holdfast_counts_age_seconds": ("gauge", set()),
    "holdfast_executions_started": ("counter", set()),
    "holdfast_executions_ended": ("counter", {"status"}),
    "holdfast_attempts": ("counter", {"outcome"}),
    "holdfast_retries": ("counter", {"error_type"}),
    "holdfast_dead": ("counter", {"reason"}),
    "holdfast_lease_latency_seconds": ("histogram", {"lane", "le"}),
    "holdfast_attempt_seconds": ("histogram", {"outcome", "le"}),
    "holdfast_step_attempt_seconds": ("summary", {"path", "step"}),
    "holdfast_store_transaction_seconds": ("histogram", {"verb", "le"}),
    "holdfast_info": ("gauge", {"version", "database"}),
    "holdfast_schema_version": ("gauge", set()),
    "holdfast_server_seconds": ("gauge", set()),
    "holdfast_leases_waiting": ("gauge", set()),
    "holdfast_stream_listeners": ("gauge", set()),
    "holdfast_http_requests": ("counter", {"status"}),
}


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name.removeprefix("holdfast_"), frozenset(sample.labels.items()))
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


async def scraped(s: Served) -> Samples:
    answer = await s.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(answer.content.decode())


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


async def until(s: Served, name: str, wanted: float, **labels: str) -> Samples:
    """Counts are of a moment ago where the machine is busy."""

    async def found() -> Samples | None:
        samples = await scraped(s)
        return samples if value(samples, name, **labels) == wanted else None

    return await eventually(found)  # type: ignore[return-value]


async def story_of_five(s: Served) -> None:
    """One completed, one dead, one waiting for its retry, one leased, one not begun."""
    await s.define(stage("a", 2, initial_delay=500.0, limit="portal"))
    await s.engine.controls.set_limit("portal", 7)
    for _ in range(5):
        await s.start()
    await s.complete(await s.lease_one(types=["p/a"]))
    await s.fail(await s.lease_one(), "gone", category="permanent")
    await s.fail(await s.lease_one())
    await s.lease_one()


def test_every_metric_has_its_type_its_labels_and_its_words(store_url: str) -> None:
    async def story(s: Served) -> None:
        await story_of_five(s)
        await until(s, "attempts_total", 1, outcome="completed")
        text = (await s.get("/metrics")).content.decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert families.keys() == METRICS.keys()
        for name, (kind, labels) in METRICS.items():
            family = families[name]
            assert family.type == kind, name
            assert family.documentation.endswith((".", ";")) and family.samples, name
            assert set().union(*(sample.labels for sample in family.samples)) == labels, name

    on_a_server(store_url, story)


def test_what_there_is_and_what_has_happened_is_told(store_url: str) -> None:
    async def story(s: Served) -> None:
        await story_of_five(s)
        found = await until(s, "attempts_total", 2, outcome="failed")
        told = {
            name: value(found, name, **labels)
            for name, labels in [
                ("store_up", {}), ("paused", {}), ("unoffered_jobs", {}), ("executions_started_total", {}),
                ("schema_version", {}),
            ]
        }  # fmt: skip
        assert told["store_up"] == 1
        assert told["executions_started_total"] == 5
        assert told["schema_version"] == s.service.services.schema_version
        jobs = {labels: count for (name, labels), count in found.items() if name == "jobs" and count}
        assert {tuple(sorted(dict(labels).values())): count for labels, count in jobs.items()} == {
            ("bulk", "leased"): 1, ("bulk", "queued"): 1, ("bulk", "retry"): 1,
        }  # fmt: skip
        assert value(found, "executions", status="running") == 3
        assert value(found, "executions", status="failed") == 1
        assert value(found, "executions_ended_total", status="completed") == 1
        assert value(found, "executions_ended_total", status="failed") == 1
        assert value(found, "executions_ended_total", status="cancelled") == 0
        assert value(found, "retries_total", error_type="connection_error") == 1
        assert value(found, "dead_total", reason="permanent") == 1
        assert value(found, "dead_total", reason="exhausted") == 0
        assert value(found, "limit_in_use", limit="portal") == 1
        assert value(found, "limit_max", limit="portal") == 7
        assert value(found, "lease_latency_seconds_count", lane="bulk") == 4
        assert value(found, "lease_latency_seconds_count", lane="manual") == 0
        assert value(found, "step_attempt_seconds_count", path="p", step="a") == 3
        for verb in ("claim", "submit", "report"):
            assert value(found, "store_transaction_seconds_count", verb=verb)

    on_a_server(store_url, story)


def test_buckets_hold_what_is_below_them_and_the_last_one_everything(store_url: str) -> None:
    async def story(s: Served) -> None:
        await story_of_five(s)
        found = await until(s, "attempts_total", 2, outcome="failed")
        buckets = sorted(
            (float(dict(labels)["le"]), count)
            for (name, labels), count in found.items()
            if name == "attempt_seconds_bucket" and dict(labels)["outcome"] == "failed"
        )
        assert [bound for bound, _ in buckets] == [*BOUNDS, math.inf]
        counts = [count for _, count in buckets]
        assert counts == sorted(counts) and counts[-1] == 2
        assert value(found, "attempt_seconds_count", outcome="failed") == 2

    on_a_server(store_url, story)


def test_the_oldest_ready_job_and_work_that_nobody_offers(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        found = await scraped(s)
        assert value(found, "oldest_ready_seconds", lane="bulk") == 0
        await s.start()
        found = await until(s, "unoffered_jobs", 1)
        await s.start(delay=1_000)

        async def has_aged() -> bool:
            return (value(await scraped(s), "oldest_ready_seconds", lane="bulk") or 0) > 0

        await eventually(has_aged)
        found = await scraped(s)
        assert value(found, "unoffered_jobs") == 1, "what is not ready needs nobody yet"
        assert value(found, "oldest_ready_seconds", lane="manual") == 0
        await s.engine.controls.pause("playbook", "p")
        found = await until(s, "unoffered_jobs", 0)
        assert value(found, "paused") == 1
        await s.engine.controls.resume("playbook", "p")
        await s.lease(types=["p/a"])
        await until(s, "workers", 1)
        await s.start()
        found = await until(s, "jobs", 2, status="queued", lane="bulk")
        assert value(found, "unoffered_jobs") == 0, "it is offered"

    on_a_server(store_url, story)


def test_counts_of_other_processes_and_of_those_that_have_ended_are_in_the_sums(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        for number in range(1, 4):
            store = store_from_url(store_url)
            await store.open()
            other = Engine(store)
            execution_id = await s.start()
            await other.cancel(execution_id)
            await other.keeper.close()
            await store.close()
            await until(s, "executions_ended_total", number, status="cancelled")
        await until(s, "executions_started_total", 3)

    on_a_server(store_url, story)


def test_counters_go_on_where_a_server_was_stopped_or_has_died(store_url: str) -> None:
    async def main() -> None:
        for number in range(1, 4):
            async with serving(store_url) as s:
                await s.define()
                await s.start()
                await until(s, "executions_started_total", number)

    run(main())


def test_two_servers_tell_the_same_sums(store_url: str) -> None:
    async def story(s: Served) -> None:
        await story_of_five(s)
        async with serving(store_url) as other:
            mine = await until(s, "attempts_total", 2, outcome="failed")
            theirs = await until(other, "attempts_total", 2, outcome="failed")
            sums = ("attempts_total", "executions_started_total", "executions_ended_total", "dead_total")
            assert {key: count for key, count in mine.items() if key[0] in sums} == {
                key: count for key, count in theirs.items() if key[0] in sums
            }

    on_a_server(store_url, story)


HOSTILE = ['say "hi"', "back\\slash", "two\nlines", "{a=b},c", "ünï 🎉", 'x"} 1\nholdfast_x 2', "\\n"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_labels_that_would_break_the_text_come_back_as_they_were(hostile: str) -> None:
    gauges = Gauges(
        jobs={},
        oldest_ready_seconds={},
        unoffered=0,
        executions={ExecutionStatus.RUNNING: 0},
        workers=0,
        slots=0,
        limits=[],
    )
    sums = {
        (STEP_ATTEMPT + "_count", (hostile, "step")): 3,
        (STEP_ATTEMPT + "_sum", (hostile, "step")): 25_000,
        (RETRIES, (hostile,)): 4,
    }
    found = parsed("\n".join(prometheus.of_work(Watched(gauges, sums), 0.0)) + "\n")
    assert value(found, "step_attempt_seconds_count", path=hostile, step="step") == 3
    assert value(found, "step_attempt_seconds_sum", path=hostile, step="step") == 2.5
    assert value(found, "retries_total", error_type=hostile) == 4
    assert not [name for name, _ in found if name == "x"]


def test_the_bounds_of_another_version_are_told_in_their_order() -> None:
    sums = {(ATTEMPT + BUCKET, ("failed", "2.0")): 5}
    lines = prometheus._histogram(sums, ATTEMPT, "outcome", ["completed"], "How long.")
    found = parsed("\n".join(lines) + "\n")
    assert value(found, "attempt_seconds_bucket", outcome="failed", le="2.0") == 5
    assert value(found, "attempt_seconds_count", outcome="failed") == 5


def test_counts_that_do_not_come_are_left_out_and_the_rest_is_told(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_watching, "COUNT_SECONDS_MAX", 0.2)
    monkeypatch.setattr(api_watching, "READY_SECONDS_MAX", 30.0)

    async def endless() -> Any:
        await asyncio.Event().wait()

    async def story(s: Served) -> None:
        counting = s.service.services.counting
        monkeypatch.setattr(counting.open, "_count", endless)
        found = await scraped(s)
        assert value(found, "store_up") == 1
        assert not [name for name, _ in found if name in ("jobs", "attempts_total")]
        assert value(found, "server_seconds") is not None

    on_a_server(sqlite_url, story)


def test_the_fleets_limit_is_among_the_limits(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.engine.controls.set_limit(FLEET_LIMIT, 3)
        await s.start()
        await s.lease_one()
        found = await until(s, "limit_in_use", 1, limit=FLEET_LIMIT)
        assert value(found, "limit_max", limit=FLEET_LIMIT) == 3

    on_a_server(store_url, story)
