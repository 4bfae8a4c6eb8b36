"""The storm: workers that are killed again and again while work keeps coming, and the evidence afterwards.

    feed       executions are submitted so that there is always work, each under a key of its own
    kill       every worker lives under a sentence: to die by itself in an exact window, or to be killed
               from outside at a random moment; whoever dies is started again
    restart    PostgreSQL itself is taken down as by a crash, and comes back
    calm       when there were kills enough, the rest is worked off; then the evidence is read

All randomness comes from one seed. Nothing depends on how fast the machine is: the storm lasts as long as
its kills take, and only a standstill fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faults.dying import WINDOWS
from faults.evidence import Evidence
from faults.ledger import Death, ledger_path, read_worker
from faults.processes import Fleet, WorkerProcess
from faults.storm_worker import FRAGILE, STURDY, app
from faults.tables import make_tables, select
from holdfast import Holdfast
from holdfast.core.errors import StoreUnavailable
from holdfast.engine import Submission

SCRIPT = Path(__file__).with_name("storm_worker.py")
WORKERS = 3
LEASE_SECONDS = 1.5
RUNNING_MIN = 40  # executions that are always under way while the storm lasts
FRAGILE_EVERY = 8
LOOK_SECONDS = 0.1
TICK_SECONDS = 0.005
ORDER_SHARE = 0.6
EARLY_SHARE = 0.1
ORDER_COUNT_MAX = 12
ORDER_PATIENCE_SECONDS = 10.0
MOMENT_SECONDS = 0.8
STARTING_SECONDS = 1.5
STANDSTILL_SECONDS = 180.0
KILLED = -9
STOPPED = (0, -15)  # in good order, or before it could listen
OUTSIDE, STARTING = "from outside", "from outside, at any moment of its start"


_UNDER_WAY = """SELECT (SELECT count(*) FROM {schema}executions WHERE status = 'running'),
    (SELECT max(id) FROM {schema}events)"""


class StormFailed(AssertionError):
    pass


@dataclass(slots=True)
class Sentenced:
    """A worker, and how it will die: by itself, or a moment after its first attempt, or after its start."""

    worker: WorkerProcess
    window: str | None
    moment: float
    needs_attempt: bool
    restarts: int
    due: float | None = None

    def is_due(self, folder: Path, now: float) -> bool:
        if self.due is None and (
            not self.needs_attempt or ledger_path(folder, self.worker.name).stat().st_size
        ):
            self.due = now + self.moment
        return self.due is not None and now >= self.due


@dataclass(slots=True)
class Result:
    seed: int
    seconds: float
    kills: int
    kills_by_window: Counter[str]
    hits: int
    """Workers that died with at least one attempt in their hands."""
    restarts: int
    evidence: Evidence
    violations: list[str] = field(default_factory=list)

    def told(self) -> str:
        windows = "".join(f"\n    {number:5d}  {name}" for name, number in self.kills_by_window.most_common())
        return (
            f"seed {self.seed}: {self.kills} kills in {self.seconds:.0f} s, {self.hits} hit a leased attempt,"
            f" {self.restarts} restarts of the database\n  {self.evidence.summary()}\n"
            f"  kills by window:{windows}"
        )


class Storm:
    """`restart` takes the database down and up again, where it is a server; it is called `restarts` times."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        seed: int,
        kills: int,
        executions_min: int = 200,
        restart: Callable[[], None] | None = None,
        restarts: int = 2,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._folder = folder
        self._seed = seed
        self._draw = random.Random(seed)
        self._kills_wanted = kills
        self._executions_min = executions_min
        self._restart = restart
        self._restart_at = [kills * number // (restarts + 1) for number in range(1, restarts + 1)]
        self._restarts = 0
        self._tell = tell
        self._submitted = 0
        self._running = 0
        self._kills: Counter[str] = Counter()
        self._killed: set[str] = set()
        self._sentenced: list[Sentenced] = []
        self._windows: list[str] = []
        self._progress: object = None
        self._moved_at = time.monotonic()

    async def run(self) -> Result:
        """Raises StormFailed at a standstill or a worker that ends by itself; what the evidence shows is
        in the result."""
        began = time.monotonic()
        await make_tables(self._url)
        hf = app(self._url)
        try:
            with Fleet(self._folder, self._url) as fleet:
                await self._feed(hf)
                self._sentenced = [self._start(fleet) for _ in range(WORKERS)]
                await self._rage(hf, fleet)
                for one in self._sentenced:
                    code = one.worker.stop()
                    if code not in STOPPED:
                        raise StormFailed(f"asked to stop, a worker ended with {code}; {one.worker.told()}")
        except BaseException as error:
            error.add_note(f"seed {self._seed}, {self._kills.total()} kills, {self._submitted} submitted")
            raise
        finally:
            await hf.close()
        evidence = await Evidence.read(self._url, self._folder)
        violations = evidence.examine(self._submitted)
        return Result(
            self._seed,
            time.monotonic() - began,
            self._kills.total(),
            self._kills,
            len(evidence.lost_workers() & self._killed),
            self._restarts,
            evidence,
            violations,
        )

    async def _rage(self, hf: Holdfast, fleet: Fleet) -> None:
        looked_at = 0.0
        while True:
            self._bury_and_replace(fleet)
            self._restart_database()
            now = time.monotonic()
            if now - looked_at >= LOOK_SECONDS:
                looked_at = now
                await self._look()
                if self._is_storming:
                    await self._feed(hf)
                elif not self._running:
                    return
            await asyncio.sleep(TICK_SECONDS)

    @property
    def _is_storming(self) -> bool:
        return self._kills.total() < self._kills_wanted or self._submitted < self._executions_min

    # work

    async def _look(self) -> None:
        """How much is under way; a standstill is an error."""
        [(running, events)] = await select(self._url, _UNDER_WAY)
        self._running = running
        if (progress := (events, self._kills.total())) != self._progress:
            self._progress, self._moved_at = progress, time.monotonic()
        elif time.monotonic() - self._moved_at > STANDSTILL_SECONDS:
            said = "\n".join(one.worker.told() for one in self._sentenced)
            raise StormFailed(
                f"nothing has moved for {STANDSTILL_SECONDS:.0f} s, {running} executions still run; {said}"
            )

    async def _feed(self, hf: Holdfast) -> None:
        """Under a key of its own: a submit whose answer was lost in a restart is repeated, not doubled."""
        numbers = range(self._submitted, self._submitted + RUNNING_MIN - self._running)
        if not numbers:
            return
        submissions = [
            Submission(
                path=STURDY if number % FRAGILE_EVERY else FRAGILE,
                workload={"number": number, "seed": self._seed},
                idempotency_key=str(number),
            )
            for number in numbers
        ]
        try:
            await (await hf.engine()).submit(submissions)
        except StoreUnavailable:
            return  # the database was just restarted; the next turn does it
        self._submitted = numbers.stop

    # death

    def _start(self, fleet: Fleet) -> Sentenced:
        draw, window, order = self._draw, None, []
        kind = draw.random()
        needs_attempt = kind < 1 - EARLY_SHARE
        moment = draw.uniform(0, MOMENT_SECONDS if needs_attempt else STARTING_SECONDS)
        if kind < ORDER_SHARE:
            window = self._next_window()
            order = [window, str(draw.randint(1, ORDER_COUNT_MAX))]
            moment = ORDER_PATIENCE_SECONDS
        worker = fleet.start(SCRIPT, str(LEASE_SECONDS), *(order if self._is_storming else ()))
        ledger_path(self._folder, worker.name).touch()
        return Sentenced(worker, window, moment, needs_attempt, self._restarts)

    def _next_window(self) -> str:
        """Dealt like cards, so that a short storm has them all."""
        if not self._windows:
            self._windows = self._draw.sample(WINDOWS, len(WINDOWS))
        return self._windows.pop()

    def _bury_and_replace(self, fleet: Fleet) -> None:
        for place, one in enumerate(self._sentenced):
            code = one.worker.ended_with()
            if code is None and self._is_storming and one.is_due(self._folder, time.monotonic()):
                code = one.worker.kill()
            if code is None:
                continue
            if code == KILLED:
                self._note_death(one)
            elif one.restarts == self._restarts:
                raise StormFailed(f"a worker ended by itself with code {code}; {one.worker.told()}")
            self._sentenced[place] = self._start(fleet)

    def _note_death(self, one: Sentenced) -> None:
        deaths = [line for line in read_worker(self._folder, one.worker.name) if isinstance(line, Death)]
        outside = OUTSIDE if one.needs_attempt else STARTING
        self._kills[deaths[0].window if deaths else outside] += 1
        self._killed.add(one.worker.name)
        if self._kills.total() % 10 == 0:
            self._tell(f"{self._kills.total()} kills, {self._submitted} submitted, {self._running} under way")

    def _restart_database(self) -> None:
        if self._restart is not None and self._restart_at and self._kills.total() >= self._restart_at[0]:
            self._restart_at.pop(0)
            self._restart()
            self._restarts += 1
            self._tell(f"restart {self._restarts} of the database, after {self._kills.total()} kills")
