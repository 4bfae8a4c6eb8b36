"""What crosses HTTP between a server and its workers and clients, as records that both sides share.

Requests of workers are lenient: a field that this version does not know is passed over, so that a newer
worker can speak with an older server. Requests of people are strict: a slip of the pen is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core.access import TokenRow
from holdfast.core.catalogue import Category
from holdfast.core.failures import Failure
from holdfast.core.model import (
    HANDLER_CHARS_MAX,
    Ack,
    AckCode,
    Completed,
    Deferred,
    EventType,
    ExecutionRow,
    ExecutionStatus,
    Failed,
    JobRow,
    Lane,
    Leased,
    Mode,
    Outcome,
    Report,
)
from holdfast.core.retry import DURATION_SECONDS_MAX

T = TypeVar("T")

PORT_DEFAULT = 8083
LEASE_SECONDS_DEFAULT = 60.0
LEASE_JOBS_MAX = 1_000
LIST_MAX = 5_000
WAIT_SECONDS_MAX = 60.0
# A request that is larger is refused; whoever has more to say says it in several.
BODY_BYTES_MAX = 16 * 1024 * 1024
TOKEN_VARIABLE = "HOLDFAST_TOKEN"

Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Key = Annotated[str, Meta(min_length=1, max_length=HANDLER_CHARS_MAX)]
Lanes = Annotated[list[Lane], Meta(min_length=1, max_length=2)]
# As long as durations may be anywhere: what a worker may do at the database, it may do here.
Seconds = Annotated[float, Meta(ge=0, le=DURATION_SECONDS_MAX)]
Duration = Seconds | Annotated[str, Meta(min_length=1, max_length=32)]
LeaseSeconds = Annotated[float, Meta(gt=0, le=DURATION_SECONDS_MAX)]
Token = Annotated[str, Meta(pattern=r"^[0-9a-zA-Z_-]{8,64}$")]


class Worker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who leases, for people to know of; without it the server knows the id and the address."""

    host: Annotated[str, Meta(max_length=500)] = ""
    pid: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    version: Annotated[str, Meta(max_length=200)] = ""
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    lanes: Lanes | None = None
    """All that it works for; a lease may be for fewer."""
    started_at: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker asks for: up to `limit` jobs of these `types` (step types, names of functions, or
    `pipeline/step`; without them whatever there is), for `lease_seconds`. With `wait` the answer comes as
    soon as there is one, at the latest after so many seconds. `token` makes the fences of this call; in
    `recall` are those of calls that were never answered: what they have leased is given back."""

    worker_id: Name
    limit: Annotated[int, Meta(ge=1, le=LEASE_JOBS_MAX)] = 1
    lease_seconds: LeaseSeconds = LEASE_SECONDS_DEFAULT
    lanes: Lanes | None = None
    types: Annotated[list[Key], Meta(max_length=10_000)] | None = None
    wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0.0
    token: Token | None = None
    recall: Annotated[list[Token], Meta(max_length=1_000)] = []
    worker: Worker | None = None


class OwnLeaseRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same of one of Holdfast's own workers, which renders templates itself: `bulk` and `limited` bound
    their parts, `alone` asks for one job that must run by itself, `family` keeps to one execution;
    `knows_alone`: that such a job waits is no reason for an answer."""

    worker_id: Name
    handlers: Annotated[list[Key], Meta(max_length=10_000)]
    limit: Annotated[int, Meta(ge=1, le=LEASE_JOBS_MAX)] = 1
    lease_seconds: LeaseSeconds = LEASE_SECONDS_DEFAULT
    lanes: Lanes | None = None
    wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0.0
    token: Token | None = None
    recall: Annotated[list[Token], Meta(max_length=1_000)] = []
    worker: Worker | None = None
    alone: bool = False
    bulk: Annotated[int, Meta(ge=0, le=LEASE_JOBS_MAX)] | None = None
    limited: Annotated[int, Meta(ge=0, le=LEASE_JOBS_MAX)] | None = None
    ageing_seconds: LeaseSeconds | None = None
    family: Id | None = None
    knows_alone: bool = False


class LeaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """To one of Holdfast's own workers. `alone_ready`: a job that must run by itself waits."""

    jobs: list[Leased]
    alone_ready: bool
    next_due: float | None
    now: float


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    queue_id: int
    fence: str
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Without `lease_seconds` each lease is extended by as long as it was. `worker_id` tells people that the
    worker lives: one that has no free slot does not lease."""

    leases: Annotated[list[Beat], Meta(max_length=LIST_MAX)]
    lease_seconds: LeaseSeconds | None = None
    worker_id: Name | None = None


class Lease(msgspec.Struct, frozen=True):
    queue_id: int
    fence: str


class TakeOverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Go on with attempts that another has leased, under new fences, which the `token` makes: with the same
    token the call may be repeated."""

    worker_id: Name
    leases: Annotated[list[Lease], Meta(min_length=1, max_length=LEASE_JOBS_MAX)]
    token: Token
    lease_seconds: LeaseSeconds = LEASE_SECONDS_DEFAULT


class TakeOverAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts that could be taken over; the leases of all others are stale."""

    jobs: list[Leased]
    now: float


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Give attempts back unused: those named, and what this worker holds by calls that were not answered."""

    leases: Annotated[list[Lease], Meta(max_length=LIST_MAX)] = []
    worker_id: Name | None = None
    recall: Annotated[list[Token], Meta(max_length=1_000)] = []


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong in an attempt; what is left out the server classifies. `retry_after` in seconds."""

    message: str
    error_type: str | None = None
    category: Category | None = None
    status_code: int | None = None
    retry_after: Seconds | None = None
    stack_trace: str = ""
    exception: str = ""
    exception_types: tuple[str, ...] = ()
    sqlstate: str | None = None
    user_message: str | None = None
    guidance: str | None = None
    data: Any = None


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")


class OutcomeReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt ended: with a `result` (any JSON), with an `error`, or, of Holdfast's own workers, put
    aside for a time or a child execution. `cleared` and `crashed` are as in `Failed`."""

    queue_id: int
    fence: str
    type: Literal["action_completed", "action_error", "action_deferred"]
    result: msgspec.Raw = msgspec.field(default_factory=_null)
    error: ErrorReport | None = None
    cleared: bool = True
    crashed: bool = False
    until_seconds: Seconds | None = None
    child: str | None = None


class OutcomesRequest(msgspec.Struct, frozen=True, kw_only=True):
    outcomes: Annotated[list[OutcomeReport], Meta(max_length=LIST_MAX)]


class ItemAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Of one lease or outcome: whether it was taken, and the code that says why not."""

    queue_id: int
    accepted: bool
    code: AckCode
    message: str = ""
    repeated: bool = False


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was wrong with a request, in a word for programs and sentences for people."""

    code: str
    message: str
    guidance: str
    retry_after: float | None = None
    faults: list[dict[str, Any]] | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: Problem


class ItemsAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer for each item, in their order; an `error` too where none was accepted."""

    items: list[ItemAnswer]
    error: Problem | None = None


class Listed(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list; `next` is the cursor of the following one."""

    items: list[T]
    next: str | None = None


class StartRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An execution to start: of a playbook or pipeline by its `path`, or of a `playbook`, which is a path
    too, or a whole YAML text that is registered first."""

    path: Name | None = None
    playbook: Annotated[str, Meta(min_length=1)] | None = None
    version: Id | None = None
    workload: Any = None
    lane: Lane = Lane.BULK
    mode: Mode | None = None
    idempotency_key: Name | None = None
    delay: Duration = 0.0
    deadline: Duration | None = None


class StartManyRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Several executions in one transaction: all of them are stored, or none."""

    executions: Annotated[list[StartRequest], Meta(max_length=LIST_MAX)]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """`created` is false where the idempotency key had named this execution before."""

    id: int
    created: bool
    path: str


class RetryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    round: int
    status: ExecutionStatus


class CancelRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    by: Annotated[str, Meta(max_length=200)] = ""


class CancelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`cancelled` is false where it had ended before."""

    id: int
    cancelled: bool
    status: ExecutionStatus


class ExecutionDocument(ExecutionRow, frozen=True, kw_only=True):
    """An execution with its jobs, its outputs and one plain sentence."""

    summary: str
    stage: str | None
    outputs: dict[str, Any]
    result: Any
    jobs: tuple[JobRow, ...]
    skipped: dict[str, str]


class JobDocument(JobRow, frozen=True, kw_only=True):
    """`action` is JSON text that holds the step's config with its `retry`."""

    action: str


class EventDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a history; beside these it has what belongs to its type."""

    id: str
    execution_id: int
    at: float
    type: EventType
    step: str | None = None


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """`ticket` moves whenever something may have happened."""

    ticket: int


class CreatedToken(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the token itself: shown this once, and kept nowhere."""

    token: TokenRow
    text: str


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What the server is: its version, its clock (the database's), what it stores in and how much of one
    payload it takes."""

    version: str
    now: float
    database: str
    schema_version: int
    payload_bytes_max: int


# between the records of the engine and those of the wire


def outcome_of(report: OutcomeReport) -> Outcome:
    """UnicodeDecodeError where the result is no text."""
    if report.type == "action_completed":
        return Completed(bytes(report.result).decode())
    if report.type == "action_deferred":
        return Deferred(report.until_seconds, report.child)
    error = report.error or ErrorReport(message="The worker reported an error and no message.")
    return Failed(Failure(**msgspec.structs.asdict(error)), report.cleared, report.crashed)


def as_report(report: Report) -> OutcomeReport:
    id_, fence, outcome = report.queue_id, report.fence, report.outcome
    if isinstance(outcome, Completed):
        result = msgspec.Raw(outcome.result.encode())
        return OutcomeReport(queue_id=id_, fence=fence, type="action_completed", result=result)
    if isinstance(outcome, Deferred):
        return OutcomeReport(
            queue_id=id_,
            fence=fence,
            type="action_deferred",
            until_seconds=outcome.until_seconds,
            child=outcome.child,
        )
    return OutcomeReport(
        queue_id=id_,
        fence=fence,
        type="action_error",
        error=ErrorReport(**msgspec.structs.asdict(outcome.failure)),
        cleared=outcome.cleared,
        crashed=outcome.crashed,
    )


def item_answers(acks: Sequence[Ack]) -> list[ItemAnswer]:
    return [
        ItemAnswer(
            queue_id=ack.queue_id,
            accepted=ack.accepted,
            code=ack.code,
            message=ack.message,
            repeated=ack.repeated,
        )
        for ack in acks
    ]
