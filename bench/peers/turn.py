"""One contender, one measure, once: a fresh database, the adapter's processes, one answer.

Every process has a time limit and a session of its own; at the end of the turn it is asked to stop, and
whatever is left of its session is killed. A contender that crashes, hangs or does nothing has a failure
instead of a figure, with the end of what it said; the sitting goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.adapters.adapting import GO
from bench.peers.adapters.tally import read_latencies, read_tally
from bench.peers.contenders import Contender, Settings
from bench.peers.measures import (
    BULK,
    CALLERS,
    DRAIN,
    DRAIN_TWO,
    EMBEDDED,
    ENQUEUE,
    LATENCY,
    RETRY,
    STEPS,
    Measure,
)
from bench.peers.places import Left, PlaceMissing, Places, left_of, settle

ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.003
LOG_TAIL_CHARACTERS = 1_500
WORK = {DRAIN.name: "noop", DRAIN_TWO.name: "noop", RETRY.name: "retry", STEPS.name: "steps"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. `idle` is how long nothing may be finished; huge retry delays are within it."""

    command: float = 120.0
    work: float = 90.0
    idle: float = 60.0
    stop: float = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`also` holds what came along: the rate of the bulk enqueue. Latencies are in seconds."""

    figure: float | None = None
    also: Mapping[str, float] = field(default_factory=dict)
    latencies: tuple[float, ...] = ()
    failure: str | None = None


class TurnFailed(RuntimeError):
    """The contender did not do its part; the message says what happened."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Which Python, which Node, and where the packages of Node are; none where there is no Node."""

    python: str = sys.executable
    node: str | None = None
    node_root: Path = ROOT

    def of(self, contender: Contender) -> list[str]:
        if not contender.runs_on_node:
            try:
                module = ".".join(contender.adapter.relative_to(ROOT).with_suffix("").parts)
            except ValueError:
                return [self.python, str(contender.adapter)]
            # As a module: a script's own folder would come before the packages it is about.
            return [self.python, "-m", module]
        if self.node is None:
            raise TurnFailed("Node is not installed here.")
        return [self.node, str(contender.adapter)]


def take_turn(
    contender: Contender,
    measure: Measure,
    settings: Settings,
    size: int,
    places: Places,
    programs: Programs,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="holdfast-turn-") as folder:
        log = Path(folder) / "log"
        try:
            with places.fresh(contender.store) as url, log.open("ab") as output:
                turn = _Turn(contender, settings, url, Path(folder), output.fileno(), programs, limits)
                return turn.take(measure, size)
        except Exception as error:
            # Whatever goes wrong, in the contender or in asking its tables, is the failure of this turn only.
            what = str(error) if isinstance(error, TurnFailed | PlaceMissing) else repr(error)
            said = log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:].strip() if log.exists() else ""
            return Outcome(failure=f"{what}\n{said}".strip())


