"""What nobody should send: each is told in a sentence, as 4xx, and the server lives."""

import asyncio
import json
from typing import Any

import pytest

from engine_scenario import stage
from holdfast.playbook.definition import Definition
from holdfast.server import protocol, reading
from running import run
from serving import Served, on_a_server, serving

JSON = {"content-type": "application/json"}
HUNDRED_MB = 100 * 1024 * 1024


STARTS: list[tuple[bytes, int, str]] = [
    (b"", 400, "malformed_json"),
    (b"{", 400, "malformed_json"),
    (b'{"path": "p", "workload": ' + b"[" * 100_000, 400, "malformed_json"),
    (b'{"path": "p\xff"}', 400, "malformed_json"),
    (b"\xff\xfe\x00", 400, "malformed_json"),
    (b"[]", 422, "invalid_request"),
    (b'{"path": 5}', 422, "invalid_request"),
    (b'{"path": "p", "lane": "fast"}', 422, "invalid_request"),
    (b'{"path": "p", "pathh": "p"}', 422, "invalid_request"),
    (b'{"path": ""}', 422, "invalid_request"),
    (b'{"path": "p\\u0000"}', 404, "unknown_pipeline"),
    (b'{"path": "p", "workload": "\\u0000"}', 422, "payload_invalid"),
    (b'{"path": "p", "workload": "\\ud800"}', 400, "malformed_json"),
    (b'{"path": "p", "delay": "soon"}', 422, "policy_invalid"),
    (b'{"path": "p", "deadline": 0}', 422, "invalid_input"),
    (b'{"path": "p", "idempotency_key": " "}', 422, "payload_invalid"),
    (b'{"path": "p", "idempotency_key": "batch 1: x"}', 422, "invalid_input"),
    (b'{"path": "nowhere"}', 404, "unknown_pipeline"),
    (b'{"playbook": "nowhere"}', 404, "unknown_pipeline"),
    (b'{"playbook": "' + b"x" * 100_000 + b'"}', 422, "playbook_invalid"),
    (b"{}", 422, "invalid_input"),
]


