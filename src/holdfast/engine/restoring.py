"""A database that was put back from a backup begins anew: what was given out since means nothing any more.

Its workers were stopped. One that was not holds fences that the database has never given out, or those of
attempts that are given back here: whatever it reports is stale. Numbers that were given out after the backup
are never given out again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from holdfast.store.numbering import NUMBERS_LEFT_OUT

if TYPE_CHECKING:
    from holdfast.engine import Engine

LEASES_AT_ONCE = 1_000
ROUNDS_MAX = 10_000


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts were given back, and how many numbers were left out."""

    given_back: int
    left_out: int


async def begin_anew(engine: Engine) -> Restored:
    """It can be repeated, at any time: a crash in between leaves nothing half done."""
    await engine.store.leave_out_numbers(NUMBERS_LEFT_OUT)
    given_back = 0
    for _ in range(ROUNDS_MAX):
        leases = await engine.store.expired(math.inf, LEASES_AT_ONCE)
        accepted = sum(ack.accepted for ack in await engine.release(leases))
        given_back += accepted
        if not accepted:
            break
    return Restored(given_back=given_back, left_out=NUMBERS_LEFT_OUT)
