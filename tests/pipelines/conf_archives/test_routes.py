"""Configuration archives over HTTP: uploaded, looked at, merged, compared, retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conf_scenario import APP, many_stanzas, sha256, tgz, zipped
from holdfast import Holdfast
from holdfast.pipelines.registry import all_functions
from running import eventually
from serving import Answered, Served, on_a_server


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "files"))
    monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("HOLDFAST_CONF_RETRY_DELAYS", "0.01")
    return tmp_path / "files"


async def upload(s: Served, *named: tuple[str, bytes], **query: Any) -> Answered:
    parts = [("file", (name, content, "application/octet-stream")) for name, content in named]
    return await s.send("POST", "/v1/uploads", files=parts, params=query)


@asynccontextmanager
async def working(url: str) -> AsyncIterator[None]:
    hf = Holdfast(url)
    hf.add_functions(all_functions())
    async with hf, hf.working(concurrency=2):
        yield


def stored_in(files: Path) -> list[Path]:
    return [path for path in files.rglob("*") if path.is_file() and path.suffix != ".note"]


async def ended(s: Served, run_id: int) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run: dict[str, Any] = (await s.get(f"/v1/runs/{run_id}")).json
        return run if run["status"] in ("COMPLETE", "FAILED") else None

    found = await eventually(look)
    assert found is not None
    return found


async def parsed(s: Served, url: str, *named: tuple[str, bytes], **query: Any) -> list[int]:
    """The runs of these files, at their ends."""
    answer = await upload(s, *named, **query)
    assert answer.status in (200, 202), answer
    ids = [run["run_id"] for run in answer.json["runs"]]
    async with working(url):
        for run_id in ids:
            await ended(s, run_id)
    return ids


async def items(s: Served, path: str, /, **query: Any) -> list[dict[str, Any]]:
    """Of all pages."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    for _ in range(1_000):
        answer = await s.get(path, **query, **cursor)
        assert answer.status == 200, answer
        found += answer.json["items"]
        if answer.json["next"] is None:
            return found
        cursor = {"cursor": answer.json["next"]}
    raise AssertionError("the pages have no end")


def test_an_upload_is_answered_with_its_run_and_ends_complete(store_url: str) -> None:
    async def story(s: Served) -> None:
        content = tgz(APP)
        answer = await upload(s, ("web.tgz", content))
        assert answer.status == 202
        run_id = answer.json["run_id"]
        assert answer.headers["location"] == f"/v1/runs/{run_id}"
        assert answer.json["status"] == "PENDING" and answer.json["created"]
        assert (answer.json["size"], answer.json["sha256"]) == (len(content), sha256(content))

        again = await upload(s, ("web.tgz", content))
        assert (again.status, again.json["run_id"], again.json["created"]) == (200, run_id, False)
        other = await upload(s, ("web.tgz", content), again="true")
        assert (other.status, other.json["created"]) == (202, True)

        async with working(store_url):
            run = await ended(s, run_id)
            await ended(s, other.json["run_id"])
        assert run["status"] == "COMPLETE"
        assert run["metrics"] | {"duration_seconds": 0} == {
            "files_parsed": 4,
            "stanzas_created": 6,
            "duration_seconds": 0,
            "parse_errors": 0,
            "retry_count": 0,
            "error_type": None,
        }
        listed = (await s.get("/v1/runs")).json["items"]
        assert [one["id"] for one in listed] == [other.json["run_id"], run_id]
        assert (await s.get("/v1/runs", status="FAILED")).json["items"] == []
        # A run has the number of its execution.
        assert (await s.get(f"/api/executions/{run_id}")).json["path"] == "conf_archives"

    on_a_server(store_url, story)


