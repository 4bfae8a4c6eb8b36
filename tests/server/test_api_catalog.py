"""The catalog over HTTP."""

import gzip

import pytest

from engine_scenario import stage
from holdfast.playbook.definition import Definition
from serving import Served, on_a_server

YAML = {"content-type": "application/yaml"}
PLAYBOOK = """# a comment
apiVersion: holdfast/v1
kind: Playbook
metadata: {{name: flow, path: examples/flow}}
workflow:
  - step: fetch
    type: http
    url: "http://127.0.0.1:1/{}"
"""


def test_a_playbook_is_registered_by_its_text_and_shown_again(store_url: str) -> None:
    async def story(s: Served) -> None:
        added = await s.post("/api/catalog", content=PLAYBOOK.format("a").encode(), headers=YAML)
        assert (added.status, added.json["change"], added.json["version"]) == (201, "new", 1)
        assert (added.json["path"], added.json["replaces"]) == ("examples/flow", None)
        again = await s.post("/api/catalog", content=PLAYBOOK.format("a").encode(), headers=YAML)
        assert (again.status, again.json["change"]) == (200, "same")
        await s.post("/api/catalog", content=PLAYBOOK.format("b").encode(), headers=YAML)
        listed = (await s.get("/api/catalog")).json["items"]
        assert [(item["path"], item["version"], item["versions"]) for item in listed] == [
            ("examples/flow", 2, 2)
        ]
        versions = (await s.get("/api/catalog", path="examples/flow")).json["items"]
        assert [(item["version"], item["is_current"]) for item in versions] == [(2, True), (1, False)]
        newest = (await s.get("/api/catalog", path="examples/flow", limit=1)).json
        older = (await s.get("/api/catalog", path="examples/flow", cursor=newest["next"])).json
        assert [item["version"] for item in newest["items"] + older["items"]] == [2, 1]
        assert older["next"] is None
        shown = (await s.get("/api/catalog/examples/flow", version=1)).json
        assert shown["text"] == PLAYBOOK.format("a")
        assert shown["definition"]["steps"][0]["name"] == "fetch"

    on_a_server(store_url, story)


def test_who_knows_the_version_is_not_sent_it_again(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.post("/api/catalog", content=PLAYBOOK.format("a").encode(), headers=YAML)
        first = await s.get("/api/catalog/examples/flow")
        etag = first.headers["etag"]
        for told in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            same = await s.send("GET", "/api/catalog/examples/flow", headers={"if-none-match": told})
            assert (same.status, same.content, same.headers["etag"]) == (304, b"", etag)
        await s.post("/api/catalog", content=PLAYBOOK.format("b").encode(), headers=YAML)
        changed = await s.send("GET", "/api/catalog/examples/flow", headers={"if-none-match": etag})
        assert changed.status == 200 and changed.headers["etag"] != etag

    on_a_server(store_url, story)


def test_a_program_registers_its_pipeline_and_a_newer_one_counts_from_then_on(store_url: str) -> None:
    async def story(s: Served) -> None:
        for name in ("a", "b"):
            definition = Definition(path="p", steps=(stage(name),))
            answer = await s.post("/api/pipelines", {"definition": definition.to_json()})
            assert answer.status == 200
        assert answer.json["version"] == 2
        id_ = await s.start()
        assert (await s.get(f"/api/executions/{id_}")).json["stage"] == "b"

    on_a_server(store_url, story)


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("identity", False), ("gzip;q=0", False), ("", False)],
)
def test_large_answers_are_packed_for_those_who_take_it(
    sqlite_url: str, accepted: str, is_packed: bool
) -> None:
    async def story(s: Served) -> None:
        await s.define(*(stage(f"step{n}") for n in range(30)))
        large = {
            "/api/catalog/p": b"step29",
            "/openapi.json": b'"openapi"',
            "/docs": b"<html",
            "/metrics": b"#",
        }
        for address, part in large.items():
            async with s.http.stream("GET", address, headers={"accept-encoding": accepted}) as response:
                raw = b"".join([chunk async for chunk in response.aiter_raw()])
            assert (response.headers.get("content-encoding") == "gzip") is is_packed
            assert response.headers["vary"] == "Accept-Encoding"
            assert part in (gzip.decompress(raw) if is_packed else raw)
        small = await s.send("GET", "/healthz", headers={"accept-encoding": accepted})
        assert "content-encoding" not in small.headers

    on_a_server(sqlite_url, story)
