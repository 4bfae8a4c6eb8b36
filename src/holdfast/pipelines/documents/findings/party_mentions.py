"""Where a text names an organisation or a person.

    "Acme Holdings Ltd"                a legal form, and the names before it
    "Ministry of Finance"              a kind of organisation, and the names around it
    "Dr. Jane Smith"                   a title or an office, and the names behind it
    "between X and Y", "Buyer: Y"      what contracts and invoices say of their parties
    … (the "Seller")                   the role that a party is given right behind its name
    "jane@acme.example"                the domain of an organisation

Everything is looked for around a word that gives it away, a bounded number of words to either side. Where a
line of the text ends, a name ends.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.pipelines.documents.findings.party_words import (
    AND,
    AUTHORITY,
    GENERIC_BEFORE,
    GOES_ON,
    JOINS_NAMES,
    KINDS_OF_ORGANIZATION,
    LEGAL_FORMS,
    NO_ROLES,
    OFFICES,
    PARTICLES,
    PUBLIC_MAIL,
    ROLES,
    ROLES_OF_PERSONS,
    SUFFIXES_OF_PERSONS,
    TITLES,
    TITLES_OF_PARTIES,
)
from holdfast.pipelines.documents.findings.stop_words import STOP_WORDS

NAME_WORDS_MAX = 7
NAME_CHARS_MAX = 100
_ROLE_WITHIN_CHARS = 260
_SECOND_PARTY_WITHIN_CHARS = 400
_ANDS_TRIED = 6

_WORD = re.compile(r"[^\s|\"“”„«»()\[\];:]{1,200}")
_LABEL = re.compile(
    r"(?:^|\n|\|)[ \t*•-]{0,5}(?:(?:the|la|le|der|die) )?([^\W\d_][^\W\d_ ]{1,16}(?: [^\W\d_]{1,12}){0,2})"
    r"[ \u00a0]{0,3}[:|][ \u00a0]{0,8}\n?[ \u00a0]{0,8}(?=([^\n|]{2,160}))",
    re.IGNORECASE,
)
_END_OF_VALUE = re.compile(r"[;(]|  |, (?!(?:Inc|Ltd|LLC|LLP|PLC|S\.)\b)")
_BETWEEN = re.compile(r"\b(?:between|zwischen|entre)\b[:\s]{1,3}", re.IGNORECASE)
_AND = re.compile(r"\b(?:and|und|et|y)\b[:\s]{1,3}")
_DEFINED = re.compile(
    r"\([^()\"“„«]{0,60}[\"“„«'\u2018]{1,2}[ \u00a0]?(?:the |der |die |das |le |la |l['’]|el )?"
    r"([^\W\d_][\w \u00a0-]{1,30})[\"”“»'’]{1,2}[^()]{0,40}\)",
    re.IGNORECASE,
)
_MAIL_NAME = re.compile(r"[\w.+-]{1,64}$")
_MAIL_DOMAIN = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}")
_NO_NAME = re.compile(r"\d{3}|[@/=<>{}#*]")


_TRIGGER = re.compile(r"[^\s|\"“”„«»()\[\];:,]{2,}")
_KNOWN = LEGAL_FORMS | KINDS_OF_ORGANIZATION | TITLES | OFFICES
_TRIGGERS = _KNOWN | {f"{word}." for word in _KNOWN}


_STOP_WORDS = STOP_WORDS["en"] | STOP_WORDS["de"] | STOP_WORDS["fr"] | STOP_WORDS["es"]


class Mention(NamedTuple):
    start: int
    end: int
    name: str
    is_person: bool
    role: str = ""
    domain: str = ""


class _Word(NamedTuple):
    text: str
    start: int
    end: int
    joins: bool
    """Nothing but a space is between it and the word before."""

    @property
    def bare(self) -> str:
        return self.text.rstrip(",.")

    @property
    def is_form(self) -> bool:
        return self.text.rstrip(",") in LEGAL_FORMS or self.bare in LEGAL_FORMS

    @property
    def ends(self) -> bool:
        """A mark behind it ends the name; the dot of an initial does not."""
        return self.text[-1] in ",.!?" and not (self.text[-1] == "." and len(self.text) <= 3)

    @property
    def is_name(self) -> bool:
        first, last = self.text[0], self.bare[-1:]
        if first.isupper() or (first.isdigit() and last.isalpha()):
            return True
        return len(self.text) > 3 and first.islower() and self.text[1].isupper()  # eBay


def mentions(text: str) -> Iterator[Mention]:
    """The parties of a text, as they are named; one may be found in several ways at once."""
    yield from _by_label(text)
    yield from _between(text)
    if not _TRIGGERS.isdisjoint(_TRIGGER.findall(text)) or "Bundes" in text or "Landes" in text:
        yield from _by_word(text, _words(text, 0, len(text)))
    yield from _by_mail(text)


def _words(text: str, begin: int, end: int) -> list[_Word]:
    words: list[_Word] = []
    before = -2
    for match in _WORD.finditer(text, begin, end):
        start = match.start()
        words.append(_Word(match[0], start, match.end(), start == before + 1 and text[before] in " \u00a0"))
        before = match.end()
    return words


# ── by the words of a name ───────────────────────────────────────────────────────────────────────


def _by_word(text: str, words: list[_Word]) -> Iterator[Mention]:
    taken = 0
    for index, word in enumerate(words):
        if word.start < taken:
            continue
        if word.text.rstrip(",!?") not in _TRIGGERS:
            if word.text[:6] in ("Bundes", "Landes") and AUTHORITY.fullmatch(word.bare):
                yield _mention(text, words, index, index)
            continue
        mention = None
        if word.is_form:
            mention = _company(text, words, index)
        elif word.text in TITLES or word.text in OFFICES:
            mention = _person(text, words, index)
        elif word.bare in KINDS_OF_ORGANIZATION:
            mention = _institution(text, words, index)
        if mention:
            taken = mention.end
            yield mention


def _company(text: str, words: list[_Word], index: int) -> Mention | None:
    first = _names_before(words, index)
    if first == index:
        return None
    last = index
    while last + 1 < len(words) and words[last + 1].joins and words[last].text[-1] != ",":
        following = words[last + 1]
        if following.text.rstrip(",") not in GOES_ON and following.bare not in GOES_ON:
            break
        last += 1
    while words[last].text == "&":
        last -= 1
    return _mention(text, words, first, last)


def _institution(text: str, words: list[_Word], index: int) -> Mention | None:
    if _leads_to_form(words, index):
        return None
    first = _names_before(words, index)
    last = index if words[index].ends else _names_behind(words, index)
    return _mention(text, words, first, last) if first != last else None


def _leads_to_form(words: list[_Word], index: int) -> bool:
    """It is a part of a company's name: "Acme Holdings Services Ltd"."""
    for before, word in itertools.pairwise(words[index : index + NAME_WORDS_MAX]):
        if not word.joins or (before.ends and before.text[-1] != ","):
            return False
        if word.is_form:
            return True
        if not word.is_name and word.text != "&":
            return False
    return False


