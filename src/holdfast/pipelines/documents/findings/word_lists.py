"""Lists of words, written as people read them: in lines."""

from __future__ import annotations


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())
