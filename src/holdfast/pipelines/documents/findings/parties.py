"""The parties of a document: its mentions of organisations and persons, put together by name.

"Acme Holdings Ltd", "ACME HOLDINGS LIMITED" and "Acme Holdings" are one, as are "Dr. Jane Smith" and "Ms
Smith" where there is one Smith only. A mail domain goes to the organisation whose name it begins like.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast.pipelines.documents.findings.finding import CHUNKS_MAX, MOST, Finding, finding
from holdfast.pipelines.documents.findings.party_mentions import mentions
from holdfast.pipelines.documents.findings.party_words import LEGAL_FORMS, SUFFIXES_OF_PERSONS, TITLES
from holdfast.pipelines.documents.findings.passage import Passage
from holdfast.pipelines.documents.findings.tally import Tally

_KEPT_MAX = 5_000
_WORD = re.compile(r"\w+")
_PARTY_DEFINED_AS = 2.0  # how much more a party with a role weighs
_DOMAIN_ALONE = 0.3


@dataclass(slots=True)
class _Party:
    name: str
    order: int
    count: int
    chunks: list[int]
    is_person: bool
    roles: Counter[str] = field(default_factory=Counter)
    domain: str = ""

    def join(self, other: _Party) -> None:
        self.count += other.count
        self.chunks = sorted({*self.chunks, *other.chunks})[:CHUNKS_MAX]
        self.order = min(self.order, other.order)


class Parties:
    def __init__(self) -> None:
        self._tally: Tally[tuple[str, bool]] = Tally(_KEPT_MAX)
        self._roles: dict[str, Counter[str]] = {}
        self._domains: Tally[str] = Tally(_KEPT_MAX)

    def add(self, passage: Passage) -> None:
        places: set[int] = set()
        for mention in mentions(passage.text):
            if mention.end <= passage.overlap:
                continue
            if mention.domain:
                self._domains.add(mention.domain, passage.number, mention.domain)
                continue
            if mention.role and len(self._roles) < _KEPT_MAX:
                roles = self._roles.setdefault(_core(mention.name, mention.is_person), Counter())
                roles[mention.role] += 1
            # The same name found in two ways is one occurrence.
            place = range(mention.start, mention.end)
            if places.isdisjoint(place):
                self._tally.add((mention.name, mention.is_person), passage.number, mention.name)
            places.update(place)

    def findings(self) -> list[Finding]:
        parties = self._joined()
        self._give_domains(parties)
        scored = [(_score(party), party) for party in parties]
        scored.sort(key=lambda item: (-item[0], item[1].order))
        best = scored[0][0] if scored else 1.0
        return [
            finding(
                "party",
                party.name,
                value=_value(party),
                score=score / best,
                chunks=party.chunks,
                count=party.count,
            )
            for score, party in scored[: MOST["party"]]
        ]

    def _joined(self) -> list[_Party]:
        """One party for each name, whatever its form; of all its spellings the most frequent one."""
        by_name: dict[str, _Party] = {}
        items = sorted(self._tally.seen.items(), key=lambda item: (-item[1].count, item[1].order))
        for (name, is_person), seen in items:
            key = _core(name, is_person)
            roles = Counter(self._roles.get(key, {}))
            party = _Party(name, seen.order, seen.count, seen.chunks, is_person, roles)
            known = by_name.get(key)
            if known is None:
                by_name[key] = party
                continue
            known.join(party)
            known.is_person = known.is_person and is_person
            if _is_fuller(name, known.name):
                known.name = name
        return _persons_joined(list(by_name.values()))

    def _give_domains(self, parties: list[_Party]) -> None:
        for domain, seen in sorted(self._domains.seen.items(), key=lambda item: item[1].order):
            labels = domain.split(".")[:-1]
            owner = next(
                (party for party in parties if not party.is_person and _is_like(party.name, labels)), None
            )
            if owner is None:
                parties.append(
                    _Party(domain, seen.order + _KEPT_MAX, seen.count, seen.chunks, False, domain=domain)
                )
            elif not owner.domain:
                owner.domain = domain


def _core(name: str, is_person: bool) -> str:
    words = [word for word in name.split() if word.rstrip(",") not in LEGAL_FORMS and word != "&"]
    if is_person:
        words = [word for word in words if word not in TITLES and word.rstrip(",") not in SUFFIXES_OF_PERSONS]
    return " ".join(_WORD.findall(" ".join(words or name.split()).casefold()))


def _is_fuller(name: str, known: str) -> bool:
    """With a legal form, and not shouted."""
    if known.isupper() != name.isupper():
        return known.isupper()
    return len(name.split()) > len(known.split())


def _persons_joined(parties: list[_Party]) -> list[_Party]:
    """Those named by a title and a last name, with the only one who has that last name in full."""
    full: dict[str, list[_Party]] = {}
    for party in parties:
        names = _core(party.name, True).split()
        if party.is_person and len(names) > 1:
            full.setdefault(names[-1], []).append(party)
    kept = []
    for party in parties:
        names = _core(party.name, True).split()
        same = full.get(names[0], []) if party.is_person and len(names) == 1 else []
        if len(same) == 1:
            same[0].join(party)
            same[0].roles += party.roles
        else:
            kept.append(party)
    return kept


def _is_like(name: str, labels: list[str]) -> bool:
    core = _core(name, False).replace(" ", "")
    initials = "".join(word[0] for word in _core(name, False).split())
    for label in labels:
        plain = label.replace("-", "")
        if len(plain) >= 4 and (core.startswith(plain) or (plain.startswith(core[:12]) and len(core) >= 4)):
            return True
        if 2 <= len(plain) < 6 and plain == initials:
            return True
    return False


def _score(party: _Party) -> float:
    score = 1.0 + math.sqrt(min(party.count, 50))
    if party.roles:
        score *= _PARTY_DEFINED_AS
    return score * (_DOMAIN_ALONE if party.name == party.domain else 1.0)


def _value(party: _Party) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "person" if party.is_person else "organization"}
    if party.roles:
        value["role"] = max(party.roles, key=lambda role: (party.roles[role], role))
    if party.domain:
        value["domain"] = party.domain
    return value


def names_of(found: list[Finding]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of organisations without legal forms, and the words of persons' names; in lower case."""
    organizations = (_core(party.text, False) for party in found if party.value["type"] != "person")
    persons = (_core(party.text, True) for party in found if party.value["type"] == "person")
    return frozenset(organizations), frozenset(word for name in persons for word in name.split())
