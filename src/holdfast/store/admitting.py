"""Tokens and the audit trail: what a store can be asked about them, and how both of them answer, by a
statement each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.core.access import Role, TokenRow
from holdfast.core.audit import AuditEntry, AuditRow, Deed

if TYPE_CHECKING:
    from holdfast.store.interface import Condition


class AdmittingStore(Protocol):
    async def add_token(self, token: TokenRow, secret_hash: str, audit: AuditEntry) -> bool:
        """Whether it was added: not where another one that is not revoked has its name."""

    async def token(self, token_id: str) -> tuple[TokenRow, str] | None:
        """With the hash of its secret."""

    async def tokens(
        self, limit: int, *, named: str | None = None, living_at: float | None = None
    ) -> list[TokenRow]:
        """The newest first: all, those with this name or id, those that count then."""

    async def revoke_token(self, token_id: str, by: str, audit: AuditEntry, now: float) -> bool:
        """Whether it was not revoked before."""

    async def token_used(self, token_id: str, now: float) -> None:
        """Note when it was used last."""

    async def audit(
        self,
        *,
        actor: str | None = None,
        action: Deed | None = None,
        target: str | None = None,
        before: int | None = None,
        limit: int,
    ) -> list[AuditRow]:
        """What people did, the latest first."""


class Admitting:
    async def _change(
        self, query: str, *bindings: Any, audit: AuditEntry | None = None, now: float = 0.0
    ) -> list[Any]:
        raise NotImplementedError

    async def _list(self, query: str, conditions: list[Condition], limit: int) -> list[Any]:
        raise NotImplementedError

    async def add_token(self, token: TokenRow, secret_hash: str, audit: AuditEntry) -> bool:
        made = await self._change(
            "add_token",
            token.id,
            token.name,
            token.role,
            secret_hash,
            token.created_at,
            token.created_by,
            token.expires_at,
            audit=audit,
            now=token.created_at,
        )
        return bool(made)

    async def token(self, token_id: str) -> tuple[TokenRow, str] | None:
        found = await self._list("token_rows", [("t.id = {}", token_id)], 1)
        return (_token(found[0]), found[0][-1]) if found else None

    async def tokens(
        self, limit: int, *, named: str | None = None, living_at: float | None = None
    ) -> list[TokenRow]:
        conditions: list[Condition] = [
            ("{} IN (t.id, t.name)", named),
            ("t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > {})", living_at),
        ]
        return [_token(row) for row in await self._list("token_rows", conditions, limit)]

    async def revoke_token(self, token_id: str, by: str, audit: AuditEntry, now: float) -> bool:
        return bool(await self._change("revoke_token", token_id, by, now, audit=audit, now=now))

    async def token_used(self, token_id: str, now: float) -> None:
        await self._change("token_used", token_id, now)

    async def audit(
        self,
        *,
        actor: str | None = None,
        action: Deed | None = None,
        target: str | None = None,
        before: int | None = None,
        limit: int,
    ) -> list[AuditRow]:
        conditions: list[Condition] = [
            ("a.actor = {}", actor), ("a.action = {}", action), ("a.target = {}", target),
            ("a.id < {}", before),
        ]  # fmt: skip
        found = await self._list("audit_rows", conditions, limit)
        return [
            AuditRow(
                id=id_,
                at=at,
                actor=actor,
                action=action,
                target=target,
                details=msgspec.json.decode(details),
            )
            for id_, at, actor, action, target, details in found
        ]


def _token(row: Any) -> TokenRow:
    id_, name, role, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at, _ = row
    return TokenRow(
        id=id_,
        name=name,
        role=Role(role),
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        revoked_by=revoked_by,
        last_used_at=last_used_at,
    )