def _names_before(words: list[_Word], index: int) -> int:
    """The first of the capitalised words that lead up to words[index]."""
    first = index
    while first > 0 and index - first < NAME_WORDS_MAX and words[first].joins:
        before = words[first - 1]
        if before.text == "&":
            if (
                first < 2
                or not words[first - 1].joins
                or not words[first - 2].is_name
                or words[first - 2].ends
            ):
                break
        elif not before.is_name or (before.ends and not (first == index and before.text[-1] == ",")):
            break
        first -= 1
    while first < index and (words[first].bare in GENERIC_BEFORE or words[first].text == "&"):
        first += 1
    # "Later Acme Ltd": the capital may be the sentence's; "Next plc" is a name.
    if first + 1 < index and words[first].text.lower() in _STOP_WORDS and _begins_sentence(words, first):
        first += 1
    return first


def _begins_sentence(words: list[_Word], index: int) -> bool:
    return index == 0 or not words[index].joins or words[index - 1].text[-1] in ".!?"


def _names_behind(words: list[_Word], index: int) -> int:
    """The last word of "of Finance and Economy"; names without a joining word before them are others."""
    last = at = index
    while at + 1 < len(words) and at - index < NAME_WORDS_MAX and words[at + 1].joins:
        following = words[at + 1]
        if following.text in JOINS_NAMES:
            at += 1
            continue
        if at == index or not following.is_name:
            break
        at += 1
        # "and" leads to another party as often as to more of this one: only one word of it is taken.
        if words[at - 1].text in AND and last != at - 2:
            break
        last = at
        if following.ends:
            break
    return last


def _person(text: str, words: list[_Word], index: int) -> Mention | None:
    at, names = index, 0
    while at + 1 < len(words) and at - index < NAME_WORDS_MAX:
        following = words[at + 1]
        # In an address the title may stand on a line of its own.
        if not (following.joins or (at == index and _is_below(text, words[at], following))):
            break
        if following.text in PARTICLES or following.text in TITLES or following.text in SUFFIXES_OF_PERSONS:
            at += 1
            continue
        if not following.is_name or following.is_form or following.bare in KINDS_OF_ORGANIZATION:
            break
        at += 1
        names += 1
        if names == 4 or following.ends:
            break
    while words[at].text in PARTICLES or (words[at].text in TITLES and at > index):
        at -= 1
    if words[index].text in OFFICES and words[index].text not in TITLES:
        if names < 2:
            return None
        return _mention(text, words, index + 1, at, is_person=True)._replace(role=words[index].bare)
    return _mention(text, words, index, at, is_person=True) if names else None


def _is_below(text: str, word: _Word, following: _Word) -> bool:
    is_alone = word.start == 0 or text[word.start - 1] == "\n"
    return is_alone and text[word.end : following.start] == "\n"


def _mention(text: str, words: list[_Word], first: int, last: int, *, is_person: bool = False) -> Mention:
    start, end = words[first].start, words[last].end
    name = tidy(text[start:end], keeps_dot=_keeps_dot(text, words[last]))
    return Mention(start, end, name[:NAME_CHARS_MAX], is_person, _role_behind(text, end))


