"""In which encoding the Latin letters of a text are, where its bytes alone do not say.

The same byte is ³ in one encoding and ł in another; in a language of Europe only few such letters occur. So
each encoding is asked how many of its letters one language has, and the one that explains most is taken.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import NamedTuple

# Those of Windows first, as most files come from there.
CODECS = ("cp1252", "cp1250", "cp1254", "cp1257", "iso8859_2", "mac_roman", "cp850", "cp852")
# In Portuguese an õ always stands before an e; elsewhere it is mostly what one encoding makes of Hungarian.
_NASAL = "õe"


def _alphabet(letters: str, *more: str) -> frozenset[str]:
    return frozenset((*letters, *letters.upper(), *more))


_WESTERN = (
    _alphabet("äöüßé"),  # German
    _alphabet("àâæçéèêëîïôœùûüÿ"),  # French
    _alphabet("áéíñóúüªº"),  # Spanish
    _alphabet("ãáéíóúâêôàçªº", _NASAL),  # Portuguese
    _alphabet("àèéìíòóùú"),  # Italian
    _alphabet("àçéèíïóòúü"),  # Catalan
    _alphabet("éëïöüèáíóú"),  # Dutch
    _alphabet("åäöæøéü"),  # the languages of the North
    _alphabet("áðéíóúýþæö"),  # Icelandic
)
_OTHERS = (
    _alphabet("ąćęłńóśźż"),  # Polish
    _alphabet("áčďéěíňóřšťúůýžäľĺôŕ"),  # Czech and Slovak
    _alphabet("áéíóöőúüű"),  # Hungarian
    _alphabet("ăâîşţ"),  # Romanian
    _alphabet("čćđšž"),  # the languages of the Balkans
    _alphabet("çğıİöşüâîû"),  # Turkish
    _alphabet("āčēģīķļņšūž"),  # Latvian
    _alphabet("ąčęėįšųūž"),  # Lithuanian
    _alphabet("äöüõšž", _NASAL),  # Estonian
)
_ALPHABETS = (*_WESTERN, *_OTHERS)
# Lists of names have letters of several languages; what one language explains is more likely all the same.
_MIXED = frozenset[str]().union(*_WESTERN)
_MIXED_COUNTS = 0.95
# What stands in texts of all languages.
_MARKS = frozenset("\u00a0–—\u2018\u2019\u201a“”„…€£§°«»\u2039›·•©®™±½¼¾¿¡²³µ\u00d7")
LETTERS_SHARE_MAX = 0.4
"""Beyond ASCII. In a text of other letters, Greek or Cyrillic, nearly all are;"""
BESIDE_ASCII_MIN = 0.5
"""and in Latin they stand in words with other letters."""


class Explained(NamedTuple):
    codec: str
    share: float


def explained(sample: bytes) -> Explained | None:
    """The encoding that explains the sample best, and how much of it; None where it is none in Latin."""
    best: Explained | None = None
    for codec in CODECS:
        share = _share_of_a_language(sample, codec)
        if share is not None and (best is None or share > best.share):
            best = Explained(codec, share)
            if share == 1.0:  # none explains more
                break
    return best


def _share_of_a_language(sample: bytes, codec: str) -> float | None:
    try:
        text = sample.decode(codec)
    except UnicodeDecodeError:
        return None
    strange: Counter[str] = Counter()
    plain = beside_ascii = 0
    for before, char, after in zip(f" {text}", text, f"{text[1:]} ", strict=False):
        if char.isascii():
            plain += char.isalpha()
        elif char not in _MARKS or (before.isalpha() and after.isalpha() and char != "\u2019"):
            strange[_NASAL if (char + after).lower() == _NASAL else char] += 1
            beside_ascii += (before.isascii() and before.isalpha()) or (after.isascii() and after.isalpha())
    count = strange.total()
    if count > LETTERS_SHARE_MAX * (count + plain) or beside_ascii < BESIDE_ASCII_MIN * count:
        return None
    if not count:
        return 1.0
    if any(unicodedata.category(char[0]) == "Cc" for char in strange):
        return 0.0
    of_one = max(_letters_of(alphabet, strange) for alphabet in _ALPHABETS)
    return max(of_one, _MIXED_COUNTS * _letters_of(_MIXED, strange)) / count


def _letters_of(alphabet: frozenset[str], strange: Counter[str]) -> int:
    return sum(strange[char] for char in alphabet)