def test_stanzas_are_filtered_searched_and_come_in_pages(store_url: str) -> None:
    async def story(s: Served) -> None:
        [run_id, other] = await parsed(
            s, store_url, ("web.tgz", tgz(APP)), ("many.tgz", tgz(many_stanzas(300, files=3)))
        )
        path = f"/v1/runs/{run_id}/stanzas"
        everything = await items(s, path)
        assert len(everything) == 6
        assert await items(s, path, limit=1) == await items(s, path, limit=4) == everything
        assert {one["source_path"] for one in await items(s, path, conf="props")} == {
            "web/default/props.conf",
            "web/local/props.conf",
        }
        assert len(await items(s, path, name="access_combined")) == 2
        assert len(await items(s, path, name="access_combined", conf="inputs")) == 0
        assert len(await items(s, path, path="web/local/props.conf")) == 1
        assert [one["name"] for one in await items(s, path, q="monitor")] == ["monitor:///var/log/web.log"]

        for search, count in [
            ("access_combined", 3),  # as a name, and as a value
            ("ACCESS comb", 3),
            ("TIME_FORMAT", 2),
            ("var/log web", 2),
            ("html", 0),
            ("---", 0),
            ("\"'); DROP TABLE x; --", 0),
            ("status)", 1),
            ("größe", 0),
            ("\u3000 \u2028 x\u0b7f", 0),
        ]:
            assert len(await items(s, path, q=search)) == count, search

        of_many = await items(s, f"/v1/runs/{other}/stanzas", q="kind 3", limit=7)
        # The beginning of a word is enough: 3 is also in 30.
        assert len(of_many) == 3 * len([n for n in range(100) if n % 7 == 3 or str(n).startswith("3")])
        assert [(one["file_id"], one["position"]) for one in of_many] == sorted(
            (one["file_id"], one["position"]) for one in of_many
        )

    on_a_server(store_url, story)


def test_files_are_listed_with_the_lines_that_could_not_be_read(store_url: str) -> None:
    async def story(s: Served) -> None:
        broken = {**APP, "web/local/broken.conf": "[a]\nno setting\n[b]\n"}
        [run_id] = await parsed(s, store_url, ("web.zip", zipped(broken)))
        path = f"/v1/runs/{run_id}/files"
        files = await items(s, path, limit=2)
        assert [file["path"] for file in files] == [
            name for name in broken if name.endswith((".conf", ".meta"))
        ]
        [bad] = await items(s, path, errors="true")
        assert (bad["app"], bad["layer"], bad["conf"]) == ("web", "local", "broken")
        assert bad["parse_errors"] == 1 and bad["errors"][0]["line"] == 2 and bad["errors"][0]["message"]
        assert len(await items(s, path, conf="props")) == 2

    on_a_server(store_url, story)


def test_the_effective_configuration_merges_layers_and_tells_origins(store_url: str) -> None:
    async def story(s: Served) -> None:
        [run_id] = await parsed(s, store_url, ("web.tgz", tgz(APP)))
        path = f"/v1/runs/{run_id}/effective"
        [combined, inherited, source] = await items(s, path, conf="props")
        assert combined["name"] == "access_combined"
        assert combined["settings"] == {
            "CHARSET": "UTF-8",
            "EXTRACT-status": 'HTTP/1\\.\\d" (?<status>\\d+) # no comment',
            "TIME_FORMAT": "%s.%3N",
            "description": "two \nlines",
        }
        keys = {key["key"]: key for key in combined["keys"]}
        assert keys["TIME_FORMAT"] == {
            "key": "TIME_FORMAT",
            "value": "%s.%3N",
            "source_path": "web/local/props.conf",
            "line": 5,
            "layer": "local",
            "stanza": "access_combined",
            "overrides": ["web/local/props.conf:2", "web/default/props.conf:3"],
        }
        assert keys["CHARSET"]["stanza"] == "default" and keys["CHARSET"]["line"] == 1
        assert inherited["settings"] == {"CHARSET": "UTF-8"}
        assert source["settings"] == {"CHARSET": "UTF-8", "sourcetype": "access_combined"}
        assert await items(s, path, conf="props", limit=1) == [combined, inherited, source]
        assert [one["name"] for one in await items(s, path, app="web", conf="metadata")] == [""]
        [only] = await items(s, path, conf="props", name="access_combined")
        assert only == combined

        which = await s.get(path)
        assert which.status == 422 and "'inputs', 'metadata', 'props'" in which.json["error"]["guidance"]
        unknown = await s.get(path, app="mail")
        assert unknown.status == 422 and "'web'" in unknown.json["error"]["guidance"]

    on_a_server(store_url, story)


