"""300 reports from a portal that fails, downloaded by workers that are killed in every phase: each file is
whole, was completed once, and nothing that was there was fetched again. Real processes, a real portal that
notes what it sees, both stores."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from acceptance.downloads_app import DIE_AFTER_KEEPING
from faults.processes import Fleet, WorkerProcess
from holdfast import Holdfast
from holdfast.batch import Batch
from holdfast.core.model import Event, EventType, ExecutionStatus
from holdfast.engine.batch_view import BatchItem, BatchView
from holdfast.pipelines.downloads.playbook import playbook_text
from holdfast.pipelines.downloads.settings import DownloadSettings
from portal_scenario import Answer, Entry, Portal, content_of
from running import eventually, run

SCRIPT = Path(__file__).parent / "downloads_app.py"
ITEMS = 300
AT_ONCE = 6
ANSWERED_FIRST = 20
SIZE = 30_000
LARGE_SIZE = 2_000_000
WITHIN = 180.0
SETTINGS = DownloadSettings(delay_seconds=1.0, retries=6, retry_delays=(0.2,))
HANGING_REQUEST, STALLED_DOWNLOAD, URGENT = "r0011", "r0042", "urgent"
SKIPPED = "Request failed; download skipped"


def number_of(report: str) -> int:
    return int(report[1:])


def is_dead(report: str) -> bool:
    return report != URGENT and number_of(report) % 20 == 19


def request_fails_once(report: str) -> bool:
    return report != URGENT and number_of(report) % 5 == 1


def download_breaks(report: str) -> bool:
    return report not in (URGENT, STALLED_DOWNLOAD) and number_of(report) % 10 in (2, 5, 8)


def troubles(phase: str, report: str) -> list[str]:
    if phase == "request":
        if is_dead(report):
            return ["403!"]
        hangs = ["hang"] if report == HANGING_REQUEST else []
        return [*hangs, *(["503"] if request_fails_once(report) else [])]
    if report == STALLED_DOWNLOAD:
        return ["stall"]
    return ["break"] if download_breaks(report) else []


def item(portal: Portal, report: str) -> dict[str, Any]:
    size = LARGE_SIZE if report == STALLED_DOWNLOAD else SIZE
    return {
        "request": {"url": f"{portal.url}/reports", "json": {"report": report, "size": size}},
        "file": f"june/{report}.csv",
        "key": f"key of {report}",
    }


class PausingPortal(Portal):
    """In the middle of the requests it answers only the urgent one, until it is told to go on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.goes_on = threading.Event()
        self._let_in = 0

    def request(self, number: int, body: bytes, key: str | None) -> Answer:
        if json.loads(body)["report"] != URGENT:
            with self.lock:
                self._let_in += 1
                is_held = self._let_in > ANSWERED_FIRST
            if is_held:
                self.goes_on.wait(WITHIN)
        return super().request(number, body, key)


