"""Archives that are parsed by workers which are killed at any moment of it, or are stopped and go on too
late: the rows of each run are those of one that nobody disturbed. Real processes, both stores."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from acceptance.conf_app import (
    DEATHS_OF_A_RUN,
    DOOMED,
    PART_ROWS,
    PARTS_MAX,
    Death,
    may_go_on,
    refused,
    waits,
)
from acceptance.lives import KILLED, ended
from conf_scenario import tgz
from faults.processes import Fleet
from faults.tables import freeze
from holdfast import Holdfast
from holdfast.core.model import EventType
from holdfast.engine import Engine, RetryRequest
from holdfast.pipelines.conf_archives.intake import CONF_RULES
from holdfast.pipelines.conf_archives.playbook import playbook_text
from holdfast.pipelines.conf_archives.runs import Run, Runs, RunStatus
from holdfast.pipelines.conf_archives.settings import ConfSettings
from holdfast.pipelines.intake import Intake
from holdfast.pipelines.places import open_storage
from pipeline_scenario import pieces
from running import eventually, run

SCRIPT = Path(__file__).parent / "conf_app.py"
KILLS_MIN = 50
KILLED_FROM_OUTSIDE = 8
RUNS_AT_FIRST = 30
RUNS_MORE = 4
ROUNDS_MAX = 6
PLACES = 3  # of workers that die
LEASE_SECONDS = 2.0
ZOMBIE_LEASE_SECONDS = 3.0
ATTEMPTS_MAX = 20
CRASHES_MAX = 20
WITHIN = 180.0
FILES = 12
STANZAS = 6_000
KINDS = 7
OUTSIDE = "outside.tgz"


def archive() -> bytes:
    """Many stanzas, and a few of what is not usual."""

    def text(file: int) -> str:
        lines = [f"early = {file}\n"]
        for n in range(STANZAS // FILES):
            lines.append(
                f"[source::/var/log/{file}/{n}]\nsourcetype = kind{n % KINDS}\nTRANSFORMS-{n} = a, b\n"
            )
            if n % 100 == file:
                lines.append(f"this line means nothing {n}\nnamed = \u00dcberma\u00df {n} \\\n  and more\n")
        return "".join(lines)

    files: dict[str, str | bytes] = {}
    for file in range(FILES):
        layer = "local" if file % 3 == 0 else "default"
        files[f"app{file}/{layer}/props.conf"] = text(file).encode("utf-16" if file == 5 else "utf-8")
    return tgz({**files, "app0/README.txt": "read me\n"})


class Stored(NamedTuple):
    """All that a run has left, but for its number and the numbers of its rows."""

    files: list[tuple[Any, ...]]
    stanzas: list[tuple[Any, ...]]
    counted: tuple[int, int, int]


class Confs:
    """The pipeline as an application has it, and the database as it is."""

    def __init__(self, hf: Holdfast, engine: Engine, content: bytes) -> None:
        self.hf = hf
        self.engine = engine
        self._content = content
        self.fetch = engine.store.fetch_rows
        self.is_sqlite = engine.store.dialect == "sqlite"
        self.started_again: set[int] = set()

    async def upload(self, filename: str) -> int:
        intake = Intake(self.engine, open_storage(), CONF_RULES, bytes_max=64 * 1024**2)
        return (await intake.take(filename, pieces(self._content, 65_536), again=True)).id

    async def shown(self, run_id: int) -> Run:
        return await Runs(self.engine).get(run_id)

    async def ended(self, run_id: int) -> Run | None:
        [(status,)] = await self.fetch("SELECT status FROM holdfast_conf_runs WHERE id = $1", run_id)
        shown = await self.shown(run_id) if status == "COMPLETE" else None
        if shown is None and (found := await self.shown(run_id)).status is RunStatus.FAILED:
            # On a machine that stands still for a moment a run may lose one worker more than it was meant to,
            # and be given up as one that kills them. A person starts it again then.
            is_given_up = found.metrics.error_type == "worker_lost" and run_id not in self.started_again
            assert is_given_up, f"run {run_id} failed: {found.error_message}"
            self.started_again.add(run_id)
            await self.engine.retry(run_id, RetryRequest(by="a person"))
        return shown

    async def completed(self, run_id: int) -> Run:
        return await eventually(lambda: self.ended(run_id), WITHIN, every=0.1)  # type: ignore[return-value]

    async def holder(self, run_id: int) -> tuple[str, str | None, int]:
        """Its state, the attempt that has it, and how many stanzas are written."""
        [row] = await self.fetch(
            "SELECT status, task_id, (SELECT count(*) FROM holdfast_conf_stanzas s WHERE s.run_id = r.id)"
            " FROM holdfast_conf_runs r WHERE id = $1",
            run_id,
        )
        return row

    async def stored(self, run_id: int) -> Stored:
        files = await self.fetch(
            "SELECT file_id, path, app, layer, conf, encoding, size, sha256, stanzas, parse_errors, errors"
            " FROM holdfast_conf_files WHERE run_id = $1 ORDER BY file_id",
            run_id,
        )
        # Each word has the number of its run in front of it.
        words = "" if self.is_sqlite else ", replace(words::text, '''' || run_id || 'z', '''')"
        stanzas = await self.fetch(
            f"SELECT file_id, name, source_path, position, line, has_header, entries{words}"
            " FROM holdfast_conf_stanzas WHERE run_id = $1 ORDER BY file_id, position",
            run_id,
        )
        metrics = (await self.shown(run_id)).metrics
        return Stored(files, stanzas, (metrics.files_parsed, metrics.stanzas_created, metrics.parse_errors))

    async def assert_words_are_there_once(self, runs: list[int]) -> None:
        """On SQLite, where they are beside the stanzas: none is left of what was cleared."""
        if not self.is_sqlite:
            return
        [(words,)] = await self.fetch("SELECT count(*) FROM holdfast_conf_words_docsize")
        [(stanzas,)] = await self.fetch("SELECT count(*) FROM holdfast_conf_stanzas")
        assert words == stanzas
        of_run = "WHERE rowid IN (SELECT id FROM holdfast_conf_stanzas WHERE run_id = $1)"
        for run_id in runs:
            [(found,)] = await self.fetch(f"SELECT count(*) FROM holdfast_conf_words {of_run}", run_id)
            assert found == (await self.holder(run_id))[2]
        for kind in range(KINDS):
            found_places = set()
            for run_id in runs:
                found_by_run = await self.fetch(
                    "SELECT s.run_id, count(*), sum(s.file_id * 100000 + s.position) FROM holdfast_conf_words"
                    " JOIN holdfast_conf_stanzas s ON s.id = holdfast_conf_words.rowid"
                    " WHERE holdfast_conf_words MATCH $1 GROUP BY s.run_id",
                    f'"{run_id}zkind{kind}"',
                )
                [(found_run, count, places)] = found_by_run
                assert found_run == run_id
                found_places.add((count, places))
            assert len(found_places) == 1, kind


@asynccontextmanager
async def confs_in(url: str) -> AsyncIterator[Confs]:
    settings = ConfSettings.from_environment(
        {"HOLDFAST_CONF_RETRY_DELAYS": ",".join(["0.01"] * (ATTEMPTS_MAX - 1))}
    )
    async with Holdfast(url) as hf:
        # More patience than usual, since a job that is to run alone is leased while its worker still has
        # another one: where that one kills the worker, both count as having crashed.
        usual, patient = "operation: parse\n", f"operation: parse\n    max_crashes: {CRASHES_MAX}\n"
        assert usual in playbook_text(settings)
        await hf.add_playbook(playbook_text(settings).replace(usual, patient))
        engine = await hf.engine()
        assert isinstance(engine, Engine)
        yield Confs(hf, engine, archive())


class Slaughter:
    def __init__(self, confs: Confs, fleet: Fleet, seed: str) -> None:
        self.confs = confs
        self.fleet = fleet
        self.draw = random.Random(seed)
        self.seed = seed
        self.hits_from_outside = 0

    async def play(self) -> None:
        confs = self.confs
        expected_run = await self.undisturbed()
        expected = await confs.stored(expected_run.id)
        assert (
            expected.counted == (FILES, STANZAS + FILES, expected.counted[2]) and expected.counted[2] > FILES
        )
        seconds = str(expected_run.metrics.duration_seconds)
        places = [
            self.fleet.start(SCRIPT, str(LEASE_SECONDS), "lives", self.seed, seconds) for _ in range(PLACES)
        ]
        outside = [await confs.upload(OUTSIDE) for _ in range(KILLED_FROM_OUTSIDE)]
        runs = [await confs.upload(DOOMED) for _ in range(RUNS_AT_FIRST)]
        await asyncio.gather(*(self.kill_from_outside(run_id) for run_id in outside))
        for _ in range(ROUNDS_MAX):
            for run_id in [*outside, *runs]:
                await confs.completed(run_id)
            if self.hits() >= KILLS_MIN:
                break
            runs += [await confs.upload(DOOMED) for _ in range(RUNS_MORE)]
        for worker in places:
            assert worker.stop() == 0, worker.told()
        self.tell()
        assert self.hits() >= KILLS_MIN
        for run_id in [*outside, *runs]:
            assert (await confs.shown(run_id)).status is RunStatus.COMPLETE
            assert await confs.stored(run_id) == expected, f"run {run_id}; seed {self.seed}"
        await confs.assert_words_are_there_once([expected_run.id, *outside, *runs])
        await self.assert_each_death_was_noticed(runs)
        left = list((self.fleet.folder / "spool").glob("conf-*"))
        assert len(left) <= len(self.deaths()) + self.hits_from_outside  # of those that were killed

    async def undisturbed(self) -> Run:
        worker = self.fleet.start(SCRIPT, str(LEASE_SECONDS))
        completed = await self.confs.completed(await self.confs.upload("undisturbed.tgz"))
        assert worker.stop() == 0
        assert completed.retry_count == 0
        return completed

    async def kill_from_outside(self, run_id: int) -> None:
        """The worker that has this run, once a part of it that was drawn is written."""
        rows = self.draw.randrange(STANZAS - PART_ROWS)

        async def is_so_far() -> tuple[str, str | None, int] | None:
            found = await self.confs.holder(run_id)
            return found if found[0] == "COMPLETE" or (found[0] == "PARSING" and found[2] >= rows) else None

        status, task, _ = await eventually(is_so_far, WITHIN)  # type: ignore[misc]
        leased = await self.confs.hf.queue(status="leased", execution_id=run_id)
        if status == "COMPLETE" or not leased.items:
            return  # it was quicker
        life = str(leased.items[0].worker_id)
        worker = next(worker for worker in self.fleet.started if worker.name == life.partition("-")[0])
        os.kill(worker.pid, signal.SIGUSR1)
        told = ended(self.fleet.folder, life)
        await eventually(told.exists, WITHIN)
        if told.read_text() == KILLED:  # and not by itself, a moment before
            self.hits_from_outside += (await self.confs.holder(run_id))[:2] == ("PARSING", task)

    def deaths(self) -> list[Death]:
        files = sorted((self.fleet.folder / "deaths").glob("*.*"))
        return [msgspec.json.decode(file.read_bytes(), type=Death) for file in files]

    def hits(self) -> int:
        return self.hits_from_outside + sum(death.is_parsing for death in self.deaths())

    def tell(self) -> None:
        at = Counter(f"{death.phase} {death.moment}".strip() for death in self.deaths())
        print(f"{self.hits()} kills while PARSING; from outside {self.hits_from_outside}")
        print("\n".join(f"  {place}: {count}" for place, count in sorted(at.items())))

    async def assert_each_death_was_noticed(self, runs: list[int]) -> None:
        for run_id in runs:
            events = await self.confs.engine.events(run_id, limit=1_000)
            lost = [it for it in events if it.type is EventType.LEASE_LOST and it.step == "parse"]
            done = [it for it in events if it.type is EventType.ACTION_COMPLETED and it.step == "parse"]
            deaths = [death for death in self.deaths() if death.run == run_id]
            assert len(lost) >= sum(death.is_parsing for death in deaths)
            assert 1 <= len(deaths) <= DEATHS_OF_A_RUN and len(done) == 1


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "files"))
    monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "spool"))


def test_fifty_workers_are_killed_while_they_parse_and_the_rows_are_those_of_an_undisturbed_run(
    store_url: str, tmp_path: Path
) -> None:
    seed = secrets.token_hex(4)
    print(f"seed {seed}")

    async def scenario(fleet: Fleet) -> None:
        async with confs_in(store_url) as confs, confs.hf.sweeping(LEASE_SECONDS):
            await Slaughter(confs, fleet, seed).play()

    with Fleet(tmp_path, store_url) as fleet:
        run(scenario(fleet), 400)


@pytest.mark.parametrize("heir_is", ["at work", "done"])
def test_an_attempt_that_goes_on_after_its_lease_was_lost_writes_nothing_more(
    store_url: str, tmp_path: Path, heir_is: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        async with confs_in(store_url) as confs, confs.hf.sweeping(ZOMBIE_LEASE_SECONDS):
            run_id = await confs.upload("zombie.tgz")
            count = str(random.randint(2, PARTS_MAX - 4))
            zombie = fleet.start(SCRIPT, str(ZOMBIE_LEASE_SECONDS), "waits", count)
            await eventually(lambda: waits(tmp_path, zombie.name).exists(), WITHIN)
            await freeze(store_url, zombie, WITHIN)
            zombies_task = (await confs.shown(run_id)).task_id

            heir = fleet.start(SCRIPT, str(ZOMBIE_LEASE_SECONDS), "waits", "3")
            await eventually(lambda: waits(tmp_path, heir.name).exists(), WITHIN)
            if heir_is == "done":
                may_go_on(tmp_path, heir.name).touch()
                await confs.completed(run_id)
            before = await confs.stored(run_id)
            may_go_on(tmp_path, zombie.name).touch()
            zombie.thaw()
            await eventually(lambda: refused(tmp_path, zombie.name).exists(), WITHIN)
            assert await confs.stored(run_id) == before
            assert zombie.stop() == 0, zombie.told()
            may_go_on(tmp_path, heir.name).touch()

            completed = await confs.completed(run_id)
            assert completed.task_id != zombies_task
            undisturbed = await confs.upload("undisturbed.tgz")
            await confs.completed(undisturbed)
            assert await confs.stored(run_id) == await confs.stored(undisturbed)
            await confs.assert_words_are_there_once([run_id, undisturbed])
            assert (await confs.shown(run_id)).status is RunStatus.COMPLETE
            assert heir.stop() == 0, heir.told()

    with Fleet(tmp_path, store_url) as fleet:
        run(scenario(fleet), 400)
