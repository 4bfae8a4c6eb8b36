"""The catalog: the playbooks and pipelines that are known, by path and version.

A version is known by what it means: a text that differs only in its comments or its layout is the same
version, and the text added last is the one that is shown. Otherwise a version never changes, and it is never
removed, because executions go on with the one they began with. What is submitted to a path gets the version
registered last, whether a program registered it or a person added its YAML.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from holdfast.core.errors import UnknownPipeline, UnknownVersion
from holdfast.core.payload import check_name
from holdfast.engine.checks import PAGE_ROWS_MAX, VERSION_MAX, check_version, page_size, parse_cursor
from holdfast.engine.definitions import Definitions
from holdfast.engine.records import Page
from holdfast.playbook.definition import Definition, content_hash
from holdfast.playbook.outline import outline
from holdfast.store.catalog import CatalogRow
from holdfast.store.interface import Store

KNOWN_SHOWN_MAX = 50


class Kind(StrEnum):
    """Where a version comes from: a YAML text, or a program's code."""

    YAML = "yaml"
    PYTHON = "python"


class Change(StrEnum):
    """What adding a playbook has changed."""

    NEW = "new"
    """A version that was not known."""
    AGAIN = "again"
    """An older version is the current one again."""
    SAME = "same"
    """Nothing: this version was the current one."""


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a path. `is_current` where new submissions get it; `versions` is how many there are."""

    id: int
    path: str
    version: int
    kind: Kind
    steps: int
    hash: str
    is_current: bool
    versions: int
    created_at: float
    registered_at: float


class AddedPlaybook(msgspec.Struct, frozen=True, kw_only=True):
    """`replaces` is the version that was current until now, where that is another one."""

    entry: CatalogEntry
    change: Change
    replaces: CatalogEntry | None = None


class CatalogText(msgspec.Struct, frozen=True, kw_only=True):
    """A version as text: of a playbook its YAML as it was written, of a pipeline its steps in words."""

    entry: CatalogEntry
    text: str


class CatalogDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two versions of a path, as a unified diff; empty where nothing does."""

    old: CatalogEntry
    new: CatalogEntry
    text: str


