"""Everything about a report that can be slow or wrong, done before its transaction begins.

Results are checked, errors cleaned and classified, the playbook's conditions evaluated. What comes out
is plain data that a plan can settle without asking anybody. Which attempt an error ended is known here where
the lease was given out from here; otherwise the store is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core.catalogue import Category, words_without_documents
from holdfast.core.errors import InvalidInput, PayloadInvalid, PayloadTooLarge
from holdfast.core.failures import Classification, Failure, classify, clean_failure, failure_from_exception
from holdfast.core.model import ChildAsked, Completed, Deferred, Failed, LeaseRef, Report
from holdfast.core.payload import check_payload, unstorable_output
from holdfast.core.retry import parse_duration
from holdfast.core.transitions import Verdict
from holdfast.engine.checks import is_id
from holdfast.engine.conditions import Attempted, judge
from holdfast.engine.definitions import Definitions
from holdfast.engine.held import HeldLeases
from holdfast.engine.settle import Erred, Prepared, PutAside, Succeeded, hash_of
from holdfast.logs import about
from holdfast.playbook.text_parts import has_marks
from holdfast.store.interface import Store

log = logging.getLogger("holdfast.engine")

_PLACEHOLDER = Succeeded(0, "", "", "")


class Preparation:
    def __init__(
        self,
        store: Store,
        definitions: Definitions,
        held: HeldLeases,
        *,
        payload_bytes_max: int,
        draw: Callable[[], float],
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._held = held
        self._payload_bytes_max = payload_bytes_max
        self._draw = draw

    async def reports(self, reports: Sequence[Report]) -> list[Prepared]:
        prepared: list[Prepared] = []
        unsettled: list[tuple[int, Report, Failed | Deferred]] = []
        for report in reports:
            outcome = report.outcome
            if isinstance(outcome, Deferred) and outcome.child is None:
                try:
                    seconds = parse_duration(outcome.until_seconds or 0.0, field="until_seconds")
                    prepared.append(_put_aside(report, outcome, seconds))
                    continue
                except InvalidInput as error:
                    outcome = Failed(failure_from_exception(error))
            if isinstance(outcome, Completed):
                try:
                    check_payload(outcome.result, what="output", bytes_max=self._payload_bytes_max)
                    digest = hash_of("completed", outcome.result)
                    prepared.append(Succeeded(report.queue_id, report.fence, digest, outcome.result))
                    continue
                except (PayloadInvalid, PayloadTooLarge) as error:
                    # The work was done but cannot be kept: that is how the attempt ended.
                    outcome = Failed(unstorable_output(error))
            unsettled.append((len(prepared), report, outcome))
            prepared.append(_PLACEHOLDER)
        if unsettled:
            attempts = await self._attempts([report for _, report, _ in unsettled])
            for (position, report, outcome), attempt in zip(unsettled, attempts, strict=True):
                if isinstance(outcome, Deferred):
                    try:
                        await self._check_child(outcome, attempt)
                        prepared[position] = _put_aside(report, outcome, None)
                        continue
                    except InvalidInput as error:
                        outcome = Failed(failure_from_exception(error))
                prepared[position] = await self._erred(report, outcome, attempt)
        return prepared

    async def _check_child(self, outcome: Deferred, attempt: Attempted | None) -> None:
        """A worker may ask for the execution that its step names, and for no other: what is started here is
        for others to decide."""
        if attempt is None:
            return  # stale
        try:
            child = msgspec.json.decode(outcome.child or "", type=ChildAsked)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise InvalidInput(f"The worker asked for an execution that cannot be read: {error}.") from error
        step = (await self._definitions.load(attempt.definition_id)).step(attempt.step)
        named = str(step.config.get("path"))
        if step.type != "playbook" or not (named == child.path or has_marks(named)):
            raise InvalidInput(
                f"The worker asked for an execution of {child.path}, which step {step.name} does not name."
            )

    async def _attempts(self, reports: Sequence[Report]) -> list[Attempted | None]:
        """Which attempts these reports are about, as far as anybody knows."""
        held = [self._held.take(report) for report in reports]
        unknown = [
            LeaseRef(report.queue_id, report.fence)
            for report, lease in zip(reports, held, strict=True)
            if lease is None and is_id(report.queue_id)
        ]
        found = await self._found(unknown) if unknown else {}
        return [
            found.get(LeaseRef(report.queue_id, report.fence)) if lease is None else Attempted.leased(lease)
            for report, lease in zip(reports, held, strict=True)
        ]

    async def _found(self, leases: Sequence[LeaseRef]) -> dict[LeaseRef, Attempted]:
        """Of those that still hold: what is stale ends no attempt, and nobody is to read in a log that it
        did."""
        wanted = set(leases)
        return {
            lease: Attempted(
                job.execution_id, execution.definition_id, job.step, job.attempts, job.max_attempts
            )
            for job, execution in await self._store.peek_jobs([lease.queue_id for lease in leases])
            if job.fence is not None and (lease := LeaseRef(job.id, job.fence)) in wanted
        }

    async def _erred(
        self, report: Report, outcome: Failed, attempt: Attempted | None, *, rule: str | None = None
    ) -> Erred:
        failure = clean_failure(outcome.failure)
        if attempt is None:
            verdict = Verdict(classification=classify(failure))
        else:
            definition = await self._definitions.load(attempt.definition_id)
            step = definition.step(attempt.step)
            classification = classify(failure, definition.error_rules(step))
            if step.type and definition.about != "documents":
                classification = _about_no_document(classification)
            if rule is not None:
                classification = msgspec.structs.replace(classification, rule=rule)
            workload = None
            if step.retry.retry_when is not None or step.retry.stop_when is not None:
                workload = await self._workload(attempt)
            verdict = judge(failure, classification, step.retry, attempt, workload)
            if outcome.crashed:
                verdict = msgspec.structs.replace(verdict, crashed=True)
            _log_failure(failure, verdict, attempt, queue_id=report.queue_id, path=definition.path)
        return Erred(
            queue_id=report.queue_id,
            fence=report.fence,
            outcome_hash=hash_of("failed", msgspec.json.encode(failure).decode()),
            failure=failure,
            verdict=verdict,
            draw=self._draw(),
            cleared=outcome.cleared,
        )

    async def _workload(self, attempt: Attempted) -> Any:
        if attempt.workload is not None:
            return msgspec.json.decode(attempt.workload)
        row = await self._store.execution(attempt.execution_id)
        return row.workload if row else None

    async def lost(self, expired: Sequence[LeaseRef], now: float) -> list[Prepared]:
        failure = Failure(
            message="The worker was lost: it stopped, or lost its connection, while it held the lease.",
            exception="WorkerLost",
            error_type="worker_lost",
            category=Category.TRANSIENT,
        )
        items: list[Prepared] = []
        attempts = await self._found(expired)
        for lease in expired:
            attempt = attempts.get(lease)
            if attempt is None:
                continue
            erred = await self._erred(
                Report(lease.queue_id, lease.fence, Failed(failure, cleared=False)),
                Failed(failure, cleared=False),
                attempt,
                rule="the lease expired",
            )
            lost = msgspec.structs.replace(erred.verdict, worker_lost=True)
            items.append(msgspec.structs.replace(erred, verdict=lost, expired_before=now))
        return items


def _put_aside(report: Report, outcome: Deferred, seconds: float | None) -> PutAside:
    digest = hash_of("deferred", msgspec.json.encode(outcome).decode())
    return PutAside(report.queue_id, report.fence, digest, seconds, outcome.child or "{}")


def _about_no_document(classification: Classification) -> Classification:
    told = (classification.user_message, classification.guidance)
    user_message, guidance = words_without_documents(classification.error_type, *told)
    return msgspec.structs.replace(classification, user_message=user_message, guidance=guidance)


def _log_failure(failure: Failure, verdict: Verdict, attempt: Attempted, *, queue_id: int, path: str) -> None:
    classification = verdict.classification
    level = logging.ERROR if classification.category is Category.PERMANENT else logging.WARNING
    if not _is_heard(level):
        return
    log.log(
        level,
        "Execution %d, step %s, attempt %d of %d: %s (%s; rule: %s): %s: %s",
        attempt.execution_id,
        attempt.step,
        attempt.attempts,
        attempt.max_attempts,
        classification.error_type,
        classification.category,
        classification.rule,
        failure.exception or "error",
        failure.message,
        extra=about(
            execution_id=attempt.execution_id,
            queue_id=queue_id,
            path=path,
            step=attempt.step,
            attempt=attempt.attempts,
        ),
    )


def _is_heard(level: int) -> bool:
    """Whether anybody does anything with a record of this level. Making one is dear, and a program that wants
    no log of each of its thousands of failures gives us a handler that does nothing."""
    if not log.isEnabledFor(level):
        return False
    has_handlers = False
    logger: logging.Logger | None = log
    while logger is not None:
        for handler in logger.handlers:
            if level >= handler.level and type(handler) is not logging.NullHandler:
                return True
            has_handlers = True
        logger = logger.parent if logger.propagate else None
    return bool(log.filters) or not has_handlers  # without any, logging's handler of last resort speaks
