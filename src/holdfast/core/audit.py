"""The audit trail: who did what to which thing. An entry is written in the transaction that does it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

import msgspec


class Deed(StrEnum):
    RETRY = "retry"
    REDRIVE = "redrive"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    SET_LIMIT = "set_limit"
    REMOVE_LIMIT = "remove_limit"
    CREATE_TOKEN = "create_token"
    REVOKE_TOKEN = "revoke_token"


class AuditEntry(NamedTuple):
    """`target` is in words, "execution 17" or "limit portal"; `details` is JSON text."""

    actor: str
    action: Deed
    target: str
    details: str


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """`action` is a `Deed`, or one that only a newer Holdfast knows."""

    id: int
    at: float
    actor: str
    action: str
    target: str
    details: dict[str, Any]


def audited(actor: str, action: Deed, target: str, **details: Any) -> AuditEntry:
    """What was not said is left out of the details."""
    told = {name: value for name, value in details.items() if value not in (None, "") and value is not False}
    return AuditEntry(actor, action, target, msgspec.json.encode(told).decode())
