"""Which language a document is in, as far as its text so far tells.

A chunk votes by the telling words that it has; its own votes count most, so that a document in two languages
is read in both. Where nothing tells, it is English.
"""

from __future__ import annotations

from holdfast.pipelines.documents.findings.stop_words import TELLING_WORDS

# Languages in which 1.234 is more than a thousand, and 03/04 is in April.
DECIMAL_COMMA = frozenset({"de", "fr", "es", "it", "nl", "pt"})

_OWN_VOTES_COUNT = 3
_VOTES_KEPT = 0.98
_VOTES_MIN = 8  # for another language than English: two telling words of one chunk


class Languages:
    """The votes of the chunks so far."""

    def __init__(self) -> None:
        self._votes = dict.fromkeys(TELLING_WORDS, 0.0)

    def of(self, text: str) -> str:
        """The language of the next chunk."""
        words = set(text.lower().split())
        best, most = "en", float(_VOTES_MIN) - 1
        for language, telling in TELLING_WORDS.items():
            own = len(telling & words)
            votes = self._votes[language] = self._votes[language] * _VOTES_KEPT + own
            if votes + _OWN_VOTES_COUNT * own > most:
                best, most = language, votes + _OWN_VOTES_COUNT * own
        return best

    @property
    def main(self) -> str:
        best = max(self._votes, key=lambda language: self._votes[language])
        return best if self._votes[best] >= 2 else "en"