class Versions:
    """What is told of versions in one way, whether the catalog is at hand or behind a server."""

    async def versions(self, path: str, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Of this path, the newest first."""
        raise NotImplementedError

    async def text(self, path: str, version: int | None = None) -> CatalogText:
        """The current version, or this one."""
        raise NotImplementedError

    async def all_versions(self, path: str) -> list[CatalogEntry]:
        """Of this path, the newest first."""
        page = await self.versions(path, limit=PAGE_ROWS_MAX)
        found = list(page.items)
        while page.next is not None:
            page = await self.versions(path, limit=PAGE_ROWS_MAX, cursor=page.next)
            found += page.items
        return found

    async def diff(self, path: str, old: int | None = None, new: int | None = None) -> CatalogDiff:
        """Between these two versions; by default between the current one and the one that was before it."""
        newer = await self.text(path, new)
        if old is None:
            others = [item for item in await self.all_versions(path) if item.version != newer.entry.version]
            if not others:
                raise UnknownVersion(
                    f"{path} has one version, {newer.entry.version}: there is nothing to compare it with.",
                    guidance=f"See it:  holdfast catalog show {path}",
                )
            old = max(others, key=lambda item: (item.registered_at, item.version)).version
        return _unified(await self.text(path, old), newer)

    async def _unknown_version(self, path: str, version: int) -> UnknownVersion:
        page = await self.versions(path, limit=KNOWN_SHOWN_MAX)
        known = ", ".join(str(item.version) for item in page.items)
        more = " and older ones" if page.next else ""
        return UnknownVersion(f"{path} has no version {version}.", guidance=f"It has: {known}{more}.")


class Catalog(Versions):
    def __init__(self, store: Store, definitions: Definitions) -> None:
        self._store = store
        self._definitions = definitions

    async def add(self, definition: Definition, source: str) -> AddedPlaybook:
        """Make this the version of its path that new submissions get; what runs keeps its own."""
        content, path = definition.to_json(), definition.path
        before = await self._store.catalog(path, current=True, limit=1)
        now = await self._store.now()
        row = await self._store.save_definition(path, content, content_hash(content), now, source)
        [saved] = await self._store.catalog(path, version=row.version, limit=1)
        replaced = before[0] if before and before[0].id != row.id else None
        change = Change.SAME if replaced is None else Change.AGAIN
        if saved.created_at == now:
            change = Change.NEW
        return AddedPlaybook(
            entry=_entry(saved), change=change, replaces=None if replaced is None else _entry(replaced)
        )

    async def entries(self, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Of every path the current version, by path."""
        size = page_size(limit)
        if cursor is not None:
            check_name(cursor, what="cursor")
        rows = await self._store.catalog(None, current=True, after=cursor, limit=size)
        return Page([_entry(row) for row in rows], rows[-1].path if len(rows) == size else None)

    async def versions(self, path: str, *, limit: int = 50, cursor: str | None = None) -> Page:
        size, below = page_size(limit), parse_cursor(cursor)
        if below is not None:
            below = min(below, VERSION_MAX)
        # What is no text for a database cannot be a name in it either.
        rows = await self._store.catalog(path, below=below, limit=size) if path.isprintable() else []
        if not rows and (below is None or not await self._current(path)):
            raise await self._unknown_path(path)
        return Page([_entry(row) for row in rows], str(rows[-1].version) if len(rows) == size else None)

    async def text(self, path: str, version: int | None = None) -> CatalogText:
        """The current version, or this one."""
        row = await self._row(path, version)
        return CatalogText(entry=_entry(row), text=await self._text(row))

    async def definition(self, path: str, version: int | None = None) -> Definition:
        row = await self._row(path, version)
        stored = await self._store.definition(row.id)
        assert stored is not None, f"definition {row.id} is listed but not stored"
        return Definition.from_json(stored.content)

    async def _text(self, row: CatalogRow) -> str:
        if row.is_yaml:
            return await self._store.definition_source(row.id) or ""
        return outline(await self.definition(row.path, row.version))

    async def _row(self, path: str, version: int | None) -> CatalogRow:
        if version is None:
            if found := await self._current(path):
                return found
            raise await self._unknown_path(path)
        check_version(version, path)
        known = 0 < version <= VERSION_MAX and path.isprintable()
        if known and (rows := await self._store.catalog(path, version=version, limit=1)):
            return rows[0]
        raise await self._unknown_version(path, version)

    async def _current(self, path: str) -> CatalogRow | None:
        rows = await self._store.catalog(path, current=True, limit=1) if path.isprintable() else []
        if not rows and self._definitions.is_provided(path):  # whoever asks for it finds it
            await self._definitions.latest([path])
            rows = await self._store.catalog(path, current=True, limit=1)
        return rows[0] if rows else None

    async def _unknown_path(self, path: str) -> UnknownPipeline:
        known = [row.path for row in await self._store.catalog(None, current=True, limit=KNOWN_SHOWN_MAX)]
        return unknown_path(path, known)


def unknown_path(path: str, known: Sequence[str]) -> UnknownPipeline:
    return UnknownPipeline(
        f"The catalog has no {path!r}.",
        guidance=f"It has: {', '.join(known)}." if known else "Add a playbook:  holdfast catalog add FILE",
    )


def _unified(old: CatalogText, new: CatalogText) -> CatalogDiff:
    """What differs between two texts of one path."""
    lines = difflib.unified_diff(
        old.text.splitlines(),
        new.text.splitlines(),
        f"{old.entry.path} version {old.entry.version}",
        f"{new.entry.path} version {new.entry.version}",
        lineterm="",
    )
    return CatalogDiff(old=old.entry, new=new.entry, text="".join(f"{line}\n" for line in lines))


def _entry(row: CatalogRow) -> CatalogEntry:
    return CatalogEntry(
        id=row.id,
        path=row.path,
        version=row.version,
        kind=Kind.YAML if row.is_yaml else Kind.PYTHON,
        steps=row.steps,
        hash=row.hash,
        is_current=row.is_current,
        versions=row.versions,
        created_at=row.created_at,
        registered_at=row.registered_at,
    )
