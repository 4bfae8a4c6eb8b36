"""`holdfast batch watch` and what batches show on a terminal."""

import asyncio
import io
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from batch_scenario import DELAY, batch_of, define, lines, one_of_each
from command_scenario import (
    LIMIT_SECONDS,
    Said,
    all_shown,
    holdfast,
    holdfast_meanwhile,
    on_a_terminal,
    told,
)
from engine_scenario import Scenario, on_both_stores
from holdfast import Context, Holdfast, PermanentError
from holdfast.cli import batch_watch
from holdfast.cli.batch_adding import Adding
from holdfast.cli.batch_input import Source
from holdfast.core.catalogue import Category
from holdfast.engine.batches import Batches
from running import eventually, run
from store_scenario import ENVIRONMENT


def quick(url: str) -> Holdfast:
    hf = Holdfast(url)

    @hf.step(operation="request")
    async def request(ctx: Context) -> None:
        if ctx.workload < 0:
            raise PermanentError("no such report")

    @hf.step(operation="download", barrier={"after": "request"})
    async def download(ctx: Context) -> None: ...

    hf.pipeline("quick", [request, download])
    return hf


def while_it_works(url: str, act: Callable[[], Awaitable[Any]]) -> Any:
    async def story() -> Any:
        hf = quick(url)
        async with hf, hf.working():
            return await act()

    return run(story(), timeout=120)


def test_a_batch_is_watched_to_its_end_in_plain_lines(store_url: str, tmp_path: Path) -> None:
    async def submit_and_watch() -> tuple[Said, Said, Said]:
        good = lines(tmp_path / "good", *range(30))
        some = lines(tmp_path / "some", -1, *range(30))
        submitted = await holdfast_meanwhile(store_url, "batch", "submit", "quick", good, "--watch")
        record = await holdfast_meanwhile(store_url, "batch", "submit", "quick", some, "--watch", "--json")
        watched = await holdfast_meanwhile(store_url, "batch", "watch", record.json["id"])
        return submitted, record, watched

    submitted, record, watched = while_it_works(store_url, submit_and_watch)
    assert submitted.code == 0, submitted
    assert "Batch 1 of quick: Complete\n" in submitted.out
    assert "items      0 running, 30 completed, 0 failed, 0 cancelled\n" in submitted.out
    assert (record.code, record.err) == (1, "")
    assert (record.json["status"], record.json["executions"]["failed"]) == ("finished", 1)
    assert record.json["counts"]["download"]["skipped"] == 1
    assert watched.code == 1 and "Over, 1 failed of 31 items" in watched.out


@on_both_stores
async def test_a_watcher_in_a_pipe_is_told_what_changed_and_only_that(
    s: Scenario, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_watch, "LINE_SECONDS", 1e9)
    screen = batch_watch.PlainScreen()

    async def told_now() -> list[str]:
        """What two looks tell; the second finds nothing new."""
        screen.show(await batch_watch.look_at(s.engine, 1))
        out = capsys.readouterr().out
        screen.show(await batch_watch.look_at(s.engine, 1))
        assert capsys.readouterr().out == ""
        return [line[len("2026-11-16 12:40:02  ") :] for line in out.splitlines()]

    await batch_of(s, 4)
    await s.staff()
    assert await told_now() == [
        "0 of 4 items ended. request: 4 pending; download: 4 pending.",
        "The barrier before download opens when 4 more items have settled, and download begins 15 min later.",
    ]
    jobs = await s.lease()
    await s.fail(jobs[0], "no such \x1breport", category=Category.PERMANENT, error_type="not_found")
    assert await told_now() == [r"Item 1 failed at request: not_found: no such \x1breport"]
    await s.complete(jobs[1])
    assert await told_now() == []  # counts alone are told now and then, and not at every look
    for job in jobs[2:]:
        await s.complete(job)
    await s.engine.batches.attend_all()
    counts, barrier = await told_now()
    assert counts == "1 of 4 items ended. request: 3 completed, 1 failed; download: 3 pending, 1 skipped."
    assert re.match(r"The barrier before download opened .*; download begins .* \(in 15 min\)\.$", barrier)
    s.tick(DELAY)
    [_, barrier] = await told_now()
    assert "; download may begin since " in barrier
    jobs = await s.lease()
    await s.fail(jobs[0])
    [_, barrier, wave] = await told_now()
    assert "; download began " in barrier
    assert wave == "Wave 1 of download: 1 failed job waits until 2 others have ended."
    for job in jobs[1:]:
        await s.complete(job)
    await s.engine.batches.attend_all()
    [_, wave] = await told_now()
    assert re.match(r"Wave 1 of download begins .* \(in 60 s\)\.$", wave)
    monkeypatch.setattr(batch_watch, "LINE_SECONDS", 0.0)
    screen = batch_watch.PlainScreen()
    await told_now()
    s.tick(60)
    [job] = await s.lease()
    assert await told_now() == [
        "3 of 4 items ended. request: 3 completed, 1 failed; download: 1 in progress, 2 completed, 1 skipped."
    ]
    await s.complete(job)


