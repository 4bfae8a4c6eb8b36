"""The database behind the commands: missing, old, broken, away; migrate and doctor."""

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from command_scenario import holdfast, holdfast_meanwhile, told
from engine_scenario import Scenario, stage
from holdfast import Context, Holdfast
from holdfast.core.model import Lane, WorkerRecord
from holdfast.store.queries import load_migrations
from running import eventually, run
from store_scenario import opened, raw

AWAY = "postgresql://ann:hunter2@127.0.0.1:1/name"
LOOKING = (
    ("status",),
    ("queue",),
    ("executions",),
    ("dead",),
    ("cancel", 1),
    ("submit", "mail"),
    ("retry", 1),
)


def findings(url: str) -> dict[str, list[tuple[str, str]]]:
    """What doctor says, as (level, sentence) by check."""
    found: dict[str, list[tuple[str, str]]] = {}
    for item in holdfast(url, "doctor", "--json").json["findings"]:
        found.setdefault(item["check"], []).append((item["level"], item["message"]))
    return found


def first_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database as the first version of the schema left it."""
    dialect = url.partition(":")[0]
    module = "holdfast.store.sqlite" if dialect == "sqlite" else "holdfast.store.postgres"

    async def make() -> None:
        async with opened(url):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.load_migrations", lambda _: load_migrations(dialect)[:1])
        run(make())


# reaching it


def test_a_missing_file_is_not_made_by_looking_for_it(tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    for command in LOOKING:
        said = holdfast(f"sqlite:///{missing}", *command)
        assert (said.code, said.out) == (3, ""), said
        assert "There is no database" in said.err and "--db or HOLDFAST_DB" in said.err
    assert not missing.exists()


def test_a_database_that_is_away_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database at all, " * 100)
    for url in (AWAY, f"sqlite:///{tmp_path / 'text.db'}"):
        for command in (("status",), ("migrate",), ("migrate", "--check")):
            said = holdfast(url, *command)
            assert said.code == 3 and said.err.startswith("holdfast: "), said
            assert "hunter2" not in said.err
        said = holdfast(url, "queue", "--json")
        assert said.code == 3 and said.err == "" and said.json["error"]["guidance"]
    assert holdfast("mysql://host/name", "status").code == 2


def test_the_address_comes_from_the_environment_or_is_the_default(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert "There is no database holdfast.db" in holdfast(None, "queue").err
    assert holdfast(None, "migrate").code == 0
    assert holdfast(None, "queue").code == 0
    assert "other.db" in holdfast(None, "queue", HOLDFAST_DB="sqlite:///other.db").err
    assert holdfast("sqlite:///holdfast.db", "queue", HOLDFAST_DB="sqlite:///other.db").code == 0


# migrate


def test_migrate_says_from_where_to_where(unserved_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = len(load_migrations(unserved_url.partition(":")[0]))
    said = holdfast(unserved_url, "migrate", "--check")
    assert said.code == 1 and "has no tables of Holdfast yet" in said.out
    first_version(unserved_url, monkeypatch)
    said = holdfast(unserved_url, "migrate", "--check", "--json")
    assert said.code == 1
    assert said.json == {"from": 1, "to": 1, "known": known, "check": True}
    said = holdfast(unserved_url, "migrate")
    assert (said.code, said.out) == (0, f"Migrated from schema version 1 to {known}.\n")
    for options in ((), ("--check",)):
        said = holdfast(unserved_url, "migrate", *options)
        assert said.code == 0 and "nothing to do" in said.out


def test_a_new_database_is_made_by_migrate(unserved_url: str) -> None:
    said = holdfast(unserved_url, "migrate", "--json")
    assert said.code == 0 and said.json["from"] == 0 and said.json["to"] == said.json["known"]
    assert holdfast(unserved_url, "queue").out == "No jobs.\n"


def test_a_schema_from_the_future_is_refused(sqlite_url: str) -> None:
    holdfast(sqlite_url, "migrate")
    run(raw(sqlite_url, "INSERT INTO holdfast_schema VALUES (99, 0)"))
    for command in (("migrate",), ("migrate", "--check"), ("status",)):
        said = holdfast(sqlite_url, *command)
        assert said.code == 3 and "newer Holdfast" in said.err, said
    assert findings(sqlite_url)["schema"][0][0] == "bad"


# doctor


async def announced(url: str, *workers: tuple[str, tuple[str, ...], float]) -> None:
    """Workers with their handlers, said to be silent for no longer than so many seconds."""
    async with Holdfast(url) as hf:
        engine = await hf.engine()
        now = await engine.store.now()
        for worker_id, handlers, seconds in workers:
            await engine.announce(
                WorkerRecord(
                    worker_id=worker_id,
                    host="host",
                    pid=1,
                    version="0",
                    concurrency=4,
                    lanes=tuple(Lane),
                    handlers=handlers,
                    started_at=now,
                    announce_seconds=seconds,
                )
            )


def test_a_healthy_installation_is_all_well(sqlite_url: str) -> None:
    holdfast(sqlite_url, "migrate")
    run(announced(sqlite_url, ("w1", ("mail/parse",), 600.0)))
    said = holdfast(sqlite_url, "doctor")
    assert said.code == 0 and said.out.endswith("All is well.\n"), said
    assert "1 living worker with 4 slots: w1." in said.out
    found = findings(sqlite_url)
    assert {level for checks in found.values() for level, _ in checks} == {"ok"}
    assert list(found) == [
        *("database", "version", "durability", "schema", "clock"),
        *("workers", "versions", "waiting", "leases", "dead"),
    ]


def test_doctor_finds_what_waits_is_stuck_has_vanished_or_died(store_url: str) -> None:
    async def story(s: Scenario) -> None:
        await s.define(stage("parse", attempts=1, path="mail"), path="mail")
        for _ in range(3):
            await s.submit(path="mail")
        failed, _ = await s.lease(2)  # the other one stays leased, in 1970
        await s.fail(failed)

    told(store_url, story)
    run(announced(store_url, ("w1", ("other",), 600.0), ("w2", ("mail/parse",), -1.0)))
    said = holdfast(store_url, "doctor")
    assert said.code == 1
    found = findings(store_url)
    [(level, sentence)] = found["waiting"]
    assert level == "bad"
    assert re.match(r"1 job waits for mail/parse \(bulk lane\), which no living worker offers;", sentence)
    assert "Start the program that defines mail:  holdfast worker --app your_module:hf" in said.out
    assert found["workers"][0] == ("ok", "1 living worker with 4 slots: w1.")
    assert found["workers"][1][0] == "warn" and "w2 was last seen" in found["workers"][1][1]
    assert (
        found["leases"][0][0] == "bad" and "1 job is leased by a worker that is gone" in found["leases"][0][1]
    )
    assert found["dead"] == [("warn", "1 execution failed and waits for somebody.")]


def test_doctor_finds_a_fleet_that_takes_nothing(store_url: str) -> None:
    async def leased(s: Scenario) -> None:
        await s.define(stage("parse", path="mail"), path="mail")
        for _ in range(3):
            await s.submit(path="mail")
        await s.lease(2, worker="dispatcher:d1", untaken=True)  # in 1970

    async def taken() -> None:
        async with Holdfast(store_url) as hf:
            engine = await hf.engine()
            assert len((await engine.lease("celery:c1", ["mail/parse"], 1)).jobs) == 1

    told(store_url, leased)
    assert "fleet" not in findings(store_url)
    run(announced(store_url, ("dispatcher:d1", ("mail/parse",), 600.0)))
    [(level, sentence)] = findings(store_url)["fleet"]
    assert level == "warn" and sentence.startswith("2 attempts wait in the broker, the oldest for ")
    run(taken())
    assert findings(store_url)["fleet"] == [("ok", "2 attempts wait in the broker.")]


def test_doctor_tells_how_postgresql_keeps_its_promises(postgres_url: str) -> None:
    holdfast(postgres_url, "migrate")
    found = findings(postgres_url)
    assert re.match(r"PostgreSQL \d+", found["version"][0][1])
    assert found["durability"][0][0] == "bad"  # the tests' own server runs without fsync
    assert "fsync=off" in found["durability"][0][1]
    assert found["clock"][0][0] == "ok"
    assert found["workers"] == [("warn", "No worker lives.")]


def test_doctor_never_migrates(unserved_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if unserved_url.startswith("postgresql"):
        assert findings(unserved_url)["schema"] == [("bad", "There are no tables of Holdfast in it.")]
    first_version(unserved_url, monkeypatch)
    for _ in range(2):
        [(level, sentence)] = findings(unserved_url)["schema"]
        assert level == "bad" and sentence.startswith("Version 1;")
    assert holdfast(unserved_url, "migrate", "--check", "--json").json["from"] == 1


def test_doctor_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.db").write_text("not a database at all, " * 100)
    for url in (
        AWAY,
        f"sqlite:///{tmp_path / 'text.db'}",
        f"sqlite:///{tmp_path / 'none.db'}",
        "mysql://x/y",
    ):
        said = holdfast(url, "doctor")
        assert said.code == 1 and said.out.startswith("bad   database"), said
        assert "hunter2" not in said.out
        assert holdfast(url, "doctor", "--json").json["ok"] is False
    assert not (tmp_path / "none.db").exists()
    good = f"sqlite:///{tmp_path / 'good.db'}"
    holdfast(good, "migrate")

    async def broken(_: Any) -> None:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr("holdfast.engine.Engine.overview", broken)
    assert "nobody expected this" in findings(good)["work"][0][1]


def test_a_file_of_another_program_is_left_alone_and_nobody_is_told_to_migrate_it(tmp_path: Path) -> None:
    file = tmp_path / "theirs.db"
    theirs = apsw.Connection(str(file))
    theirs.execute("CREATE TABLE jobs (x); CREATE TABLE other (x)")
    theirs.close()
    before = file.read_bytes()
    url = f"sqlite:///{file}"
    said = holdfast(url, "doctor")
    assert said.code == 1 and "migrate" not in said.out and "WAL" not in said.out
    assert "another program, whose tables have names that Holdfast needs: jobs." in said.out
    assert "Give Holdfast a file of its own (--db, HOLDFAST_DB)" in said.out
    for options in ((), ("--check",)):
        said = holdfast(url, "migrate", *options)
        assert said.code == 3 and "has tables of another program" in said.err and said.out == ""
    assert file.read_bytes() == before
    theirs = apsw.Connection(str(file))
    theirs.execute("DROP TABLE jobs")  # what is left has no name of ours, and may live beside it
    theirs.close()
    assert "If so:  holdfast migrate" in holdfast(url, "doctor").out
    assert holdfast(url, "migrate").code == 0


def test_jobs_that_wait_to_run_alone_are_explained(store_url: str) -> None:
    async def story(s: Scenario) -> None:
        await s.define(stage("parse", path="mail"), path="mail")
        for _ in range(2):
            await s.submit(path="mail")
        await s.lease()
        await s.lose()

    told(store_url, story)
    words = "2 jobs wait to run alone, one at a time in each worker process: their worker was lost before."
    assert "run alone" not in holdfast(store_url, "status").out  # nobody is there to run them at all
    run(announced(store_url, ("w1", ("mail/parse",), 600.0)))
    said = holdfast(store_url, "status")
    assert f"  {words}\n    More processes (--processes), or isolation" in said.out
    assert holdfast(store_url, "status", "--json").json["alone"] == 2
    assert ("warn", words) in findings(store_url)["waiting"]


def test_doctor_finds_a_locked_database_and_a_clock_that_went_back(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.inspection.BUSY_TIMEOUT_MS", 10)
    holdfast(sqlite_url, "migrate")
    other = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    other.execute("BEGIN IMMEDIATE")
    found = findings(sqlite_url)
    assert found["database"][0][0] == "bad" and "locked" in found["database"][0][1]
    assert found["work"] == [("warn", "Workers and work were not looked at.")]
    other.execute("ROLLBACK")
    other.close()
    run(raw(sqlite_url, "INSERT INTO events (execution_id, at, body) VALUES (1, 99999999999.0, '[]')"))
    [(level, sentence)] = findings(sqlite_url)["clock"]
    assert level == "warn" and "in the future" in sentence


def test_a_worker_of_a_program_is_known_to_the_commands(store_url: str) -> None:
    """From a program's pipeline to doctor's word, through the registry."""
    hf = Holdfast(store_url)

    async def handle(ctx: Context) -> None: ...

    hf.pipeline("mail", [handle])

    async def main() -> None:
        async with hf, hf.working(worker_id="the-worker"):
            store = (await hf.engine()).store
            await eventually(lambda: store.workers(1))
            record = (await holdfast_meanwhile(store_url, "status", "--json")).json
            assert [worker["worker_id"] for worker in record["workers"]] == ["the-worker"]
            assert "mail/handle" in record["workers"][0]["handlers"]

    run(main())
    assert holdfast(store_url, "status", "--json").json["workers"] == []
