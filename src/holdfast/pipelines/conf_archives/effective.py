"""The effective configuration of an app: its layers merged as Splunk merges them, each key with its origin.

    local [stanza]  over  default [stanza]  over  local [default]  over  default [default]

Within a file what stands later wins, also where a stanza is repeated. The keys before the first header are
those of [default], whose keys all other stanzas inherit; of metadata nothing is inherited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.pipelines.conf_archives.placing import DEFAULT, LOCAL, METADATA
from holdfast.pipelines.conf_archives.stanzas import (
    PAGE_BYTES_MAX,
    Entry,
    ReadBudget,
    StanzaLine,
    StanzaReader,
)

OVERRIDES_TOLD_MAX = 100
LISTED_MAX = 50
KEY_CHARS = 120  # of the names around a key

_LOOK_AT_STANZAS = "Look at the stanzas themselves: GET /v1/runs/{id}/stanzas."
_RANK = {DEFAULT: 0, LOCAL: 1}
GLOBAL = "default"


class EffectiveKey(msgspec.Struct, frozen=True, kw_only=True):
    """Where the value comes from; `stanza` is `default` for one that is inherited. `overrides` are the
    origins of those that it wins over, the next one first, at most a hundred."""

    key: str
    value: str
    source_path: str
    line: int
    layer: str
    stanza: str
    overrides: list[str]


class EffectiveStanza(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    settings: dict[str, str]
    keys: list[EffectiveKey]


class Written(NamedTuple):
    """A stanza as it stands in a file of this layer."""

    layer: str
    stanza: StanzaLine


async def effective(
    reader: StanzaReader, *, app: str | None, conf: str | None, name: str | None, begin: int, limit: int
) -> tuple[list[EffectiveStanza], int | None]:
    """Of one configuration of one app, sorted by name: those from number `begin` on, and the number of the
    next one that is left."""
    apps = await reader.apps()
    if not apps:
        raise InvalidInput(
            "No file of this run is in a folder `default` or `local`: there is nothing to merge.",
            guidance=_LOOK_AT_STANZAS,
        )
    app = _chosen("app", app, apps, by_last=True)
    conf = _chosen("conf", conf, await reader.confs(app))
    budget = ReadBudget(f"{conf} of {app!r} is too large to merge", _LOOK_AT_STANZAS)
    written: list[Written] = []
    for file_id, layer in sorted(await reader.layers(app, conf), key=lambda file: _RANK[file[1]]):
        async for stanza in reader.every_stanza(file_id, budget):
            written.append(Written(layer, stanza))
    return await asyncio.to_thread(
        merged, written, name=name, inherits=conf != METADATA, begin=begin, limit=limit
    )


def merged(
    written: Iterable[Written], *, name: str | None, inherits: bool, begin: int = 0, limit: int
) -> tuple[list[EffectiveStanza], int | None]:
    """`written` has the weakest first. What others inherit is told with each of them, so a page may end long
    before its limit."""
    by_name: dict[str, list[Written]] = {}
    for one in written:
        by_name.setdefault(one.stanza.name, []).append(one)
    inherited = by_name.get(GLOBAL, []) if inherits else []
    wanted = sorted(by_name) if name is None else [name] if name in by_name else []
    found: list[EffectiveStanza] = []
    chars = 0
    for number, each in enumerate(wanted[begin : begin + limit], begin):
        weakest_first = [*([] if each == GLOBAL and inherits else inherited), *by_name[each]]
        stanza = _merged(each, weakest_first)
        chars += _chars_of(stanza)
        if found and chars > PAGE_BYTES_MAX:
            return found, number
        found.append(stanza)
    end = begin + limit
    return found, end if end < len(wanted) else None


def _merged(name: str, weakest_first: Iterable[Written]) -> EffectiveStanza:
    places: dict[str, list[tuple[Written, Entry]]] = {}
    for one in weakest_first:
        for entry in one.stanza.entries:
            places.setdefault(entry.key, []).append((one, entry))
    keys = [_key(places[key]) for key in sorted(places)]
    return EffectiveStanza(name=name, settings={key.key: key.value for key in keys}, keys=keys)


def _key(weakest_first: list[tuple[Written, Entry]]) -> EffectiveKey:
    one, entry = weakest_first[-1]
    weaker = weakest_first[-2 : -2 - OVERRIDES_TOLD_MAX : -1]
    return EffectiveKey(
        key=entry.key,
        value=entry.value,
        source_path=one.stanza.source_path,
        line=entry.line,
        layer=one.layer,
        stanza=one.stanza.name,
        overrides=[f"{other.stanza.source_path}:{place.line}" for other, place in weaker],
    )


def _chars_of(stanza: EffectiveStanza) -> int:
    """About as many as it has in an answer, where keys and values stand twice."""
    return len(stanza.name) + sum(
        2 * (len(key.key) + len(key.value)) + len(key.source_path) * (1 + len(key.overrides)) + KEY_CHARS
        for key in stanza.keys
    )


def _chosen(what: str, asked: str | None, there: set[str], *, by_last: bool = False) -> str:
    """The one that is named, by its last part too where only one has it; the only one where none is."""
    if asked is None and len(there) == 1:
        return next(iter(there))
    if asked is not None and asked in there:
        return asked
    if asked and by_last:
        alike = [one for one in there if one.rpartition("/")[2] == asked]
        if len(alike) == 1:
            return alike[0]
    named = ", ".join(repr(one) for one in sorted(there)[:LISTED_MAX]) or "none"
    rest = f" and {len(there) - LISTED_MAX} more" if len(there) > LISTED_MAX else ""
    raise InvalidInput(
        f"Which {what}? The run has {len(there)}." if asked is None else f"The run has no {what} {asked!r}.",
        guidance=f"Give one of them as {what}: {named}{rest}.",
    )
