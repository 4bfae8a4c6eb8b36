"""Who may do what: the roles of tokens, the rights they have, and tokens as text.

    holdfast_<id>_<secret>      the id finds a token, the secret proves it; only a hash of the secret is kept

A secret is 256 random bits: nobody guesses it, so a fast hash keeps it as well as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Right(StrEnum):
    """What an endpoint asks for."""

    NONE = "none"  # everybody may
    KNOWN = "known"  # whoever has a token that counts
    LOOK = "look"
    WORK = "work"
    ACT = "act"
    MANAGE = "manage"


class Role(StrEnum):
    VIEWER = "viewer"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


# A worker sees what it leases, and nothing else of anybody's work.
RIGHTS: dict[Role, frozenset[Right]] = {
    Role.VIEWER: frozenset({Right.NONE, Right.KNOWN, Right.LOOK}),
    Role.WORKER: frozenset({Right.NONE, Right.KNOWN, Right.WORK}),
    Role.OPERATOR: frozenset({Right.NONE, Right.KNOWN, Right.LOOK, Right.WORK, Right.ACT}),
    Role.ADMIN: frozenset(Right),
}


def roles_with(right: Right) -> list[Role]:
    return [role for role in Role if right in RIGHTS[role]]


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token as people see it: nothing here lets anybody in."""

    id: str
    name: str
    role: Role
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None
    revoked_by: str | None
    last_used_at: float | None

    def why_not(self, now: float) -> str:
        """Why it counts no longer; empty where it does."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else ""


class Secret(NamedTuple):
    """A token that was presented or just made."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        return f"{_PREFIX}{self.id}_{self.secret}"

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def is_kept_as(self, kept_hash: str) -> bool:
        """In a time that tells nothing of how much of it is right."""
        return hmac.compare_digest(self.hash.encode(), kept_hash.encode())


_PREFIX = "holdfast_"
_TOKEN = re.compile(r"holdfast_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
# Compared with where no token has the id, so that the time does not tell that.
NOBODYS_HASH = hashlib.sha256(b"").hexdigest()


def parse_token(text: str) -> Secret | None:
    """None where it is not written as a token is."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else Secret(found[1], found[2])
