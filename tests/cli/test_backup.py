"""`holdfast backup` and `holdfast restored`: what they make, say and refuse."""

import asyncio
import os
import stat
from pathlib import Path

import apsw
import pytest

from command_scenario import holdfast, on_a_terminal, told
from engine_scenario import Scenario, stage
from holdfast import Holdfast
from holdfast.core.errors import InvalidInput
from holdfast.store import sqlite_backup
from holdfast.store.numbering import NUMBERS_LEFT_OUT
from holdfast.store.queries import load_migrations
from running import run
from store_scenario import raw


async def one_leased_of_three(s: Scenario) -> None:
    await s.define(stage("parse", path="mail"), path="mail")
    for _ in range(3):
        await s.submit(path="mail")
    await s.lease_one()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(url: str, name: str) -> None:
    """Where this table or index begins."""
    [(root,)] = run(raw(url, f"SELECT rootpage FROM sqlite_schema WHERE name = '{name}'"))
    [(size,)] = run(raw(url, "PRAGMA page_size"))
    with Path(url.removeprefix("sqlite:///")).open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


# backup


def test_a_backup_is_one_checked_file_with_all_that_is_in_the_database(
    sqlite_url: str, tmp_path: Path
) -> None:
    told(sqlite_url, one_leased_of_three)
    (tmp_path / "copies").mkdir()
    file = tmp_path / "copies" / "it.db"
    writing = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    writing.execute("BEGIN IMMEDIATE; CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    said = holdfast(sqlite_url, "backup", file, "--json")  # and does not wait for whoever writes
    writing.execute("COMMIT")
    writing.close()
    assert said.code == 0
    assert said.json == {
        "file": str(file),
        "bytes": file.stat().st_size,
        "schema_version": len(load_migrations("sqlite")),
    }
    assert files(tmp_path / "copies") == ["it.db"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    copy = f"sqlite:///{file}"
    for table in ("executions", "jobs", "events"):
        rows = f"SELECT * FROM {table} ORDER BY id"
        assert run(raw(copy, rows)) == run(raw(sqlite_url, rows)) != []
    assert run(raw(copy, "SELECT count(*) FROM sqlite_schema WHERE name = 'theirs'")) == [(0,)]
    assert run(raw(copy, "PRAGMA integrity_check")) == [("ok",)]
    assert run(raw(copy, "PRAGMA journal_mode")) == [("delete",)]
    assert holdfast(copy, "queue", "--json").json["items"]


def test_a_backup_tells_in_words_what_it_made(sqlite_url: str, tmp_path: Path) -> None:
    holdfast(sqlite_url, "migrate")
    said = holdfast(sqlite_url, "backup", tmp_path / "it.db")
    assert said.code == 0 and f"to {tmp_path / 'it.db'}: " in said.out and "schema version" in said.out


def test_what_is_there_is_never_replaced(sqlite_url: str, tmp_path: Path) -> None:
    holdfast(sqlite_url, "migrate")
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / "old.db").write_text("the last good one")
    (folder / "dangling.db").symlink_to(tmp_path / "nowhere")
    for name in ("old.db", "dangling.db"):
        said = holdfast(sqlite_url, "backup", folder / name)
        assert said.code == 2 and "left as it is" in said.err, said
    assert (folder / "old.db").read_text() == "the last good one"
    own = sqlite_url.removeprefix("sqlite:///")
    assert holdfast(sqlite_url, "backup", own).code == 2
    assert files(folder) == ["dangling.db", "old.db"]


@pytest.mark.parametrize("can_link", [True, False])
def test_what_appears_while_the_copy_is_made_is_not_replaced_either(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    holdfast(sqlite_url, "migrate")
    folder = tmp_path / "copies"
    folder.mkdir()
    check = sqlite_backup._check

    def check_and_be_late(partial: Path) -> None:
        check(partial)
        (folder / "it.db").write_text("somebody else's")

    def no_links(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(sqlite_backup, "_check", check_and_be_late)
    if not can_link:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(InvalidInput, match="already"):
        sqlite_backup.back_up(Path(sqlite_url.removeprefix("sqlite:///")), folder / "it.db")
    assert files(folder) == ["it.db"] and (folder / "it.db").read_text() == "somebody else's"


def test_a_file_system_without_links_gets_its_backup_too(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holdfast(sqlite_url, "migrate")

    def no_links(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "copies").mkdir()
    assert holdfast(sqlite_url, "backup", tmp_path / "copies" / "it.db").code == 0
    assert files(tmp_path / "copies") == ["it.db"]


def test_what_cannot_be_copied_or_written_leaves_nothing_behind(sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    said = holdfast(sqlite_url, "backup", folder / "it.db")
    assert said.code == 3 and "There is no database" in said.err
    holdfast(sqlite_url, "migrate")
    said = holdfast(sqlite_url, "backup", tmp_path / "none" / "it.db")
    assert said.code == 3 and "could not be written" in said.err and "No backup was made" in said.err
    theirs = apsw.Connection(str(tmp_path / "theirs.db"))
    theirs.execute("CREATE TABLE x (y)")
    theirs.close()
    (tmp_path / "text.db").write_text("no database at all, " * 100)
    for name, words in (("theirs.db", "no tables of Holdfast"), ("text.db", "not a SQLite database")):
        said = holdfast(f"sqlite:///{tmp_path / name}", "backup", folder / "it.db")
        assert said.code == 3 and words in said.err and name in said.err, said
    assert files(folder) == []


def test_a_damaged_database_makes_no_backup_that_looks_whole(sqlite_url: str, tmp_path: Path) -> None:
    told(sqlite_url, one_leased_of_three)
    damage(sqlite_url, "jobs")
    folder = tmp_path / "copies"
    folder.mkdir()
    said = holdfast(sqlite_url, "backup", folder / "it.db")
    assert said.code == 3 and "damaged" in said.err, said
    assert files(folder) == []


def test_a_server_makes_no_backup_and_postgresql_has_its_own_tools(postgres_url: str, tmp_path: Path) -> None:
    said = holdfast("http://127.0.0.1:1", "backup", tmp_path / "it.db")
    assert said.code == 2 and "with --db" in said.err
    said = holdfast(postgres_url, "backup", tmp_path / "a file.db")
    assert said.code == 2
    assert f"pg_dump --format=custom --file='{tmp_path}/a file.db' 'postgresql://" in said.err
    secret = "postgresql://ann:hunter2@host/name"
    assert "hunter2" not in holdfast(secret, "backup", tmp_path / "it.db").err
    assert files(tmp_path) == []


# restored


def test_restored_gives_back_what_ran_and_leaves_numbers_out(unserved_url: str) -> None:
    told(unserved_url, one_leased_of_three)
    said = holdfast(unserved_url, "restored", "--yes", "--json")
    assert said.code == 0 and said.json == {"given_back": 1, "left_out": NUMBERS_LEFT_OUT}
    jobs = holdfast(unserved_url, "queue", "--json").json["items"]
    assert [(job["status"], job["attempts"]) for job in jobs] == [("queued", 0)] * 3
    said = holdfast(unserved_url, "restored", "--yes")
    assert said.code == 0 and said.out.startswith("0 attempts were given back; 10,000,000,000 numbers")
    assert holdfast(unserved_url, "submit", "mail", "--json").json["id"] > 2 * NUMBERS_LEFT_OUT


def test_restored_asks_first(sqlite_url: str) -> None:
    told(sqlite_url, one_leased_of_three)
    code, shown = on_a_terminal(sqlite_url, "restored", answer="n\n")
    assert code == 1 and "1 job is leased in it." in shown and "Nothing was changed." in shown
    assert holdfast(sqlite_url, "status", "--json").json["jobs"]["leased"]["bulk"] == 1
    code, shown = on_a_terminal(sqlite_url, "restored", answer="y\n")
    assert code == 0 and "1 attempt was given back" in shown


def test_restored_is_refused_where_it_cannot_ask_or_there_is_nothing(sqlite_url: str) -> None:
    assert holdfast(sqlite_url, "restored", "--yes").code == 3
    holdfast(sqlite_url, "migrate")
    said = holdfast(sqlite_url, "restored", "--json")
    assert said.code == 2 and "--yes" in said.json["error"]["message"]
    assert holdfast(sqlite_url, "restored").code == 2
    said = holdfast("http://127.0.0.1:1", "restored", "--yes")
    assert said.code == 2 and "Stop the server" in said.err


def test_a_damaged_database_is_not_gone_on_with(sqlite_url: str) -> None:
    told(sqlite_url, one_leased_of_three)
    damage(sqlite_url, "holdfast_audit_target")
    said = holdfast(sqlite_url, "restored", "--yes")
    assert said.code == 3 and "is damaged" in said.err and "copy the backup to the name" in said.err
    assert holdfast(sqlite_url, "status", "--json").json["jobs"]["leased"]["bulk"] == 1


def test_a_process_that_was_forgotten_does_no_harm_to_what_is_put_back(
    sqlite_url: str, tmp_path: Path
) -> None:
    """In the place of the old database, as the how-to says."""
    told(sqlite_url, one_leased_of_three)
    path, copy, lost = Path(sqlite_url.removeprefix("sqlite:///")), tmp_path / "copy.db", tmp_path / "lost"
    assert holdfast(sqlite_url, "backup", copy).code == 0

    def put_back() -> None:
        lost.mkdir()
        for file in path.parent.glob(f"{path.name}*"):
            file.rename(lost / file.name)
        path.write_bytes(copy.read_bytes())

    async def story() -> None:
        async with Holdfast(sqlite_url) as forgotten:
            for _ in range(50):
                await forgotten.submit("mail", {"text": "x" * 5_000})
            put_back()
            said = await asyncio.to_thread(holdfast, sqlite_url, "restored", "--yes", "--json")
            assert said.json["given_back"] == 1
            await forgotten.submit("mail", {"text": "to nowhere"})

    run(story())  # it writes its log into its file as it ends
    assert run(raw(sqlite_url, "PRAGMA integrity_check")) == [("ok",)]
    assert run(raw(sqlite_url, "SELECT count(*) FROM executions")) == [(3,)]
