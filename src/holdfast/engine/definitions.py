"""The definitions an engine knows: those it registered, and those it met in the store."""

from __future__ import annotations

from holdfast.core.errors import UnknownPipeline
from holdfast.playbook.definition import Definition, content_hash
from holdfast.store.interface import Store


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
        self._by_id: dict[int, Definition] = {}

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
        content = definition.to_json()
        now = await self._store.now()
        row = await self._store.save_definition(definition.path, content, content_hash(content), now)
        self._by_id[row.id] = definition
        self._registered[definition.path] = (row.id, definition)
        return row.id

    def latest(self, path: str) -> tuple[int, Definition]:
        """The version that a submission to this path gets."""
        if not isinstance(path, str) or path not in self._registered:
            known = ", ".join(sorted(self._registered))
            raise UnknownPipeline(
                f"There is no pipeline {path!r}.",
                guidance=f"Known are: {known}." if known else "Define it with hf.pipeline() in this program.",
            )
        return self._registered[path]

    async def load(self, definition_id: int) -> Definition:
        if definition_id not in self._by_id:
            row = await self._store.definition(definition_id)
            assert row is not None, f"definition {definition_id} is referred to but not stored"
            self._by_id[definition_id] = Definition.from_json(row.content)
        return self._by_id[definition_id]
