"""Downloads into a bucket of a real S3 server: on the worker's disk while they come, then uploaded whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.pipelines.downloads.playbook import playbook_text
from holdfast.pipelines.downloads.settings import DownloadSettings
from holdfast.pipelines.registry import all_functions
from holdfast.storage import Storage
from portal_scenario import Portal, content_of
from running import run

QUICK = DownloadSettings(delay_seconds=0.0, retry_delays=(0.01,))


async def content(storage: Storage, name: str) -> bytes:
    return b"".join([chunk async for chunk in storage.read(name)])


def item(portal: Portal, report: str, *troubles: str) -> dict[str, Any]:
    body = {"report": report, "troubles": {"download": list(troubles)}}
    return {"request": {"url": f"{portal.url}/reports", "json": body}, "file": f"june/{report}.csv"}


def test_files_are_uploaded_whole_and_what_broke_is_gone_on_with(
    sqlite_url: str, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", s3_url)
    monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "spool"))
    hf = Holdfast(sqlite_url)
    hf.add_functions(all_functions())

    async def story(portal: Portal) -> None:
        items = [
            item(portal, "good"),
            item(portal, "breaks", "break"),
            item(portal, "fails", "break", "503"),
            item(portal, "gone", "break", "410"),
        ]
        async with hf, hf.working():
            await hf.add_playbook(playbook_text(QUICK))
            batch = await hf.batch("downloads", items)
            view = await batch.wait(60)
        assert (view.executions["completed"], view.executions["failed"]) == (3, 1)
        storage = Storage.open(s3_url)
        for report in ("good", "breaks", "fails"):
            assert await content(storage, f"june/{report}.csv") == content_of(report, 100_000)
        assert not await storage.exists("june/gone.csv")

    with Portal(obeys=True, size=100_000) as portal:
        run(story(portal))
    files = [entry for entry in portal.log if entry.phase == "download" and entry.status in (200, 206)]
    for report in ("breaks", "fails"):
        assert [entry.range for entry in files if entry.report == report] == [0, 50_000]
    [left] = (tmp_path / "spool").glob("*.draft")  # of what may be retried by hand
    assert left.stat().st_size == 50_000
