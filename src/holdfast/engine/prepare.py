"""Everything about a report that can be slow or wrong, done before its transaction begins.

Results are checked, errors cleaned and classified, the playbook's conditions evaluated. What comes out
is plain data that a plan can settle without asking anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.catalogue import Category
from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
from holdfast.core.failures import Failure, classify, clean_failure
from holdfast.core.model import Completed, ExecutionState, Failed, JobState, LeaseRef, Report
from holdfast.core.payload import check_payload, unstorable_output
from holdfast.core.transitions import Verdict
from holdfast.engine.checks import is_id
from holdfast.engine.conditions import judge
from holdfast.engine.definitions import Definitions
from holdfast.engine.settle import Erred, Prepared, Succeeded, hash_of
from holdfast.store.interface import Store

log = logging.getLogger("holdfast.engine")

_PLACEHOLDER = Succeeded(0, "", "", "")


class Preparation:
    def __init__(
        self, store: Store, definitions: Definitions, *, payload_bytes_max: int, draw: Callable[[], float]
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._payload_bytes_max = payload_bytes_max
        self._draw = draw

    async def reports(self, reports: Sequence[Report]) -> list[Prepared]:
        prepared: list[Prepared] = []
        failed: list[tuple[int, Report, Failed]] = []
        for report in reports:
            outcome = report.outcome
            if isinstance(outcome, Completed):
                try:
                    check_payload(outcome.result, what="output", bytes_max=self._payload_bytes_max)
                    digest = hash_of("completed", outcome.result)
                    prepared.append(Succeeded(report.queue_id, report.fence, digest, outcome.result))
                    continue
                except (PayloadInvalid, PayloadTooLarge) as error:
                    # The work was done but cannot be kept: that is how the attempt ended.
                    outcome = Failed(unstorable_output(error))
            failed.append((len(prepared), report, outcome))
            prepared.append(_PLACEHOLDER)
        if failed:
            ids = [report.queue_id for _, report, _ in failed if is_id(report.queue_id)]
            jobs = {row.job.id: row for row in await self._store.peek_jobs(ids)}
            for position, report, outcome in failed:
                row = jobs.get(report.queue_id)
                state = None if row is None else (row.job, row.execution)
                prepared[position] = await self._erred(report, outcome, state)
        return prepared

    async def _erred(
        self,
        report: Report,
        outcome: Failed,
        state: tuple[JobState, ExecutionState] | None,
        *,
        rule: str | None = None,
    ) -> Erred:
        failure = clean_failure(outcome.failure)
        if state is None:
            verdict = Verdict(classification=classify(failure))
        else:
            job, execution = state
            definition = await self._definitions.load(execution.definition_id)
            step = definition.step(job.step)
            classification = classify(failure, definition.error_rules(step))
            if rule is not None:
                classification = msgspec.structs.replace(classification, rule=rule)
            workload = None
            if step.retry.retry_when is not None or step.retry.stop_when is not None:
                row = await self._store.execution(execution.id)
                workload = row.workload if row else None
            verdict = judge(failure, classification, step.retry, job, workload)
            if outcome.crashed:
                verdict = msgspec.structs.replace(verdict, crashed=True)
            _log_failure(failure, verdict, job)
        return Erred(
            queue_id=report.queue_id,
            fence=report.fence,
            outcome_hash=hash_of("failed", msgspec.json.encode(failure).decode()),
            failure=failure,
            verdict=verdict,
            draw=self._draw(),
            cleared=outcome.cleared,
        )

    async def lost(self, expired: Sequence[LeaseRef], now: float) -> list[Prepared]:
        failure = Failure(
            message="The worker was lost: it stopped, or lost its connection, while it held the lease.",
            exception="WorkerLost",
            error_type="worker_lost",
            category=Category.TRANSIENT,
        )
        items: list[Prepared] = []
        jobs = {row.job.id: row for row in await self._store.peek_jobs([lease.queue_id for lease in expired])}
        for lease in expired:
            row = jobs.get(lease.queue_id)
            if row is None:
                continue
            erred = await self._erred(
                Report(lease.queue_id, lease.fence, Failed(failure, cleared=False)),
                Failed(failure, cleared=False),
                (row.job, row.execution),
                rule="the lease expired",
            )
            lost = msgspec.structs.replace(erred.verdict, worker_lost=True)
            items.append(msgspec.structs.replace(erred, verdict=lost, expired_before=now))
        return items


def _log_failure(failure: Failure, verdict: Verdict, job: JobState) -> None:
    classification = verdict.classification
    level = logging.ERROR if classification.category is Category.PERMANENT else logging.WARNING
    log.log(
        level,
        "Execution %d, step %s, attempt %d of %d: %s (%s; rule: %s): %s: %s",
        job.execution_id,
        job.step,
        job.attempts,
        job.max_attempts,
        classification.error_type,
        classification.category,
        classification.rule,
        failure.exception or "error",
        failure.message,
    )
