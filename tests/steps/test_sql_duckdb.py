"""sql steps on DuckDB: its values, and all of the worker that its SQL cannot reach."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from holdfast.core.catalogue import Category
from holdfast.core.errors import PermanentError
from holdfast.core.failures import classify, failure_from_exception
from holdfast.steps.interface import StepSettings
from sql_database import Database


@pytest.fixture
def duck(tmp_path: Path) -> Database:
    return Database("duckdb://", StepSettings(sql_folder=str(tmp_path)))


def test_values_of_duckdb(duck: Database) -> None:
    output = duck(
        "SELECT DATE '2024-01-02' AS d, TIMESTAMP '2024-01-02 03:04:05' AS t, 1.50::DECIMAL(5,2) AS dec,"
        " TIMESTAMPTZ '2024-01-02 03:04:05+00' AT TIME ZONE 'UTC' AS utc, '\\x00\\xFF'::BLOB AS b,"
        " {'a': 1, 'b': [1, NULL]} AS s, MAP([1], ['x']) AS m, INTERVAL 90 SECOND AS i, 'nan'::DOUBLE AS f,"
        " 170141183460469231731687303715884105727 AS h, '00000000-0000-0000-0000-000000000001'::UUID AS u"
    )
    assert output["data"] == [
        {
            "d": "2024-01-02",
            "t": "2024-01-02T03:04:05",
            "dec": "1.50",
            "utc": "2024-01-02T03:04:05",
            "b": "AP8=",
            "s": {"a": 1, "b": [1, None]},
            "m": {"1": "x"},
            "i": "PT90S",
            "f": "NaN",
            "h": 170141183460469231731687303715884105727,
            "u": "00000000-0000-0000-0000-000000000001",
        }
    ]
    zoned = duck("SELECT TIMESTAMPTZ '2024-01-02 03:04:05+00' AS t")["data"][0]["t"]
    assert zoned.startswith("2024-01-0") and zoned[19] in "+-"
    assert duck("SELECT :l AS l, :s AS s", {"l": [1, 2], "s": {"a": 1}})["data"] == [
        {"l": [1, 2], "s": {"a": 1}}
    ]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM glob('/*')",
        "COPY (SELECT 1) TO '{file}.out'",
        "COPY t FROM '{file}'",
        "ATTACH '{file}.db' AS o",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '{file}.dir'",
        "SELECT * FROM '{file}'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SELECT * FROM query",
    ],
)
@pytest.mark.parametrize("url", ["duckdb://", "duckdb:///user.duckdb"])
def test_duckdb_reaches_nothing_of_the_worker(tmp_path: Path, query: str, url: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n")
    db = Database(url, StepSettings(sql_folder=str(tmp_path)))
    judged = db.fails(f"CREATE TABLE IF NOT EXISTS t (a INTEGER, b INTEGER); {query.format(file=file)}")
    assert judged.category is Category.PERMANENT
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("secret")) == [
        "secret.csv"
    ]


def test_with_leave_for_code_duckdb_reads_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    trusted = Database("duckdb://", StepSettings(sql_folder=str(tmp_path), allow_code=True))
    assert trusted(f"SELECT * FROM read_csv('{tmp_path}/a.csv')")["data"] == [{"a": 1, "b": 2}]


def test_a_file_that_another_process_holds_is_transient() -> None:
    error = duckdb.IOException('IO Error: Could not set lock on file "x": Conflicting lock is held in python')
    assert classify(failure_from_exception(error)).error_type == "database_lock"
    assert (
        classify(failure_from_exception(duckdb.TransactionException("Conflict"))).error_type
        == "database_lock"
    )


def test_without_the_package_it_says_what_to_install(duck: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(PermanentError, match="no DuckDB") as raised:
        duck("SELECT 1")
    assert "holdfast[duckdb]" in str(raised.value.guidance)