class Process:
    """`holdfast` as a process of its own, whose output can be waited for."""

    def __init__(
        self, url: str, *args: object, stdin: int | None = None, stdout: int = subprocess.PIPE, **env: str
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *map(str, args), "--db", url],
            env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1", **env},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=LIMIT_SECONDS)
            return self.process.returncode, (out or b"").decode(), err.decode()
        finally:
            self.process.kill()


def test_ctrl_c_ends_the_watching_and_not_the_batch(sqlite_url: str) -> None:
    told(sqlite_url, lambda s: batch_of(s, 3))
    watcher = Process(sqlite_url, "batch", "watch", 1)
    assert watcher.process.stdout is not None
    counts, barrier = (watcher.process.stdout.readline().decode() for _ in range(2))
    assert "0 of 3 items ended. request: 3 pending; download: 3 pending." in counts
    assert "The barrier before download opens when 3 more items have settled" in barrier
    watcher.process.send_signal(signal.SIGINT)
    code, _, err = watcher.end()
    assert code == 130
    assert "Batch 1 goes on without being watched. Look again:  holdfast batch watch 1" in err
    assert holdfast(sqlite_url, "batch", "status", 1, "--json").json["executions"]["running"] == 3


def test_a_pipe_that_goes_on_is_added_as_it_comes_and_an_interrupt_says_what_is_there(
    sqlite_url: str,
) -> None:
    told(sqlite_url, define)
    adder = Process(sqlite_url, "batch", "submit", "reports", "--key", "k", stdin=subprocess.PIPE)
    assert adder.process.stdin is not None
    adder.process.stdin.write(b"1\n2\n")
    adder.process.stdin.flush()

    async def two_are_there() -> None:
        async with Holdfast(sqlite_url) as hf:
            engine = await hf.engine()

            async def items() -> bool:
                page = await engine.batches.list()
                return [row.items for row in page.items] == [2]

            await eventually(items, LIMIT_SECONDS)

    run(two_are_there(), timeout=2 * LIMIT_SECONDS)
    adder.process.send_signal(signal.SIGINT)
    code, _, err = adder.end()
    assert code == 130
    assert "2 items are in batch 1, those up to line 2; it is open." in err
    assert "Repeat the command, and the rest is added:" in err


