"""The workers that docs/how-to/write-a-worker-in-any-language.md shows, run as they stand there: as processes
of their own that speak with a real server over HTTP."""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine import Engine
from holdfast.server.service import Service
from ports import kept_port
from running import eventually, run
from scripted_server import ScriptedServer
from serving import Served, on_a_server, serving

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-worker-in-any-language.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOKEN = "a-token-for-this-test"
EXIT_SECONDS_MAX = 60

_DIMENSIONS = (640).to_bytes(4, "big") + (480).to_bytes(4, "big")
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + _DIMENSIONS + b"and the rest"
SIZE = {"width": 640, "height": 480, "bytes": len(PNG)}
CHECKSUM = {"sha256": hashlib.sha256(PNG).hexdigest()}

NODE, BASH = "worker.mjs", "worker.sh"
PROGRAMS = {NODE: ["node"], BASH: ["bash", "curl", "python3", "timeout"]}
# The step that each of the workers does: its name, its function, and what comes of it.
STEPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    NODE: ("size", "images:size", SIZE),
    BASH: ("checksum", "images:checksum", CHECKSUM),
}
each_worker = pytest.mark.parametrize("name", [NODE, BASH])


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGE.read_text()) if found == language]


def program(name: str) -> str:
    [text] = [text for kind in ("js", "bash") for text in blocks(kind) if f" {name}: " in text]
    return text


def need(*programs: str) -> None:
    for missing in [name for name in programs if shutil.which(name) is None]:
        told = (
            f"{missing} is not installed here, and the worker of {PAGE.name} that needs it cannot be tested."
        )
        if os.environ.get("CI") == "true":
            pytest.fail(told)
        pytest.skip(told)


class Worker:
    """One of the page's programs as a process."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path) -> None:
        self._process = process
        self._output = output

    @property
    def told(self) -> str:
        return self._output.read_text()

    def signal(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> None:
        """In order, after a signal."""
        code = await asyncio.wait_for(self._process.wait(), EXIT_SECONDS_MAX)
        assert (code, self.told.splitlines()[-1]) == (0, "Stopped in order"), self.told

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def working(
    name: str, url: str, folder: Path, change: Callable[[str], str] = str
) -> AsyncIterator[Worker]:
    need(*PROGRAMS[name])
    file, output = folder / name, folder / f"{name}.out"
    file.write_text(change(program(name)))
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_SERVER": url, "HOLDFAST_TOKEN": TOKEN}
    with output.open("wb") as told:
        process = await asyncio.create_subprocess_exec(
            PROGRAMS[name][0], file, cwd=folder, env=environment, stdout=told, stderr=told
        )
    worker = Worker(process, output)
    try:
        yield worker
    finally:
        await worker.kill()


@contextlib.asynccontextmanager
async def served_with(
    store_url: str, name: str, folder: Path, change: Callable[[str], str] = str
) -> AsyncIterator[tuple[Served, Worker, ScriptedServer]]:
    """A server with the page's playbook, a worker of it, and a place that has the images."""
    with ScriptedServer() as images:
        async with serving(store_url, token=TOKEN) as s:
            await add_playbook(s)
            async with working(name, s.url, folder, change) as worker:
                yield s, worker, images


async def add_playbook(s: Served) -> None:
    [playbook] = blocks("yaml")
    answer = await s.post(
        "/api/catalog", content=playbook.encode(), headers={"content-type": "application/yaml"}
    )
    assert answer.status == 201, answer


async def start(s: Served, images: ScriptedServer, name: str) -> int:
    """An execution whose next step is this worker's."""
    execution_id = await s.start({"url": f"{images.url}/cat.png"}, path="images/look")
    if name == BASH:
        await s.complete(await s.lease_one(types=["images:size"]), SIZE)
    return execution_id


async def outputs(s: Served, execution_id: int) -> dict[str, Any]:
    found: dict[str, Any] = (await s.get(f"/api/executions/{execution_id}")).json["outputs"]
    return found


async def offered(s: Served) -> list[list[str]]:
    return [worker["handlers"] for worker in (await s.get("/api/workers")).json["items"]]


async def attempts(s: Served, execution_id: int, step: str) -> int:
    jobs = (await s.get(f"/api/executions/{execution_id}")).json["jobs"]
    return int(next((job["attempts"] for job in jobs if job["step"] == step), 0))


