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
    ("value", "expected"),
    [
        ("'infinity'::DATE", "infinity"),
        ("'-infinity'::DATE", "-infinity"),
        ("'infinity'::TIMESTAMP", "infinity"),
        ("'-infinity'::TIMESTAMPTZ", "-infinity"),
        ("'infinity'::TIMESTAMP_NS", "infinity"),
        ("DATE '9999-12-31'", "9999-12-31"),
        ("DATE '0001-01-01'", "0001-01-01"),
        ("TIMESTAMP '9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999"),
        ("INTERVAL 1 MONTH", "P1M"),
        ("INTERVAL '14 months 3 days 100 hours 0.5 seconds'", "P14M3DT360000.5S"),
        ("INTERVAL '-14 months -3 days -00:00:00.000001'", "P-14M-3DT-0.000001S"),
        ("INTERVAL '-1 year 3 days'", "P-12M3D"),
        ("INTERVAL 0 SECOND", "PT0S"),
        ("NULL::INTERVAL", None),
    ],
)
def test_infinity_and_months_are_told_as_they_are(duck: Database, value: str, expected: str | None) -> None:
    assert duck(f"SELECT {value} AS v")["data"] == [{"v": expected}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT d, i FROM t ORDER BY n DESC",
        "SELECT d, i FROM t ORDER BY n DESC; -- and no more",
        "SELECT d, i FROM t ORDER BY n DESC -- and no more;",
        "FROM t SELECT d, i ORDER BY n DESC",
        "WITH u AS (FROM t) SELECT d, i FROM u ORDER BY n DESC",
        "(SELECT d, i FROM t ORDER BY n DESC)",
    ],
)
def test_rows_with_such_values_come_in_their_order_whatever_form_the_query_has(
    duck: Database, query: str
) -> None:
    table = (
        "CREATE TABLE t (n INTEGER, d DATE, i INTERVAL);"
        " INSERT INTO t SELECT n, DATE '2024-01-01', to_months(n::INTEGER) FROM range(1, 301) AS r(n);"
        " INSERT INTO t VALUES (0, 'infinity', NULL);"
    )
    output = duck(table + query, rows_max=1000)
    assert output["columns"] == ["d", "i"]
    expected = [{"d": "2024-01-01", "i": f"P{n}M"} for n in range(300, 0, -1)]
    assert output["data"] == [*expected, {"d": "infinity", "i": None}]


def test_such_values_are_told_beside_others_and_with_params(duck: Database) -> None:
    query = "SELECT :a AS a, 'infinity'::DATE AS a, [1, 2] AS l, {'x': :b} AS s, '\\xFF'::BLOB AS b"
    assert duck(query, {"a": "x", "b": 5})["data"] == [
        {"a": "x", "a_2": "infinity", "l": [1, 2], "s": {"x": 5}, "b": "/w=="}
    ]


def test_what_writes_is_not_asked_again(duck: Database) -> None:
    query = (
        "CREATE TABLE t (d DATE); INSERT INTO t VALUES ('infinity') RETURNING d; SELECT count(*) AS n FROM t"
    )
    assert duck(query)["data"] == [{"n": 1}]


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


def test_a_query_that_changes_something_is_asked_once(duck: Database) -> None:
    drawn = "SELECT nextval('s') AS id, INTERVAL 1 DAY AS age"
    output = duck(f"CREATE SEQUENCE s; {drawn}; {drawn}")
    assert output["data"] == [{"id": 2, "age": "P1D"}]
