"""What can go wrong with a request, as a status and a sentence. A stack trace never leaves the server."""

from __future__ import annotations

import logging

from holdfast.core.errors import (
    BatchClosed,
    HoldfastError,
    IdempotencyConflict,
    InvalidInput,
    PayloadTooLarge,
    RetryRefused,
    StaleLease,
    StoreError,
    UnknownName,
)
from holdfast.playbook.faults import PlaybookInvalid
from holdfast.wire import ErrorAnswer, Problem

log = logging.getLogger("holdfast.server")

STORE_RETRY_SECONDS = 1.0
FAULTS_MAX = 100

# The first that fits counts.
_STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (PayloadTooLarge, 413),
    (InvalidInput, 422),
    (UnknownName, 404),
    (IdempotencyConflict, 409),
    (BatchClosed, 409),
    (StaleLease, 409),
    (StoreError, 503),
)


class Refused(HoldfastError):
    """A request that the server does not take, for a reason of HTTP's."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        guidance: str = "",
        *,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, guidance=guidance)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.headers = headers or {}


def status_of(error: HoldfastError) -> int:
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, RetryRefused):
        return error.http_status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def told(error: Exception) -> tuple[int, ErrorAnswer, dict[str, str]]:
    """The status, the body and the headers that tell it."""
    if not isinstance(error, HoldfastError):
        log.error("A request failed unexpectedly.", exc_info=error)
        problem = Problem(
            code="internal_error",
            message="The server has failed at this request, and nothing is known of the reason here.",
            guidance="See the server's log. Look whether it was done before you send it again.",
        )
        return 500, ErrorAnswer(error=problem), {}
    status = status_of(error)
    if status == 500:
        log.error("A request failed with an error that has no status.", exc_info=error)
    retry_after: float | None = getattr(error, "retry_after", None)
    if status == 503 and retry_after is None:
        retry_after = STORE_RETRY_SECONDS
    headers = dict(error.headers) if isinstance(error, Refused) else {}
    if retry_after is not None:
        headers["retry-after"] = str(max(1, round(retry_after + 0.5)))
    faults = None
    if isinstance(error, PlaybookInvalid):
        faults = [
            {"line": fault.line, "field": fault.field, "message": str(fault)}
            for fault in error.faults[:FAULTS_MAX]
        ]
    problem = Problem(
        code=error.code,
        message=str(error),
        guidance=error.guidance or "",
        retry_after=retry_after,
        faults=faults,
    )
    return status, ErrorAnswer(error=problem), headers