class Held:
    """An answer that comes when the test says so."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.set()
        self.may_answer.wait(120)
        handler.close_connection = True
        with contextlib.suppress(OSError):  # whoever asked may have gone
            handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(PNG), PNG))


async def heals_and_stops(store_url: str, name: str, folder: Path) -> None:
    step, function, expected = STEPS[name]
    async with served_with(store_url, name, folder) as (s, worker, images):
        images.answer("/cat.png", 503, "busy", retry_after="0")
        images.answer("/cat.png", 200, PNG)
        execution_id = await start(s, images, name)
        await eventually(lambda: offered_is(s, [f"python/{function}"]))

        async def is_done() -> bool:
            return step in await outputs(s, execution_id)

        await eventually(is_done)
        assert (await outputs(s, execution_id))[step] == expected
        told = (await s.get(f"/api/executions/{execution_id}/events")).json["items"]
        [error] = [event for event in told if event["type"] == "action_error"]
        assert (error["error_type"], error["rule"]) == ("service_unavailable", "http status 503")
        assert error["stack_trace"]
        assert await attempts(s, execution_id, step) == 2
        worker.signal()
        await worker.ended()
        await eventually(lambda: offered_is_not(s, [f"python/{function}"]))
        await eventually(lambda: s.service.services.desk.waiting == 0)


async def offered_is(s: Served, handlers: list[str]) -> bool:
    return handlers in await offered(s)


async def offered_is_not(s: Served, handlers: list[str]) -> bool:
    return handlers not in await offered(s)


def test_the_node_worker_heals_an_error_and_stops_in_order(store_url: str, tmp_path: Path) -> None:
    run(heals_and_stops(store_url, NODE, tmp_path))


def test_the_bash_worker_heals_an_error_and_stops_in_order(sqlite_url: str, tmp_path: Path) -> None:
    run(heals_and_stops(sqlite_url, BASH, tmp_path))


def test_both_do_the_playbook_together(sqlite_url: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with served_with(sqlite_url, NODE, tmp_path) as (s, _, images):
            images.answer("/cat.png", 200, PNG)
            execution_id = await start(s, images, NODE)
            async with working(BASH, s.url, tmp_path):
                shown = (await s.get(f"/api/executions/{execution_id}", wait=60)).json
        assert (shown["status"], shown["outputs"]) == ("completed", {"size": SIZE, "checksum": CHECKSUM})

    run(story())


@each_worker
def test_an_error_that_cannot_heal_is_told_as_that(sqlite_url: str, tmp_path: Path, name: str) -> None:
    async def story() -> None:
        async with served_with(sqlite_url, name, tmp_path) as (s, _, images):
            execution_id = await start(s, images, name)  # the image is not there
            shown = (await s.get(f"/api/executions/{execution_id}", wait=60)).json
        assert (shown["status"], shown["error"]["error_type"]) == ("failed", "not_found")
        assert shown["error"]["rule"] == "http status 404" and "404" in shown["error"]["message"]

    run(story())


@each_worker
def test_a_place_that_is_not_there_is_an_error_of_the_network(
    sqlite_url: str, tmp_path: Path, name: str
) -> None:
    async def story() -> None:
        async with served_with(sqlite_url, name, tmp_path) as (s, _, images):
            images.answer("/cat.png", act=_hang_up)
            execution_id = await start(s, images, name)

            async def error() -> Any:
                return (await s.get(f"/api/executions/{execution_id}")).json["error"]

            shown = await eventually(error)
        assert shown["category"] in ("transient", "unknown") and shown["message"]

    run(story())


def _hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


@each_worker
def test_what_runs_at_the_signal_is_finished_and_told(sqlite_url: str, tmp_path: Path, name: str) -> None:
    async def story() -> None:
        held = Held()
        async with served_with(sqlite_url, name, tmp_path) as (s, worker, images):
            images.answer("/cat.png", act=held)
            execution_id = await start(s, images, name)
            await eventually(held.asked.is_set)
            worker.signal()
            held.may_answer.set()
            await worker.ended()
            step, _, expected = STEPS[name]
            assert (await outputs(s, execution_id))[step] == expected
            assert await attempts(s, execution_id, step) == 1

    run(story())


@each_worker
def test_an_outcome_is_kept_while_the_server_is_away(sqlite_url: str, tmp_path: Path, name: str) -> None:
    async def story() -> None:
        held = Held()
        step, function, expected = STEPS[name]
        async with served_with(sqlite_url, name, tmp_path) as (s, worker, images):
            images.answer("/cat.png", act=held)
            execution_id = await start(s, images, name)
            await eventually(held.asked.is_set)
            await s.service.stop()
            held.may_answer.set()
            await eventually(lambda: "Not delivered" in worker.told or name == BASH)
            port = int(s.url.rpartition(":")[2])
            async with Service(Engine(s.store), port=port, token=TOKEN):

                async def is_done() -> bool:
                    return step in await outputs(s, execution_id)

                await eventually(is_done)
                assert (await outputs(s, execution_id))[step] == expected
                assert await attempts(s, execution_id, step) == 1
                await eventually(lambda: offered_is(s, [f"python/{function}"]))
                worker.signal()
                await worker.ended()

    run(story())


@each_worker
def test_a_worker_without_a_server_stops_in_order_too(tmp_path: Path, name: str) -> None:
    """With pauses of five minutes and more, which a signal ends."""

    def patient(text: str) -> str:
        told = {NODE: ("Math.random() * Math.min", "300 * Math.max"), BASH: ('sleep "$(', 'sleep "30$(')}
        assert text.count(told[name][0]) == 1
        return text.replace(*told[name])

    async def story() -> None:
        with kept_port() as port:  # of nobody
            async with working(name, f"http://127.0.0.1:{port}", tmp_path, patient) as worker:
                await eventually(lambda: "No work" in worker.told)
                worker.signal()
                await worker.ended()

    run(story())


@each_worker
def test_heartbeats_keep_the_lease_and_tell_when_it_is_lost(
    sqlite_url: str, tmp_path: Path, name: str
) -> None:
    """With leases of 3 seconds in the place of the page's."""

    def hasty(text: str) -> str:
        told = {NODE: ("[4, 60, 30, 25]", "[4, 3, 30, 25]"), BASH: ("lease_seconds=60", "lease_seconds=3")}
        assert told[name][0] in text
        return text.replace(*told[name])

    async def story() -> None:
        held = Held()
        async with served_with(sqlite_url, name, tmp_path, hasty) as (s, worker, images):
            images.answer("/cat.png", act=held)
            execution_id = await start(s, images, name)
            await eventually(held.asked.is_set)

            async def has_beaten() -> bool:
                jobs = (await s.get(f"/api/executions/{execution_id}")).json["jobs"]
                return any(
                    job["status"] == "leased" and job["last_heartbeat"] > job["last_attempt_at"]
                    for job in jobs
                )

            await eventually(has_beaten)
            await s.post(f"/api/executions/{execution_id}/cancel")
            worker.signal()
            await worker.ended()  # though the image never came
            held.may_answer.set()
            assert (await s.get(f"/api/executions/{execution_id}")).json["status"] == "cancelled"

    run(story())