class Story:
    def __init__(self, hf: Holdfast, portal: PausingPortal, fleet: Fleet, folder: Path) -> None:
        self.hf = hf
        self.portal = portal
        self.fleet = fleet
        self.folder = folder

    def seen(self, phase: str, report: str | None = None) -> list[Entry]:
        return [entry for entry in self.portal.log if entry.phase == phase and report in (None, entry.report)]

    async def play(self) -> None:
        hf = self.hf
        await hf.add_playbook(playbook_text(SETTINGS))
        await hf.set_limit("portal", AT_ONCE)
        reports = [f"r{number:04}" for number in range(ITEMS)]
        batch = await hf.batch("downloads", [item(self.portal, report) for report in reports])
        for _ in range(3):
            self.fleet.start(SCRIPT)
        urgent = await self.submit_urgent()
        await self.kill_who_has(batch, HANGING_REQUEST, "request")
        (self.folder / DIE_AFTER_KEEPING).touch()
        await self.kill_in_the_middle_of_a_file(batch)
        await self.replace_who_died()
        view = await batch.wait(WITHIN)
        assert (await urgent.wait(WITHIN)).executions["completed"] == 1
        items = {number.workload["file"][5:-4]: number async for number in batch.items()}
        events = dict(
            zip(items, await asyncio.gather(*(hf.events(it.id) for it in items.values())), strict=True)
        )
        self.assert_whole(items)
        assert_completed_once(items, events)
        self.assert_nothing_fetched_twice(events)
        assert self.portal.at_once_max <= AT_ONCE
        self.assert_urgent_overtook()
        await self.assert_dead_told(view, items)

    async def submit_urgent(self) -> Batch:
        """In the middle of the requests of the others, of which none is answered before it is asked for."""
        await eventually(lambda: len(self.seen("request")) > ANSWERED_FIRST, WITHIN)
        self.urgent_from = len(self.portal.log)
        batch = await self.hf.batch("downloads", [item(self.portal, URGENT)], lane="manual")
        await eventually(lambda: self.seen("request", URGENT), WITHIN)
        self.portal.goes_on.set()
        return batch

    async def kill_who_has(self, batch: Batch, report: str, phase: str) -> None:
        await eventually(lambda: self.seen(phase, report), WITHIN)
        [execution] = [it.id async for it in batch.items() if it.workload["file"] == f"june/{report}.csv"]

        async def holder() -> WorkerProcess | None:
            leased = await self.hf.queue(status="leased", execution_id=execution)
            names = {job.worker_id for job in leased.items}
            return next((worker for worker in self.fleet.started if worker.name in names), None)

        worker = await eventually(holder, WITHIN)
        assert worker is not None and worker.kill() == -signal.SIGKILL
        self.fleet.start(SCRIPT)

    async def kill_in_the_middle_of_a_file(self, batch: Batch) -> None:
        """Once a part of it is on the disk."""
        drafts = self.folder / "files" / ".drafts"

        def has_begun() -> bool:
            with contextlib.suppress(FileNotFoundError):  # a small one is put into its place meanwhile
                return any(path.stat().st_size > 3 * SIZE for path in drafts.glob("*.draft"))
            return False

        await eventually(has_begun, WITHIN)
        await self.kill_who_has(batch, STALLED_DOWNLOAD, "download")

    async def replace_who_died(self) -> None:
        await eventually(lambda: (self.folder / "died with").exists(), WITHIN)
        self.fleet.start(SCRIPT)

    def assert_whole(self, items: dict[str, BatchItem]) -> None:
        files = {path.stem: path.read_bytes() for path in (self.folder / "files" / "june").iterdir()}
        assert set(files) == {URGENT, *(report for report in items if not is_dead(report))}
        for report, content in files.items():
            assert content == content_of(report, LARGE_SIZE if report == STALLED_DOWNLOAD else SIZE), report
        assert not list((self.folder / "files" / ".drafts").glob("*.draft"))

    def assert_nothing_fetched_twice(self, events: dict[str, list[Event]]) -> None:
        """What the portal sent and a living worker had, it was never asked for again. What a killed one had
        in its memory is lost; what it had on the disk is not."""
        fetched: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.seen("download"):
            assert entry.status in (200, 206), entry
            fetched[str(entry.report)].append(entry)
        for report, entries in fetched.items():
            was_lost = report != URGENT and any(it.type is EventType.LEASE_LOST for it in events[report])
            if not was_lost:
                ends = [0, *(entry.range + entry.sent for entry in entries)]
                assert [entry.range for entry in entries] == ends[:-1], report
                assert len(entries) == (2 if download_breaks(report) else 1), report
        last = fetched[STALLED_DOWNLOAD][-1]
        assert last.status == 206 and last.range > 3 * SIZE
        kept = Path((self.folder / "died with").read_text()).stem
        assert len(fetched[kept]) <= (2 if download_breaks(kept) else 1)  # the next one found it there
        asked = [entry for entry in self.seen("request", HANGING_REQUEST) if entry.status == 202]
        assert len(asked) == 1

    def assert_urgent_overtook(self) -> None:
        behind = self.portal.log[self.urgent_from :]
        asked = [n for n, entry in enumerate(behind) if (entry.phase, entry.report) == ("request", URGENT)]
        place = asked[0]  # again, where its worker was killed
        # Before it come at most those that took the places of others that were about to be answered.
        assert place <= 2 * AT_ONCE, "it waited behind the others"
        assert len([entry for entry in behind[place:] if entry.phase == "request"]) > ITEMS // 3

    async def assert_dead_told(self, view: BatchView, items: dict[str, BatchItem]) -> None:
        dead = {report: it for report, it in items.items() if is_dead(report)}
        assert view.executions["failed"] == len(dead) == ITEMS // 20
        assert view.executions["completed"] == ITEMS - len(dead)
        assert {job.execution_id for job in view.permanently_failed_jobs} == {it.id for it in dead.values()}
        for it in dead.values():
            assert it.tracking["request"]["error"].startswith("auth_error: POST http://127.0.0.1")
            assert it.tracking["download"]["error"] == SKIPPED
        told = (await self.hf.status(next(iter(dead.values())).id)).execution.error
        assert told is not None and told.user_message == "The portal does not give us this report"
        assert "HOLDFAST_DOWNLOAD_AUTH" in told.guidance


def assert_completed_once(items: dict[str, BatchItem], events: dict[str, list[Event]]) -> None:
    for report, it in items.items():
        done = [event for event in events[report] if event.type is EventType.ACTION_COMPLETED]
        assert [event.step for event in done] == ([] if is_dead(report) else ["request", "download"])
        assert it.status is (ExecutionStatus.FAILED if is_dead(report) else ExecutionStatus.COMPLETED)


def test_each_report_is_downloaded_whole_and_once_whoever_dies(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "files"))
    hf = Holdfast(store_url)

    async def scenario(portal: PausingPortal, fleet: Fleet) -> None:
        async with hf:
            await Story(hf, portal, fleet, tmp_path).play()

    with PausingPortal(plan=troubles, hang_seconds=600) as portal, Fleet(tmp_path, store_url) as fleet:
        run(scenario(portal, fleet), 500)
