"""Reading the files and stanzas of a run: filtered, searched, page by page in the order of the archive.

A page ends at its limit, or before it at PAGE_BYTES_MAX: a stanza may have millions of characters. It has
one row at least, where one is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.pipelines.conf_archives.words import fts_query, tsquery, words_asked
from holdfast.store.interface import Store
from holdfast.store.tables import Row

PAGE = 1_000
PAGE_BYTES_MAX = 8 * 1024**2
HELD_ENTRIES_MAX = 200_000
HELD_CHARS_MAX = 32 * 1024**2
INT4_MAX = 2**31 - 1

T = TypeVar("T")

_CURSOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_decode = msgspec.json.Decoder(list[tuple[str, str, int]]).decode


class FileError(msgspec.Struct, frozen=True, kw_only=True):
    line: int
    message: str


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """`app` is the folder of the app that it belongs to, `layer` default or local, "" where it is in neither.
    All `parse_errors` are counted, the first hundred are told."""

    id: int
    path: str
    app: str
    layer: str
    conf: str
    encoding: str
    size: int
    sha256: str
    stanzas: int
    parse_errors: int
    errors: list[FileError]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: str
    line: int


class StanzaLine(msgspec.Struct, frozen=True, kw_only=True):
    """`settings` has each key's last value, `entries` all that is written. The keys before the first header
    of a file are the stanza `default`, without a header."""

    id: str
    run_id: int
    file_id: int
    name: str
    source_path: str
    position: int
    line: int
    has_header: bool
    settings: dict[str, str]
    entries: list[Entry]


_COLUMNS = "s.run_id, s.file_id, s.name, s.source_path, s.position, s.line, s.has_header, s.entries"


class Page(Generic[T]):
    def __init__(self, items: list[T], *, is_last: bool) -> None:
        self.items = items
        self.is_last = is_last


class ReadBudget:
    """How much is held at once to merge or to compare it. Refused with the words of who needs it."""

    def __init__(self, what: str, guidance: str) -> None:
        self._what = what
        self._guidance = guidance
        self._entries = self._chars = 0

    def take(self, stanza: StanzaLine) -> None:
        """Each setting with the path of its file, as it is told."""
        count = 1 + len(stanza.entries)
        self._entries += count
        self._chars += len(stanza.name) + count * len(stanza.source_path)
        self._chars += sum(len(entry.key) + len(entry.value) for entry in stanza.entries)
        if self._entries > HELD_ENTRIES_MAX or self._chars > HELD_CHARS_MAX:
            raise InvalidInput(
                f"{self._what}: the limit is {HELD_ENTRIES_MAX:,} stanzas and settings, and"
                f" {HELD_CHARS_MAX:,} characters.",
                guidance=self._guidance,
            )


class StanzaReader:
    """Of one run."""

    def __init__(self, store: Store, run_id: int) -> None:
        self._store = store
        self._run_id = run_id
        self._is_sqlite = store.dialect == "sqlite"
        self._by_bytes = "" if self._is_sqlite else ' COLLATE "C"'

    async def files(
        self,
        *,
        after: int | None = None,
        limit: int,
        conf: str | None = None,
        faulty: bool = False,
    ) -> Page[RunFile]:
        if _is_nowhere(conf):
            return Page([], is_last=True)
        conditions = ["run_id = $1", "file_id > $2"]
        values: list[Any] = [self._run_id, -1 if after is None else min(after, INT4_MAX)]
        if conf is not None:
            values.append(conf)
            conditions.append("conf = $3")
        if faulty:
            conditions.append("parse_errors > 0")
        columns = "file_id, path, app, layer, conf, encoding, size, sha256, stanzas, parse_errors, errors"
        rest = f"FROM holdfast_conf_files WHERE {' AND '.join(conditions)} ORDER BY file_id"
        found, is_last = await self._page(columns, ("errors", "path"), rest, values, limit)
        return Page([_file(row) for row in found], is_last=is_last)

    async def apps(self) -> set[str]:
        """Those that have a layer."""
        sql = "SELECT DISTINCT app FROM holdfast_conf_files WHERE run_id = $1 AND layer <> ''"
        return {app for (app,) in await self._store.fetch_rows(sql, self._run_id)}

    async def confs(self, app: str) -> set[str]:
        sql = "SELECT DISTINCT conf FROM holdfast_conf_files WHERE run_id = $1 AND app = $2 AND layer <> ''"
        return {conf for (conf,) in await self._store.fetch_rows(sql, self._run_id, app)}

    async def layers(self, app: str, conf: str) -> list[tuple[int, str]]:
        """The number and the layer of each file that has a part in it."""
        sql = (
            "SELECT file_id, layer FROM holdfast_conf_files"
            " WHERE run_id = $1 AND app = $2 AND conf = $3 AND layer <> '' ORDER BY file_id"
        )
        found = await self._store.fetch_rows(sql, self._run_id, app, conf)
        return [(file_id, layer) for file_id, layer in found]

    async def changed_files(
        self, old: StanzaReader, at_least: str, limit: int
    ) -> list[tuple[str, int | None, int | None]]:
        """Paths from this one on whose bytes are not the same in both runs, with the numbers of the files."""
        sql = f"""
            SELECT coalesce(o.path, n.path), o.file_id, n.file_id
            FROM (SELECT * FROM holdfast_conf_files WHERE run_id = $1) AS o
                 FULL JOIN (SELECT * FROM holdfast_conf_files WHERE run_id = $2) AS n ON o.path = n.path
            WHERE o.sha256 IS DISTINCT FROM n.sha256 AND coalesce(o.path, n.path){self._by_bytes} >= $3
            ORDER BY coalesce(o.path, n.path){self._by_bytes} LIMIT {int(limit)}"""
        found = await self._store.fetch_rows(sql, old._run_id, self._run_id, at_least)
        return [(path, old_id, new_id) for path, old_id, new_id in found]

    async def stanzas(
        self,
        *,
        conf: str | None = None,
        name: str | None = None,
        path: str | None = None,
        file_id: int | None = None,
        search: str | None = None,
        cursor: str | None = None,
        limit: int,
    ) -> Page[StanzaLine]:
        after = _parsed(cursor)
        words = None if search is None else words_asked(search)
        if _is_nowhere(conf, name, path) or words == []:
            return Page([], is_last=True)
        # By its name a stanza is found at once, but in another order: SQLite must not walk all for that.
        place = "+s.file_id, +s.position" if self._is_sqlite and name is not None else "s.file_id, s.position"
        conditions = ["s.run_id = $1", f"({place}) > ($2, $3)"]
        values: list[Any] = [self._run_id, *after]

        def add(condition: str, value: Any) -> None:
            values.append(value)
            conditions.append(condition.format(f"${len(values)}"))

        if conf is not None:
            add(
                "s.file_id IN (SELECT file_id FROM holdfast_conf_files WHERE run_id = $1 AND conf = {})", conf
            )
        if path is not None:
            add(
                "s.file_id IN (SELECT file_id FROM holdfast_conf_files WHERE run_id = $1 AND path = {})", path
            )
        if name is not None:
            if not self._is_sqlite:
                add("left(s.name, 200) = {}", name[:200])
            add("s.name = {}", name)
        if file_id is not None:
            add("s.file_id = {}", file_id)
        if words is not None:
            add(self._matches(), (fts_query if self._is_sqlite else tsquery)(self._run_id, words))
        rest = f"FROM holdfast_conf_stanzas s WHERE {' AND '.join(conditions)} ORDER BY {place}"
        large = ("s.entries", "s.name", "s.source_path")
        if not self._is_sqlite:
            found, is_last = await self._page(_COLUMNS, large, rest, values, limit)
            return Page([_stanza(row) for row in found], is_last=is_last)
        # A search is the costly part there, and is made once.
        sizes = await self._store.fetch_rows(
            f"SELECT s.id, {_size_of(large)} {rest} LIMIT {int(limit) + 1}", *values
        )
        count = _fitting([size for _, size in sizes], limit)
        found = await self._store.fetch_rows(
            f"SELECT {_COLUMNS} FROM holdfast_conf_stanzas s WHERE s.id IN (SELECT value FROM json_each($1))"
            " ORDER BY s.file_id, s.position",
            json.dumps([id_ for id_, _ in sizes[:count]]),
        )
        return Page([_stanza(row) for row in found], is_last=count == len(sizes))

    async def every_stanza(self, file_id: int, budget: ReadBudget) -> AsyncIterator[StanzaLine]:
        """Of one file, for those who need all of it at once."""
        cursor = None
        while True:
            page = await self.stanzas(file_id=file_id, cursor=cursor, limit=PAGE)
            for stanza in page.items:
                budget.take(stanza)
                yield stanza
            if page.is_last:
                return
            cursor = cursor_of(page.items[-1])

    async def _page(
        self, columns: str, large: Sequence[str], rest: str, values: list[Any], limit: int
    ) -> tuple[list[Row], bool]:
        """What is large is asked for its size first. Runs that are COMPLETE never change, so both look at the
        same rows."""
        sizes = await self._store.fetch_rows(
            f"SELECT {_size_of(large)} {rest} LIMIT {int(limit) + 1}", *values
        )
        count = _fitting([size for (size,) in sizes], limit)
        found = await self._store.fetch_rows(f"SELECT {columns} {rest} LIMIT {count}", *values)
        return found, count == len(sizes)

    def _matches(self) -> str:
        if not self._is_sqlite:
            return "s.words @@ {}::text::tsquery"
        return "s.id IN (SELECT rowid FROM holdfast_conf_words WHERE holdfast_conf_words MATCH {})"


def _size_of(large: Sequence[str]) -> str:
    return " + ".join(f"octet_length({column})" for column in large)


def _fitting(sizes: Sequence[int], limit: int) -> int:
    """How many of the first rows make a page."""
    count = taken = 0
    for size in sizes[:limit]:
        if count and taken + size > PAGE_BYTES_MAX:
            break
        count, taken = count + 1, taken + size
    return count


def _is_nowhere(*asked: str | None) -> bool:
    """PostgreSQL takes no NUL, not even to look for it; and nothing that was read has one."""
    return any("\0" in text for text in asked if text is not None)


def _parsed(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return -1, -1
    if (found := _CURSOR.fullmatch(cursor)) is None:
        raise InvalidInput(
            f"{cursor!r} is no cursor of this list.", guidance="Use `next` of the page before, as it is."
        )
    return int(found[1]), int(found[2])


def cursor_of(stanza: StanzaLine) -> str:
    return f"{stanza.file_id}.{stanza.position}"


def _file(row: Row) -> RunFile:
    names = ("id", "path", "app", "layer", "conf", "encoding", "size", "sha256", "stanzas", "parse_errors")
    told: dict[str, Any] = dict(zip(names, row[:-1], strict=True))
    faults = msgspec.json.decode(row[-1])
    return RunFile(**told, errors=[FileError(line=line, message=message) for line, message in faults])


def _stanza(row: Row) -> StanzaLine:
    run_id, file_id, name, source_path, position, line, has_header, entries = row
    written = _decode(entries)
    return StanzaLine(
        id=f"{run_id}.{file_id}.{position}",
        run_id=run_id,
        file_id=file_id,
        name=name,
        source_path=source_path,
        position=position,
        line=line,
        has_header=bool(has_header),
        settings={key: value for key, value, _ in written},
        entries=[Entry(key=key, value=value, line=place) for key, value, place in written],
    )
