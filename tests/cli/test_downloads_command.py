"""`holdfast batch submit downloads`: the built-in pipeline from the command line, also where nobody ran it
before on this database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_scenario import lines
from command_scenario import holdfast, holdfast_meanwhile, there
from holdfast import Holdfast
from holdfast.pipelines.registry import all_functions
from portal_scenario import Portal, content_of
from running import run
from store_scenario import opened


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_DOWNLOAD_DELAY", "0")
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "files"))


@pytest.fixture
def url(store_url: str) -> str:
    """An empty database, with its tables; the server in front of it has the settings above."""
    make_tables(store_url)
    return store_url


def make_tables(url: str) -> None:
    async def make() -> None:
        async with opened(url):
            await asyncio.sleep(0)

    run(make())


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal(obeys=True, size=3_000) as portal:
        yield portal


def item(portal: Portal, report: str, **more: Any) -> dict[str, Any]:
    return {"request": {"url": f"{portal.url}/reports", "json": {"report": report}}, **more}


def test_items_of_a_file_are_requested_downloaded_and_watched(
    url: str, portal: Portal, tmp_path: Path
) -> None:
    file = lines(tmp_path / "items.jsonl", *(item(portal, f"r{n}", file=f"june/r{n}") for n in range(3)))

    async def story() -> None:
        hf = Holdfast(url)
        hf.add_functions(all_functions())
        async with hf, hf.working():
            said = await holdfast_meanwhile(url, "batch", "submit", "downloads", file, "--watch")
        assert said.code == 0, said
        assert "Batch 1 of downloads is submitted, with 3 items." in said.out
        assert "Batch 1 of downloads: Complete" in said.out

    run(story())
    for n in range(3):
        assert (tmp_path / "files" / "june" / f"r{n}").read_bytes() == content_of(f"r{n}", 3_000)
    keys = [entry.key for entry in portal.log if entry.phase == "request"]
    assert None not in keys and len(set(keys)) == 3


def test_a_wrong_item_is_named_by_its_line_and_nothing_is_stored(
    url: str, portal: Portal, tmp_path: Path
) -> None:
    file = lines(tmp_path / "items.jsonl", item(portal, "a"), {"request": "ftp://portal"})
    said = holdfast(url, "batch", "submit", "downloads", file)
    assert said.code == 2 and f"Line 2 of {file}: request.url: The url has the scheme 'ftp'" in said.err
    assert holdfast(url, "batch", "list").out == "No batches.\n"


def test_a_command_with_a_key_can_be_repeated(url: str, portal: Portal, tmp_path: Path) -> None:
    file = lines(tmp_path / "items.jsonl", item(portal, "a"), item(portal, "b", key="own"))
    first = holdfast(url, "batch", "submit", "downloads", file, "--key", "june", "--json").json
    again = holdfast(url, "batch", "submit", "downloads", file, "--key", "june", "--json").json
    assert (first["id"], first["added"]) == (again["id"], 2) and again["added"] == 0
    stored = holdfast(url, "batch", "items", first["id"], "--json").json["items"]
    assert stored[1]["workload"]["key"] == "own" and len(stored[0]["workload"]["key"]) == 32


def test_where_no_worker_lives_it_says_what_to_start(url: str, portal: Portal, tmp_path: Path) -> None:
    file = lines(tmp_path / "items.jsonl", item(portal, "a"))
    said = holdfast(url, "batch", "submit", "downloads", file)
    assert "No living worker offers its first step" in said.err
    assert f"\n    holdfast worker{there(url)}\n" in holdfast(url, "batch", "status", 1).out


def test_wrong_settings_are_told_before_anything_is_stored(
    sqlite_url: str, portal: Portal, tmp_path: Path
) -> None:
    make_tables(sqlite_url)
    file = lines(tmp_path / "items.jsonl", item(portal, "a"))
    said = holdfast(sqlite_url, "batch", "submit", "downloads", file, HOLDFAST_DOWNLOAD_MAX_RETRIES="many")
    assert said.code == 2 and "HOLDFAST_DOWNLOAD_MAX_RETRIES is 'many'" in said.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_STORAGE", "gs://bucket"),
        ("HOLDFAST_DOWNLOAD_BYTES_MAX", "much"),
    ],
)
def test_a_worker_with_settings_that_cannot_be_used_does_not_start(
    sqlite_url: str, name: str, value: str
) -> None:
    said = holdfast(sqlite_url, "worker", **{name: value})
    assert said.code == 2 and name in said.err, said


def test_the_limit_of_the_pipeline_is_known_before_it_is_used(url: str) -> None:
    said = holdfast(url, "limits", "set", "portal", 4)
    assert said.code == 0 and "names it yet" not in said.err
    assert "call: holdfast.pipelines.downloads:request" in holdfast(url, "catalog", "show", "downloads").out


def test_items_that_are_added_later_are_checked_as_well(url: str, portal: Portal, tmp_path: Path) -> None:
    file = lines(tmp_path / "items.jsonl", item(portal, "a"))
    holdfast(url, "batch", "submit", "downloads", file, "--no-close")
    twice = lines(tmp_path / "more.jsonl", item(portal, "b", file="x"), item(portal, "c", file="x"))
    said = holdfast(url, "batch", "add", 1, twice)
    assert said.code == 2 and "Line 2 of" in said.err and "the same file, 'x'" in said.err
    assert holdfast(url, "batch", "add", 1, file).code == 0
    stored = holdfast(url, "batch", "items", 1, "--json").json["items"]
    assert [len(each["workload"]["key"]) for each in stored] == [32, 32]
