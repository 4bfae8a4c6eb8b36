"""What people steer by in a step: limits set, changed and removed, work paused and resumed.

See operations.py for how an operation is written.
"""

from __future__ import annotations

from holdfast.core.errors import UnknownName
from holdfast.core.model import Lane
from holdfast.core.pauses import PauseKind
from simulation.history import ensure
from simulation.lines import LimitLine
from simulation.pipelines import LIMITS
from simulation.world import Afterwards, World


async def set_limit(world: World) -> Afterwards:
    random, process = world.random, world.some_process()
    name, most = random.choice(LIMITS), random.choice((1, 2, 2, 3, 6))
    reserve = random.choice((None, None, 0, 1, most))
    world.tell(f"{process} sets {name} to {most}, {reserve} of it reserved")
    world.invariants.steered.add(name)
    view = await process.engine.controls.set_limit(name, most, reserve, by="somebody")

    def afterwards() -> None:
        expected = LimitLine(name, most, reserve)
        ensure(world.invariants.sight.limits.get(name) == expected, "{} is not set", expected)
        leased = world.invariants.sight.leased_under(name)
        ensure(view.in_use == leased, "{} are leased, and shown are {}", leased, view)

    return afterwards


async def remove_limit(world: World) -> Afterwards:
    process, limits = world.some_process(), world.invariants.sight.limits
    if not limits:
        return await set_limit(world)
    name = world.random.choice(list(limits))
    world.tell(f"{process} removes {name}")
    world.invariants.steered.add(name)
    removed = await process.engine.controls.remove_limit(name)

    def afterwards() -> None:
        ensure(removed and name not in world.invariants.sight.limits, "{} is still there", name)

    return afterwards


async def pause(world: World) -> Afterwards:
    """A little; what was paused is resumed more often than not."""
    random, process, pauses = world.random, world.some_process(), world.invariants.sight.pauses
    if pauses and random.random() < 0.7:
        return await resume(world)
    kind = random.choice(list(PauseKind))
    definition = random.choice([d for d in world.pipelines if d.path in world.paths])
    name = {
        PauseKind.STEP: f"{definition.path}/{random.choice(definition.steps).name}",
        PauseKind.PLAYBOOK: definition.path,
        PauseKind.LANE: random.choice(list(Lane)).value,
        PauseKind.LIMIT: random.choice(LIMITS),
    }[kind]
    force = random.random() < 0.5
    world.tell(f"{process} pauses {kind} {name}")
    world.invariants.steered.add("pauses")
    try:
        paused = await process.engine.controls.pause(kind, name, by="somebody", force=force)
    except UnknownName:
        # The newest version of `relay` may have fewer steps.
        ensure(not force and name.startswith("relay/"), "{} is unknown", name)
        return None

    def afterwards() -> None:
        ensure((kind.value, name) in world.invariants.sight.pauses, "{} is not paused", name)
        ensure(paused.already == ((kind.value, name) in pauses), "paused before: {}", paused)

    return afterwards


async def resume(world: World) -> Afterwards:
    process, pauses = world.some_process(), world.invariants.sight.pauses
    if not pauses:
        return None
    kind, name = world.random.choice(sorted(pauses))
    world.tell(f"{process} resumes {kind} {name}")
    world.invariants.steered.add("pauses")
    ended = await process.engine.controls.resume(kind, name)

    def afterwards() -> None:
        ensure(ended is not None, "it was paused: {} {}", kind, name)
        ensure((kind, name) not in world.invariants.sight.pauses, "{} {} is still paused", kind, name)

    return afterwards