def test_a_start_that_cannot_be_is_refused(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        for body, status, code in STARTS:
            answer = await s.post("/api/executions", content=body, headers=JSON)
            assert (answer.status, answer.code) == (status, code), (body[:100], answer)
            assert answer.json["error"]["message"] and answer.json["error"]["guidance"], (body[:100], answer)
            assert "Traceback" not in answer.content.decode()
        assert (await s.get("/api/executions")).json["items"] == []
        assert await s.lives()

    on_a_server(sqlite_url, story)


def test_a_workload_that_is_too_large_or_too_deep_is_refused(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        large = await s.post("/api/executions", {"path": "p", "workload": "x" * 2_000_000})
        assert (large.status, large.code) == (413, "payload_too_large")
        deep = b'{"path": "p", "workload": ' + b"[" * 500 + b"]" * 500 + b"}"
        answer = await s.post("/api/executions", content=deep, headers=JSON)
        assert (answer.status, answer.code) == (422, "payload_invalid")
        assert await s.lives()

    on_a_server(store_url, story)


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
def test_a_body_of_100_mb_is_refused_with_a_sentence_and_not_kept(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(reading, "DRAIN_SECONDS_MAX", 150.0)

    async def story(s: Served) -> None:
        async def chunks() -> Any:
            for _ in range(HUNDRED_MB // 65_536):
                yield b" " * 65_536

        headers = {**JSON, **({"content-length": str(HUNDRED_MB)} if announced else {})}
        answer = await s.post("/api/events", content=chunks(), headers=headers)
        assert (answer.status, answer.code) == (413, "request_too_large")
        assert await s.lives()

    on_a_server(sqlite_url, story)


def test_a_client_that_sends_its_body_too_slowly_is_told_so(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "DRAIN_SECONDS_MAX", 0.1)

    async def story() -> None:
        async with serving(sqlite_url) as s:
            reader, writer = await s.open_socket()
            writer.write(
                b"POST /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                b"content-length: 100\r\n\r\n{"
            )
            answer = await asyncio.wait_for(reader.read(), 60)
            assert b" 408 " in answer.split(b"\r\n")[0]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_slow"
            writer.close()
            assert await s.lives()

    original = reading.Bodies.__init__

    def quick(self: reading.Bodies, **options: Any) -> None:
        original(self, **{"seconds_max": 0.2, **options})

    monkeypatch.setattr(reading.Bodies, "__init__", quick)
    run(story())


def test_a_head_that_never_ends_is_cut_off(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(s: Served) -> None:
        assert await s.lives()  # over a connection that it keeps
        monkeypatch.setattr(protocol.BoundedProtocol, "head_seconds_max", 0.2)
        for first in (b"", b"GET / HTTP/1.1\r\nx: "):
            reader, writer = await s.open_socket()
            writer.write(first)
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.startswith(b"HTTP/1.1 408 ")
            writer.close()
        assert await s.lives()

    on_a_server(sqlite_url, story)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 900) for n in range(100)), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 no HTTP at all\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: many\r\n\r\n", 400),
    ],
    ids=["large head", "no HTTP", "wrong length"],
)
def test_what_is_no_request_is_refused(sqlite_url: str, sent: bytes, status: int) -> None:
    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        writer.close()
        assert await s.lives()

    on_a_server(sqlite_url, story)


ADDRESSES: list[tuple[str, str, int, str]] = [
    ("GET", "/api/nothing", 404, "no_such_address"),
    ("DELETE", "/api/executions", 405, "no_such_method"),
    ("GET", "/api/executions/abc", 404, "no_such_address"),
    ("GET", "/api/executions/99999999999999999999999", 404, "unknown_execution"),
    ("GET", "/api/executions/" + "9" * 5_000, 404, "no_such_address"),
    ("GET", "/api/executions/", 404, "no_such_address"),
    ("GET", "/docs/", 404, "no_such_address"),
    ("GET", "/api/executions/0", 404, "unknown_execution"),
    ("GET", "/api/executions?limit=0", 422, "invalid_request"),
    ("GET", "/api/executions?limit=many", 422, "invalid_request"),
    ("GET", "/api/executions?limt=5", 422, "invalid_request"),
    ("GET", "/api/executions?limit=5&limit=6", 422, "invalid_request"),
    ("GET", "/api/executions?cursor=x", 422, "invalid_input"),
    ("GET", "/api/executions?path=%00", 422, "payload_invalid"),
    ("GET", "/api/executions?path=%ff", 400, "malformed_query"),
    ("GET", "/api/executions?status=lost", 422, "invalid_request"),
    ("GET", "/api/executions/1/events?after=x", 422, "invalid_input"),
    ("GET", "/api/queue?due=perhaps", 422, "invalid_request"),
    ("GET", "/api/batches/7", 404, "unknown_batch"),
    ("GET", "/api/batches/99999999999999999999999/items", 404, "unknown_batch"),
    ("GET", "/api/catalog/no/such", 404, "unknown_pipeline"),
    ("GET", "/api/catalog/%00", 404, "unknown_pipeline"),
    ("GET", "/api/catalog/p?version=99999999999", 404, "unknown_version"),
    ("GET", "/api/dead?dead_reason=boredom", 422, "invalid_input"),
    ("GET", "/api/events/stream?after=x", 422, "invalid_input"),
    ("POST", "/api/batches/9/close", 404, "unknown_batch"),
    ("DELETE", "/api/limits/%00", 422, "payload_invalid"),
]


def test_a_wrong_address_or_parameter_is_told_as_what_it_is(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        for method, path, status, code in ADDRESSES:
            answer = await s.send(method, path)
            assert (answer.status, answer.code) == (status, code), (method, path, answer)

    on_a_server(store_url, story)


BODIES: list[tuple[str, Any, str]] = [
    ("/api/queue/lease", {}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": ""}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": "\u0007"}, "payload_invalid"),
    ("/api/queue/lease", {"worker_id": "w", "limit": 0}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": "w", "limit": 10**9}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": "w", "types": []}, "invalid_input"),
    ("/api/queue/lease", {"worker_id": "w", "types": ["sleep"]}, "invalid_input"),
    ("/api/queue/lease", {"worker_id": "w", "lease_seconds": -1}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": "w", "lease_seconds": 1e300}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": "w", "lanes": ["fast"]}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": "w", "wait": 10_000}, "invalid_request"),
    ("/api/queue/lease", {"worker_id": "w", "token": "x"}, "invalid_request"),
    ("/api/queue/heartbeat", {"leases": [{"queue_id": "1", "fence": "x"}]}, "invalid_request"),
    (
        "/api/queue/heartbeat",
        {"leases": [{"queue_id": 1, "fence": "x", "progress": 2}]},
        "invalid_request",
    ),
    ("/api/queue/release", {"recall": ["0123456789ab"]}, "invalid_input"),
    ("/api/events", {"outcomes": [{"queue_id": 1, "fence": "x", "type": "done"}]}, "invalid_request"),
    ("/api/events", {"outcomes": {}}, "invalid_request"),
    ("/api/dead/redrive", {"dead_reason": "boredom"}, "invalid_input"),
    ("/api/pauses", {"kind": "step", "name": "nobody/knows"}, "unknown_name"),
    ("/api/pauses", {"kind": "weather", "name": "p"}, "invalid_request"),
    ("/api/batches", {"path": "p", "items": 5}, "invalid_request"),
    ("/api/pipelines", {"definition": "{}"}, "invalid_input"),
    ("/api/pipelines", {"definition": "nonsense"}, "payload_invalid"),
]


def test_a_wrong_body_is_told_as_what_it_is(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        for path, body, code in BODIES:
            answer = await s.post(path, body)
            assert 400 <= answer.status < 500 and answer.code == code, (path, body, answer)

    on_a_server(store_url, story)


FENCES = ["", "\u0000", "ü", "x" * 10_000, "1-0123456789ab"]
NUMBERS = [1, 0, -5, 2**63 - 1]


def test_foreign_fences_are_stale_whatever_they_are_made_of(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        job = await s.lease_one()
        for lease in ({"queue_id": number, "fence": fence} for number in NUMBERS for fence in FENCES):
            for path, body in (
                ("/api/queue/heartbeat", {"leases": [lease]}),
                ("/api/queue/release", {"leases": [lease]}),
                ("/api/events", {"outcomes": [{**lease, "type": "action_completed"}]}),
                ("/api/events", {"outcomes": [{**lease, "type": "action_error", "error": {"message": "x"}}]}),
            ):
                answer = await s.post(path, body)
                assert (answer.status, answer.code) == (409, "stale_lease"), (path, lease, answer)
        assert (await s.complete(job)).status == 200

    on_a_server(store_url, story)


def test_a_result_that_is_no_text_or_cannot_be_stored_ends_the_attempt_or_is_refused(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        for _ in range(2):
            await s.start()
        one, two = (await s.lease(limit=2)).json["jobs"]
        broken = b'{"outcomes":[{"queue_id":%d,"fence":"%s","type":"action_completed","result":"\xff"}]}' % (
            one["queue_id"],
            one["fence"].encode(),
        )
        answer = await s.post("/api/events", content=broken, headers=JSON)
        assert 400 <= answer.status < 500 and answer.json["error"]["message"]
        assert (await s.complete(one, "fine")).status == 200
        await s.complete(two, "x" * 2_000_000)
        shown = (await s.get(f"/api/executions/{two['execution_id']}")).json
        assert shown["status"] == "failed" and "1,048,576" in shown["error"]["message"]

    on_a_server(store_url, story)


def test_a_result_with_a_number_that_nobody_can_read_back_fails_its_step(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        id_ = await s.start()
        job = await s.lease_one()
        told = b'{"outcomes":[{"queue_id":%d,"fence":"%s","type":"action_completed","result":[1e999]}]}'
        content = told % (job["queue_id"], job["fence"].encode())
        assert (await s.post("/api/events", content=content, headers=JSON)).status == 200
        shown = (await s.get(f"/api/executions/{id_}")).json
        assert shown["status"] == "failed" and "out of range" in shown["error"]["message"]
        assert (await s.get("/api/queue")).status == 200

    on_a_server(store_url, story)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": "q"},
        {"inputs": {"x": "{{ 1 }}"}},
        {"config": "x"},
        {"config": {"call": "a\0"}},
        {"type": "http"},
        {"type": "\0"},
        {"needs": ["a"]},
        {"handler": 7},
        {"handler": "\0"},
        {"handler": ""},
        {"handler": "x" * 501},
        {"handler": "bank/charge"},
        {"next": []},
        {"on_error": "a"},
        {"for_each": {"items": [1]}},
        {"max_visits": 2},
        {"timeout_seconds": "soon"},
        {"retry": {"max_attempts": -1}},
        {"weather": "fine"},
    ],
    ids=str,
)
def test_a_definition_that_no_program_has_compiled_is_refused(store_url: str, change: dict[str, Any]) -> None:
    async def story(s: Served) -> None:
        document = json.loads(Definition(path="p", steps=(stage("a"),)).to_json())
        document["steps"][0] |= change
        answer = await s.post("/api/pipelines", {"definition": json.dumps(document)})
        assert answer.status == 422 and answer.json["error"]["guidance"], answer
        assert (await s.get("/api/catalog")).json["items"] == []

    on_a_server(store_url, story)


@pytest.mark.parametrize(
    "change", [{"workload": {"x": 1}}, {"entry": "a"}, {"errors": 5}, {"path": "\0"}], ids=str
)
def test_so_is_one_with_a_workload_or_an_entry_of_its_own(sqlite_url: str, change: dict[str, Any]) -> None:
    async def story(s: Served) -> None:
        document = json.loads(Definition(path="p", steps=(stage("a"),)).to_json()) | change
        answer = await s.post("/api/pipelines", {"definition": json.dumps(document)})
        assert answer.status == 422 and answer.json["error"]["guidance"], answer

    on_a_server(sqlite_url, story)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/nowhere", 404),
        ("DELETE", "/api/executions", 405),
        ("POST", "/api/batches/1/close", 404),
    ],
)
def test_a_large_body_that_nobody_reads_does_not_cost_the_answer(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int
) -> None:
    monkeypatch.setattr(reading, "DRAIN_SECONDS_MAX", 150.0)

    async def story(s: Served) -> None:
        answer = await s.send(method, path, content=b" " * 30_000_000, headers=JSON)
        assert answer.status == status and answer.json["error"]["message"]
        assert await s.lives()

    on_a_server(sqlite_url, story)


def test_an_address_that_is_no_text_is_refused(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        for path in ("/api/catalog/%ff%fe", "/api/limits/%ff", "/%ff"):
            answer = await s.get(path)
            assert (answer.status, answer.code) == (400, "malformed_path")
        nul = await s.get("/api/queue/1/child", path="a\0b")
        assert (nul.status, nul.code) == (422, "payload_invalid")

    on_a_server(sqlite_url, story)


def test_a_stale_error_is_not_logged_as_one_of_the_job(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(s: Served) -> None:
        await s.define()
        await s.start()
        for fence in ("nobody", "1-0123456789ab"):
            answer = await s.fail({"queue_id": 1, "fence": fence}, "BOGUS", category="permanent")
            assert (answer.status, answer.code) == (409, "stale_lease")
        job = await s.lease_one()
        await s.fail(job, "GENUINE", category="permanent")
        await s.fail(job, "TWICE", category="permanent")

    on_a_server(store_url, story)
    assert "GENUINE" in caplog.text
    assert "BOGUS" not in caplog.text and "TWICE" not in caplog.text


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_of_another_type_is_refused(sqlite_url: str, kind: str | None) -> None:
    async def story(s: Served) -> None:
        headers = {} if kind is None else {"content-type": kind}
        answer = await s.post("/api/executions", content=b'{"path": "p"}', headers=headers)
        assert (answer.status, answer.code) == (415, "unsupported_media_type")
        packed = await s.post("/api/executions", content=b"x", headers={**JSON, "content-encoding": "gzip"})
        assert (packed.status, packed.code) == (415, "unsupported_encoding")

    on_a_server(sqlite_url, story)


def test_a_wrong_playbook_is_refused_with_its_lines(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        answer = await s.post(
            "/api/catalog",
            content=b"apiVersion: holdfast/v1\nkind: Playbook\nworkflow:\n  - stepp: a\n",
            headers={"content-type": "application/yaml"},
        )
        assert (answer.status, answer.code) == (422, "playbook_invalid")
        assert any(fault["line"] == 4 for fault in answer.json["error"]["faults"])
        binary = await s.post("/api/catalog", content=b"\x00\xff", headers={"content-type": "text/yaml"})
        assert (binary.status, binary.code) == (422, "playbook_invalid")

    on_a_server(sqlite_url, story)
