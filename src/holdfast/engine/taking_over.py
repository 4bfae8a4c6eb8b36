"""A lease that goes from hand to hand: whoever shows its fence gets the same attempt under a new one.

    a dispatcher leases ──▶ tells somebody the fence ──▶ who takes over: another fence, the same attempt
                       └── its next heartbeat is stale: the attempt is in other hands

A fence is exchanged once. Of any number of copies of a message that names it one wins, and nobody else can
speak of the attempt any more, also not who has leased it. And whoever holds one may give it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from holdfast.core.errors import InvalidInput
from holdfast.core.model import Ack, Leased, LeaseRef, fence_after
from holdfast.core.payload import check_name
from holdfast.core.retry import checked_seconds
from holdfast.engine.checks import check_token, is_id
from holdfast.engine.controls import held_by_pauses
from holdfast.engine.decisions import Decisions
from holdfast.engine.definitions import Definitions
from holdfast.engine.held import LEASES_MAX
from holdfast.engine.leasing import Leasing
from holdfast.engine.planning import Planning
from holdfast.engine.reporting import Reporting
from holdfast.engine.settle import ReleasePlan
from holdfast.engine.tallies import Ended, Tallies
from holdfast.store.interface import Claimed, Store, Taking

TAKEN_OVER_MAX = 1_000


class TakingOver:
    store: Store
    tallies: Tallies
    _decisions: Decisions
    _definitions: Definitions
    _leasing: Leasing
    _planning: Planning
    _reporting: Reporting

    async def take_over(
        self, worker_id: str, leases: Sequence[LeaseRef], *, token: str, lease_seconds: float
    ) -> list[Leased]:
        """Go on with these attempts in the place of whoever leased them: those that stand, under new fences,
        as a lease would hand them out. One that is stale is not among them. The `token` makes the fences;
        with the same one the call can be repeated where its answer was lost."""
        check_name(worker_id, what="worker id")
        check_token(token)
        lease_seconds = checked_seconds(lease_seconds, "lease_seconds")
        if len(leases) > TAKEN_OVER_MAX:
            raise InvalidInput(f"Up to {TAKEN_OVER_MAX} attempts are taken over at once, not {len(leases)}.")
        takings = {
            lease: Taking(lease.queue_id, lease.fence, new_fence)
            for lease in leases
            if is_id(lease.queue_id) and (new_fence := fence_after(lease.fence, token)) is not None
        }
        if not takings:
            return []
        now = await self.store.now()
        claimed = await self.store.take_over(list(takings.values()), worker_id, now, lease_seconds)
        try:
            claimed = await self._unpaused(claimed)
            return await self._handed_out(claimed, worker_id)
        except BaseException:
            # Taken and never handed out, they would end as lost by a worker that never saw them.
            with contextlib.suppress(Exception):
                await self.release([LeaseRef(row.id, row.fence) for row in claimed])
            raise

    async def _unpaused(self, claimed: list[Claimed]) -> list[Claimed]:
        """Without what was paused while it waited to be taken over: it is given back, and begins when the
        pause is over."""
        pauses = await self.store.pauses()
        if not pauses:
            return claimed
        free: list[Claimed] = []
        held: list[Claimed] = []
        for row in claimed:
            step = (await self._definitions.load(row.definition_id)).step(row.step)
            is_held = held_by_pauses(pauses, row.path, row.step, row.lane, step.limit)
            (held if is_held else free).append(row)
        await self.release([LeaseRef(row.id, row.fence) for row in held])
        return free

    async def _handed_out(self, claimed: Sequence[Claimed], worker_id: str) -> list[Leased]:
        """What a worker is given of rows that are leased to it, and remembered of them here."""
        self._reporting.held.remember(claimed, worker_id)
        is_limited = await self._leasing.is_fleet_limited(claimed)
        if is_limited is not None:
            self._planning.fleet_limited = is_limited
        return await self._leasing.leased(claimed)

    # giving back

    async def release(self, leases: Sequence[LeaseRef], *, skip_locked: bool = False) -> list[Ack]:
        """Give attempts back unused: available at once, the attempt not counted."""
        if not leases:
            return []
        now = await self.store.now()
        self._reporting.held.forget(leases)
        release = ReleasePlan(leases, self._definitions, self._decisions, now)
        ids = sorted({lease.queue_id for lease in leases if is_id(lease.queue_id)})
        ended = Ended()
        await self.store.amend_jobs(ids, ended.of_jobs(release), now, skip_locked=skip_locked)
        self.tallies.ended(ended, now)
        self.store.announce_work()
        return release.acks

    async def recall(self, worker_id: str, tokens: Sequence[str]) -> int:
        """Give back, as `release` does, what this worker was leased under these tokens and does not know of,
        because the answer was lost; how many that were."""
        check_name(worker_id, what="worker id")
        lost = {check_token(token) for token in tokens}
        held = await self.store.leases_of(worker_id, LEASES_MAX) if lost else []
        leases = [lease for lease, _ in held if lease.fence.partition("-")[2] in lost]
        return sum(ack.accepted for ack in await self.release(leases))
