"""What workers and processes do in a step: lease, report, fall silent, die, come back.

See operations.py for how an operation is written.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import AckCode, Completed, Failed, JobStatus, Lane, Outcome, Report, is_untaken
from simulation.claim_rules import Asked, expected_alone_ready, expected_claim, expected_next_due, ready
from simulation.flow_rules import moves_along
from simulation.history import ensure
from simulation.lines import FLEET, READY
from simulation.pipelines import HANDLERS, is_storable
from simulation.world import LEASE_SECONDS_MAX, Afterwards, Attempt, World

WORKERS = ("ada", "ben", "cy")
ANYTHING = Asked(1, HANDLERS, tuple(Lane))


class InShort(list[Report]):
    """Reports as the trace shows them."""

    def __str__(self) -> str:
        return ", ".join(f"{item.queue_id}:{item.fence} " + _in_short(item.outcome) for item in self)


def _in_short(outcome: Outcome) -> str:
    if isinstance(outcome, Completed):
        return outcome.result[:40]
    return outcome.failure.message if isinstance(outcome, Failed) else str(outcome)


async def lease(world: World) -> Afterwards:
    random, process, sight = world.random, world.some_process(), world.invariants.sight
    if not ready(sight, ANYTHING, world.clock.now):
        _wait_for_work(world)
    worker, now = random.choice(WORKERS), world.clock.now
    alone = random.random() < (0.5 if ready(sight, ANYTHING._replace(alone=True), now) else 0.05)
    asked = Asked(
        limit=random.choice((1, 2, 5, 20)),
        handlers=HANDLERS if random.random() < 0.85 else tuple(random.sample(HANDLERS, 4)),
        lanes=tuple(Lane) if random.random() < 0.9 else (random.choice(list(Lane)),),
        alone=alone,
        bulk=None if random.random() < 0.8 else random.randrange(3),
        limited=None if random.random() < 0.8 else random.randrange(3),
        ageing_seconds=random.choice((5.0, 60.0)) if random.random() < 0.1 else None,
    )
    seconds, lead = random.choice((10.0, LEASE_SECONDS_MAX)), _lead(world)
    untaken = not world.is_of_flow and random.random() < 0.15
    waiting = " to be taken over" if untaken else ""
    world.tell("{} leases to {}{}, {} ahead: {}", process, worker, waiting, lead, asked)
    taken = expected_claim(sight, asked._replace(limit=1 if alone else asked.limit), now + lead)
    expected = [job for job in taken if (job.scheduled_for or now) <= now]
    process.store.claim_lead = lead
    try:
        answer = await process.engine.lease(
            worker,
            asked.handlers,
            asked.limit,
            lease_seconds=seconds,
            lanes=asked.lanes,
            alone=alone,
            bulk=asked.bulk,
            limited=asked.limited,
            ageing_seconds=asked.ageing_seconds,
            untaken=untaken,
        )
    finally:
        process.store.claim_lead = 0.0
    attempts = [Attempt(worker, job) for job in answer.jobs]
    world.tell("    {}", [job.queue_id for job in answer.jobs])
    world.invariants.leased(answer.jobs, now)
    world.held += attempts

    def afterwards() -> None:
        rows = world.invariants.jobs
        got = [job.queue_id for job in answer.jobs]
        ensure(got == [job.id for job in expected], "leased {}, but the order was {}", got, expected)
        for job in answer.jobs:
            row = rows[job.queue_id]
            ensure(row.available_at <= now + lead, "leased at {}, before its time: {}", now, row)
            ensure((row.scheduled_for or now) <= now, "kept, and scheduled for later: {}", row)
            ensure(job.alone == bool(row.losses), "alone={}: {}", job.alone, row)
            until = now + lead + seconds
            ensure((row.fence, row.lease_until) == (job.fence, until), "not as told: {} {}", row, job)
            ensure(job.limited == bool({row.limit, FLEET} & sight.limits.keys()), "{} {}", job, sight.limits)
            world.invariants.check_outputs(job)
        for old in taken:
            if old not in expected:
                row = rows[old.id]
                put_back = (row.status in READY, row.attempts, row.available_at)
                ensure(put_back == (True, old.attempts, row.scheduled_for), "not put back: {}", row)
        if not answer.jobs and not taken:
            due = expected_next_due(sight, asked, now)
            ensure(answer.next_due == due, "the next is due at {}, not {}", due, answer.next_due)
            if not alone:
                is_ready = expected_alone_ready(sight, asked, now)
                ensure(answer.alone_ready == is_ready, "alone_ready={}", answer.alone_ready)

    return afterwards


def _lead(world: World) -> float:
    """How far the clock of the one who claims is ahead: now and then to when something is scheduled for."""
    if not world.alone_in_time or world.random.random() < 0.9:
        return 0.0
    later = [
        job.scheduled_for - world.clock.now
        for job in world.invariants.jobs.values()
        if job.status in READY and job.scheduled_for is not None and job.scheduled_for > world.clock.now
    ]
    return world.random.choice(later) if later else 2.0


def _wait_for_work(world: World) -> None:
    due = [job.available_at for job in world.invariants.jobs.values() if job.is_waiting]
    if due and world.alone_in_time and world.random.random() < 0.7:
        world.clock.now = max(world.clock.now, min(due))


async def heartbeat(world: World) -> Afterwards:
    attempts = world.pick(world.held + (world.taken_from() or world.past), 4)
    if not attempts:
        return None
    process, before = world.some_process(), world.invariants.jobs
    world.tell("{} hears {}", process, [attempt.ref for attempt in attempts])
    acks = await process.engine.heartbeat([attempt.ref for attempt in attempts])
    until = world.clock.now + LEASE_SECONDS_MAX
    alone = world.alone_in_time
    for attempt, ack in zip(attempts, acks, strict=True):
        if not ack.accepted:
            world.put_away(attempt)

    def afterwards() -> None:
        extended = {ack.queue_id for ack in acks if ack.accepted}
        for attempt, ack in zip(attempts, acks, strict=True):
            row = before.get(ack.queue_id)
            stands = row is not None and row.fence == attempt.lease.fence
            ensure(ack.accepted == stands, "heartbeat of {} answered {}: {}", attempt, ack.code, row)
        for id_, row in world.invariants.jobs.items():
            expected = before[id_]._replace(lease_until=until) if id_ in extended else before[id_]
            ensure(row == expected, "a heartbeat of {} made {} of {}", extended, row, before[id_])

    return afterwards if alone else None


async def report(world: World) -> Afterwards:
    """Workers end their attempts."""
    if not world.held:
        return await lease(world)
    attempts = world.pick(world.held, 4)
    for attempt in attempts:
        if attempt.outcome is None:
            attempt.outcome = world.outcome(attempt.lease)
    return await _report(world, attempts)


async def report_again(world: World) -> Afterwards:
    """The answer was lost, or the worker repeats itself."""
    told = [attempt for attempt in world.held + world.past if attempt.outcome is not None]
    return await (_report(world, world.pick(told, 3)) if told else report(world))


async def report_otherwise(world: World) -> Afterwards:
    """The same fence with another outcome, beside the first one or on its own."""
    attempts = world.pick([a for a in world.held + world.past if a.outcome is not None], 2)
    others = [replace(a, outcome=world.outcome(a.lease)) for a in attempts]
    return await _report(world, others if world.random.random() < 0.5 else attempts + others)


async def report_late(world: World) -> Afterwards:
    """A zombie: its lease ran out, and most often its job is another worker's by now."""
    if not world.past:
        return await report(world)
    attempts = world.pick(world.taken_from() or world.past, 3)
    for attempt in attempts:
        if attempt.outcome is None:
            attempt.outcome = world.outcome(attempt.lease)
    return await _report(world, attempts)


