"""The definitions an engine knows: those it registered, and those it met in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from holdfast.core.errors import UnknownPipeline, UnknownVersion
from holdfast.engine.checks import VERSION_MAX, check_version
from holdfast.playbook.definition import Definition, content_hash
from holdfast.playbook.graph import Graph
from holdfast.store.interface import Store

Provided = Callable[[], tuple[Definition, str]]
"""Makes a playbook: what the engine runs, and the text that it was made from."""

KNOWN_SHOWN_MAX = 50
PATHS_MAX = 100_000


class DefinitionMissing(Exception):
    """A job's definition is not known yet: load it, then run the transaction again."""

    def __init__(self, definition_id: int) -> None:
        super().__init__(definition_id)
        self.definition_id = definition_id


class Definitions:
    """A version never changes, so what is known by its id stays known."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._registered: dict[str, tuple[int, Definition]] = {}
        self._provided: dict[str, Provided] = {}
        self._by_id: dict[int, Definition] = {}
        self._graphs: dict[int, Graph] = {}
        self._versions: dict[tuple[str, int], int] = {}

    def graph(self, definition_id: int) -> Graph:
        """Of a definition that is loaded."""
        if definition_id not in self._graphs:
            self._graphs[definition_id] = Graph(self[definition_id])
        return self._graphs[definition_id]

    def __getitem__(self, definition_id: int) -> Definition:
        """For plans, which run inside a transaction and cannot load."""
        try:
            return self._by_id[definition_id]
        except KeyError:
            raise DefinitionMissing(definition_id) from None

    async def register(self, definition: Definition) -> int:
        """Make this the version of its path that new submissions get. Equal content is one version."""
        known = self._registered.get(definition.path)
        if known is not None and known[1] == definition:
            return known[0]
        id_ = await self.publish(definition)
        self._registered[definition.path] = (id_, definition)
        return id_

    def provide(self, path: str, provided: Provided) -> None:
        """Have a playbook ready for a path: it is made and registered when something is submitted to it."""
        self._provided[path] = provided

    def is_provided(self, path: str) -> bool:
        return path in self._provided

    async def publish(self, definition: Definition, source: str | None = None) -> int:
        """Store it as the version of its path that was registered last. What is submitted here gets the one
        that is then, also once another program has registered a newer one."""
        content = definition.to_json()
        now = await self._store.now()
        row = await self._store.save_definition(definition.path, content, content_hash(content), now, source)
        self._by_id[row.id] = definition
        return row.id

    async def latest(self, paths: Sequence[str]) -> dict[str, tuple[int, Definition]]:
        """The versions that submissions to these paths get: this program's own, else the one that any
        program registered last. That one is asked for each time, as another may be registered."""
        latest: dict[str, tuple[int, Definition]] = {}
        for path in paths:
            if not isinstance(path, str):
                raise await self._unknown(path)
            if path not in latest:
                latest[path] = await self._own(path) or await self._stored(path)
        return latest

    async def _own(self, path: str) -> tuple[int, Definition] | None:
        if path not in self._registered and path in self._provided:
            definition, source = await asyncio.to_thread(self._provided[path])
            self._registered[path] = (await self.publish(definition, source), definition)
        return self._registered.get(path)

    async def version(self, path: str, version: int | None) -> tuple[int, Definition]:
        """One version of a path, or the one that submissions to it get."""
        if version is None:
            return (await self.latest([path]))[path]
        if not isinstance(path, str):
            raise await self._unknown(path)
        check_version(version, path)
        if (path, version) not in self._versions:
            can_be = version in range(1, VERSION_MAX + 1) and path.isprintable()
            found = await self._store.definition_version(path, version) if can_be else None
            if found is None:
                await self._stored(path)  # says what is there, where the path itself is not
                raise UnknownVersion(
                    f"{path} has no version {version}.",
                    guidance="`holdfast catalog list` shows what there is.",
                )
            self._versions[path, version] = found.id
        id_ = self._versions[path, version]
        return id_, await self.load(id_)

    async def versions(
        self, wanted: Iterable[tuple[str, int | None]]
    ) -> dict[tuple[str, int | None], tuple[int, Definition]]:
        """What submissions get that name these paths and versions."""
        found: dict[tuple[str, int | None], tuple[int, Definition]] = {}
        for path, version in wanted:
            # Before it is looked for: 1, 1.0 and True are one key.
            if version is not None:
                check_version(version, path)
            if not isinstance(path, str):
                raise await self._unknown(path)
            if (path, version) not in found:
                found[path, version] = await self.version(path, version)
        return found

    async def _stored(self, path: str) -> tuple[int, Definition]:
        # What is no text for a database cannot be a name in it either.
        found = await self._store.latest_definitions(path, 1) if path.isprintable() else []
        if not found:
            raise await self._unknown(path)
        return found[0].id, await self.load(found[0].id)

    async def _unknown(self, path: object) -> UnknownPipeline:
        stored = await self._store.latest_definitions(None, KNOWN_SHOWN_MAX)
        paths = {*self._registered, *self._provided, *(row.path for row in stored)}
        known = ", ".join(sorted(paths)[:KNOWN_SHOWN_MAX])
        return UnknownPipeline(
            f"There is no pipeline {path!r}.",
            guidance=f"Known are: {known}."
            if known
            else "Define it with hf.pipeline(); once its program has run with this database, it is known.",
        )

    async def all_latest(self) -> list[Definition]:
        """Of every path that a program has registered, the version registered last."""
        latest = []
        for row in await self._store.latest_definitions(None, PATHS_MAX):
            if row.id not in self._by_id:
                self._by_id[row.id] = Definition.from_json(row.content)
            latest.append(self._by_id[row.id])
        return latest

    async def load(self, definition_id: int) -> Definition:
        if definition_id not in self._by_id:
            row = await self._store.definition(definition_id)
            assert row is not None, f"definition {definition_id} is referred to but not stored"
            self._by_id[definition_id] = Definition.from_json(row.content)
        return self._by_id[definition_id]