def test_two_runs_are_compared_stanza_by_stanza(store_url: str) -> None:
    async def story(s: Served) -> None:
        newer = dict(APP)
        newer["web/local/props.conf"] = (
            "# moved down\n[access_combined]\nTIME_FORMAT = %s\nnew_key = 1\n[added]\n"
        )
        del newer["web/default/inputs.conf"]
        [old, new] = await parsed(s, store_url, ("web-1.tgz", tgz(APP)), ("web-2.tgz", tgz(newer)))
        path = f"/v1/runs/{new}/diff"
        found = await items(s, path, **{"from": old})
        assert [(one["source_path"], one["name"], one["change"]) for one in found] == [
            ("web/default/inputs.conf", "monitor:///var/log/web.log", "removed"),
            ("web/local/props.conf", "access_combined", "changed"),
            ("web/local/props.conf", "added", "added"),
        ]
        assert {key["key"]: (key["old"], key["new"]) for key in found[1]["keys"]} == {
            "TIME_FORMAT": ("%s.%3N", "%s"),
            "description": ("two \nlines", None),
            "new_key": (None, "1"),
        }
        assert await items(s, path, **{"from": old, "limit": 1}) == found
        assert await items(s, path, **{"from": new}) == []
        assert (await s.get(path, **{"from": 999})).status == 404
        assert (await s.get(path)).status == 422
        assert (await s.get(path, **{"from": old, "cursor": "!!"})).status == 422

    on_a_server(store_url, story)


def test_a_failed_run_tells_its_worker_status_and_its_trace(store_url: str) -> None:
    async def story(s: Served) -> None:
        evil = tgz({"a/../../out.conf": "[x]\n"})
        [bad, good] = await parsed(s, store_url, ("evil.tgz", evil), ("web.tgz", tgz(APP)))
        status = (await s.get(f"/v1/worker/runs/{bad}/status")).json
        assert (status["status"], status["retry_count"]) == ("FAILED", 0)
        assert "out.conf" in status["error_message"] and "Traceback" in status["error_traceback"]
        assert status["metrics"]["error_type"] == "malformed_archive"
        assert status["task_id"] and status["started_at"] and status["completed_at"]
        fine = (await s.get(f"/v1/worker/runs/{good}/status")).json
        assert (fine["status"], fine["error_message"], fine["error_traceback"]) == ("COMPLETE", None, None)

        metrics = (await s.get("/v1/worker/metrics")).json
        assert metrics["status_counts"] == {
            "PENDING": 0, "STORED": 0, "PARSING": 0, "COMPLETE": 1, "FAILED": 1,
        }  # fmt: skip
        assert metrics["retry_stats"] == {"runs_retried": 0, "total_retries": 0, "max_retries": 0}
        assert metrics["avg_duration"] > 0
        assert [one["run_id"] for one in metrics["recent_failures"]] == [bad]

        retried = await s.post(f"/v1/runs/{good}/retry")
        assert (retried.status, retried.json["status"]) == (200, "already_completed")
        refused = await s.post(f"/v1/runs/{bad}/retry")
        assert (refused.status, refused.code) == (409, "permanent_error")
        forced = await s.post(f"/v1/runs/{bad}/retry", {"force": True})
        assert (forced.status, forced.json["status"]) == (202, "retrying")
        shown = await s.get(f"/v1/runs/{bad}/stanzas")
        assert (shown.status, shown.code) == (409, "not_complete")

    on_a_server(store_url, story)


def test_before_anything_was_uploaded_there_is_nothing_and_no_error(store_url: str) -> None:
    async def story(s: Served) -> None:
        assert (await s.get("/v1/runs")).json == {"items": [], "next": None}
        assert (await s.get("/v1/worker/metrics")).json["avg_duration"] is None
        for path in ("/v1/runs/7", "/v1/runs/7/stanzas", "/v1/runs/7/files", "/v1/worker/runs/7/status"):
            assert (await s.get(path)).status == 404, path

    on_a_server(store_url, story)


