"""What requests that upload have in common: who sends must still be let in at the end, fields that mean
nothing are not passed over, and what cannot be taken in is told with what was taken before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from holdfast.core.errors import PermanentError, TransientError
from holdfast.server.endpoints import Ask
from holdfast.server.problems import Refused

STORAGE_RETRY_SECONDS = 60.0
TOLD_MAX = 20
STATUSES = {"unsupported_format": 415, "file_too_large": 413, "checksum_mismatch": 422}


async def while_admitted(ask: Ask, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A large file takes long: whoever sends it must still be let in when all of it is there."""
    async for chunk in chunks:
        yield chunk
    await ask.check_still()


def check_fields(fields: Mapping[str, str], path: str) -> None:
    """A choice that is made in the wrong place must not be passed over."""
    for name in fields:
        message = f"The field {name[:100]!r} means nothing here."
        raise Refused(422, "invalid_request", message, f"Give choices in the address: {path}?again=true.")


def refused(error: PermanentError | TransientError | Refused, taken: list[str]) -> Refused:
    """What cannot be taken in; what was taken before it in the same request is told."""
    known = list(dict.fromkeys(taken))
    more = f" and {len(known) - TOLD_MAX:,} others" if len(known) > TOLD_MAX else ""
    kept = f" Taken in before it: {', '.join(known[:TOLD_MAX])}{more}." if known else ""
    if isinstance(error, Refused):
        error.args = (f"{error.args[0]}{kept}", *error.args[1:])
        return error
    code = error.error_type or "storage_unavailable"
    if isinstance(error, TransientError):
        guidance = "Send it again later. What was uploaded before is kept."
        return Refused(503, code, f"{error}{kept}", guidance, retry_after=STORAGE_RETRY_SECONDS)
    if code in STATUSES:
        return Refused(STATUSES[code], code, f"{error}{kept}", error.guidance or "")
    guidance = error.guidance or "Look at the storage of the server."
    message = f"{error}{kept}"
    return Refused(503, "storage_unavailable", message, guidance, retry_after=STORAGE_RETRY_SECONDS)
