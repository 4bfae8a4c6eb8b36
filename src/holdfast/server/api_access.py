"""Who may use the server, and who did what."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.access import Right, Role, TokenRow
from holdfast.core.audit import AuditRow, Deed
from holdfast.server.api_steering import By, ByQuery
from holdfast.server.endpoints import Answer, Ask, Family
from holdfast.wire import CreatedToken, Duration, Listed

access = Family("Access")
endpoints = access.endpoints


class TokenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`expires` is how long it counts; without it, until it is revoked."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    expires: Duration | None = None
    by: By = ""


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`target` is as the entries have it: "execution 17", "limit portal", "lane bulk"."""

    actor: By | None = None
    action: Deed | None = None
    target: Annotated[str, Meta(max_length=600)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    cursor: Annotated[str, Meta(max_length=64)] | None = None


@access(
    "POST",
    "/api/tokens",
    "Make a token; it is shown this once",
    {201: CreatedToken},
    body=TokenBody,
    needs=Right.MANAGE,
)
async def create(ask: Ask) -> Answer:
    body: TokenBody = ask.body
    made = await ask.engine.tokens.create(body.name, body.role, expires=body.expires, by=ask.by(body.by))
    return Answer(CreatedToken(token=made.token, text=made.text), 201)


@access(
    "GET",
    "/api/tokens",
    "Tokens, the oldest first; revoked and expired ones too",
    Listed[TokenRow],
    needs=Right.MANAGE,
)
async def tokens(ask: Ask) -> Any:
    return Listed(items=await ask.engine.tokens.all())


@access(
    "DELETE",
    "/api/tokens/{name:path}",
    "Revoke a token, by its name or id: it lets nobody in any more",
    TokenRow,
    query=ByQuery,
    needs=Right.MANAGE,
)
async def revoke(ask: Ask) -> Any:
    return await ask.engine.tokens.revoke(ask.names["name"], by=ask.by(ask.query.by))


@access(
    "GET",
    "/api/audit",
    "Who retried, cancelled, paused, changed limits or tokens; the latest first",
    Listed[AuditRow],
    query=AuditQuery,
    needs=Right.ACT,
)
async def audit(ask: Ask) -> Any:
    page = await ask.engine.audit(**msgspec.structs.asdict(ask.query))
    return Listed(items=page.items, next=page.next)
