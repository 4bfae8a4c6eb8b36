"""The part of the Python API that is about playbooks: the catalog of them, and the functions they call."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from holdfast.core.errors import InvalidInput
from holdfast.core.payload import a_type
from holdfast.engine.catalog import AddedPlaybook, CatalogDiff, CatalogEntry, CatalogText
from holdfast.functions import Functions

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.playbook.load import Playbook

PAGE_SIZE = 1_000


class Playbooks(Functions):
    async def engine(self) -> AnyEngine:
        raise NotImplementedError

    async def add_playbook(self, playbook: str | os.PathLike[str]) -> AddedPlaybook:
        """Register a playbook: YAML as a text, or the name of its file. New executions of its path get this
        version; those that run keep theirs. PlaybookInvalid has all that is wrong with it."""
        loaded = await asyncio.to_thread(_loaded, playbook)  # a large one takes a second or more
        return await (await self.engine()).catalog.add(loaded.definition, loaded.source)

    async def playbooks(self) -> list[CatalogEntry]:
        """What is known, by path, each with the version that new executions get: playbooks, and the pipelines
        of programs."""
        catalog = (await self.engine()).catalog
        entries: list[CatalogEntry] = []
        cursor: str | None = None
        while True:
            page = await catalog.entries(limit=PAGE_SIZE, cursor=cursor)
            entries += page.items
            cursor = page.next
            if cursor is None:
                return entries

    async def playbook_versions(self, path: str) -> list[CatalogEntry]:
        """All of this path, the newest first."""
        return await (await self.engine()).catalog.all_versions(path)

    async def playbook_text(self, path: str, version: int | None = None) -> CatalogText:
        """The current version, or this one: the YAML as it was written, of a pipeline its steps in words."""
        return await (await self.engine()).catalog.text(path, version)

    async def playbook_diff(self, path: str, old: int | None = None, new: int | None = None) -> CatalogDiff:
        """Between two versions; by default between the current one and the one that was before it."""
        return await (await self.engine()).catalog.diff(path, old, new)


def _loaded(playbook: str | os.PathLike[str]) -> Playbook:
    from holdfast.playbook.load import load_playbook  # slow to load, and not every program has playbooks

    source, name = _source_of(playbook)
    return load_playbook(source, name=name)


def _source_of(playbook: str | os.PathLike[str]) -> tuple[bytes | str, str]:
    if not isinstance(playbook, str | os.PathLike):
        raise InvalidInput(
            f"A playbook is a text or the name of a file, not {a_type(playbook)}.",
            guidance='For example hf.add_playbook("flow.yaml").',
        )
    # No playbook fits on a line, unless it is written in braces; no file is named with either.
    if isinstance(playbook, str) and ("\n" in playbook or playbook.lstrip().startswith("{")):
        return playbook, "playbook"
    from holdfast.playbook.document import BYTES_MAX

    try:
        with open(playbook, "rb") as file:
            return file.read(BYTES_MAX + 1), os.fspath(playbook)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"The playbook {os.fspath(playbook)!r} cannot be read: {reason}.",
            guidance="Check the name of the file; a relative one starts in the current folder.",
        ) from None