def test_what_was_stored_when_the_interrupt_came_is_counted(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Told otherwise, a person would add it a second time."""
    file = lines(tmp_path / "items", 1, 2)
    told(sqlite_url, define)
    add, stored, let_go = Batches.add, asyncio.Event(), asyncio.Event()

    async def held_up(self: Batches, batch_id: int, submissions: list[Any]) -> Any:
        added = await add(self, batch_id, submissions)
        stored.set()
        await let_go.wait()
        return added

    monkeypatch.setattr(Batches, "add", held_up)

    async def story() -> Adding:
        async with Holdfast(sqlite_url) as hf:
            engine = await hf.engine()
            adding = Adding(engine, Source(str(file), engine.payload_bytes_max), key=None, repeat="")
            task = asyncio.create_task(
                adding.make("reports", lane="bulk", mode=None, key=None, is_closed=True)
            )
            await eventually(stored.is_set)
            task.cancel()
            await asyncio.sleep(0)
            let_go.set()
            await asyncio.wait([task])
            assert task.cancelled()
            return adding

    adding = run(story())
    assert (adding.items, adding.added) == (2, 2)


# on a terminal


def test_a_terminal_gets_bars_that_go_away_and_the_end(sqlite_url: str, tmp_path: Path) -> None:
    file = lines(tmp_path / "items", -1, *range(5))

    async def act() -> tuple[int, str]:
        return await asyncio.to_thread(on_a_terminal, sqlite_url, "batch", "submit", "quick", file, "--watch")

    code, shown = while_it_works(sqlite_url, act)
    assert code == 1
    assert "is submitted, with 6 items." in shown
    assert "Over, 1 failed of 6 items" in shown and "no such report" in shown


def test_a_live_view_shows_steps_gates_and_plain_words(sqlite_url: str) -> None:
    """One look at a batch that does not move."""
    told(sqlite_url, one_of_each)

    async def look() -> str:
        from rich.console import Console

        from holdfast.cli.batch_watch import _picture, look_at

        async with Holdfast(sqlite_url) as hf:
            screen = io.StringIO()
            console = Console(width=100, force_terminal=True, color_system=None, file=screen)
            console.print(_picture(await look_at(await hf.engine(), 1)))
            return screen.getvalue()

    shown = run(look())
    assert "Batch 1 of reports: 1 of 5 items ended" in shown
    assert re.search(r"request +━+ +3/5 +1 pending, 1 in progress, 2 completed, 1 failed", shown), shown
    assert "opens when 2 more items have settled" in shown
    assert "1 item failed at request: Document file not found (not_found, permanent)." in shown
    assert r"no such \x1b[31mreport" in shown and "Ctrl-C ends the watching" in shown


def test_a_live_view_is_left_by_ctrl_c_with_the_terminal_as_it_was(sqlite_url: str) -> None:
    told(sqlite_url, one_of_each)
    ours, theirs = pty.openpty()
    watcher = Process(
        sqlite_url, "batch", "watch", 1, stdin=theirs, stdout=theirs, TERM="xterm", COLUMNS="100"
    )
    os.close(theirs)
    shown = b""
    while b"Ctrl-C ends the watching" not in shown:  # fails with OSError where the process ends before
        shown += os.read(ours, 65_536)
    watcher.process.send_signal(signal.SIGINT)
    shown += all_shown(ours)  # it cannot end while nobody reads what it shows
    code, _, err = watcher.end()
    os.close(ours)
    assert code == 130 and "Batch 1 goes on without being watched." in err
    assert "━" in shown.decode() and "opens when 2 more items have settled" in shown.decode()
    assert b"\x1b[?25l" in shown and b"\x1b[?25h" in shown  # the cursor is back


def test_cancelling_a_batch_asks_first(sqlite_url: str) -> None:
    told(sqlite_url, lambda s: batch_of(s, 3))
    code, shown = on_a_terminal(sqlite_url, "batch", "cancel", 1, answer="n\n")
    assert (
        code == 1
        and "Batch 1 of reports: 3 items have not ended." in shown
        and "Nothing was changed." in shown
    )
    code, shown = on_a_terminal(sqlite_url, "batch", "cancel", 1, answer="y\n")
    assert code == 0 and "Batch 1 is cancelled, with 3 items that had not ended." in shown


def test_a_terminal_without_a_file_is_not_waited_for(sqlite_url: str) -> None:
    told(sqlite_url, define)
    code, shown = on_a_terminal(sqlite_url, "batch", "submit", "reports")
    assert code == 2 and "Name a file with the items" in shown