async def _report(world: World, attempts: list[Attempt]) -> Afterwards:
    if not attempts:
        return None
    process, before = world.some_process(), world.invariants.jobs
    reports = [attempt.report() for attempt in attempts]
    if world.random.random() < 0.05:
        reports.append(Report(99_999, "1-none", world.outcome()))
    world.tell("{} is told {}", process, InShort(reports))
    acks = await process.engine.report(reports)
    world.tell("    {}", [ack.code + " again" * ack.repeated for ack in acks])
    for item, ack in zip(reports, acks, strict=True):
        world.invariants.answered(item.queue_id, item.fence, item.outcome, ack)
    for attempt in attempts:
        world.put_away(attempt)

    def afterwards() -> None:
        changed = {ack.queue_id for ack in acks if ack.accepted and not ack.repeated}
        owners = {before[id_].execution_id for id_ in changed}
        for id_, row in world.invariants.jobs.items():
            old = before.get(id_)
            if old is None:
                is_child = world.invariants.executions[row.execution_id].parent_job is not None
                ensure(row.execution_id in owners or is_child, "a job out of nowhere: {}", row)
            elif id_ in changed or not moves_along(old, row, owners):
                ensure((row != old) == (id_ in changed), "answers {} made {} of {}", acks, row, old)
        for item, ack in zip(reports, acks, strict=True):
            held, settled = before.get(item.queue_id), world.invariants.jobs.get(item.queue_id)
            if ack.accepted and not ack.repeated:
                ensure(held is not None and held.fence == item.fence, "{} was accepted for {}", item, held)
            if ack.code is AckCode.STALE_LEASE and settled is not None and is_storable(item.outcome):
                mine = settled.settled_fence == item.fence and settled.output == item.outcome.result
                ensure(not mine, "{} was stored and answered {}", item, ack)

    return afterwards


