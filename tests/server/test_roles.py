"""Who may use which route: the rules, one by one, against the server's own list of its routes."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from holdfast.server import failed_logins
from holdfast.wire import CreatedToken
from running import eventually
from serving import Served, on_a_server

OPEN = "anonymous viewer worker operator admin"
KNOWN = "viewer worker operator admin"
LOOK = "viewer operator admin"
WORK = "worker operator admin"
ACT = "operator admin"
MANAGE = "admin"

# Whoever adds a route decides here who may use it; one that is not here fails the test below.
RULES = {
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /api/info": KNOWN,
    "GET /api/queue/signal": KNOWN,
    "GET /api/executions": LOOK,
    "GET /api/executions/{id}": LOOK,
    "GET /api/executions/{id}/row": LOOK,
    "GET /api/executions/{id}/events": LOOK,
    "GET /api/events/stream": LOOK,
    "GET /api/catalog": LOOK,
    "GET /api/catalog/{path}": LOOK,
    "GET /api/batches": LOOK,
    "GET /api/batches/{id}": LOOK,
    "GET /v1/runs": LOOK,
    "GET /v1/runs/{id}": LOOK,
    "GET /v1/runs/{id}/files": LOOK,
    "GET /v1/runs/{id}/stanzas": LOOK,
    "GET /v1/runs/{id}/effective": LOOK,
    "GET /v1/runs/{id}/diff": LOOK,
    "GET /v1/worker/runs/{id}/status": LOOK,
    "GET /v1/worker/metrics": LOOK,
    "GET /api/documents": LOOK,
    "GET /api/documents/search": LOOK,
    "GET /api/documents/{id}": LOOK,
    "GET /api/documents/{id}/retry-history": LOOK,
    "GET /api/documents/{id}/chunks": LOOK,
    "GET /api/documents/{id}/findings": LOOK,
    "GET /api/downloads": LOOK,
    "GET /api/downloads/{id}": LOOK,
    "GET /api/batches/{id}/row": LOOK,
    "GET /api/batches/{id}/state": LOOK,
    "GET /api/batches/{id}/items": LOOK,
    "GET /api/queue": LOOK,
    "GET /api/queue/{id}/child": LOOK,
    "GET /api/limits": LOOK,
    "GET /api/pauses": LOOK,
    "GET /api/dead": LOOK,
    "GET /api/dead/list": LOOK,
    "GET /api/database": LOOK,
    "GET /api/overview": LOOK,
    "GET /api/workers": LOOK,
    "GET /api/leases/expired": LOOK,
    "GET /api/metrics": LOOK,
    "GET /metrics": LOOK,
    "POST /api/queue/lease": WORK,
    "POST /api/queue/lease/stored": WORK,
    "POST /api/queue/heartbeat": WORK,
    "POST /api/queue/release": WORK,
    "POST /api/queue/takeover": WORK,
    "POST /api/events": WORK,
    "POST /api/workers": WORK,
    "DELETE /api/workers/{worker_id}": WORK,
    "POST /api/pipelines": WORK,
    "POST /api/executions": ACT,
    "POST /api/executions/many": ACT,
    "POST /api/executions/{id}/retry": ACT,
    "POST /api/executions/{id}/cancel": ACT,
    "POST /api/catalog": ACT,
    "POST /api/batches": ACT,
    "POST /v1/uploads": ACT,
    "POST /v1/runs/{id}/retry": ACT,
    "POST /api/documents": ACT,
    "POST /api/documents/{id}/retry": ACT,
    "POST /api/processing/retry/embedding": ACT,
    "POST /api/processing/retry/analysis": ACT,
    "POST /api/downloads": ACT,
    "POST /api/batches/{id}/items": ACT,
    "POST /api/batches/{id}/close": ACT,
    "POST /api/batches/{id}/cancel": ACT,
    "PUT /api/limits/{name}": ACT,
    "DELETE /api/limits/{name}": ACT,
    "POST /api/pauses": ACT,
    "POST /api/pauses/resume": ACT,
    "POST /api/dead/redrive": ACT,
    "GET /api/audit": ACT,
    "GET /api/tokens": MANAGE,
    "POST /api/tokens": MANAGE,
    "DELETE /api/tokens/{name}": MANAGE,
}
ROLES = KNOWN.split()


@pytest.fixture
def guesses_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "FAILURES_MAX", 1_000_000)


async def shown_by(s: Served) -> dict[str, dict[str, str]]:
    """The headers of everybody who may come."""
    tokens = s.engine.tokens
    texts = {role: (await tokens.create(role, role)).text for role in ROLES}
    texts["revoked"] = (await tokens.create("revoked", "admin")).text
    await tokens.revoke("revoked")
    texts["expired"] = (await tokens.create("expired", "admin", expires=0.001)).text
    texts["garbage"] = "garbage"
    texts["of another server"] = f"holdfast_0123456789ab_{'x' * 43}"
    texts["with another's secret"] = texts["admin"][:22] + texts["viewer"][22:]
    texts["unreadable"] = "\u00ff" * 20
    texts["huge"] = "x" * 20_000
    headers = {who: {"authorization": f"Bearer {text}"} for who, text in texts.items()}
    headers["unreadable"] = {"authorization": "Bearer " + "\u00ff".encode().decode("latin-1") * 20}
    headers["other scheme"] = {"authorization": f"Digest {texts['admin']}"}
    return {"anonymous": {}, **headers}


async def status_of(s: Served, route: str, headers: dict[str, str]) -> int:
    method, _, path = route.partition(" ")
    address = re.sub(r"\{(\w+)\}", lambda name: "1" if name[1] == "id" else "x", path)
    raw: Any = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    content = b"{}" if method in ("POST", "PUT") else b""
    if content:
        raw.append((b"content-type", b"application/json"))
    async with s.http.stream(method, address, headers=raw, content=content) as answer:
        return answer.status_code


def test_every_route_lets_in_whom_its_rule_names_and_nobody_else(
    store_url: str, guesses_are_free: None
) -> None:
    async def story(s: Served) -> None:
        everybody = await shown_by(s)

        async def has_expired() -> bool:
            return (await status_of(s, "GET /api/info", everybody["expired"])) == 401

        await eventually(has_expired)
        document = (await s.send("GET", "/openapi.json", headers=everybody["viewer"])).json
        routes = {
            f"{method.upper()} {path}": operation
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        }
        assert routes.keys() == RULES.keys()
        wrong = []
        for route, operation in routes.items():
            allowed = RULES[route].split()
            assert operation["x-holdfast-roles"] == [role for role in ROLES if role in allowed], route
            for who, headers in everybody.items():
                status = await status_of(s, route, headers)
                if who in allowed or RULES[route] == OPEN:
                    is_right = status not in (401, 403, 429) and status < 500
                else:
                    is_right = status == (403 if who in ROLES else 401)
                if not is_right:
                    wrong.append((route, who, status))
        assert wrong == []

    on_a_server(store_url, story, require_token=True)


def test_no_route_is_there_that_the_list_leaves_out(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        guarded: Any = s.service._server.config.app
        served = {re.sub(r":\w+}", "}", route.path) for route in guarded._app.routes}
        listed = {route.partition(" ")[2] for route in RULES}
        assert served == listed | {"/docs", "/openapi.json"}

    on_a_server(sqlite_url, story)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/nowhere", "/api", "/api/executions/1/nowhere"])
def test_what_is_no_route_is_told_only_to_those_who_are_known(sqlite_url: str, path: str) -> None:
    async def story(s: Served) -> None:
        for who, headers in (await shown_by(s)).items():
            found = 200 if path in ("/docs", "/openapi.json") else 404
            expected = found if who in ROLES else 401
            assert await status_of(s, f"GET {path}", headers) == expected, who
            assert await status_of(s, f"HEAD {path}", headers) == expected, who

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failed_logins, "FAILURES_MAX", 1_000_000)
        on_a_server(sqlite_url, story, require_token=True)


def test_a_head_needs_what_its_get_needs(sqlite_url: str, guesses_are_free: None) -> None:
    async def story(s: Served) -> None:
        everybody = await shown_by(s)
        for route in [route for route in RULES if route.startswith("GET ")]:
            for who in ("anonymous", "worker"):
                status = await status_of(s, route.replace("GET", "HEAD"), everybody[who])
                expected = {True: 0, False: 401 if who == "anonymous" else 403}[who in RULES[route].split()]
                assert (status == expected) if expected else (status not in (401, 403)), (route, who, status)

    on_a_server(sqlite_url, story, require_token=True)


def test_on_this_machine_without_tokens_everybody_may_do_everything(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        for route in RULES:
            assert await status_of(s, route, {}) not in (401, 403), route

    on_a_server(sqlite_url, story)


def test_whoever_does_something_is_named_by_the_token(store_url: str) -> None:
    async def story(s: Served) -> None:
        made = await s.engine.tokens.create("ops", "operator", by="root")
        own = {"authorization": f"Bearer {made.text}"}
        await s.define()
        pause = {"kind": "lane", "name": "bulk"}
        assert (await s.post("/api/pauses", pause, headers=own)).status == 200
        resume = {**pause, "by": "ann"}
        assert (await s.post("/api/pauses/resume", resume, headers=own)).status == 200
        limit = {"max_concurrency": 2, "by": "a" * 200}
        assert (await s.send("PUT", "/api/limits/portal", limit, headers=own)).status == 200
        assert (await s.send("DELETE", "/api/limits/portal?by=bob", headers=own)).status == 200
        started = await s.post("/api/executions", {"path": "p"}, headers=own)
        await s.post(f"/api/executions/{started.json['id']}/cancel", headers=own)
        found = (await s.send("GET", "/api/audit", headers=own)).json["items"]
        told = [(row["actor"], row["action"]) for row in reversed(found) if row["actor"]]
        assert told[0] == ("root", "create_token")
        assert told[1:3] == [("token ops", "pause"), ("ann (token ops)", "resume")]
        assert told[3][0].endswith("aaa (token ops)") and len(told[3][0]) == 200
        assert told[4:] == [("bob (token ops)", "remove_limit"), ("token ops", "cancel")]

    on_a_server(store_url, story, require_token=True)


def test_where_nobody_is_known_what_is_said_is_believed(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        await s.post("/api/pauses", {"kind": "lane", "name": "bulk", "by": "ann"})
        [entry] = (await s.get("/api/audit")).json["items"]
        assert entry["actor"] == "ann"

    on_a_server(sqlite_url, story)


def test_an_admin_makes_and_ends_tokens(store_url: str) -> None:
    async def story(s: Served) -> None:
        root = {"authorization": f"Bearer {(await s.engine.tokens.create('root', 'admin')).text}"}
        answer = await s.post(
            "/api/tokens", {"name": "w/1", "role": "worker", "expires": "90d"}, headers=root
        )
        assert answer.status == 201
        made = CreatedToken(token=answer.json["token"], text=answer.json["text"])
        own = {"authorization": f"Bearer {made.text}"}
        assert (await s.send("GET", "/api/info", headers=own)).status == 200
        listed = (await s.send("GET", "/api/tokens", headers=root)).content
        assert b'"w/1"' in listed and made.text.encode() not in listed and b"hash" not in listed
        again = await s.post("/api/tokens", {"name": "w/1", "role": "worker"}, headers=root)
        assert (again.status, again.code) == (422, "invalid_input")
        ended = await s.send("DELETE", "/api/tokens/w/1", headers=root)
        assert (ended.status, ended.json["revoked_by"]) == (200, "token root")
        assert (await s.send("GET", "/api/info", headers=own)).status == 401
        assert (await s.send("DELETE", "/api/tokens/w/1", headers=root)).status == 404

    on_a_server(store_url, story, require_token=True)


def test_a_worker_does_not_replace_a_playbook(sqlite_url: str) -> None:
    playbook = b"""
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: prices, path: shop/prices}
workflow: [{step: wait, type: sleep, seconds: 1}]
"""

    async def story(s: Served) -> None:
        tokens = s.engine.tokens
        own = {role: {"authorization": f"Bearer {(await tokens.create(role, role)).text}"} for role in ROLES}
        yaml = {"content-type": "application/yaml"}
        added = await s.send("POST", "/api/catalog", headers=own["operator"] | yaml, content=playbook)
        assert added.status == 201
        await s.define(path="shop/mine")
        definition = (await s.send("GET", "/api/catalog/shop/mine", headers=own["viewer"])).json["definition"]
        for path, role, status in (
            ("shop/mine", "worker", 200),
            ("shop/new", "worker", 200),
            ("shop/prices", "worker", 403),
            ("shop/prices", "operator", 200),
        ):
            [step] = definition["steps"]
            own_step = step | {"handler": f"{path}/{step['name']}"}
            text = msgspec.json.encode(definition | {"path": path, "steps": [own_step]}).decode()
            answer = await s.post("/api/pipelines", {"definition": text}, headers=own[role])
            assert answer.status == status, (path, role, answer)

    on_a_server(sqlite_url, story, require_token=True)