def test_what_is_too_large_or_no_configuration_is_refused(
    store_url: str, monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_CONF_UPLOAD_BYTES_MAX", "100kB")

    async def story(s: Served) -> None:
        large = await upload(s, ("large.conf", b"[a]\n" * 50_000))
        assert (large.status, large.code) == (413, "file_too_large")
        assert "HOLDFAST_CONF_UPLOAD_BYTES_MAX" in large.json["error"]["guidance"]
        exe = await upload(s, ("setup.exe", b"MZ" * 600))
        assert (exe.status, exe.code) == (415, "unsupported_format")
        assert ".tgz" in exe.json["error"]["guidance"]
        second = await upload(s, ("a.conf", b"[a]\n"), ("b.exe", b"MZ" * 600))
        assert second.status == 415 and "run 1 (a.conf)" in second.json["error"]["message"]
        json = await s.post("/v1/uploads", {"file": "x"})
        assert json.status == 415
        assert len((await s.get("/v1/runs")).json["items"]) == 1

    on_a_server(store_url, story)
    assert len(stored_in(files)) == 1


def test_a_file_that_was_changed_on_its_way_is_not_taken_in(store_url: str, files: Path) -> None:
    async def story(s: Served) -> None:
        content = tgz(APP)
        cut = await upload(s, ("web.tgz", content[:-1]), sha256=sha256(content))
        assert (cut.status, cut.code) == (422, "checksum_mismatch")
        assert sha256(content) in cut.json["error"]["message"]
        assert (await s.get("/v1/runs")).json["items"] == []
        assert stored_in(files) == []
        whole = await upload(s, ("web.tgz", content), sha256=sha256(content).upper())
        assert (whole.status, whole.json["sha256"]) == (202, sha256(content))
        two = await upload(s, ("a.conf", b"[a]\n"), ("b.conf", b"[b]\n"), sha256=sha256(b"[a]\n"))
        assert two.status == 413
        assert (await upload(s, ("web.tgz", content), sha256="x")).status == 422

    on_a_server(store_url, story)


def test_the_same_file_at_once_under_many_names_is_one_run_for_all_who_send_it(store_url: str) -> None:
    async def story(s: Served) -> None:
        for number in range(4):
            content = tgz({"a.conf": f"[{number}]\n"})
            answers = await asyncio.gather(*(upload(s, (f"{n}.tgz", content)) for n in range(8)))
            assert {answer.status for answer in answers} <= {200, 202}, answers
            assert len({answer.json["run_id"] for answer in answers}) == 1
            run = (await s.get(f"/v1/runs/{answers[0].json['run_id']}")).json
            view = (await s.get(f"/api/executions/{run['id']}")).json
            assert run["filename"] == view["workload"]["filename"]

    on_a_server(store_url, story)


def test_a_storage_that_is_away_takes_nothing_in_and_says_when_to_come_again(
    sqlite_url: str, files: Path
) -> None:
    files.parent.mkdir(exist_ok=True)
    files.write_text("no folder")

    async def story(s: Served) -> None:
        answer = await upload(s, ("web.tgz", tgz(APP)))
        assert answer.status == 503 and answer.headers["retry-after"]
        assert (await s.get("/v1/runs")).json["items"] == []
        files.unlink()  # noqa: ASYNC240 - a test, and nobody waits
        assert (await upload(s, ("web.tgz", tgz(APP)))).status == 202

    on_a_server(sqlite_url, story)


def test_words_beyond_ascii_are_found_in_any_case(store_url: str) -> None:
    async def story(s: Served) -> None:
        text = "[Größe]\nstraße = ДОРОГА\n[日本語]\nkey = 値\n[plain]\n" + "long = " + "x" * 5_000 + "\n"
        [run_id] = await parsed(s, store_url, ("words.conf", text.encode()))
        path = f"/v1/runs/{run_id}/stanzas"
        for search in ("größe", "GRÖ", "дорога", "straße", "日本", "値", "x" * 900):
            assert len(await items(s, path, q=search)) == 1, search

    on_a_server(store_url, story)


def test_a_token_that_is_revoked_meanwhile_uploads_nothing(store_url: str) -> None:
    async def story(s: Served) -> None:
        made = await s.engine.tokens.create("ann", "operator")

        async def body() -> AsyncIterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.conf"\r\n\r\n[a]\n'
            await s.engine.tokens.revoke("ann")
            yield b"b = c\r\n--b--\r\n"

        sent = {"authorization": f"Bearer {made.text}", "content-type": "multipart/form-data; boundary=b"}
        answer = await s.http.post("/v1/uploads", content=body(), headers=sent)
        assert answer.status_code == 401, answer.text
        viewer = await s.engine.tokens.create("bob", "viewer")
        runs = await s.http.get("/v1/runs", headers={"authorization": f"Bearer {viewer.text}"})
        assert runs.json()["items"] == []

    on_a_server(store_url, story, require_token=True)


def test_a_choice_in_the_wrong_place_is_refused_and_a_run_before_a_fault_is_told(store_url: str) -> None:
    async def story(s: Served) -> None:
        one = ("file", ("a.conf", b"[a]\n", "application/octet-stream"))
        chosen = await s.send("POST", "/v1/uploads", files=[one], data={"again": "true"})
        assert chosen.status == 422 and "'again' means nothing here" in str(chosen.json)
        nameless = ("file", ("", b"[b]\n", "application/octet-stream"))
        answer = await s.send("POST", "/v1/uploads", files=[one, nameless])
        assert answer.status in (400, 422) and "run 1 (a.conf)" in str(answer.json), answer

    on_a_server(store_url, story)