async def release(world: World) -> Afterwards:
    attempts = world.pick(world.held + world.past[-3:], 3)
    if not attempts:
        return None
    process, before, now = world.some_process(), world.invariants.jobs, world.clock.now
    world.tell("{} takes back {}", process, [attempt.ref for attempt in attempts])
    acks = await process.engine.release([attempt.ref for attempt in attempts])
    for attempt in attempts:
        world.put_away(attempt)

    def afterwards() -> None:
        for attempt, ack in zip(attempts, acks, strict=True):
            old, row = before.get(ack.queue_id), world.invariants.jobs.get(ack.queue_id)
            ensure(
                ack.accepted == (old is not None and old.fence == attempt.lease.fence), "{} for {}", ack, old
            )
            if ack.accepted:
                assert row and old
                if row.status == JobStatus.CANCELLED:  # nobody waits for it; its history tells that
                    continue
                available_at = max(now, old.scheduled_for or now)
                given_back = (row.attempts, row.available_at) == (old.attempts - 1, available_at)
                ensure(given_back, "{} was given back: {}", old, row)

    return afterwards


async def take_over(world: World) -> Afterwards:
    """Another worker goes on with attempts that were leased before, or is told of them too late; what is
    paused goes back. An answer that was lost is most often asked for again, of whoever answers then."""
    attempts = world.pick(world.held + (world.taken_from() or world.past)[-3:], 3)
    if not attempts:
        return None
    process, sight, now = world.some_process(), world.invariants.sight, world.clock.now
    before = sight.jobs
    worker, leases = world.random.choice(WORKERS), [attempt.ref for attempt in attempts]
    asked = {"token": f"taken-{world.number():06x}", "lease_seconds": LEASE_SECONDS_MAX}
    world.invariants.hands_changed = True
    world.tell("{} gives to {} {}", process, worker, leases)
    is_answered = True
    try:
        jobs = await process.engine.take_over(worker, leases, **asked)
    except StoreUnavailable:
        if world.random.random() < 0.3:
            raise
        is_answered = False
        jobs = await world.random.choice(world.processes).engine.take_over(worker, leases, **asked)
    world.tell("    {}", [job.queue_id for job in jobs])
    world.invariants.leased(jobs, now)
    taken = {job.queue_id for job in jobs}
    for attempt in attempts:
        if attempt.ref.queue_id in taken:
            world.put_away(attempt)
    world.held += [Attempt(worker, job) for job in jobs]

    def afterwards() -> None:
        standing = {
            lease.queue_id
            for lease in leases
            if (old := before.get(lease.queue_id)) and old.fence == lease.fence
        }
        paused = {id_ for id_ in standing if sight.is_paused(before[id_])}
        free = standing - paused
        ensure(taken == free if is_answered else taken <= free, "{} of {} taken", taken, free)
        for id_ in paused if is_answered else ():
            old, row = before[id_], world.invariants.jobs[id_]
            given_back = (row.status in READY, row.attempts)
            ensure(given_back == (True, old.attempts - 1), "paused, and {} became {}", old, row)
        for job in jobs:
            old, row = before[job.queue_id], world.invariants.jobs[job.queue_id]
            given = old._replace(fence=job.fence, worker_id=worker, lease_until=now + LEASE_SECONDS_MAX)
            ensure(row == given, "{} was taken over as {}", old, row)
            world.invariants.check_outputs(job)

    return afterwards