def test_what_was_leased_and_not_begun_at_the_signal_is_given_back(sqlite_url: str, tmp_path: Path) -> None:
    """A worker that is told to stop while it asks: whatever the server makes of that call is uncounted."""

    async def story() -> None:
        async with served_with(sqlite_url, NODE, tmp_path) as (s, worker, images):
            images.answer("/cat.png", 200, PNG)
            await eventually(lambda: s.service.services.desk.waiting == 1)
            worker.signal()
            ids = [await start(s, images, NODE) for _ in range(20)]
            await worker.ended()

            async def is_settled(execution_id: int) -> bool:
                jobs = (await s.get(f"/api/executions/{execution_id}")).json["jobs"]
                return [(job["status"], job["attempts"]) for job in jobs if job["step"] == "size"] in (
                    [("queued", 0)],
                    [("done", 1)],
                )

            for execution_id in ids:
                await eventually(partial(is_settled, execution_id))

    run(story())


def test_secrets_are_filled_in_where_they_are_named_and_masked_in_what_is_told(tmp_path: Path) -> None:
    need("node")
    (tmp_path / "secrets.mjs").write_text(program("secrets.mjs"))
    job = {
        "secrets": ["KEY"],
        "input": {"a": ["Bearer {{ secret('KEY') }}", 7, None], "b": "{{ secret('OTHER') }}"},
    }
    script = (
        'import { filledIn, masked } from "./secrets.mjs";'
        f"const job = {json.dumps(job)}; const filled = filledIn(job.input, job);"
        "console.log(JSON.stringify([filled, masked(filled, job)]));"
        'try { filledIn({}, { secrets: ["NOT_HERE"] }) } catch (error) { console.log(JSON.stringify(error)) }'
    )
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOLDFAST_SECRET_KEY": "{{ secret('OTHER') }}$&",
            "HOLDFAST_SECRET_OTHER": "x",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (filled, masked), missing = map(json.loads, done.stdout.splitlines())
    assert filled == {"a": ["Bearer {{ secret('OTHER') }}$&", 7, None], "b": "{{ secret('OTHER') }}"}
    assert masked == {"a": ["Bearer ***", 7, None], "b": "{{ secret('OTHER') }}"}
    assert missing == {"errorType": "secret_missing", "category": "permanent"}


def test_a_worker_that_has_no_time_to_lease_is_known_to_live_by_its_heartbeats(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.workers.ANNOUNCE_SECONDS", 0.0)  # each time it is heard of

    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        job = await s.lease_one(types=["p/a"], worker_id="busy")

        async def seen_at() -> float:
            workers = (await s.get("/api/workers")).json["items"]
            return max((worker["seen_at"] for worker in workers), default=0.0)

        first = await eventually(seen_at)

        async def is_seen_again() -> bool:
            lease = {"queue_id": job["queue_id"], "fence": job["fence"]}
            await s.post("/api/queue/heartbeat", {"worker_id": "busy", "leases": [lease]})
            return await seen_at() > first

        await eventually(is_seen_again)

    on_a_server(store_url, story)
