"""sql steps on SQLite: its values, its locks, and what a query of it can reach."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.core.catalogue import Category
from holdfast.steps.interface import StepSettings
from running import run
from sql_database import Database


@pytest.fixture
def lite(tmp_path: Path) -> Database:
    return Database("sqlite:///user.db", StepSettings(sql_folder=str(tmp_path)))


def test_values_of_sqlite(lite: Database) -> None:
    output = lite(
        "SELECT x'00ff' AS b, 9e999 AS f, -9e999 AS g, 9223372036854775807 AS i, 'a' || char(0) AS n"
    )
    assert output["data"] == [
        {"b": "AP8=", "f": "Infinity", "g": "-Infinity", "i": 9223372036854775807, "n": "a\ufffd"}
    ]
    assert lite("SELECT :l AS l, :b AS b", {"l": [1, {"a": "é"}], "b": True})["data"] == [
        {"l": '[1, {"a": "é"}]', "b": 1}
    ]
    assert lite.fails("SELECT :i", {"i": 2**70}).error_type == "validation_error"


def test_triggers_are_one_statement(lite: Database) -> None:
    lite(
        "CREATE TABLE t (i); CREATE TABLE log (i);"
        " CREATE TRIGGER tr AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.i); SELECT 1; END;"
        " INSERT INTO t VALUES (5)"
    )
    assert lite("SELECT i FROM log")["data"] == [{"i": 5}]


def test_a_trigger_ends_where_sqlite_has_it_end(lite: Database) -> None:
    lite(
        "CREATE TABLE t (i); CREATE TABLE log (i);"
        " CREATE TEMP TRIGGER a AFTER INSERT ON main.t BEGIN"
        " INSERT INTO log SELECT CASE WHEN new.i > 1 THEN 'END' END; /* END; */ SELECT 1; END ;"
        " INSERT INTO t VALUES (5)"
    )
    assert lite("SELECT i FROM log")["data"] == [{"i": "END"}]


def test_a_trigger_of_many_statements_is_taken_apart_in_one_pass(lite: Database) -> None:
    # Read anew for each of its statements this would take hours.
    assert lite.fails("CREATE TRIGGER x AFTER INSERT ON y BEGIN " + "a;" * 200_000).error_type == (
        "validation_error"
    )


def test_pragmas_come_before_the_transaction(lite: Database) -> None:
    output = lite(
        "PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; CREATE TABLE t (i); PRAGMA foreign_keys"
    )
    assert output["data"] == [{"foreign_keys": 1}]
    assert lite("PRAGMA journal_mode")["data"] == [{"journal_mode": "wal"}]
    lite("VACUUM")


def test_a_locked_file_is_transient(lite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.steps import sql_sqlite

    lite("CREATE TABLE t (i)")
    monkeypatch.setattr(sql_sqlite, "BUSY_SECONDS_MAX", 0.05)
    other = apsw.Connection(str(tmp_path / "user.db"))
    try:
        other.execute("BEGIN EXCLUSIVE")
        judged = lite.fails("INSERT INTO t VALUES (1)")
    finally:
        other.close(True)
    assert (judged.error_type, judged.category) == ("database_lock", Category.TRANSIENT)


def test_a_file_that_is_no_database(lite: Database, tmp_path: Path) -> None:
    (tmp_path / "user.db").write_bytes(b"no database, and long enough to be looked at" * 100)
    assert lite.fails("SELECT * FROM t").category is Category.PERMANENT


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH '{other}' AS o",
        "ATTACH 'file:{other}' AS o",
        "VACUUM INTO '{new}'",
        "SELECT load_extension('{other}')",
        "PRAGMA temp_store_directory = '/'",
        "PRAGMA hard_heap_limit = 1",
        "PRAGMA soft_heap_limit = 1",
        "PRAGMA busy_timeout = 2147483647",
    ],
)
def test_a_query_stays_in_its_file(lite: Database, tmp_path: Path, query: str) -> None:
    other, new = tmp_path / "other.db", tmp_path / "new.db"
    apsw.Connection(str(other)).execute("CREATE TABLE secret (i)")
    lite("CREATE TABLE t (i)")
    judged = lite.fails(query.format(other=other, new=new))
    assert judged.error_type == "target_forbidden", judged
    assert not new.exists()
    assert lite.fails("ATTACH :f AS o", {"f": str(other)}).error_type == "target_forbidden"


def test_with_leave_for_code_it_may_reach_further(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    apsw.Connection(str(other)).execute("CREATE TABLE known (i)")
    trusted = Database("sqlite:///in/user.db", StepSettings(sql_folder=str(tmp_path), allow_code=True))
    (tmp_path / "in").mkdir()
    assert trusted(f"ATTACH '{other}' AS o; SELECT count(*) AS n FROM o.known")["data"] == [{"n": 0}]


def test_holdfasts_own_database_is_left_alone(sqlite_url: str, tmp_path: Path) -> None:
    from holdfast.store import store_from_url

    async def make() -> None:
        store = store_from_url(sqlite_url)
        await store.open()
        await store.close()

    run(make())
    own = Database(sqlite_url, StepSettings(sql_folder=str(tmp_path)))
    assert own.fails("DELETE FROM jobs").error_type == "target_forbidden"


@pytest.mark.parametrize("name", ["holdfast.db-wal", "user.db-journal", "user.db-shm", "user.db-WAL"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_what_sqlite_keeps_beside_a_database_is_none(tmp_path: Path, kind: str, name: str) -> None:
    # An empty write-ahead log would pass for an empty database; a journal can name files to be deleted.
    (tmp_path / name).touch()
    beside = Database(f"{kind}:///{name}", StepSettings(sql_folder=str(tmp_path)))
    assert beside.fails("CREATE TABLE t (i)").error_type == "target_forbidden"
    assert (tmp_path / name).stat().st_size == 0


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_files_lie_in_the_folder_of_the_setting(tmp_path: Path, kind: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    (inside / "link.db").symlink_to(tmp_path / "outside.db")
    settings = StepSettings(sql_folder=str(inside))
    for name in ("../outside.db", f"{tmp_path}/outside.db", "link/outside.db", "link.db", "/etc/passwd"):
        assert Database(f"{kind}:///{name}", settings).fails("SELECT 1").error_type == "target_forbidden", (
            name
        )
    assert not (tmp_path / "outside.db").exists()
    assert Database(f"{kind}:///{inside}/ok.db", settings)("SELECT 1 AS a")["data"] == [{"a": 1}]
    allowed = StepSettings(sql_folder=str(inside), allow_code=True)
    assert Database(f"{kind}:///{tmp_path}/outside.db", allowed)("SELECT 1 AS a")["data"] == [{"a": 1}]
    for name in ("missing/x.db", "", "."):
        judged = Database(f"{kind}:///{name}", settings)
        if name == "":
            assert judged("SELECT 1 AS a")["data"] == [{"a": 1}]
        else:
            assert judged.fails("SELECT 1").error_type == "validation_error", name
