"""Named queries and numbered migrations, read from the .sql files beside this one.

What several queries share is written once, as a `part`, and stands in them as `<<name>>`.

A migration that Holdfasts of an older schema can live with says so in its first line, `-- works with: 4`: the
oldest schema whose Holdfast may use the database after it. Without that line no older one may.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from holdfast.core.errors import SchemaTooNew, SchemaTooOld

log = logging.getLogger("holdfast.store")

_NAME = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_PART = re.compile(r"<<(\w+)>>")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")
_WORKS_WITH = re.compile(r"-- works with: (\d+)\n")


class Migration(NamedTuple):
    """`works_with` is the oldest schema whose Holdfast may use the database after it; None: its own."""

    version: int
    sql: str
    works_with: int | None = None


@cache
def load_queries(dialect: str) -> dict[str, str]:
    text = (files(__package__) / "sql" / dialect / "queries.sql").read_text()
    pieces = _NAME.split(text)[1:]
    kinds, names, bodies = pieces[0::3], pieces[1::3], pieces[2::3]
    assert len(set(names)) == len(names), f"a query name is used twice in {dialect}/queries.sql"
    written = {name: body.strip().removesuffix(";") for name, body in zip(names, bodies, strict=True)}

    def whole(sql: str) -> str:
        return _PART.sub(lambda place: whole(written[place[1]]), sql)

    return {name: whole(written[name]) for kind, name in zip(kinds, names, strict=True) if kind == "name"}


def of_family(sql: str, in_family: str) -> str:
    """The query of a claim for one execution and its children alone."""
    return sql.replace("/* family */", in_family)


@cache
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """A query with `:named` parameters as PostgreSQL takes it, and their names in the order of numbers."""
    names = tuple(dict.fromkeys(_PARAMETER.findall(sql)))
    return _PARAMETER.sub(lambda place: f"${names.index(place[1]) + 1}", sql), names


def listing(
    query: str, conditions: Sequence[tuple[str, object]], limit: int, mark: Callable[[int], str]
) -> tuple[str, list[object]]:
    """A listing with those of its conditions that are asked for, and their values. Written into one
    statement as `value IS NULL OR …` they would keep SQLite from using an index for any of them."""
    asked = [(condition, value) for condition, value in conditions if value is not None]
    where = " AND ".join(condition.format(mark(n)) for n, (condition, _) in enumerate(asked, 1))
    values = [value for _, value in asked]
    return query.format(where=where or "true", limit=mark(len(values) + 1)), [*values, limit]


@cache
def load_migrations(dialect: str) -> tuple[Migration, ...]:
    folder = files(__package__) / "sql" / dialect / "migrations"
    found = {}
    for entry in folder.iterdir():
        if match := _MIGRATION.fullmatch(entry.name):
            found[int(match[1])] = entry.read_text()
    assert sorted(found) == list(range(1, len(found) + 1)), f"{dialect} migrations are not numbered 1, 2, …"
    return tuple(_migration(version, found[version]) for version in sorted(found))


def _migration(version: int, sql: str) -> Migration:
    told = _WORKS_WITH.match(sql)
    works_with = None if told is None else int(told[1])
    assert works_with is None or works_with < version, f"migration {version} cannot work with {works_with}"
    return Migration(version, sql, works_with)


def oldest_that_works(migrations: Sequence[Migration]) -> int:
    """The oldest schema whose Holdfast may use a database that all of these have made: each has its say."""
    return max(one.version if one.works_with is None else one.works_with for one in migrations)


def can_be_used(found: int, known: int, oldest: int | None) -> bool:
    """Whether a database of this schema is not too new for a Holdfast that knows those up to `known`;
    `oldest` is what the database says of itself."""
    return found <= known or (oldest is not None and oldest <= known)


def check_schema_version(
    found: int, known: int, *, oldest: int | None = None, migrate: bool, where: str
) -> None:
    """Refuse a schema that this version does not know, unless the database says that it may be used without,
    or one that it may not bring up to date."""
    if not can_be_used(found, known, oldest):
        raise SchemaTooNew(
            f"The database {where} has schema version {found}; this Holdfast knows versions up to {known}.",
            guidance="Use the newer Holdfast that made it.",
        )
    if found < known and not migrate:
        raise SchemaTooOld(
            f"The database {where} has schema version {found}; this Holdfast needs version {known}.",
            guidance="After a backup, run `holdfast migrate`, or let it migrate on start.",
        )


def say_if_newer(found: int, known: int, *, where: str) -> None:
    """One line in the log of a process that uses a database which it does not know all of."""
    if found > known:
        log.warning(
            "The database %s has schema version %s; this Holdfast knows versions up to %s. It works with it,"
            " and should be brought up to date.",
            *(where, found, known),
        )