def _keeps_dot(text: str, word: _Word) -> bool:
    """A dot that may be the sentence's is the name's where the sentence goes on."""
    if word.text.rstrip(",") not in LEGAL_FORMS:
        return False
    goes_on = (
        word.text[-1] == ","
        or text[word.end : word.end + 1] == ","
        or text[word.end + 1 : word.end + 2].islower()
    )
    return goes_on or word.bare not in LEGAL_FORMS


def _role_behind(text: str, end: int) -> str:
    """What the text calls the party from here on, unless another company stands before that."""
    defined = _DEFINED.search(text, end, min(len(text), end + _ROLE_WITHIN_CHARS))
    if defined is None or defined[1].split()[0].lower() in NO_ROLES:
        return ""
    between = text[end : defined.start()]
    if "\n\n" in between or any(word.is_form for word in _words(between, 0, len(between))):
        return ""
    return " ".join(defined[1].split())


def tidy(name: str, *, keeps_dot: bool = False) -> str:
    name = " ".join(name.split()).strip(" ,;:–—\"'“”„«»*")
    return name if keeps_dot else name.rstrip(".")


# ── by what is said about them ───────────────────────────────────────────────────────────────────


def _by_label(text: str) -> Iterator[Mention]:
    for match in _LABEL.finditer(text):
        role = ROLES.get(match[1].lower().removesuffix(" name"))
        if role is None:
            continue
        value = _END_OF_VALUE.split(match[2], maxsplit=1)[0]
        words = _words(value, 0, len(value))
        if not 1 <= len(words) <= NAME_WORDS_MAX + 1 or _NO_NAME.search(value):
            continue
        form = next((index for index, word in enumerate(words) if index and word.is_form), None)
        if form is not None:
            words = (
                words[: form + 2]
                if words[form + 1 : form + 2] and words[form + 1].is_form
                else words[: form + 1]
            )
            value = value[: words[-1].end]
        name = tidy(value, keeps_dot=words[-1].is_form)
        if len(name) < 2 or not name[0].isupper() or name.lower() in ROLES:
            continue
        start = match.start(2)
        yield Mention(start, start + len(value), name, _is_person(words, role), role)


def _is_person(words: list[_Word], role: str) -> bool:
    if any(word.is_form or word.bare in KINDS_OF_ORGANIZATION for word in words):
        return False
    if words[0].text in TITLES:
        return True
    return role in ROLES_OF_PERSONS and 2 <= len(words) <= 4 and all(word.text[0].isalpha() for word in words)


def _between(text: str) -> Iterator[Mention]:
    taken = 0
    for match in _BETWEEN.finditer(text):
        first = _named_party(text, match.end()) if match.end() >= taken else None
        if first is None:
            continue
        yield first
        taken = min(len(text), first.end + _SECOND_PARTY_WITHIN_CHARS)
        for joined in itertools.islice(_AND.finditer(text, first.end, taken), _ANDS_TRIED):
            second = _named_party(text, joined.end())
            if second:
                yield second
                taken = second.end
                break


def _named_party(text: str, at: int) -> Mention | None:
    """The name that begins at a place: a company, or two names and more."""
    words = _words(text, at, min(len(text), at + NAME_CHARS_MAX))[: NAME_WORDS_MAX + 1]
    last, has_form = -1, False
    for index, word in enumerate(words):
        if index and (not word.joins or (words[index - 1].text[-1] == "," and not word.is_form)):
            break
        is_inside = index and word.text in (JOINS_NAMES | PARTICLES) - (AND - {"&"})
        if not word.is_name and not is_inside:
            break
        has_form = has_form or word.is_form
        last = last if is_inside else index
        if word.ends and word.text[-1] != ",":
            break
    if (
        last < 0
        or words[0].bare in GENERIC_BEFORE
        or words[0].bare.lower() in ROLES
        or words[0].text[0].isdigit()
    ):
        return None
    is_person = not has_form and (words[0].text in TITLES or words[0].text in TITLES_OF_PARTIES)
    is_organization = has_form or any(word.bare in KINDS_OF_ORGANIZATION for word in words[: last + 1])
    mention = _mention(text, words, 0, last, is_person=is_person)
    return mention if is_person or is_organization or (last > 0 and mention.role) else None


def _by_mail(text: str) -> Iterator[Mention]:
    at = text.find("@")
    while at >= 0:
        name, domain = _MAIL_NAME.search(text[max(0, at - 64) : at]), _MAIL_DOMAIN.match(text, at + 1)
        if name and domain:
            host = domain[0].rstrip("-_").lower()
            parts = host.split(".")
            label = parts[-3] if len(parts) > 2 and len(parts[-2]) <= 3 else parts[-2]
            if label not in PUBLIC_MAIL and parts[-1].isalpha():
                yield Mention(at + 1, at + 1 + len(host), host, False, "", host)
        at = text.find("@", at + 1)
