"""sql steps on PostgreSQL: its types, its errors by SQLSTATE, and whose credentials are used."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from holdfast.core.catalogue import Category
from holdfast.core.errors import PermanentError
from holdfast.core.failures import classify, failure_from_exception
from holdfast.steps import sql
from holdfast.steps.interface import StepCall, StepSettings
from running import eventually, run
from sql_database import Database


@pytest.fixture
def pg(postgres_url: str) -> Database:
    return Database(postgres_url, StepSettings())


def test_values_of_postgresql(pg: Database) -> None:
    output = pg(
        "SELECT date '2024-01-02' AS d, timestamptz '2024-01-02 03:04:05+01' AS tz,"
        " timestamp 'infinity' AS inf,"
        " 1.50::numeric AS dec, '\\x00ff'::bytea AS b, '{\"a\": [1, null]}'::jsonb AS j, 'NaN'::float8 AS f,"
        " interval '1 mon 2 days 03:00:00.5' AS i, ARRAY[[1,2],[3,4]] AS a,"
        " ARRAY[date '2024-01-02', NULL] AS da,"
        " '00000000-0000-0000-0000-000000000001'::uuid AS u, int4range(1, 5) AS r, ROW(1, 'x') AS row,"
        " B'101' AS bits, inet '10.0.0.1' AS net, date '4713-01-01 BC' AS bc,"
        " daterange(NULL, '2024-01-02') AS dr"
    )
    (row,) = output["data"]
    assert row.pop("bc").endswith(" days")
    assert row == {
        "d": "2024-01-02",
        "tz": "2024-01-02T02:04:05+00:00",
        "inf": "infinity",
        "dec": "1.50",
        "b": "AP8=",
        "j": {"a": [1, None]},
        "f": "NaN",
        "i": "P1M2DT10800.5S",
        "a": [[1, 2], [3, 4]],
        "da": ["2024-01-02", None],
        "u": "00000000-0000-0000-0000-000000000001",
        "r": "[1,5)",
        "row": [1, "x"],
        "bits": "101",
        "net": "10.0.0.1",
        "dr": "(,2024-01-02)",
    }


def test_params_become_what_postgresql_needs(pg: Database) -> None:
    pg("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    pg(
        'CREATE TABLE "odd ""t" (m mood, u uuid, j jsonb, a int[], ts timestamptz,'
        " n numeric, t text, b boolean)"
    )
    uuid = "00000000-0000-0000-0000-000000000001"
    params = {
        "m": "ok",
        "u": uuid,
        "j": {"a": "é"},
        "a": [1, 2],
        "ts": "2024-01-02T03:04:05Z",
        "n": "1.50",
        "t": 5,
    }
    pg(
        'INSERT INTO "odd ""t" VALUES (:m, :u, :j, :a, :ts, :n, :t, :b)',
        {**params, "b": True},
    )
    query = (
        'SELECT * FROM "odd ""t" WHERE m = :m AND u = :u AND a = :a AND j @> :j AND n = :n AND t = :t AND b'
    )
    (row,) = pg(query, params)["data"]
    assert row == {**params, "ts": "2024-01-02T03:04:05+00:00", "t": "5", "b": True}
    assert pg("SELECT :a::int AS n, (:a)::text AS t", {"a": "5"})["data"] == [{"n": 5, "t": "5"}]
    assert pg("SELECT id FROM unnest(?::int[]) AS id", [[3, 4]])["data"] == [{"id": 3}, {"id": 4}]
    assert pg.fails("SELECT :d::date", {"d": "soon"}).error_type == "validation_error"
    assert pg.fails("SELECT :d::text", {"d": "\0"}).error_type == "validation_error"


@pytest.mark.parametrize(
    ("code", "error_type", "category"),
    [
        ("40P01", "database_lock", Category.TRANSIENT),
        ("40001", "database_lock", Category.TRANSIENT),
        ("55P03", "database_lock", Category.TRANSIENT),
        ("57P01", "storage_unavailable", Category.TRANSIENT),
        ("53300", "storage_unavailable", Category.TRANSIENT),
        ("57014", "timeout", Category.TRANSIENT),
        ("23505", "validation_error", Category.PERMANENT),
        ("22012", "validation_error", Category.PERMANENT),
        ("42501", "auth_error", Category.PERMANENT),
    ],
)
def test_errors_are_judged_by_their_sqlstate(
    pg: Database, code: str, error_type: str, category: Category
) -> None:
    judged = pg.fails(f"DO $$ BEGIN RAISE EXCEPTION 'told' USING ERRCODE = '{code}'; END $$")
    assert (judged.error_type, judged.category) == (error_type, category)


def test_a_lost_connection_is_transient(pg: Database) -> None:
    judged = pg.fails("SELECT pg_terminate_backend(pg_backend_pid())")
    assert (judged.error_type, judged.category) == ("storage_unavailable", Category.TRANSIENT)


def test_a_real_deadlock_is_transient(pg: Database) -> None:
    pg("CREATE TABLE t (i int); INSERT INTO t VALUES (1), (2)")

    async def scenario() -> list[Any]:
        # The lock that both wait for lets each take its first row before either asks for the second.
        gate = await asyncpg.connect(pg.url)
        await gate.execute("SELECT pg_advisory_lock(1)")
        tasks = [
            asyncio.ensure_future(
                sql.run(
                    pg.call(
                        f"SET LOCAL deadlock_timeout = '50ms'; UPDATE t SET i = i WHERE i = {first};"
                        f" SELECT pg_advisory_xact_lock_shared(1); UPDATE t SET i = i WHERE i = {second}"
                    )
                )
            )
            for first, second in ((1, 2), (2, 1))
        ]
        waiting = "SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await eventually(lambda: gate.fetchval(waiting))
        await gate.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(scenario())
    errors = [result for result in results if isinstance(result, BaseException)]
    assert len(errors) == 1
    assert classify(failure_from_exception(errors[0])).error_type == "database_lock"


def test_what_cannot_be_in_a_transaction_runs_by_itself(pg: Database) -> None:
    pg("CREATE TABLE t (i int)")
    pg("VACUUM t")
    pg("CREATE INDEX CONCURRENTLY ON t (i)")
    pg("CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (1); COMMIT; END $$")
    pg("CALL p()")
    assert pg("SELECT i FROM t")["data"] == [{"i": 1}]
    assert pg.fails("VACUUM t; SELECT 1").category is not Category.TRANSIENT


@pytest.mark.parametrize("query", ["COPY t FROM STDIN", "COPY (SELECT 1) TO STDOUT"])
def test_a_copy_through_the_worker_is_refused(pg: Database, query: str) -> None:
    assert pg.fails(query).error_type == "validation_error"


def test_nobody_listens_and_the_password_is_not_told() -> None:
    for url in (
        "postgresql://ann:s3cr%20et@127.0.0.1:1/db",
        "postgresql://ann:s3cr%20et@/db?host=/nonexistent",
        "postgresql://ann@/db?host=/nonexistent&password=s3cr%20et",
    ):
        with pytest.raises(Exception) as raised:
            run(sql.run(StepCall(config={"url": url, "query": "SELECT 1"})))
        failure = failure_from_exception(raised.value)
        assert classify(failure).error_type == "connection_error"
        assert "s3cr" not in failure.message
        assert "s3cr" not in failure.stack_trace


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann@h/db?passfile=/etc/passwd",
        "postgresql://ann@h/db?sslkey=/etc/passwd",
        "postgresql://ann@h/db?service=x",
        "postgresql://ann@h/db?sslmode=nonsense",
        "postgresql://ann@h:0/db",
        "postgresql://ann@h:port/db",
        "postgresql://ann@[::1/db",
        "postgresql://h/db",
        "postgresql://ann@h/db?nonsense",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(PermanentError) as raised:
        run(sql.run(StepCall(config={"url": url, "query": "SELECT 1"})))
    assert raised.value.error_type == "validation_error"


def test_the_workers_own_credentials_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.steps.sql_places import connect_arguments, server_of

    monkeypatch.setenv("PGPASSWORD", "the worker's")
    arguments = connect_arguments(server_of("postgresql://ann@h1,[::1]:99/db?port=5433"))
    assert arguments["password"] == ""
    assert (arguments["host"], arguments["port"]) == (["h1", "::1"], [5433, 99])
    arguments = connect_arguments(server_of("postgresql://a%40b:p%2Fw@%2Frun%2Fpg/x%20y"))
    assert (arguments["user"], arguments["password"], arguments["database"]) == ("a@b", "p/w", "x y")
    assert arguments["host"] == ["/run/pg"]


def test_a_database_that_is_not_there(pg: Database) -> None:
    missing = Database(pg.url.replace("/test_", "/missing_"), pg.settings)
    assert missing.fails("SELECT 1").error_type == "validation_error"
