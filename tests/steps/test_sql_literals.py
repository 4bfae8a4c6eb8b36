"""Templates in the text of a query, on all three databases: a value is a literal, whatever it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import PermanentError
from holdfast.playbook.template import compile_text
from holdfast.steps.interface import StepSettings
from holdfast.steps.sql_literals import Written, with_literals
from holdfast.steps.sql_text import Dialect, statements
from sql_database import Database

EVERY = list(Dialect)
HOSTILE = [
    "'); DROP TABLE item; --",
    "x'; DROP TABLE item; SELECT 'y",
    "\\'; DROP TABLE item; --",
    "\\",
    "a\\\\'b",
    '"; DROP TABLE item; --',
    "$$ :name ? $1 /* -- ",
    "Größe\n😀",
    "",
]


def parts(query: str, variables: dict[str, Any]) -> list[str | Written]:
    text = compile_text(query)
    assert text.is_mixed
    return [part if isinstance(part, str) else Written(*part) for part in text.evaluate_parts(variables)]


@pytest.fixture(params=["sqlite", "postgresql", "duckdb"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    settings = StepSettings(sql_folder=str(tmp_path))
    if request.param == "postgresql":
        return Database(request.getfixturevalue("postgres_url"), settings)
    return Database(f"{request.param}:///user.db", settings)


def test_a_value_is_never_read_as_sql(db: Database) -> None:
    db("CREATE TABLE item (name TEXT, label TEXT)")
    insert = (
        "INSERT INTO item VALUES ({{ name }}, 'a {{ name }} b'); -- {{ name }}\n"
        "SELECT {{ name }} AS bare, 'it''s {{ name }}' AS quoted, '{{ name }}'||{{ name }} AS twice"
    )
    for name in HOSTILE:
        output = db(parts(insert, {"name": name}))
        (row,) = output["data"]
        assert row == {"bare": name, "quoted": f"it's {name}", "twice": name + name}
    stored = db("SELECT name, label FROM item")["data"]
    assert stored == [{"name": name, "label": f"a {name} b"} for name in HOSTILE]


def test_other_values_keep_their_type(db: Database) -> None:
    query = (
        "SELECT 5-{{ n }} AS n, {{ f }}*2 AS f, CASE WHEN {{ yes }} THEN 1 END AS yes,"
        " {{ none }} IS NULL AS none, '{{ n }} days' AS days, {{ rows }} AS rows"
    )
    values = {"n": -3, "f": 1.5, "yes": True, "none": None, "rows": [1, "it's"]}
    (row,) = db(parts(query, values))["data"]
    assert row["n"] == 8 and float(row["f"]) == 3 and row["yes"] == 1 and row["none"] in (True, 1)
    assert (row["days"], row["rows"]) == ("-3 days", '[1, "it\'s"]')


def test_a_quoted_name_stays_one(db: Database) -> None:
    for name in ('a"b', 'x"; DROP TABLE item; --'):
        assert db(parts('SELECT 1 AS "{{ name }}"', {"name": name}))["columns"] == [name]


@pytest.mark.parametrize("dialect", [Dialect.POSTGRESQL, Dialect.DUCKDB])
@pytest.mark.parametrize(
    "query", ["DO $$ {{ x }} $$", "SELECT E'{{ x }}'", "SELECT $a$ {{ x }} $a$", "SELECT '{{ x }}"]
)
def test_where_no_value_can_be_safe_it_is_refused(query: str, dialect: Dialect) -> None:
    with pytest.raises(PermanentError, match="no value can be written safely") as raised:
        with_literals(parts(query, {"x": "1"}), dialect)
    assert "params" in raised.value.guidance


@pytest.mark.parametrize("query", ["SELECT [{{ x }}]", "SELECT `{{ x }}`"])
def test_the_other_quotes_of_sqlite_are_refused(query: str) -> None:
    with pytest.raises(PermanentError, match="no value can be written safely"):
        with_literals(parts(query, {"x": "1"}), Dialect.SQLITE)


def test_nul_is_refused() -> None:
    with pytest.raises(PermanentError, match="NUL"):
        with_literals(["SELECT ", Written("\0000\0", "\0000\0")], Dialect.SQLITE)


@pytest.mark.parametrize("dialect", EVERY)
@given(value=st.text(alphabet=st.sampled_from("'\"\\;$-/*E:? \na`[]"), max_size=12))
def test_a_query_has_as_many_statements_whatever_the_value(dialect: Dialect, value: str) -> None:
    query = with_literals(
        parts("SELECT {{ v }}, E{{ v }} '{{ v }}'; SELECT \"{{ v }}\" -- {{ v }}\n", {"v": value}), dialect
    )
    first, second = statements(query, dialect)
    assert [word for word in first.words if word != "E"] == ["SELECT"]
    assert second.words == ("SELECT",)
