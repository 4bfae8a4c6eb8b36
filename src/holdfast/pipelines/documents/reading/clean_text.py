"""Text as it may be stored, shown and searched: no NULs, no lone surrogates, no control characters, words in
one piece.

Most text is clean: whether there is anything to do is asked first, because that is quick.
"""

from __future__ import annotations

import re

# All within the first 65,536: a pattern with others takes ten times as long. Tabs and line ends are text. The
# surrogates and the non-characters are no characters at all; the byte order mark, the directional marks and
# the invisible operators only come between a word and who looks for it.
_ODD = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u2028\u2029\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069"
    "\ud800-\udfff\ue000-\uf8ff\ufb00-\ufb06\ufdd0-\ufdef\ufeff\ufff9-\ufffc\ufffe\uffff"
)
_HAS_ODD = re.compile(f"[{_ODD}]")
# A word that was parted at the end of its line. A soft hyphen is there for nothing else.
_PARTED_BY_SOFT_HYPHEN = re.compile(r"(?<=\w)\u00ad[ \t]*\r?\n[ \t]*(?=\w)")
_LIGATURES = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
# Symbol fonts have their bullets among the characters for private use.
_BULLETS = "\uf0b7\uf0a7\uf0d8\uf0fc\uf076\uf02d\uf06f"
_INSTEAD = {
    **_LIGATURES,
    **dict.fromkeys(_BULLETS, "•"),
    "\x0b": "\n",
    "\x0c": "\n\n",
    "\r": "\n",
    "\x1e": "-",
    "\x85": "\n",
    "\u2028": "\n",
    "\u2029": "\n\n",
}
_KEPT = frozenset(map(chr, range(0xE000, 0xF900))) - frozenset(_BULLETS)
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


_PLAIN = bytes([9, 10, *range(0x20, 0x7F)])


def clean(text: str) -> str:
    if not _has_odd(text):
        return text
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if "\u00ad" in text:
        text = _PARTED_BY_SOFT_HYPHEN.sub("", text)
    text = _SURROGATE_PAIR.sub(_joined, text)
    return _HAS_ODD.sub(_instead, text)


def one_line(text: str) -> str:
    """Clean, and every run of white space a single space: a name, a title, a cell of a table."""
    return " ".join(clean(text).split())


def _has_odd(text: str) -> bool:
    """Searched for only in what is left without plain ASCII, which takes a tenth of the time."""
    rest = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN)
    return bool(rest) and _HAS_ODD.search(rest.decode("utf-8", "surrogatepass")) is not None


def _instead(found: re.Match[str]) -> str:
    character = found[0]
    return character if character in _KEPT else _INSTEAD.get(character, "")


def _joined(found: re.Match[str]) -> str:
    return found[0].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
