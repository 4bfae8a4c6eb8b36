"""Where parameters are in SQL, and where statements end: what only looks like one is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import PermanentError
from holdfast.steps.sql_text import Dialect, bound, statements, without_own_transaction

EVERY = list(Dialect)
PG, LITE, DUCK = Dialect.POSTGRESQL, Dialect.SQLITE, Dialect.DUCKDB


def rendered(query: str, params: Any, dialect: Dialect = PG) -> tuple[str, tuple[Any, ...]]:
    (statement,) = statements(query, dialect)
    made = bound(statement, params)
    return made.render(lambda place: f"<{place}>"), made.values


@pytest.mark.parametrize("dialect", EVERY)
def test_names_and_marks_become_places(dialect: Dialect) -> None:
    assert rendered("SELECT :a, $b, :a", {"a": 1, "b": 2}, dialect) == ("SELECT <0>, <1>, <2>", (1, 2, 1))
    assert rendered("SELECT ?, ?", [1, 2], dialect) == ("SELECT <0>, <1>", (1, 2))
    assert rendered("SELECT $2, $1, $2", [1, 2], dialect) == ("SELECT <0>, <1>, <2>", (2, 1, 2))
    assert rendered("SELECT a=:a,(:b)", {"a": 1, "b": 2}, dialect) == ("SELECT a=<0>,(<1>)", (1, 2))
    assert rendered("SELECT :größe", {"größe": 1}, dialect) == ("SELECT <0>", (1,))


@pytest.mark.parametrize("dialect", EVERY)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT ':a' , :a",
        "SELECT 'it''s :a', :a",
        'SELECT "x :a ""y", :a',
        "SELECT 1 -- :a ? don't\n, :a",
        "SELECT /* :a ' */ :a",
        "SELECT x::text, :a",
        "SELECT y := 1, :a",
        "SELECT json:key, :a",
        "SELECT {'k':v}, :a",
        "SELECT '\\', :a",
    ],
)
def test_what_only_looks_like_a_parameter_stays(query: str, dialect: Dialect) -> None:
    text, values = rendered(query, {"a": 1}, dialect)
    assert values == (1,)
    assert text == query[::-1].replace("a:", ">0<", 1)[::-1]


@pytest.mark.parametrize("dialect", [PG, DUCK])
@pytest.mark.parametrize(
    "query",
    [
        r"SELECT E'it\'s :a', :a",
        "SELECT $$ :a ' $$, :a",
        "SELECT $tag$ $$ :a $tag$, :a",
        "SELECT /* one /* :a */ :a */ :a",
        "SELECT $$unclosed? no$$ || :a",
        "SELECT a[1:n], :a",
        "SELECT x[lo:hi], :a",
    ],
)
def test_quotes_of_postgresql_and_duckdb(query: str, dialect: Dialect) -> None:
    text, values = rendered(query, {"a": 1}, dialect)
    assert values == (1,)
    assert text == query[::-1].replace("a:", ">0<", 1)[::-1]


def test_quotes_of_sqlite() -> None:
    assert rendered("SELECT [a :b], `c :b`, :b /* /* */", {"b": 1}, LITE)[1] == (1,)


def test_operators_with_question_marks() -> None:
    assert rendered("SELECT j ?? 'k', j ?| x, j @? p, ?", [1]) == (
        "SELECT j ? 'k', j ?| x, j @? p, <0>",
        (1,),
    )
    assert rendered("SELECT j ? 'k', :a", {"a": 1}) == ("SELECT j ? 'k', <0>", (1,))
    assert rendered("SELECT j ? 'k', $1", [1]) == ("SELECT j ? 'k', <0>", (1,))


def test_without_params_the_text_is_as_it_was_written() -> None:
    assert rendered("SELECT :a, ?, $1, ??", {}) == ("SELECT :a, ?, $1, ??", ())
    assert rendered("SELECT :a, ?, $1, ??", []) == ("SELECT :a, ?, $1, ??", ())


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("SELECT :b", {"a": 1}),
        ("SELECT ?", [1, 2]),
        ("SELECT ?, ?", [1]),
        ("SELECT $3", [1, 2]),
        ("SELECT $0", [1]),
    ],
)
def test_params_that_do_not_fit_are_refused(query: str, params: Any) -> None:
    with pytest.raises(PermanentError) as raised:
        rendered(query, params)
    assert raised.value.error_type == "validation_error"


@pytest.mark.parametrize("dialect", EVERY)
def test_statements_end_at_semicolons_that_end_them(dialect: Dialect) -> None:
    query = "; SELECT ';' ; -- none; here\n INSERT INTO t VALUES (';;'); /* ; */ ;\nSELECT 2"
    assert [statement.verb for statement in statements(query, dialect)] == ["SELECT", "INSERT", "SELECT"]
    assert statements(" ;; -- nothing\n/* x */;", dialect) == ()


def test_bodies_of_functions_are_not_cut() -> None:
    query = (
        "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE SQL BEGIN ATOMIC"
        " SELECT CASE WHEN true THEN 1 END; SELECT 2; END; SELECT f();"
        "CREATE FUNCTION g() RETURNS int AS $$ SELECT 1; SELECT 2 $$ LANGUAGE sql; SELECT g()"
    )
    assert [statement.verb for statement in statements(query, PG)] == ["CREATE", "SELECT", "CREATE", "SELECT"]


def kept(query: str) -> list[str]:
    return [statement.verb for statement in without_own_transaction(statements(query, LITE))]


def test_begin_and_commit_around_a_batch_are_the_steps_own() -> None:
    assert kept("BEGIN; INSERT INTO t VALUES (1); COMMIT;") == ["INSERT"]
    assert kept("begin immediate transaction; DELETE FROM t; SELECT 1; end") == ["DELETE", "SELECT"]
    assert kept("START TRANSACTION; SELECT 1; COMMIT WORK") == ["SELECT"]
    assert kept("SAVEPOINT a; DELETE FROM t; ROLLBACK TO a; RELEASE a") == [
        "SAVEPOINT", "DELETE", "ROLLBACK", "RELEASE",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        "BEGIN",
        "SELECT 1; COMMIT",
        "DELETE FROM t; COMMIT; DELETE FROM u",
        "BEGIN; SELECT 1; ROLLBACK",
        "ABORT",
        "PREPARE TRANSACTION 'x'",
        "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1; COMMIT",
    ],
)
def test_they_may_not_split_a_step(query: str) -> None:
    with pytest.raises(PermanentError, match="one transaction"):
        kept(query)


@given(st.text(alphabet="ab:$?1'\"`[]/*-;e\\ \n()E{}", max_size=60), st.sampled_from(EVERY))
def test_any_text_is_taken_apart_without_loss(query: str, dialect: Dialect) -> None:
    found = statements(query, dialect)
    assert all(statement.text in query for statement in found)
    for statement in found:
        made = bound(statement, {"a": 1, "b": 2, "e": 3, "E": 3, **dict.fromkeys(_names(statement), 0)})
        originals = [token.text for token in statement.tokens if token.kind == "named"]
        assert made.render(lambda place, names=originals: names[place]) == statement.text


def _names(statement: Any) -> list[str]:
    return [token.text[1:] for token in statement.tokens if token.kind == "named"]


@pytest.mark.parametrize("dialect", EVERY)
@pytest.mark.parametrize(
    "piece", ["'", '"', "/*", "$$", "$a$", "(", ":", "?", "--", "E'\\", "[", "''", "/*'"]
)
def test_hostile_text_costs_time_in_proportion(piece: str, dialect: Dialect) -> None:
    # Quadratic work on this much would not end within the test's patience.
    statements(piece * (200_000 // len(piece)), dialect)