async def crash_worker(world: World) -> Afterwards:
    worker = world.random.choice(WORKERS)
    world.tell(f"{worker} dies")
    for attempt in [attempt for attempt in world.held if attempt.worker == worker]:
        world.put_away(attempt)
    return None


async def crash_process(world: World) -> Afterwards:
    process = world.some_process()
    if world.alone_in_time:
        world.tell(f"{process} is replaced by a cold one")
        process.restart()
        if world.random.random() < 0.7:
            await process.register()
    return None


async def sweep(world: World) -> Afterwards:
    process, now = world.some_process(), world.clock.now
    limit = world.random.choice((1, 500))
    before = world.invariants.jobs
    world.tell(f"{process} sweeps up to {limit}")
    swept = await process.engine.sweep(limit)
    world.tell(f"    {swept}")

    def afterwards() -> None:
        executions = world.invariants.executions
        owners = {job.execution_id for job in before.values() if (job.lease_until or now) < now}
        owners |= {id_ for id_, line in executions.items() if (line.deadline_at or now) < now}
        owners |= {id_ for id_, line in executions.items() if line.parent_job is not None}
        for id_, row in world.invariants.jobs.items():
            old = before.get(id_)
            if old is None:
                ensure(row.execution_id in owners, "a job out of nowhere: {}", row)
            elif row != old and not moves_along(old, row, owners):
                line = executions[row.execution_id]
                lost = old.lease_until is not None and old.lease_until < now
                overdue = line.deadline_at is not None and line.deadline_at < now
                ensure(lost or overdue, "swept without a cause: {} became {}", old, row)
                if lost and not overdue and is_untaken(old.fence or ""):
                    uncounted = (row.status in READY, row.attempts, row.losses)
                    ensure(uncounted == (True, old.attempts - 1, old.losses), "{} became {}", old, row)
        world.invariants.flow.check_swept(world.invariants.sight)
        if limit == 500:
            left = [job for job in world.invariants.jobs.values() if (job.lease_until or now) < now]
            ensure(not left, "the sweep left {}", left)

    return afterwards


async def lose_workers(world: World) -> Afterwards:
    """All workers die, and nobody notices before their leases have run out."""
    if not world.alone_in_time or not world.held:
        return await lease(world)
    world.tell("all workers die")
    for attempt in tuple(world.held):
        world.put_away(attempt)
    world.clock.now += LEASE_SECONDS_MAX + 0.001
    return await sweep(world)


async def pass_time(world: World) -> Afterwards:
    """Mostly a little; sometimes to when something is due, past every lease, or back."""
    if not world.alone_in_time:
        return None
    draw, clock = world.random.random(), world.clock
    if draw < 0.5:
        clock.now += world.random.uniform(0.0, 8.0)
    elif draw < 0.8:
        _wait_for_work(world)
    elif draw < 0.95:
        clock.now += world.random.choice((10.001, 10.001, 61.0, 200.0))
    else:
        clock.now -= world.random.choice((0.5, 30.0, 7200.0))
    world.tell("time passes")
    return None
