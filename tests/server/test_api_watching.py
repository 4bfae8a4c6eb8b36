"""Whether the server is well, and what it counts."""

import pytest

from engine_scenario import stage
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.server import counting
from running import eventually, run
from serving import Served, on_a_server, serving


def test_readyz_tells_the_truth_while_the_database_goes_and_comes_back() -> None:
    async def story(database: TemporaryPostgres) -> None:
        async with serving(database.url()) as s:
            await s.define()
            assert (await s.get("/readyz")).json == {"status": "ready"}
            database.halt("immediate")
            down = await s.get("/readyz")
            assert (down.status, down.code) == (503, "store_unavailable")
            assert int(down.headers["retry-after"]) >= 1
            assert (await s.get("/healthz")).json == {"status": "ok"}
            refused = await s.post("/api/executions", {"path": "p"})
            assert (refused.status, refused.code) == (503, "store_unavailable")
            assert "holdfast_store_up 0" in (await s.get("/metrics")).content.decode()
            database.start()

            async def is_ready() -> bool:
                return (await s.get("/readyz")).status == 200

            await eventually(is_ready)
            await s.complete(await _leased(s), "back")

    async def _leased(s: Served) -> dict[str, object]:
        id_ = await s.start()
        job = await s.lease_one(wait=30)
        assert job["execution_id"] == id_
        return job

    with TemporaryPostgres(durable=False) as database:
        run(story(database))


def test_a_server_that_is_being_stopped_is_not_ready(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        s.service.services.is_stopping = True
        answer = await s.get("/readyz")
        assert (answer.status, answer.code) == (503, "stopping")

    on_a_server(sqlite_url, story)


def test_metrics_count_jobs_executions_workers_and_requests(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a", 2, initial_delay=500.0))
        for _ in range(5):
            await s.start()
        await s.complete(await s.lease_one(types=["p/a"]))
        await s.fail(await s.lease_one(), "gone", category="permanent")
        await s.fail(await s.lease_one())
        await s.lease_one()
        told = (await s.get("/api/metrics")).json
        listed = told.pop("permanently_failed_jobs")
        assert told == {
            "enqueued": 2,
            "held": 0,
            "in_progress": 1,
            "retried": 1,
            "failed": 1,
            "completed": 1,
            "permanently_failed": 1,
            "lifecycle": {
                "enqueued": 5,
                "in_progress": 1,
                "retried": 1,
                "failed": 2,
                "completed": 1,
                "permanently_failed": 1,
            },
            "counts_age_seconds": 0.0,
        }
        assert [item["message"] for item in listed] == ["gone"]
        answer = await s.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.content.decode().splitlines()
        assert 'holdfast_jobs{status="leased",lane="bulk"} 1' in lines
        assert 'holdfast_executions{status="failed"} 1' in lines
        assert "holdfast_store_up 1" in lines
        assert any(line.startswith('holdfast_http_requests_total{status="200"}') for line in lines)

    on_a_server(store_url, story)


def test_the_server_tells_what_it_is_and_what_it_stores_in(store_url: str) -> None:
    async def story(s: Served) -> None:
        info = (await s.get("/api/info")).json
        seen = (await s.get("/api/database")).json
        assert info["database"] == seen["kind"] == ("sqlite" if "sqlite" in store_url else "postgresql")
        assert info["schema_version"] == seen["schema_known"] == seen["schema_found"]
        assert abs(info["now"] - await s.store.now()) < 60

    on_a_server(store_url, story)


def test_a_history_that_takes_long_to_count_is_told_as_it_was_a_moment_ago(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "QUICK_SECONDS", -1.0)
    monkeypatch.setattr(counting, "REST_FACTOR", 1e9)

    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        first = (await s.get("/api/metrics")).json
        await s.complete(await s.lease_one(types=["p/a"]))
        second = (await s.get("/api/metrics")).json
        assert second["completed"] == first["completed"] == 0
        assert second["counts_age_seconds"] >= first["counts_age_seconds"] == 0.0
        monkeypatch.setattr(counting, "REST_FACTOR", 0.0)

        async def is_counted() -> bool:
            return (await s.get("/api/metrics")).json["completed"] == 1

        await eventually(is_counted)

    on_a_server(store_url, story)
