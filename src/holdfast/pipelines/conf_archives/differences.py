"""What differs between two runs: file by file, stanza by stanza, key by key.

Files are matched by their paths in the archives, stanzas by their names, keys by what counts: the last value.
A file whose bytes are the same in both is not looked into. The order is that of paths and names.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.pipelines.conf_archives.stanzas import PAGE_BYTES_MAX, ReadBudget, StanzaReader

FILES_AT_ONCE = 1_000
KEY_CHARS = 70  # of the names around a key

Change = Literal["added", "removed", "changed"]


class KeyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """`old` and `new` are null where the key is not there; each line is that of the value."""

    key: str
    old: str | None
    new: str | None
    old_line: int | None
    new_line: int | None


class StanzaDifference(msgspec.Struct, frozen=True, kw_only=True):
    source_path: str
    name: str
    change: Change
    keys: list[KeyDifference]


# A stanza's keys, each with its last value and the line of that.
_Settings = dict[str, tuple[str, int]]


async def differences(
    old: StanzaReader, new: StanzaReader, *, cursor: str | None, limit: int
) -> tuple[list[StanzaDifference], str | None]:
    """One page, and the cursor of the following one."""
    first_path, told = _parsed(cursor)
    found: list[StanzaDifference] = []
    chars = 0
    async for path, old_file, new_file in _changed_files(old, new, first_path):
        budget = ReadBudget(
            f"{path!r} is too large to be compared at once",
            "Compare the stanzas themselves: GET /v1/runs/{id}/stanzas?path=….",
        )
        settings = [await _settings(old, old_file, budget), await _settings(new, new_file, budget)]
        for number, difference in enumerate(between(path, *settings)):
            if path == first_path and number < told:
                continue
            chars += _chars_of(difference)
            if len(found) == limit or (found and chars > PAGE_BYTES_MAX):
                return found, _cursor(path, number)
            found.append(difference)
    return found, None


async def _changed_files(
    old: StanzaReader, new: StanzaReader, first_path: str
) -> AsyncIterator[tuple[str, int | None, int | None]]:
    """Their paths, and their numbers in both runs."""
    at_least = first_path
    while page := await new.changed_files(old, at_least, FILES_AT_ONCE):
        for changed in page:
            yield changed
        if len(page) < FILES_AT_ONCE:
            return
        at_least = page[-1][0] + "\1"  # no path has a control character


def between(path: str, old: dict[str, _Settings], new: dict[str, _Settings]) -> Iterator[StanzaDifference]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        keys = [
            difference
            for key in sorted((before or {}).keys() | (after or {}).keys())
            if (difference := _of_key(key, (before or {}).get(key), (after or {}).get(key))) is not None
        ]
        change: Change = "added" if before is None else "removed" if after is None else "changed"
        if keys or change != "changed":
            yield StanzaDifference(source_path=path, name=name, change=change, keys=keys)


def _of_key(key: str, old: tuple[str, int] | None, new: tuple[str, int] | None) -> KeyDifference | None:
    if old is not None and new is not None and old[0] == new[0]:
        return None
    return KeyDifference(
        key=key,
        old=None if old is None else old[0],
        new=None if new is None else new[0],
        old_line=None if old is None else old[1],
        new_line=None if new is None else new[1],
    )


async def _settings(reader: StanzaReader, file_id: int | None, budget: ReadBudget) -> dict[str, _Settings]:
    settings: dict[str, _Settings] = {}
    if file_id is not None:
        async for stanza in reader.every_stanza(file_id, budget):
            settings.setdefault(stanza.name, {}).update(
                {entry.key: (entry.value, entry.line) for entry in stanza.entries}
            )
    return settings


def _chars_of(difference: StanzaDifference) -> int:
    """About as many as it has in an answer."""
    around = len(difference.name) + len(difference.source_path)
    keys = (len(key.key) + len(key.old or "") + len(key.new or "") + KEY_CHARS for key in difference.keys)
    return around + sum(keys)


def _cursor(path: str, told: int) -> str:
    """Where the next page begins: so many differences of this file were told. Runs that are COMPLETE never
    change."""
    return base64.urlsafe_b64encode(msgspec.json.encode([path, told])).decode().rstrip("=")


def _parsed(cursor: str | None) -> tuple[str, int]:
    if cursor is None:
        return "", 0
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        path, told = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[str, int])
        if "\0" in path:
            raise ValueError("no path has a NUL")
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise InvalidInput(
            f"{cursor[:80]!r} is no cursor of this list.", guidance="Use `next` of the page before, as it is."
        ) from None
    return path, told
