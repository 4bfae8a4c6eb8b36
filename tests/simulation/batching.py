"""What people and programs do with batches in a step: make, fill, close, cancel, attend to.

See operations.py for how an operation is written.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.errors import BatchClosed, IdempotencyConflict, UnknownBatch, UnknownPipeline
from holdfast.core.model import JobStatus, Lane
from holdfast.engine import Submission
from simulation.history import ensure
from simulation.lines import BatchLine
from simulation.pipelines import GATED
from simulation.world import Adding, Afterwards, Process, World


async def submit_batch(world: World) -> Afterwards:
    """Make one, add items, and most often close it: three calls, and any may be the last."""
    random, process = world.random, world.some_process()
    gated = [path for path in world.paths if path in GATED]
    path = random.choice(gated if gated and random.random() < 0.8 else world.paths)
    key = random.choice((None, None, "monday", "tuesday"))
    lane = random.choice((Lane.BULK, Lane.BULK, Lane.MANUAL))
    world.tell(f"{process} makes a batch of {path} in {lane}, key={key}")
    before = world.invariants.batches
    try:
        batch_id, created = await process.engine.batches.create(path, lane=lane, idempotency_key=key)
    except UnknownPipeline:
        ensure(not process.known, "a registered pipeline is unknown")
        return None
    except IdempotencyConflict:
        world.tell("    the key is of another lane")
        known = [batch for batch in before.values() if (batch.path, batch.idempotency_key) == (path, key)]
        theirs = [batch.lane for batch in known]
        ensure(not world.alone_in_time or (theirs and theirs != [lane]), "a conflict of lanes: {}", theirs)
        return None
    world.tell(f"    {batch_id} created={created}")
    if key is not None and world.alone_in_time:  # beside it the batch could be pruned and made anew
        world.invariants.gates.made(path, key, batch_id)
    if world.alone_in_time:
        ensure(created == (batch_id not in before), "created={}, and there were {}", created, before)
    await _add(world, process, Adding(batch_id, _items(world)))
    if random.random() < 0.6:
        await _close(world, process, batch_id)
    return None


def _items(world: World) -> list[Submission]:
    random = world.random
    with_keys = random.random() < 0.6
    return [
        Submission(
            path="the batch's own",
            workload={"n": 0 if random.random() < 0.98 else 1} if with_keys else {"n": world.number()},
            lane=random.choice(list(Lane)),
            idempotency_key=f"item-{random.randrange(6)}" if with_keys else None,
            delay_seconds=random.choice((0, 0, 0, 0, 0, 5.5)),
            deadline_seconds=random.choice((None, None, None, None, None, None, 30, 100)),
        )
        for _ in range(random.choice((1, 2, 3, 3, 5)))
    ]


async def add_items(world: World) -> Afterwards:
    """To one that is open, most often; an addition that was not answered is repeated."""
    process, adding = world.some_process(), world.unanswered_adding
    if adding is None:
        batch = _some_batch(world, lambda batch: batch.closed_at is None)
        if batch is None:
            return await submit_batch(world)
        adding = Adding(batch.id, _items(world))
    return await _add(world, process, adding)


async def _add(world: World, process: Process, adding: Adding) -> Afterwards:
    batch_id, items = adding
    before = world.invariants.batches.get(batch_id)
    world.tell("{} adds to {}: {}", process, batch_id, [(i.idempotency_key, i.workload) for i in items])
    world.unanswered_adding = adding if adding.is_repeatable else None
    refused: Exception | None = None
    try:
        answers = await process.engine.batches.add(batch_id, items)
    except (BatchClosed, IdempotencyConflict, UnknownBatch) as error:
        refused, answers = error, []
    world.unanswered_adding = None
    world.tell(f"    {refused or [answer.id for answer in answers]}")
    if refused is None:
        for item, answer in zip(items, answers, strict=True):
            ensure(answer.created or item.idempotency_key, "nothing was made of {}", item)
            if item.idempotency_key and before is not None:
                key = f"batch {batch_id}: {item.idempotency_key}"
                world.invariants.submitted(before.path, key, answer.id)

    def afterwards() -> None:
        now = world.invariants.batches.get(batch_id)
        if isinstance(refused, UnknownBatch):
            ensure(now is None, "{} is unknown", now)
            return
        assert now is not None, f"batch {batch_id} is gone"
        if isinstance(refused, BatchClosed):
            ensure(before is None or before.closed_at is not None, "{} is not closed", before)
        if isinstance(refused, IdempotencyConflict):
            ensure(any(item.idempotency_key for item in items), "a conflict where there are no keys")
        if before is not None:
            added = len({answer.id for answer in answers if answer.created})
            ensure(now.items == before.items + added, "{} and {} more: {}", before, added, now)

    return afterwards


async def close_batch(world: World) -> Afterwards:
    process, batch = world.some_process(), _some_batch(world, lambda batch: batch.closed_at is None)
    if batch is None:
        return await attend(world)
    return await _close(world, process, batch.id)


async def _close(world: World, process: Process, batch_id: int) -> Afterwards:
    before = world.invariants.batches.get(batch_id)
    world.tell(f"{process} closes batch {batch_id}")
    try:
        is_new = await process.engine.batches.close(batch_id)
    except UnknownBatch:
        ensure(not world.alone_in_time, "batch {} is unknown", batch_id)
        return None

    def afterwards() -> None:
        now = world.invariants.batches[batch_id]
        ensure(now.closed_at is not None, "closed, and yet: {}", now)
        ensure(before is None or is_new == (before.closed_at is None), "closed anew={}: {}", is_new, before)

    return afterwards


async def cancel_batch(world: World) -> Afterwards:
    process, batch = world.some_process(), _some_batch(world, lambda _: True)
    if batch is None:
        return await submit_batch(world)
    running = [line for line in world.invariants.running if line.batch_id == batch.id]
    world.tell(f"{process} cancels batch {batch.id}")
    try:
        cancelled = await process.engine.batches.cancel(batch.id, by="somebody")
    except UnknownBatch:
        ensure(not world.alone_in_time, "batch {} is unknown", batch.id)
        return None

    def afterwards() -> None:
        ensure(cancelled == len(running), "{} of {} were cancelled", cancelled, running)
        now = world.invariants.batches[batch.id]
        if batch.closed_at is not None and not running:
            ensure(now == batch, "it was over: {} became {}", batch, now)
            return
        ensure(now.cancelled_at is not None and not now.attention, "cancelled, and yet: {}", now)
        left = [line for line in world.invariants.running if line.batch_id == batch.id]
        ensure(not left, "still running: {}", left)

    return afterwards


async def attend(world: World) -> Afterwards:
    """As every process does all the time; here it may die in the middle of it."""
    process, before = world.some_process(), world.invariants.sight
    asking = [batch.id for batch in before.batches.values() if batch.attention]
    if asking and world.random.random() < 0.3:
        world.arm(process, calls_before=world.random.randrange(5))
    world.tell(f"{process} attends to {asking}")
    attended = await process.engine.batches.attend_all()

    def afterwards() -> None:
        ensure(attended == len(asking), "{} were attended to, and {} asked for it", attended, asking)
        left = [batch for batch in world.invariants.batches.values() if batch.attention]
        ensure(not left, "these still ask for attention: {}", left)
        for id_, job in world.invariants.jobs.items():
            old = before.jobs[id_]
            if job != old:
                owner = before.executions[job.execution_id].batch_id
                cancelling = job.status == JobStatus.CANCELLED
                ensure(owner in asking and (old.held_by or cancelling), "attending made {} of {}", job, old)

    return afterwards


async def look_at_batch(world: World) -> Afterwards:
    """People look: every item is in one place of every step, and is shown."""
    process, batch = world.some_process(), _some_batch(world, lambda _: True)
    if batch is None:
        return None
    try:
        view = await process.engine.batches.view(batch.id)
        page = await process.engine.batches.items(batch.id, limit=500)
    except UnknownBatch:
        ensure(not world.alone_in_time, "batch {} is unknown", batch.id)
        return None

    def afterwards() -> None:
        items = [line for line in world.invariants.executions.values() if line.batch_id == batch.id]
        ensure([item.id for item in page.items] == [line.id for line in items], "{} {}", page, items)
        ensure(sum(view.executions.values()) == len(items), "{} of {}", view.executions, items)
        for step, counts in view.counts.items():
            ensure(sum(counts.values()) == len(items), "{} of {}: {}", counts, step, items)
            shown: dict[str, int] = dict.fromkeys(counts, 0)
            for item in page.items:
                shown[item.tracking[step]["status"]] += 1
            ensure(counts == shown, "{} are counted at {}, and {} shown", counts, step, shown)

    return afterwards


def _some_batch(world: World, wish: Callable[[BatchLine], bool]) -> BatchLine | None:
    """One that is as wished, where there is one; now and then another."""
    batches = list(world.invariants.batches.values())
    wished = [batch for batch in batches if wish(batch)]
    if wished and world.random.random() < 0.9:
        return world.random.choice(wished)
    return world.random.choice(batches) if batches else None
