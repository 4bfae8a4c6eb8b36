"""The words that stanzas are found by, the same on both stores.

A word is what stands between white space and ASCII punctuation, whatever its case. In an index it has the
number of its run in front of it (`17zaccess`): to look for the beginning of a word never goes through the
words of other runs, of which there may be millions.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

from holdfast.core.errors import InvalidInput

INDEXED_CHARS_MAX = 200_000  # of a stanza
INDEXED_BYTES_MAX = 900_000  # of its words: a tsvector has less than a mebibyte
WORD_CHARS_MAX = 200
ASKED_MAX = 20

_ENDS_NUMBER = "z"
_SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}


class IndexedWords:
    """Of the stanzas of one run, as both stores take them: each word once, with blanks between them."""

    def __init__(self, run_id: int) -> None:
        self._front = _front(run_id)
        self._between = " " + self._front

    def of(self, name: str, entries: Iterable[tuple[str, str, int]], *, is_short: bool) -> str:
        words = dict.fromkeys(_words_of(_text(name, entries, is_short=is_short)))
        if not words:
            return ""
        found = self._front + self._between.join(words)
        if 4 * len(found) <= INDEXED_BYTES_MAX or len(found.encode()) <= INDEXED_BYTES_MAX:
            return found
        # Small letters may be longer than what they stand for.
        return found.encode()[:INDEXED_BYTES_MAX].decode(errors="ignore").rpartition(" ")[0]


def _front(run_id: int) -> str:
    return f"{run_id}{_ENDS_NUMBER}"


def _words_of(text: str) -> list[str]:
    words = text.casefold().translate(_SEPARATORS).split()
    if getsizeof(text) > WORD_CHARS_MAX and len(max(words, key=len, default="")) > WORD_CHARS_MAX:
        return [word[:WORD_CHARS_MAX] for word in words]
    return words


def _text(name: str, entries: Iterable[tuple[str, str, int]], *, is_short: bool) -> str:
    if is_short:
        return " ".join([name, *[f"{key} {value}" for key, value, _ in entries]])[:INDEXED_CHARS_MAX]
    parts, chars = [name], len(name)
    for key, value, _ in entries:
        if chars >= INDEXED_CHARS_MAX:
            break
        parts.append(f"{key} {value[:INDEXED_CHARS_MAX]}")
        chars += len(parts[-1])
    return " ".join(parts)[:INDEXED_CHARS_MAX]


def words_asked(search: str) -> list[str]:
    """Without those that are the beginning of others: where these are, those are too."""
    words = _words_of(search)
    if len(words) > ASKED_MAX:
        raise InvalidInput(
            f"The search has {len(words)} words; the limit is {ASKED_MAX}.", guidance="Use fewer words."
        )
    distinct = dict.fromkeys(words)
    return [
        word for word in distinct if not any(other != word and other.startswith(word) for other in distinct)
    ]


def fts_query(run_id: int, words: list[str]) -> str:
    return " AND ".join(f'"{_front(run_id)}{word}" *' for word in words)


def tsquery(run_id: int, words: list[str]) -> str:
    return " & ".join(f"'{_front(run_id)}{word}':*" for word in words)
