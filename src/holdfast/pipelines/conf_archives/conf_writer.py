r"""Stanzas written as the text of a .conf file: what `parse` reads from it is what was written.

All that comes out of `parse` can be written, and comes back with the same names, keys, values and order;
comments, indentation and the numbers of the lines are not kept. What the syntax cannot say is refused: a key
with an `=` in it, say, or a value that ends with white space. A header or a setting that is within five
characters of the longest that `parse` reads may become too long by what is written around it; it is refused
as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.pipelines.conf_archives.conf_parser import Entry, Stanza, parse


def write(stanzas: Iterable[Stanza]) -> str:
    """Text that parses to the same stanzas: same names, keys, values, order. Fails with a ValueError where
    there is no such text."""
    return "".join(_parts(stanzas))


def _parts(stanzas: Iterable[Stanza]) -> Iterator[str]:
    for index, stanza in enumerate(stanzas):
        if stanza.has_header:
            yield _header(stanza.name)
        elif index > 0 or stanza.name != "default" or not stanza.entries:
            raise ValueError(
                f"stanza {stanza.name[:80]!r} cannot be written without a header: only settings of default"
                " that stand before all other stanzas have none; give it one"
            )
        for key, value, _ in stanza.entries:
            yield _setting(key, value)
        yield "\n"


def _header(name: str) -> str:
    text = f"[{name}]\n"
    if [*parse([text])] != [Stanza(name, 0, 1, True, [])]:
        raise ValueError(f"no header says the name {name[:80]!r}; choose another")
    return text


def _setting(key: str, value: str) -> str:
    # A space keeps a backslash at the end from continuing the value.
    end = " \n" if value.endswith("\\") else "\n"
    text = f"{key} = " + value.replace("\n", "\\\n") + end
    if [*parse([text])] != [Stanza("default", 0, 1, False, [Entry(key, value, 1)])]:
        raise ValueError(f"no line says the value {value[:80]!r} of the key {key[:80]!r}; change one of them")
    return text
