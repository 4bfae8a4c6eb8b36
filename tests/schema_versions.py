"""This process as an older or a newer Holdfast, as far as a database can tell: one that has fewer migrations,
or some more.

The migration that an older one lacks only adds tables that the way of a job does not touch: so the code of
today does to the database what that of the version before does.
"""

import contextlib
from collections.abc import Iterator, Sequence
from types import ModuleType

from holdfast.server import services
from holdfast.store import exchange, inspection, postgres, queries, sqlite
from holdfast.store.queries import Migration, load_migrations

# Those who have been told where migrations come from; all others ask `queries` when they need them.
_HOLDERS: tuple[ModuleType, ...] = (exchange, inspection, postgres, queries, services, sqlite)
_ALL = load_migrations


def dialect_of(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgresql"


def previous(url: str) -> Sequence[Migration]:
    """All but the last."""
    return _ALL(dialect_of(url))[:-1]


def following(url: str, sql: str, *, works_with: int | None = None) -> Sequence[Migration]:
    """One more, which is not written yet."""
    known = _ALL(dialect_of(url))
    return (*known, Migration(len(known) + 1, sql, works_with))


def know(migrations: Sequence[Migration]) -> None:
    """From here on, for good: for a process of its own."""
    for module in _HOLDERS:
        module.load_migrations = lambda _: tuple(migrations)  # type: ignore[attr-defined]


@contextlib.contextmanager
def knowing(migrations: Sequence[Migration]) -> Iterator[None]:
    before = {module: vars(module)["load_migrations"] for module in _HOLDERS}
    know(migrations)
    try:
        yield
    finally:
        for module, loader in before.items():
            module.load_migrations = loader  # type: ignore[attr-defined]
