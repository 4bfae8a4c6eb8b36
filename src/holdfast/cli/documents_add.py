"""The work of `holdfast documents add`: files uploaded one after the other, and waited for all together.

    paths ──▶ files ──▶ uploads ──▶ documents, looked at in pages until all have ended

A file that cannot be taken in does not keep the others from it; a database, a storage or a server that does
not answer ends the command, with what was uploaded until then named and kept.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.addresses import is_server
from holdfast.cli.documents_adding_screen import Screen, screen_for
from holdfast.cli.documents_files import Found, found_in
from holdfast.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, opened
from holdfast.cli.outages import through_outages
from holdfast.cli.output import show_json
from holdfast.cli.submit import told_unoffered
from holdfast.cli.uploading import Source, name_of, opened_file, told_with_errors, working_on
from holdfast.core.errors import (
    HoldfastError,
    InvalidInput,
    PayloadTooLarge,
    PermanentError,
    TransientError,
)
from holdfast.core.masking import mask_secrets
from holdfast.engine import Engine
from holdfast.pipelines.documents.playbook import PATH

if TYPE_CHECKING:
    from holdfast.cli.documents_door import Door
    from holdfast.client import AnyEngine
    from holdfast.pipelines.documents.documents import Document

PAGE_DOCUMENTS = 200
LOOK_SHARE = 0.1  # of the time that passes, looking takes at most this part
WORKED_AT_ONCE_MIN = 2
OVER = ("complete", "failed")


class Upload(NamedTuple):
    """Of one file. `is_new` is False where its content was uploaded before."""

    path: Path
    name: str
    id: int
    is_new: bool


class Refused(NamedTuple):
    """A file that was not taken in."""

    path: Path
    error: HoldfastError


class Adding:
    def __init__(
        self, url: str, paths: Sequence[Path], *, again: bool, lane: str, is_waiting: bool, as_json: bool
    ) -> None:
        self._url = url
        self._again = again
        self._lane = lane
        self._is_waiting = is_waiting
        self._as_json = as_json
        if is_waiting and not is_server(url):
            _check_installed()
        self._found: Found = found_in(paths)
        self._uploads: list[Upload] = []
        self._refused: list[Refused] = []
        self._kept: list[str] = []
        server = mask_secrets(url) if is_server(url) else None
        self._screen: Screen = screen_for(silent=as_json, server=server, files=len(self._found.files))

    def to_its_end(self) -> int:
        """The exit code, once all is told."""
        try:
            documents = asyncio.run(self._work())
        except KeyboardInterrupt:
            self._screen.left_behind(len(self._kept), again=self._again)
            sys.stdout.flush()
            os._exit(EXIT_INTERRUPTED)  # an ordinary exit would wait for the threads that work
        if self._as_json:
            show_json(self._as_record(documents))
        else:
            self._screen.end(
                documents,
                before=[upload.id for upload in self._uploads if not upload.is_new],
                refused=[(one.path, one.error) for one in self._refused],
                uploads=[upload.id for upload in self._uploads],
                is_waited_for=self._is_waiting,
            )
        has_failed = any(document.status == "failed" for document in documents)
        return EXIT_FAILED if has_failed or self._refused else 0

    def _as_record(self, documents: Sequence[Document]) -> dict[str, Any]:
        return {
            "items": documents,
            "files": [
                {"path": str(one.path), "document_id": one.id, "created": one.is_new} for one in self._uploads
            ],
            "refused": [
                {
                    "path": str(one.path),
                    "error": {
                        "code": _code_of(one.error),
                        "message": str(one.error),
                        "guidance": one.error.guidance or "",
                    },
                }
                for one in self._refused
            ],
            "skipped": self._found.skipped.total(),
        }

    async def _work(self) -> list[Document]:
        from holdfast.cli.documents_door import door_to

        async with opened(self._url, create=True) as engine:
            door = await door_to(engine)
            with self._screen, told_with_errors(self._kept):
                self._screen.found(self._found)
                for path in self._found.files:
                    await self._upload(door, path)
                return await self._ended(engine, door)

    async def _upload(self, door: Door, path: Path) -> None:
        try:
            name = name_of(path)
            with opened_file(path) as file, self._screen.uploading(name, file) as watched:
                source = Source(path, watched)
                id_, is_new = await door.upload(name, source, lane=self._lane, again=self._again)
        except (InvalidInput, PermanentError, PayloadTooLarge) as error:
            self._refused.append(Refused(path, error))
            self._screen.refused(path, error)
            return
        except TransientError as error:
            raise TransientError(
                f"{path}: {error}",
                error_type=error.error_type,
                guidance="Nothing of it was kept. Add it again once that is repaired.",
            ) from error
        self._uploads.append(Upload(path, name, id_, is_new))
        self._kept.append(f"document {id_} ({name})")
        self._screen.uploaded(name, source.tell(), id_, is_new=is_new)

    async def _ended(self, engine: AnyEngine, door: Door) -> list[Document]:
        """All of them, once they have ended, or as they are now."""
        ids = list(dict.fromkeys(upload.id for upload in self._uploads))
        found = await look(door, ids)
        known = {id_: found[id_] for id_ in ids}
        if not self._is_waiting or not _open(known):
            return list(known.values())
        if not isinstance(engine, Engine) and (told := await told_unoffered(engine, PATH, self._lane)):
            self._screen.hint(told)
        async with working_on(PATH, engine, concurrency=max(WORKED_AT_ONCE_MIN, os.cpu_count() or 1)):
            while open_ := _open(known):
                begun = asyncio.get_running_loop().time()
                known |= await through_outages(partial(look, door, open_))
                self._screen.looked(known)
                cost = asyncio.get_running_loop().time() - begun
                await asyncio.sleep(max(door.look_seconds, cost / LOOK_SHARE) if _open(known) else 0)
        return list(known.values())


def _open(known: dict[int, Document]) -> list[int]:
    return [id_ for id_, document in known.items() if document.status not in OVER]


async def look(door: Door, ids: Sequence[int]) -> dict[int, Document]:
    """Those of these numbers, in pages that reach over what lies between them."""
    left = sorted(set(ids), reverse=True)
    found: dict[int, Document] = {}
    while left:
        limit = min(PAGE_DOCUMENTS, left[0] - left[-1] + 1, 4 * len(left))
        page = await door.page(before=left[0] + 1, limit=limit)
        wanted = set(left)
        found |= {document.id: document for document in page if document.id in wanted}
        last = page[-1].id if page else left[0]
        left = [id_ for id_ in left if id_ < last]
    return found


def _code_of(error: HoldfastError) -> str:
    return getattr(error, "error_type", None) or error.code


def _check_installed() -> None:
    """That the documents could be worked on here."""
    from holdfast.pipelines.registry import built_in

    pipeline = built_in(PATH)
    assert pipeline is not None
    pipeline.check_worker(os.environ)
    if not pipeline.is_installed:
        raise InvalidInput(
            "What reads documents is not installed here.",
            guidance="Install it:  pip install 'holdfast[documents]' , or upload only, with --no-wait, and"
            " let a worker that has it do the rest.",
        )
