"""sql steps on all three databases: the same config, the same output."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.core.catalogue import Category
from holdfast.core.errors import PermanentError
from holdfast.core.payload import encode_payload
from holdfast.steps import sql
from holdfast.steps.interface import StepCall, StepSettings
from running import eventually, run
from sql_database import Database


@pytest.fixture(params=["sqlite", "postgresql", "duckdb"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    settings = StepSettings(sql_folder=str(tmp_path))
    if request.param == "postgresql":
        return Database(request.getfixturevalue("postgres_url"), settings)
    return Database(f"{request.param}:///user.db", settings)


@pytest.fixture
def table(db: Database) -> Database:
    db("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price DOUBLE PRECISION)")
    return db


# ── what all three have in common ────────────────────────────────────────────────────────────────


def test_rows_are_mappings_by_column(table: Database) -> None:
    changed = table("INSERT INTO item VALUES (1, 'one', 1.5), (2, 'two', NULL)")
    assert changed == {"columns": [], "row_count": 2, "data": [], "truncated": False}
    output = table("SELECT id, name, price FROM item ORDER BY id")
    assert output == {
        "columns": ["id", "name", "price"],
        "row_count": 2,
        "data": [{"id": 1, "name": "one", "price": 1.5}, {"id": 2, "name": "two", "price": None}],
        "truncated": False,
    }
    assert table("UPDATE item SET price = 0 WHERE id = 7")["row_count"] == 0
    assert table("DELETE FROM item")["row_count"] == 2


def test_no_rows_have_columns_too(table: Database) -> None:
    assert table("SELECT id, name FROM item") == {
        "columns": ["id", "name"], "row_count": 0, "data": [], "truncated": False,
    }  # fmt: skip


HOSTILE = "'); DROP TABLE item; --"


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("INSERT INTO item (id, name) VALUES (:id, :name)", {"id": 1, "name": HOSTILE, "unused": 1}),
        ("INSERT INTO item (id, name) VALUES ($id, $name)", {"id": 1, "name": HOSTILE}),
        ("INSERT INTO item (id, name) VALUES (?, ?)", [1, HOSTILE]),
        ("INSERT INTO item (name, id) VALUES ($2, $1)", [1, HOSTILE]),
    ],
)
def test_params_are_bound_and_never_pasted(table: Database, query: str, params: Any) -> None:
    assert table(query, params)["row_count"] == 1
    found = table("SELECT name FROM item WHERE name = :name AND id = :id", {"name": HOSTILE, "id": 1})
    assert found["data"] == [{"name": HOSTILE}]


def test_texts_are_taken_for_what_the_column_is(db: Database) -> None:
    db("CREATE TABLE day (d DATE, n INTEGER)")
    db("INSERT INTO day VALUES (:d, :n)", {"d": "2024-02-29", "n": "5"})
    found = db("SELECT d, n FROM day WHERE d = :d AND n = :n", {"d": "2024-02-29", "n": 5})
    assert found["data"] == [{"d": "2024-02-29", "n": 5}]


def test_null_and_booleans_are_values(db: Database) -> None:
    db("CREATE TABLE flag (id INTEGER, yes BOOLEAN)")
    db("INSERT INTO flag VALUES (1, :a)", {"a": True})
    db("INSERT INTO flag VALUES (2, :a)", {"a": None})
    assert [bool(row["yes"]) for row in db("SELECT yes FROM flag ORDER BY id")["data"]] == [True, False]
    assert db("SELECT count(*) AS n FROM flag WHERE yes IS NULL")["data"] == [{"n": 1}]


def test_two_columns_of_one_name_are_both_told(db: Database) -> None:
    output = db("SELECT 1 AS id, 2 AS id, 3 AS id")
    assert output["data"] == [{"id": 1, "id_2": 2, "id_3": 3}]


def test_the_last_statement_of_several_gives_the_rows(db: Database) -> None:
    output = db("CREATE TABLE t (i INTEGER); INSERT INTO t VALUES (1), (2); SELECT i FROM t ORDER BY i;")
    assert output["data"] == [{"i": 1}, {"i": 2}]
    assert db("SELECT 1 AS a; INSERT INTO t VALUES (3)")["row_count"] == 1


def test_several_statements_are_one_transaction(table: Database) -> None:
    judged = table.fails("INSERT INTO item VALUES (1, 'one', 1); INSERT INTO item VALUES (1, 'again', 1)")
    assert judged.error_type == "validation_error"
    assert table("SELECT * FROM item")["row_count"] == 0
    table("BEGIN; INSERT INTO item VALUES (1, 'one', 1); COMMIT")
    assert table("SELECT * FROM item")["row_count"] == 1


def test_rows_are_cut_at_the_limit_and_it_is_told(db: Database) -> None:
    numbers = {
        "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        # Both would fill the memory if they were fetched whole.
        "postgresql": "SELECT generate_series(1, 100000000000) AS i",
        "duckdb": "SELECT i FROM range(1, 1000000000000) AS r(i)",
    }[db.kind]
    output = db(numbers, rows_max=250)
    assert (output["row_count"], output["truncated"]) == (250, True)
    assert output["data"][-1] == {"i": 250}
    assert db("SELECT 1 AS a UNION ALL SELECT 2", rows_max=2)["truncated"] is False


def test_all_is_done_where_the_rows_that_tell_it_are_cut(table: Database) -> None:
    output = table("INSERT INTO item VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3) RETURNING id", rows_max=1)
    assert (output["data"], output["truncated"]) == ([{"id": 1}], True)
    assert table("SELECT count(*) AS n FROM item")["data"] == [{"n": 3}]


def test_a_result_that_cannot_be_stored_is_refused_and_undone(table: Database) -> None:
    query = "INSERT INTO item VALUES (1, :long, 1) RETURNING name"
    settings = StepSettings(sql_folder=table.settings.sql_folder, payload_bytes_max=100_000)
    small = Database(table.url, settings)
    judged = small.fails(query, {"long": "x" * 200_000})
    assert (judged.error_type, judged.category) == ("result_too_large", Category.PERMANENT)
    assert "rows_max" in judged.guidance


@pytest.mark.parametrize(
    "query", ["SELEC 1", "SELECT * FROM missing", "SELECT missing FROM item", "SELECT ("]
)
def test_a_wrong_query_is_permanent(table: Database, query: str) -> None:
    judged = table.fails(query)
    assert (judged.error_type, judged.category) == ("validation_error", Category.PERMANENT)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"query": ""}, "empty"),
        ({"query": " -- nothing\n;"}, "empty"),
        ({"query": 5}, "text"),
        ({"query": "SELECT '\0'"}, "NUL"),
        ({"query": "SELECT 1; SELECT :a", "params": {"a": 1}}, "2 statements and params"),
        ({"params": "a"}, "mapping or a list"),
        ({"params": 5}, "mapping or a list"),
        ({"query": "SELECT :b", "params": {"a": 1}}, ":b"),
        ({"query": "SELECT ?", "params": [1, 2]}, "1 values"),
        ({"rows_max": 0}, "rows_max"),
        ({"rows_max": "10"}, "rows_max"),
        ({"url": None}, "url"),
        ({"query": "SELECT 1; ROLLBACK"}, "one transaction"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(db: Database, config: dict[str, Any], words: str) -> None:
    with pytest.raises(PermanentError, match=words) as raised:
        run(sql.run(StepCall(config={"url": db.url, "query": "SELECT 1", **config}, settings=db.settings)))
    assert raised.value.error_type == "validation_error"


@pytest.mark.parametrize(
    "url", ["mysql://h/x", "nonsense", "", "sqlite:file.db", "sqlite://file.db", "postgresql://h/x"]
)
def test_an_address_of_no_database_is_refused(url: str) -> None:
    with pytest.raises(PermanentError) as raised:
        run(sql.run(StepCall(config={"url": url, "query": "SELECT 1"})))
    assert raised.value.error_type == "validation_error"


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(3600)",
    "duckdb": "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c"
    " WHERE a.range + b.range + c.range = -1",
}


def test_a_cancelled_attempt_interrupts_the_database_and_keeps_nothing(table: Database) -> None:
    async def scenario() -> None:
        query = f"INSERT INTO item VALUES (1, 'one', 1); {ENDLESS[table.kind]}"
        others = set(threading.enumerate())  # the thread of the step before may not have ended yet

        def is_at_work() -> bool:
            return any(thread.name == "holdfast-sql" for thread in set(threading.enumerate()) - others)

        task = asyncio.ensure_future(sql.run(table.call(query)))
        if table.kind == "postgresql":
            watcher = await asyncpg.connect(table.url)
            asked = "SELECT count(*) FROM pg_stat_activity"
            asked += " WHERE state = 'active' AND query LIKE '%sleep(3600)'"
            try:
                await eventually(lambda: watcher.fetchval(asked))
                task.cancel()
                await asyncio.wait([task])

                async def is_over() -> bool:
                    return await watcher.fetchval(asked) == 0

                await eventually(is_over)
            finally:
                await watcher.close()
        else:
            await eventually(is_at_work)
            task.cancel()
            await asyncio.wait([task])
            await eventually(lambda: not is_at_work())
        assert task.cancelled()
        # Nothing holds a lock, and nothing was kept.
        output = await sql.run(table.call("UPDATE item SET price = 0"))
        assert output["row_count"] == 0

    run(scenario())


def test_every_output_is_plain_json(table: Database) -> None:
    table("INSERT INTO item VALUES (1, :name, 1)", {"name": "é\U0001f600\x01"})
    output = table("SELECT * FROM item")
    assert json.loads(encode_payload(output, what="output")) == output
