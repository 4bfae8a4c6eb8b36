"""`holdfast worker`, as real processes: one or several, killed, stopped, left behind."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.processes import is_alive
from holdfast import Holdfast
from holdfast.cli.supervisor import Supervisor
from holdfast.core.model import EventType, ExecutionStatus, JobStatus
from running import eventually, run

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
WITHIN = 60.0
# Long enough that only a process that has died loses its leases.
LEASE = "6s"


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "worker", "--app", "command_app:hf", *options]


@contextlib.contextmanager
def worker_command(url: str, *options: str, stderr: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command("--db", url, "--lease", LEASE, *options), cwd=HERE, env=ENVIRONMENT, stderr=stderr
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def programs(url: str) -> Holdfast:
    """The same pipelines in this process, to submit with."""
    sys.path.insert(0, str(HERE))
    try:
        command_app = importlib.import_module("command_app")
    finally:
        sys.path.remove(str(HERE))
    command_app.hf.use_database(url)
    return command_app.hf


async def wait_in_the_middle(hf: Holdfast, folder: Path, pipeline: str = "wait") -> tuple[int, Path, int]:
    """An execution that runs until a file is there: its id, that file, and who runs it."""
    started, until = folder / "started.txt", folder / "may end"
    execution = await hf.submit(pipeline, {"started": str(started), "until": str(until)})
    await eventually(lambda: started.exists() and started.read_text().endswith("\n"), WITHIN)
    return execution.id, until, int(started.read_text().split()[-1])


async def ends_by_a_second_signal(worker: subprocess.Popen[bytes]) -> None:
    """Two that come before the process can run count as one: it is sent again until it is heard."""

    def is_heard() -> bool:
        worker.send_signal(signal.SIGTERM)
        return worker.poll() is not None

    await eventually(is_heard, WITHIN, every=0.2)


def test_processes_that_die_are_started_again_and_all_end_together(store_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with programs(store_url) as hf:
            with worker_command(store_url, "--processes", "2") as supervisor:
                id_, until, first = await wait_in_the_middle(hf, tmp_path)
                assert first != supervisor.pid
                os.kill(first, signal.SIGKILL)
                until.touch()
                view = await hf.wait(id_, WITHIN)
                assert view.execution.status is ExecutionStatus.COMPLETED
                assert view.jobs[0].attempts == 2
                workers: set[int] = set()

                async def a_new_one_works() -> bool:
                    done = await (await hf.submit("tell")).wait(WITHIN)
                    workers.add(done.outputs["tell_process"])
                    return len(workers) == 2

                await eventually(a_new_one_works, WITHIN)
                assert first not in workers
                supervisor.send_signal(signal.SIGTERM)
                assert supervisor.wait(WITHIN) == 0
                assert not any(map(is_alive, workers))

    run(scenario(), 180)


def test_a_second_signal_ends_all_at_once_and_nothing_is_lost(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with programs(sqlite_url) as hf:
            with worker_command(sqlite_url, "--processes", "2", "--grace", "60s") as supervisor:
                id_, until, runs_it = await wait_in_the_middle(hf, tmp_path)
                supervisor.send_signal(signal.SIGTERM)
                supervisor.send_signal(signal.SIGINT)
                assert supervisor.wait(WITHIN) == 1
                assert not is_alive(runs_it)
            assert (await hf.status(id_)).jobs[0].status is JobStatus.LEASED
            until.touch()
            with worker_command(sqlite_url):
                view = await hf.wait(id_, WITHIN)
            assert view.execution.status is ExecutionStatus.COMPLETED

    run(scenario(), 180)


def test_workers_do_not_outlive_their_supervisor(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with programs(sqlite_url) as hf:
            with worker_command(sqlite_url, "--processes", "2", "--grace", "0s") as supervisor:
                id_, _, runs_it = await wait_in_the_middle(hf, tmp_path)
                supervisor.kill()
                await eventually(lambda: not is_alive(runs_it), WITHIN)

                async def is_given_back() -> bool:
                    """Not lost: it went in order. The other one may take it once more before it stops."""
                    job = (await hf.status(id_)).jobs[0]
                    return (job.status, job.attempts) == (JobStatus.QUEUED, 0)

                await eventually(is_given_back, WITHIN)
                assert EventType.LEASE_LOST not in [event.type for event in await hf.events(id_)]

    run(scenario(), 180)


def test_a_stop_within_the_grace_period_gives_back_and_ends_with_code_0(
    sqlite_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with programs(sqlite_url) as hf:
            with worker_command(sqlite_url, "--grace", "0.2s") as worker:
                id_, _, runs_it = await wait_in_the_middle(hf, tmp_path)
                assert runs_it == worker.pid
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(WITHIN) == 0
                job = (await hf.status(id_)).jobs[0]
                assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)

    run(scenario(), 180)


def test_a_handler_that_blocks_everything_cannot_keep_a_second_signal_from_ending_it(
    sqlite_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with programs(sqlite_url) as hf:
            with worker_command(sqlite_url) as worker:
                await wait_in_the_middle(hf, tmp_path, "block")
                worker.send_signal(signal.SIGTERM)
                with pytest.raises(subprocess.TimeoutExpired):
                    worker.wait(1)  # the first one is seen only when the handler lets go
                await ends_by_a_second_signal(worker)
                assert worker.returncode == 1

    run(scenario(), 180)


def test_a_thread_that_outlasts_its_timeout_does_not_keep_a_stopped_worker(
    sqlite_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with programs(sqlite_url) as hf:
            with worker_command(sqlite_url, "--grace", "1s") as worker:
                id_, _, _ = await wait_in_the_middle(hf, tmp_path, "outlast")
                assert (await hf.wait(id_, WITHIN)).execution.status is ExecutionStatus.FAILED
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(WITHIN) == 0

    run(scenario(), 180)


def test_a_handler_that_exits_with_code_2_does_not_end_the_fleet(sqlite_url: str) -> None:
    """That code means a wrong command, where a worker says so itself."""

    async def scenario() -> None:
        async with programs(sqlite_url) as hf:
            with worker_command(sqlite_url, "--processes", "2") as supervisor:
                view = await (await hf.submit("exit")).wait(WITHIN)
                assert view.jobs[0].attempts == 2
                assert (await (await hf.submit("tell")).wait(WITHIN)).summary == "Complete"
                assert supervisor.poll() is None

    run(scenario(), 180)


def test_a_second_signal_ends_a_worker_whose_log_nobody_reads(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with programs(sqlite_url) as hf:
            with worker_command(sqlite_url, stderr=subprocess.PIPE) as worker:
                await wait_in_the_middle(hf, tmp_path)
                assert worker.stderr is not None
                worker.stderr.close()
                worker.send_signal(signal.SIGTERM)
                with pytest.raises(subprocess.TimeoutExpired):
                    worker.wait(1)
                await ends_by_a_second_signal(worker)
                assert worker.returncode == 1

    run(scenario(), 180)


def test_a_supervisor_goes_on_when_a_process_cannot_be_started(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        supervisor = Supervisor([str(HERE / "no such program")], 1, grace_seconds=1)
        running = asyncio.create_task(supervisor.run())
        await eventually(lambda: caplog.text.count("could not be started") >= 2, WITHIN)
        supervisor._stop()
        assert await running == 0

    run(scenario())


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("nowhere:hf", "There is no module nowhere."),
        ("command_app:app", "There is: hf."),
        ("command_app", "--app command_app does not name a Holdfast object."),
        ("broken_app:hf", "RuntimeError: broken on purpose"),
    ],
)
def test_a_wrong_app_is_refused_with_a_sentence(tmp_path: Path, app: str, words: str) -> None:
    (tmp_path / "broken_app.py").write_text("raise RuntimeError('broken on purpose')\n")
    for processes in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", "worker", "--app", app, "--processes", processes],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )
        assert ended.returncode == 2
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr
