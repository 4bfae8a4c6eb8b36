"""Tokens: made, listed, revoked, and recognised when somebody shows one. Whoever has the database may make
them: that is how the first one comes to be."""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from holdfast.core.access import NOBODYS_HASH, Role, Secret, TokenRow, parse_token
from holdfast.core.audit import Deed, audited
from holdfast.core.errors import InvalidInput, UnknownName
from holdfast.core.payload import check_name, member
from holdfast.core.retry import checked_seconds
from holdfast.store.interface import Store

NAME_CHARS_MAX = 100
TOKENS_MAX = 10_000
USED_NOTED_SECONDS = 600.0
OWN_NAME = "of the server's environment"
"""Who has no token of the database, but the server's own."""
_ID = re.compile("[0-9a-f]{12}")


class NewToken(NamedTuple):
    """`text` is shown once and kept nowhere."""

    token: TokenRow
    text: str


class Tokens:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self, name: str, role: Role | str, *, expires: float | str | None = None, by: str = ""
    ) -> NewToken:
        """`expires` is how long it counts, in seconds or as "90d"; without it, until it is revoked."""
        _check_name(name)
        role = member(Role, role, "role")
        if by != "":
            check_name(by, what="name of who asks")
        seconds = None if expires is None else checked_seconds(expires, "expires")
        now, secret = await self._store.now(), Secret(secrets.token_hex(6), secrets.token_urlsafe(32))
        token = TokenRow(
            id=secret.id,
            name=name,
            role=role,
            created_at=now,
            created_by=by,
            expires_at=None if seconds is None else now + seconds,
            revoked_at=None,
            revoked_by=None,
            last_used_at=None,
        )
        told = None if seconds is None else f"{seconds:g} s"
        audit = audited(by, Deed.CREATE_TOKEN, f"token {name}", role=role.value, expires_after=told)
        if not await self._store.add_token(token, secret.hash, audit):
            held = await self._store.tokens(1, named=name, living_at=now)
            told = "already" if held else "already, which has expired"
            raise InvalidInput(
                f"There is a token with the name {name!r} {told}.",
                guidance=f"Choose another name, or revoke that one first:  holdfast token revoke {name}",
            )
        return NewToken(token, secret.text)

    async def all(self) -> list[TokenRow]:
        """The oldest first; revoked and expired ones too. Of more than can be listed, the newest."""
        return (await self._store.tokens(TOKENS_MAX))[::-1]

    async def any_counts(self) -> bool:
        return bool(await self._store.tokens(1, living_at=await self._store.now()))

    async def revoke(self, name: str, *, by: str = "") -> TokenRow:
        """By its name, or its id. It lets nobody in from the next request on."""
        if by != "":
            check_name(by, what="name of who asks")
        found = await self._store.tokens(TOKENS_MAX, named=name)
        token = next((one for one in found if one.revoked_at is None), None)
        if token is None:
            raise UnknownName(
                f"The token {name!r} is revoked already." if found else f"There is no token {name!r}.",
                guidance="See which there are:  holdfast token list",
            )
        now = await self._store.now()
        audit = audited(by, Deed.REVOKE_TOKEN, f"token {token.name}", id=token.id, role=token.role.value)
        await self._store.revoke_token(token.id, by, audit, now)
        kept = await self._store.token(token.id)
        return token if kept is None else kept[0]

    async def recognised(self, text: str) -> tuple[TokenRow, str] | None:
        """The token that this is, and why it counts no longer, if so; None where it is none of ours."""
        shown = parse_token(text)
        if shown is None:
            return None
        kept = await self._store.token(shown.id)
        if not shown.is_kept_as(NOBODYS_HASH if kept is None else kept[1]) or kept is None:
            return None
        return kept[0], kept[0].why_not(await self._store.now())

    async def why_not(self, token_id: str) -> str:
        """Why a token that was recognised before counts no longer; empty where it does."""
        kept = await self._store.token(token_id)
        return "revoked" if kept is None else kept[0].why_not(await self._store.now())

    async def used(self, token: TokenRow) -> None:
        """Note that it was used, now and then, so that people see which ones nobody needs."""
        now = await self._store.now()
        if token.last_used_at is None or not 0 <= now - token.last_used_at < USED_NOTED_SECONDS:
            await self._store.token_used(token.id, now)


def _check_name(name: str) -> None:
    """One that can be told from an id, and be a part of an address."""
    check_name(name, what="name of a token", length_max=NAME_CHARS_MAX)
    if _ID.fullmatch(name) or name == OWN_NAME or {".", ".."} & set(name.split("/")):
        raise InvalidInput(
            f"A token cannot have the name {name!r}: it means something else.",
            guidance="Name it after who is to use it.",
        )
