"""Failures by the many: looked at in groups, and started again together.

A redrive is an operator's act after a cause was repaired: each execution gets a new round at its failed
stage, by the rules of a manual retry. Two of those are for people who press a button again and again,
and not for this: the cap and the cooldown neither hold for a redrive nor are used up by it. What was
redriven runs, so a second redrive refuses it as `not_failed`; that is all the protection it needs, also
where one is interrupted and begun again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.model import DeadReason, ExecutionState, JobState
from holdfast.core.payload import check_name
from holdfast.engine.checks import check_execution_id, check_id, is_id, unknown_execution
from holdfast.engine.decisions import Decisions, DecisionsMissing, Needed
from holdfast.engine.definitions import Definitions
from holdfast.engine.manual_retry import RetryRequest, retry_plan
from holdfast.engine.planning import Planning
from holdfast.engine.records import Page
from holdfast.store.changes import Changes
from holdfast.store.interface import FailureFilter, Store

# Executions of one transaction: each brings its jobs, a new row and its events.
REDRIVE_BATCH = 200
DEADLINE = "deadline"
REASONS = (*DeadReason, DEADLINE)


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one execution: `redriven`, or the code of the refusal with its sentence."""

    execution_id: int
    code: str
    message: str = ""
    guidance: str = ""

    @property
    def is_redriven(self) -> bool:
        return self.code == REDRIVEN


REDRIVEN = "redriven"


def failure_filter(filters: dict[str, Any]) -> FailureFilter:
    """What is given, checked."""
    for name, value in filters.items():
        if name == "batch_id" and value is not None:
            # No store can hold such a number: as 0, which no batch has, it matches nothing.
            filters = {**filters, name: value if is_id(check_id(value, "batch")) else 0}
        elif value is not None:
            check_name(value, what=name.replace("_", " "))
    reason = filters.get("dead_reason")
    if reason is not None and reason not in REASONS:
        raise InvalidInput(
            f"{reason!r} is not a dead reason.", guidance=f"Allowed are: {', '.join(REASONS)}."
        )
    return FailureFilter(**filters)


class Redrive:
    """One redrive, batch by batch; each batch is one transaction. With `dry_run` nothing is written and
    the answers are what they would be."""

    def __init__(
        self,
        store: Store,
        definitions: Definitions,
        planning: Planning,
        decisions: Decisions,
        *,
        force: bool,
        by: str,
        dry_run: bool,
    ) -> None:
        self._store = store
        self._planning = planning
        self._definitions = definitions
        self._decisions = decisions
        self._request = RetryRequest(force=force, by=by)
        self._dry_run = dry_run
        if by:
            check_name(by, what="name of who asks")

    async def matching(self, query: FailureFilter) -> AsyncIterator[list[Redriven]]:
        """Everything that matches; an execution that fails again meanwhile is not met twice."""
        after = 0
        while rows := await self._store.failures(query, after, REDRIVE_BATCH):
            after = rows[-1].execution_id
            yield await self._batch(sorted({row.execution_id for row in rows}))

    async def named(self, ids: Sequence[int]) -> AsyncIterator[list[Redriven]]:
        unique = _in_order(ids)
        for start in range(0, len(unique), REDRIVE_BATCH):
            yield await self._batch(unique[start : start + REDRIVE_BATCH])

    async def page(self, asked: FailureFilter | Sequence[int], after: int, size: int) -> Page:
        """Of what matches, or of those that are named, the first `size` behind `after`, refused ones among
        them."""
        unknown: list[int] = []
        if isinstance(asked, FailureFilter):
            ids = [row.execution_id for row in await self._store.failures(asked, after, size)]
        else:
            named = _in_order(asked)
            ids = [id_ for id_ in named if id_ > after and is_id(id_)][:size]
            # What no cursor could stand behind is all told by the first page.
            unknown = [] if after else [id_ for id_ in named if not is_id(id_)]
        answers = [answer async for batch in self.named([*unknown, *ids]) for answer in batch]
        return Page(answers, str(ids[-1]) if len(ids) == size else None)

    async def _batch(self, ids: list[int]) -> list[Redriven]:
        book = self._planning.book(await self._store.now())
        answers: dict[int, Redriven] = {}

        def plan(executions: list[ExecutionState], jobs: list[JobState]) -> Changes:
            answers.clear()  # it may run again, after a definition was loaded
            whole = Changes()
            missing: list[Needed] = []
            own: dict[int, list[JobState]] = {}
            for job in jobs:
                own.setdefault(job.execution_id, []).append(job)
            for execution in executions:
                try:
                    part = retry_plan(
                        self._request,
                        execution,
                        own[execution.id],
                        self._definitions,
                        self._decisions,
                        book,
                        redrive=True,
                    )
                except HoldfastError as refusal:
                    answers[execution.id] = _refused(execution.id, refusal)
                    continue
                except DecisionsMissing as error:
                    missing += error.needed
                    continue
                answers[execution.id] = Redriven(execution_id=execution.id, code=REDRIVEN)
                whole.executions += part.executions
                whole.new_jobs += part.new_jobs
                whole.superseded += part.superseded
                whole.events += part.events
                whole.audit += part.audit
            if missing:  # of all at once: each of them one by one would run all the others again
                raise DecisionsMissing(missing)
            whole.batches = book.changed()
            return Changes() if self._dry_run else whole

        await self._planning.executions([id_ for id_ in ids if is_id(id_)], plan, book)
        if not self._dry_run:
            self._store.announce_work()
        return [answers.get(id_) or _refused(id_, unknown_execution(id_)) for id_ in ids]


def _in_order(ids: Sequence[int]) -> list[int]:
    for id_ in ids:
        check_execution_id(id_)
    return sorted(set(ids))


def _refused(execution_id: int, refusal: HoldfastError) -> Redriven:
    return Redriven(
        execution_id=execution_id, code=refusal.code, message=str(refusal), guidance=refusal.guidance
    )
