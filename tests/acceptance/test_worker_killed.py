"""Real worker processes, killed in the middle of a stage, on both stores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acceptance.killed_app import app
from holdfast.core.model import ExecutionStatus, JobStatus
from running import eventually, run

SCRIPT = Path(__file__).parent / "killed_app.py"
WITHIN = 60.0


def start_worker(url: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT), url, str(folder)])


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    os.kill(process.pid, number)
    return process.wait(WITHIN)


async def started_up_to(words: str, url: str, folder: Path) -> subprocess.Popen[bytes]:
    """A worker process whose stages have left these words."""
    worker, ran = start_worker(url, folder), folder / "ran.txt"
    await eventually(lambda: ran.exists() and words in ran.read_text(), WITHIN)
    return worker


def test_a_stage_whose_worker_was_killed_is_run_again_and_earlier_ones_are_not(
    store_url: str, tmp_path: Path
) -> None:
    hf = app(store_url, tmp_path)
    ran = tmp_path / "ran.txt"

    async def scenario() -> None:
        async with hf:
            execution = await hf.submit("documents")
            first = await started_up_to("embed 1.1", store_url, tmp_path)
            assert end(first, signal.SIGKILL) == -signal.SIGKILL
            (tmp_path / "embed may end").touch()
            second = start_worker(store_url, tmp_path)
            try:
                view = await execution.wait(WITHIN)
            finally:
                assert end(second, signal.SIGTERM) == 0
            assert view.execution.status is ExecutionStatus.COMPLETED
            assert view.outputs["analyze"] == "parsed, embedded, analyzed"
            assert ran.read_text().split("\n")[:-1] == ["parse 1.1", "embed 1.1", "embed 1.2", "analyze 1.1"]
            told = [event.type.value for event in await execution.events() if event.step == "embed"]
            assert told == [
                "step_started",
                "action_started",
                "lease_lost",
                "action_error",
                "step_retry",
                "action_started",
                "action_completed",
                "step_completed",
            ]

    run(scenario(), 240)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_asked_to_stop_finishes_its_stage_and_ends_with_code_0(
    sqlite_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    hf = app(sqlite_url, tmp_path)

    async def scenario() -> None:
        async with hf:
            execution = await hf.submit("documents")
            worker = await started_up_to("embed", sqlite_url, tmp_path)
            os.kill(worker.pid, number)
            (tmp_path / "embed may end").touch()
            assert worker.wait(WITHIN) == 0
            view = await execution.status()
            assert [(job.step, job.status) for job in view.jobs] == [
                ("parse", JobStatus.DONE),
                ("embed", JobStatus.DONE),
                ("analyze", JobStatus.QUEUED),
            ]

    run(scenario(), 180)


def test_a_second_signal_ends_a_worker_at_once(sqlite_url: str, tmp_path: Path) -> None:
    hf = app(sqlite_url, tmp_path)

    async def scenario() -> None:
        async with hf:
            execution = await hf.submit("documents")
            worker = await started_up_to("embed", sqlite_url, tmp_path)
            os.kill(worker.pid, signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(0.5)  # it waits for its stage, which does not end
            assert worker.poll() is None

            def ends_when_signalled() -> bool:
                os.kill(worker.pid, signal.SIGTERM)  # two at once may count as one: again until it is heard
                return worker.poll() is not None

            await eventually(ends_when_signalled, WITHIN, every=0.2)
            assert worker.returncode == 1
            assert (await execution.status()).stage == "embed"

    run(scenario(), 180)
