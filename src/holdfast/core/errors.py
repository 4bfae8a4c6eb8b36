"""Every exception Holdfast raises or asks handlers to raise.

    HoldfastError
     ├ TransientError          raised by a handler: will heal, retry it
     │  └ TransactionLost      ctx.transaction() was rolled back: open for too long, or cut off
     ├ PermanentError          raised by a handler: never will, stop at once
     │  └ TransactionUnavailable   ctx.transaction() cannot work where the handler runs
     ├ InvalidInput            what was given cannot be accepted
     │  ├ PayloadInvalid       not serialisable, or holds NUL characters
     │  ├ PayloadTooLarge
     │  ├ PolicyInvalid        a retry policy or a duration
     │  └ DefinitionInvalid    a playbook, a pipeline, an error rule
     ├ UnknownName             nothing is known by that name
     │  ├ UnknownPipeline
     │  ├ UnknownVersion
     │  ├ UnknownStep
     │  ├ UnknownExecution
     │  └ UnknownBatch
     ├ IdempotencyConflict     the same key was used with another workload
     ├ BatchClosed             nothing can be added to it any more
     ├ StaleLease              the attempt belongs to another worker now
     ├ RetryRefused            a manual retry that the rules do not allow
     ├ AccessRefused           a server that wants a token, or another one
     ├ BrokerUnavailable       the broker of a Celery fleet takes no messages
     └ StoreError              the database
        ├ StoreUrlInvalid
        ├ StoreUnavailable     may heal: unreachable, disk full
        │  └ ServerUnavailable the server in front of it does not answer
        ├ StoreUnusable        will not: no database, read-only folder, SQLite too old
        ├ SchemaTooNew         written by a newer Holdfast
        └ SchemaTooOld         needs a migration first

`str(error)` says what went wrong and with which thing, `guidance` what to do next, and `code` is
the word that programs compare. All of them survive pickling, so they can cross a process boundary.
"""

from typing import Literal, get_args

RefusalCode = Literal[
    "not_failed", "child_execution", "permanent_error", "retry_cap", "cooldown", "confirmation_required"
]

_REFUSAL_STATUS: dict[str, int] = {
    "not_failed": 409,
    "permanent_error": 409,
    "retry_cap": 429,
    "cooldown": 429,
    "child_execution": 409,
    "confirmation_required": 409,
}
REFUSAL_CODES = frozenset(_REFUSAL_STATUS)


class HoldfastError(Exception):
    """The base of all of them."""

    code: str = "holdfast_error"
    guidance: str = ""

    def __init__(self, message: str = "", *, guidance: str = "") -> None:
        super().__init__(message)
        if guidance:
            self.guidance = guidance
            self.add_note(guidance)  # so that a traceback says it too

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own way calls the class with the message alone, which fails for a class with
        # required keywords and would lose what a handler's subclass computed in its constructor.
        return (_restore, (type(self), self.args, self.__dict__))


def _restore(
    kind: type[HoldfastError], arguments: tuple[object, ...], attributes: dict[str, object]
) -> HoldfastError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class _HandlerError(HoldfastError):
    """What the two handler exceptions share; a subclass may preset any of these on its class."""

    error_type: str | None = None
    user_message: str | None = None
    # Not "", as everywhere else: None means "the catalogue's words", which is what most handlers want.
    guidance: str | None = None  # type: ignore[assignment]
    retry_after: float | None = None

    def __init__(
        self,
        message: str = "",
        *,
        error_type: str | None = None,
        user_message: str | None = None,
        guidance: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, guidance=guidance or "")
        if error_type is not None:
            self.error_type = error_type
        if user_message is not None:
            self.user_message = user_message
        if retry_after is not None:
            self.retry_after = retry_after


class TransientError(_HandlerError):
    """Raise it in a handler for a fault that heals by itself: the attempt is retried.

    `retry_after` (seconds) lengthens the policy's delay, up to one hour.
    """

    code = "transient_error"


class PermanentError(_HandlerError):
    """Raise it in a handler for a fault that no retry can heal: the job fails at once."""

    code = "permanent_error"


def settings_refused(message: str, guidance: str) -> PermanentError:
    """What a playbook gives a step to run with cannot be used, now or later."""
    return PermanentError(
        message,
        error_type="validation_error",
        user_message="The step's settings are not valid",
        guidance=guidance,
    )


class TransactionLost(TransientError):
    """The handler's transaction was rolled back before the step was complete; nothing of it was kept."""

    code = "transaction_lost"


class TransactionUnavailable(PermanentError):
    """A handler asked for a transaction where there is none to have."""

    code = "transaction_unavailable"


class InvalidInput(HoldfastError):
    code = "invalid_input"


class PayloadInvalid(InvalidInput):
    code = "payload_invalid"


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"


class PolicyInvalid(InvalidInput):
    code = "policy_invalid"


class DefinitionInvalid(InvalidInput):
    code = "definition_invalid"


class UnknownName(HoldfastError):
    code = "unknown_name"


class UnknownPipeline(UnknownName):
    code = "unknown_pipeline"


class UnknownVersion(UnknownName):
    """The path is in the catalog, and has no such version."""

    code = "unknown_version"


class UnknownStep(UnknownName):
    code = "unknown_step"


class UnknownExecution(UnknownName):
    code = "unknown_execution"


class UnknownBatch(UnknownName):
    code = "unknown_batch"


class IdempotencyConflict(HoldfastError):
    code = "idempotency_conflict"


class BatchClosed(HoldfastError):
    code = "batch_closed"


class StaleLease(HoldfastError):
    """The fence shown is not the job's current one: abandon the attempt, nothing was changed."""

    code = "stale_lease"


class RetryRefused(HoldfastError):
    """A manual retry was refused; the message is a sentence for people."""

    code = "retry_refused"

    def __init__(
        self, message: str, *, code: RefusalCode, guidance: str = "", retry_after: float | None = None
    ) -> None:
        if code not in _REFUSAL_STATUS:
            raise ValueError(f"{code!r} is no reason to refuse a retry; known: {get_args(RefusalCode)}")
        super().__init__(message, guidance=guidance)
        self.code = code
        self.retry_after = retry_after

    @property
    def http_status(self) -> int:
        return _REFUSAL_STATUS[self.code]


class AccessRefused(HoldfastError):
    """The server does not let this client in."""

    code = "access_refused"


class BrokerUnavailable(HoldfastError):
    code = "broker_unavailable"


class StoreError(HoldfastError):
    code = "store_error"


class StoreUrlInvalid(StoreError):
    code = "store_url_invalid"


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class ServerUnavailable(StoreUnavailable):
    code = "server_unavailable"


class StoreUnusable(StoreError):
    code = "store_unusable"


class SchemaTooNew(StoreError):
    code = "schema_too_new"


class SchemaTooOld(StoreError):
    code = "schema_too_old"
