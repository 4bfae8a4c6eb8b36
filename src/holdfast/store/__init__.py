"""Where executions, jobs and events live: one interface, SQLite and PostgreSQL behind it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.errors import StoreUrlInvalid
from holdfast.core.masking import mask_secrets
from holdfast.store.interface import Store

_FORMS = "Use sqlite:///file.db, sqlite:////absolute/file.db or postgresql://user@host/name."


def store_from_url(url: str, *, clock: Callable[[], float] | None = None) -> Store:
    """The store a URL names, not yet opened. `clock` replaces the store's own clock, for tests."""
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        from holdfast.store.sqlite import SqliteStore

        return SqliteStore(url, clock=clock)
    if scheme in ("postgresql", "postgres"):
        from holdfast.store.postgres import PostgresStore

        return PostgresStore(url, clock=clock)
    raise StoreUrlInvalid(f"{mask_secrets(url)!r} is not the address of a database.", guidance=_FORMS)


__all__ = ["Store", "store_from_url"]
