"""Attempts that are cut off: a storage without room, a time that is over, a worker that is told to stop. What
was fetched until then is kept."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attempt_timeouts import Timeouts
from downloads_scenario import Downloads, entries, item, rehearsed
from holdfast.core.model import Completed
from holdfast.pipelines.registry import all_functions
from holdfast.worker.context import Context
from portal_scenario import Portal, ask, break_at, content_of
from running import eventually, run
from typed_attempt import attempted, leased

NORTH = content_of("north")
SIZE = len(NORTH)
HALF = break_at(SIZE)


def asked_from(portal: Portal) -> list[int]:
    """The first byte of each download; how much of it was sent, a portal that was left notices later."""
    return [entry.range for entry in entries(portal, "download")]


class Disk:
    """With room for so many bytes; when it was found to be full, somebody makes room for so many more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, more: int) -> None:
        self.room, self.more = room, more
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        if not self.room:
            self.room = self.more
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self._pwrite(descriptor, data[: self.room], offset)
        self.room -= count
        return count


# No room


def test_a_full_storage_is_waited_for_and_what_found_room_is_not_fetched_again(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, room=70_000, more=SIZE)
    run = downloads.one(item(portal)).expect("completed")
    assert run.error_types == ["storage_unavailable"]
    [told] = [event.data for event in run.events if event.type == "action_error"]
    assert (told["category"], told["user_message"]) == ("transient", "No space is left where files are kept")
    assert "No space left on device" in told["message"]
    assert downloads.files == {"downloads/1/north.csv": NORTH}
    assert asked_from(portal) == [0, 70_000]


def test_a_storage_that_stays_full_ends_it_without_a_promise(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, room=70_000, more=0)
    run = downloads.one(item(portal))
    assert run.error_types == ["storage_unavailable"] * 4
    assert run.error is not None
    assert run.error.user_message == "No space is left where files are kept"
    assert (downloads.files, downloads.drafts) == ({}, [NORTH[:70_000]])


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_fails_is_tried_again(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    pwrite = os.pwrite

    def fails_once(*_: Any) -> int:
        monkeypatch.setattr(os, "pwrite", pwrite)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fails_once)
    run = downloads.one(item(portal)).expect("completed")
    assert run.error_types == ["storage_unavailable"]


def test_a_storage_that_is_no_folder_is_told_at_once(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", "/dev/null/files")
    run = downloads.one(item(portal))
    assert run.error is not None
    assert (run.error.stage, run.error.category) == ("download", "permanent")
    assert "/dev/null/files" in run.error.message
    assert asked_from(portal) == []


# Cut off in the middle


def when_half_is_there(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something, once, as soon as half of a file was written."""
    progress = Context.progress

    def note(context: Context, fraction: float) -> None:
        if context.step in ("download", "work") and fraction == HALF / SIZE:
            monkeypatch.setattr(Context, "progress", progress)
            act()

    monkeypatch.setattr(Context, "progress", note)


def test_an_attempt_whose_time_is_over_keeps_what_it_has(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = Timeouts(monkeypatch)

    def expire() -> None:
        timeouts._attempt._limit.reschedule(timeouts._loop.time())

    when_half_is_there(monkeypatch, expire)
    result = downloads.one(item(portal, download=["stall"])).expect("completed")
    assert result.error_types == ["timeout"]
    [told] = [event.data for event in result.events if event.type == "action_error"]
    assert told["message"] == "Step download did not finish within its timeout of 21600 s."
    assert told["user_message"] == "It took too long"
    assert told["guidance"].endswith("What was fetched is kept, and is not fetched again.")
    assert asked_from(portal) == [0, HALF]


def test_a_request_whose_time_is_over_speaks_of_no_file(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = Timeouts(monkeypatch)

    async def over() -> None:
        await eventually(lambda: portal.log and portal.log[0].trouble == "hang")
        timeouts._attempt._limit.reschedule(timeouts._loop.time())

    async def story() -> None:
        expiring = asyncio.ensure_future(over())
        await downloads.rehearsal._inner.drain()
        await expiring

    downloads.submit(item(portal, request=["hang"]))
    downloads.rehearsal.do(story())
    [result] = downloads.rehearsal.runs()
    [told] = [event.data for event in result.expect("completed").events if event.type == "action_error"]
    assert (told["error_type"], told["user_message"]) == ("timeout", "It took too long")
    assert "file" not in told["guidance"]


def test_an_attempt_that_is_cancelled_keeps_what_it_has(
    tmp_path: Path, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path))
    url = portal.url + ask(portal, troubles={"download": ["stall"]})["download_url"]
    job = leased(
        "python/holdfast.pipelines.downloads:download",
        inputs={"requested": {"download_url": url, "id": "1"}},
        workload={"request": f"{portal.url}/reports", "file": "north.csv"},
    )

    async def story() -> None:
        attempt = asyncio.ensure_future(attempted(job, functions=all_functions()))
        when_half_is_there(monkeypatch, attempt.cancel)
        with pytest.raises(asyncio.CancelledError):
            await attempt
        [draft] = (tmp_path / ".drafts").glob("*.draft")
        assert draft.read_bytes() == NORTH[:HALF]
        assert isinstance(await attempted(job, functions=all_functions()), Completed)

    run(story())
    assert (tmp_path / "north.csv").read_bytes() == NORTH
    assert asked_from(portal) == [0, HALF]


def test_a_storage_may_be_named_by_its_address(tmp_path: Path, portal: Portal) -> None:
    with rehearsed(tmp_path) as downloads, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_STORAGE", downloads.storage.as_uri())
        downloads.one(item(portal)).expect("completed")
        assert list(downloads.files.values()) == [NORTH]
