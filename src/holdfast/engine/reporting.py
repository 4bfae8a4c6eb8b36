"""From the outcomes that workers report to their answers, many of them in one transaction.

    reports ──▶ prepared ──▶ gathered by the group commit ──▶ held ones: one statement, against their fences
                                                          └─▶ the rest: locked, planned, written

Both ways end in the same rows; the second one is there for all that the first cannot know.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdfast.core.errors import StoreError
from holdfast.core.model import Ack, AckCode
from holdfast.engine.children import Children
from holdfast.engine.decisions import Decisions
from holdfast.engine.definitions import Definitions
from holdfast.engine.group_commit import GroupCommit
from holdfast.engine.held import HeldLeases
from holdfast.engine.planning import Planning
from holdfast.engine.settle import ExecutionsNeeded, Prepared, SettlePlan
from holdfast.engine.tallies import Verb
from holdfast.store.interface import Store
from holdfast.store.stages import HeldStage


class Reporting:
    def __init__(
        self,
        store: Store,
        definitions: Definitions,
        planning: Planning,
        decisions: Decisions,
        children: Children,
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._planning = planning
        self._decisions = decisions
        self._children = children
        self._tallies = planning.tallies
        self.held = HeldLeases(definitions, decisions)
        self._reports: GroupCommit[Prepared, Ack] = GroupCommit(self._settle)

    async def commit(self, prepared: Sequence[Prepared]) -> Sequence[Ack]:
        return await self._reports.commit(prepared)

    async def _settle(self, items: list[Prepared]) -> list[Ack]:
        stages = self.held.stages(items)
        held = [stage for stage in stages if stage is not None]
        if not held or not await self._complete_held(held, await self._store.now()):
            return await self.settle_locked(items)
        self._announce(any(stage.end.following is not None or stage.end.frees_place for stage in held))
        rest = [item for item, stage in zip(items, stages, strict=True) if stage is None]
        acks = iter(await self.settle_locked(rest) if rest else ())
        return [next(acks) if stage is None else Ack(stage.job_id, AckCode.ACCEPTED) for stage in stages]

    async def _complete_held(self, stages: list[HeldStage], now: float) -> bool:
        began = time.perf_counter()
        try:
            is_done = await self._store.complete_held(stages, now)
        except StoreError:
            raise
        except Exception:
            return False  # for a reason in one of them: under lock each gets its own answer
        if is_done:
            self._tallies.took(Verb.REPORT, time.perf_counter() - began)
            self._tallies.stages(stages, now)
        return is_done

    async def settle_locked(self, items: list[Prepared], *, skip_locked: bool = False) -> list[Ack]:
        """One transaction for all; where it fails for a reason in the items, one for each of them."""
        try:
            return await self._settle_together(items, skip_locked=skip_locked)
        except StoreError:
            raise
        except Exception as error:
            if len(items) == 1:
                return [Ack(items[0].queue_id, AckCode.INVALID, f"the report cannot be stored: {error}")]
        return [ack for item in items for ack in await self.settle_locked([item], skip_locked=skip_locked)]

    async def _settle_together(self, items: list[Prepared], *, skip_locked: bool) -> list[Ack]:
        ids = sorted({item.queue_id for item in items})
        now = await self._store.now()
        book = self._planning.book(now)
        await self._planning.decide(book, self.held.needed(items))
        self.held.forget(items)
        settle = SettlePlan(items, self._definitions, book, self._decisions)
        began = time.perf_counter()
        try:
            await self._planning.jobs(ids, settle, book, skip_locked=skip_locked)
        except ExecutionsNeeded as needed:
            # One job may be reported twice, and each of its reports has an answer of its own.
            apart = [item for item in items if item.queue_id in needed.queue_ids]
            rest = [item for item in items if item.queue_id not in needed.queue_ids]
            acks = iter([await self._settle_with_siblings(item) for item in apart])
            others = iter(await self._settle_together(rest, skip_locked=skip_locked) if rest else ())
            return [next(acks if item.queue_id in needed.queue_ids else others) for item in items]
        self._tallies.took(Verb.REPORT, time.perf_counter() - began)
        await self.settled(settle, now)
        return settle.acks

    async def _settle_with_siblings(self, item: Prepared) -> Ack:
        """With its whole execution locked: it ends more than its own job."""
        now = await self._store.now()
        book = self._planning.book(now)
        settle = SettlePlan([item], self._definitions, book, self._decisions)
        ids = [execution.id for _, execution in await self._store.peek_jobs([item.queue_id])]
        began = time.perf_counter()
        await self._planning.executions(ids, settle.with_siblings, book)
        self._tallies.took(Verb.REPORT, time.perf_counter() - began)
        await self.settled(settle, now)
        return settle.acks[0]

    async def settled(self, settle: SettlePlan, now: float, *, makes_work: bool = False) -> None:
        """After its transaction: count it, wake who waits for what it has made, and go on with children."""
        self._tallies.settled(settle.settled, now)
        self._announce(settle.makes_work or makes_work)
        await self._children.attend(settle.waiting)

    def _announce(self, makes_work: bool) -> None:
        if makes_work or self._planning.fleet_limited:
            self._store.announce_work()
        else:
            self._store.announce_end()