class _Turn:
    def __init__(
        self,
        contender: Contender,
        settings: Settings,
        url: str,
        folder: Path,
        log: int,
        programs: Programs,
        limits: Limits,
    ) -> None:
        self._contender, self._url, self._folder = contender, url, folder
        self._log, self._limits = log, limits
        self._command = programs.of(contender)
        self._environment = {
            **os.environ,
            "BENCH_URL": url,
            "BENCH_SETTINGS": json.dumps(dict(settings)),
            "BENCH_TALLY": str(folder),
            "BENCH_NODE_ROOT": str(programs.node_root),
        }

    def take(self, measure: Measure, size: int) -> Outcome:
        self._run("prepare")
        if measure is ENQUEUE or measure is CALLERS:
            return Outcome(size / self._seconds(measure.name, size))
        if measure is LATENCY or measure is EMBEDDED:
            latencies = self._pick_up(size) if measure is LATENCY else self._embedded(size)
            return Outcome(statistics.median(latencies) * 1_000, latencies=tuple(latencies))
        return self._drain(measure, size)

    def _drain(self, measure: Measure, size: int) -> Outcome:
        work = WORK[measure.name]
        filled = self._seconds("fill", work, size)
        settle(self._contender.store, self._url)
        with contextlib.closing(left_of(self._contender, self._url)) as left:
            taken = self._until_none_left(work, size, left, 2 if measure is DRAIN_TWO else 1)
        also = {BULK.name: size / filled} if measure is DRAIN else {}
        return Outcome(size / taken if measure is not RETRY else taken, also=also)

    def _until_none_left(self, work: str, size: int, left: Left, workers: int) -> float:
        """Seconds from the first handler until nothing is left. The store is asked only after the last
        handler, so that the question does not slow down what it is about."""
        with contextlib.ExitStack() as stack:
            together = workers > 1
            running = [stack.enter_context(self._worker(work, together)) for _ in range(workers)]
            if together:
                self._start_together(running)
            self._until_ended(running, size)
            deadline = time.monotonic() + self._limits.idle
            while left.anything():
                self._check_alive(running)
                if time.monotonic() > deadline:
                    raise TurnFailed(f"All {size} handlers have ended, and its tables still have jobs to do.")
                time.sleep(POLL_SECONDS)
            finished = time.time()
            first, _ = read_tally(self._folder)
            return finished - first

    def _until_ended(self, running: list[subprocess.Popen[bytes]], size: int) -> None:
        started = changed = time.monotonic()
        seen = 0
        while True:
            _, ended = read_tally(self._folder)
            if ended >= size:
                return
            now = time.monotonic()
            if ended != seen:
                seen, changed = ended, now
            self._check_alive(running)
            if now - changed > self._limits.idle:
                raise TurnFailed(f"Nothing was finished for {self._limits.idle:g} s; {ended} of {size} were.")
            if now - started > self._limits.work:
                raise TurnFailed(f"After {self._limits.work:g} s only {ended} of {size} were finished.")
            time.sleep(POLL_SECONDS)

    def _start_together(self, running: list[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + self._limits.idle
        while len(list(self._folder.glob("*.ready"))) < len(running):
            self._check_alive(running)
            if time.monotonic() > deadline:
                raise TurnFailed("The workers did not get ready.")
            time.sleep(POLL_SECONDS)
        (self._folder / GO).touch()

    def _pick_up(self, size: int) -> list[float]:
        # One job that counts for nothing shows that the worker has started.
        self._run("fill", "latency", 1)
        with self._worker("latency", together=False) as worker:
            self._until_ended([worker], 1)
            self._run("pace", size)
            self._until_ended([worker], size + 2)
        return self._latencies(size)

    def _embedded(self, size: int) -> list[float]:
        self._run("embedded", size)
        return self._latencies(size)

    def _latencies(self, size: int) -> list[float]:
        found = read_latencies(self._folder)
        if len(found) < size:
            raise TurnFailed(f"Only {len(found)} of {size} jobs were picked up.")
        return found

    def _check_alive(self, running: list[subprocess.Popen[bytes]]) -> None:
        for process in running:
            if process.poll() is not None:
                raise TurnFailed(f"Its worker ended with code {process.returncode}.")

    def _start(self, *words: str | int, together: bool = False, output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, *(str(word) for word in words)],
            cwd=ROOT,
            env={**self._environment, **({"BENCH_TOGETHER": "1"} if together else {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=self._log,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def _worker(self, work: str, together: bool) -> Iterator[subprocess.Popen[bytes]]:
        process = self._start("work", work, together=together, output=self._log)
        try:
            yield process
        finally:
            end(process, self._limits.stop)

    def _run(self, *words: str | int) -> bytes:
        process = self._start(*words, output=subprocess.PIPE)
        try:
            said, _ = process.communicate(timeout=self._limits.command)
        except subprocess.TimeoutExpired:
            raise TurnFailed(f"`{words[0]}` took longer than {self._limits.command:g} s.") from None
        finally:
            end(process, self._limits.stop)
        if process.returncode != 0:
            raise TurnFailed(f"`{words[0]}` ended with code {process.returncode}.")
        return said

    def _seconds(self, *words: str | int) -> float:
        said = self._run(*words).decode(errors="replace").strip().splitlines()
        try:
            return float(json.loads(said[-1])["seconds"])
        except (IndexError, KeyError, TypeError, ValueError):
            raise TurnFailed(f"`{words[0]}` did not say how long it took: {said[-1:]}.") from None


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to stop, wait, and kill what is left of the session it was started in."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
