"""What people and programs ask for in a step: submit, cancel, retry, deploy, prune, look.

See operations.py for how an operation is written.
"""

from __future__ import annotations

from holdfast.core.catalogue import Category
from holdfast.core.errors import (
    IdempotencyConflict,
    InvalidInput,
    RetryRefused,
    UnknownExecution,
    UnknownPipeline,
)
from holdfast.core.model import ExecutionStatus, JobStatus, Lane
from holdfast.engine import Submission
from holdfast.engine.manual_retry import RetryRequest
from simulation.history import COOLDOWN_SECONDS, MANUAL_RETRIES_MAX, ensure
from simulation.lines import ExecutionLine
from simulation.pipelines import PIPELINES, RELAY_SHORTENED
from simulation.workers import report
from simulation.world import Afterwards, World


async def submit(world: World) -> Afterwards:
    random, process = world.random, world.some_process()
    items = world.unanswered or [_submission(world) for _ in range(random.choice((1, 2, 3, 5)))]
    world.unanswered = items
    world.tell("{} submits {}", process, items)
    try:
        answers = await process.engine.submit(items)
    except UnknownPipeline:
        ensure(not process.known, "a registered pipeline is unknown")
        world.unanswered = []
        return None
    except IdempotencyConflict:
        keys = [item.idempotency_key for item in items if item.idempotency_key]
        ensure(keys, "a conflict of keys where there are none")
        world.unanswered = []
        return None
    world.unanswered = []
    world.tell(f"    {[answer.id for answer in answers]}")
    for item, answer in zip(items, answers, strict=True):
        ensure(answer.created or item.idempotency_key, "nothing was made of {}", item)
        if item.idempotency_key:
            world.invariants.submitted(item.path, item.idempotency_key, answer.id)
    return lambda: ensure(
        {answer.id for answer in answers} <= world.invariants.executions.keys(), "a submission was lost"
    )


def _submission(world: World) -> Submission:
    random = world.random
    key, workload = None, world.number()
    if random.random() < 0.3:
        key = random.choice(("k1", "k2", "k3"))
        workload = 0 if random.random() < 0.9 else 1
    return Submission(
        path=random.choice(world.paths),
        workload={"n": workload},
        lane=random.choice(list(Lane)),
        idempotency_key=key,
        delay_seconds=random.choice((0, 0, 0, 0, 0, 0, 5.5, 3600)),
        deadline_seconds=random.choice((None, None, None, None, None, 100, 5000)),
    )


async def deploy(world: World) -> Afterwards:
    process = world.some_process()
    version = world.random.choice((RELAY_SHORTENED, PIPELINES[1]))
    world.tell(f"{process} registers {version.path} with {len(version.steps)} steps")
    world.definitions[await process.engine.register(version)] = version
    return None


async def cancel(world: World) -> Afterwards:
    process, line = world.some_process(), _some_execution(world)
    id_ = 99_999 if line is None else line.id
    world.tell(f"{process} cancels {id_}")
    try:
        cancelled = await process.engine.cancel(id_)
    except UnknownExecution:
        ensure(line is None or not world.alone_in_time, "execution {} is unknown", id_)
        return None

    def afterwards() -> None:
        assert line is not None
        ensure(
            cancelled == (line.status == ExecutionStatus.RUNNING), "cancel answered {}: {}", cancelled, line
        )
        status = world.invariants.executions[id_].status
        ensure(
            status == (ExecutionStatus.CANCELLED if cancelled else line.status), "cancel made it {}", status
        )

    return afterwards


async def retry(world: World) -> Afterwards:
    """A person retries, most often what has failed; refused or not as the rules say."""
    random, process = world.random, world.some_process()
    failed = [e for e in world.invariants.executions.values() if e.status == ExecutionStatus.FAILED]
    line = random.choice(failed) if failed and random.random() < 0.8 else _some_execution(world)
    if line is None or (not failed and random.random() < 0.8):
        return await report(world)
    steps = [step.name for step in world.definitions[line.definition_id].steps]
    request = RetryRequest(
        from_stage=random.choice(steps) if random.random() < 0.4 else None,
        full=random.random() < 0.2,
        confirm=random.random() < 0.5,
        force=random.random() < 0.5,
        by="somebody",
    )
    expected = _refusal(request, line, world.clock.now, has_results=_has_results(world, line))
    world.tell("{} retries {}: {}", process, line.id, request)
    refused: str | None = None
    try:
        await process.engine.retry(line.id, request)
    except RetryRefused as error:
        refused = error.code
    except InvalidInput:
        return None
    except UnknownExecution:
        ensure(not world.alone_in_time, "execution {} is unknown", line.id)
    world.tell(f"    {refused or 'a new round'}")

    def afterwards() -> None:
        ensure(
            refused == expected, "{} of {} was answered {} instead of {}", request, line, refused, expected
        )
        now = world.invariants.executions[line.id]
        ensure(now.round == line.round + (refused is None), "{}, and yet: {}", refused, now)

    return afterwards


async def redrive(world: World) -> Afterwards:
    """Failures started again together: named, or all of a batch."""
    random, process = world.random, world.some_process()
    failed = [e for e in world.invariants.executions.values() if e.status == ExecutionStatus.FAILED]
    if not failed:
        return await report(world)
    force = random.random() < 0.5
    batches = sorted({line.batch_id for line in failed if line.batch_id is not None})
    if batches and random.random() < 0.5:
        batch_id = random.choice(batches)
        lines = [line for line in failed if line.batch_id == batch_id]
        world.tell(f"{process} redrives batch {batch_id}, force={force}")
        asked = process.engine.redrive(batch_id=batch_id, force=force, by="somebody")
    else:
        lines = random.sample(failed, min(len(failed), random.randint(1, 3)))
        world.tell("{} redrives {}, force={}", process, [line.id for line in lines], force)
        asked = process.engine.redrive([line.id for line in lines], force=force, by="somebody")
    answers = {item.execution_id: item.code async for part in asked for item in part}
    world.tell(f"    {answers}")

    def afterwards() -> None:
        for line in lines:
            error = line.stored_error
            assert error is not None
            expected = "redriven"
            if line.parent_job is not None:
                expected = "child_execution"
            elif error.category is Category.PERMANENT and not force:
                expected = "permanent_error"
            ensure(answers[line.id] == expected, "{} was answered {}", line, answers)
            now = world.invariants.executions[line.id]
            ensure(now.round == line.round + (expected == "redriven"), "{}, and yet: {}", answers, now)

    return afterwards


def _has_results(world: World, line: ExecutionLine) -> bool:
    """Of a chain it tells itself; else something was done, and more than a decision or a list made."""
    definition = world.definitions[line.definition_id]
    if definition.is_linear:
        return line.last_completed_stage is not None
    return any(
        job.status == JobStatus.DONE
        and not job.superseded
        and not definition.step(job.step).is_control
        and (job.is_element or definition.step(job.step).for_each is None)
        for job in world.invariants.jobs.values()
        if job.execution_id == line.id
    )


def _refusal(request: RetryRequest, line: ExecutionLine, now: float, *, has_results: bool) -> str | None:
    error = line.stored_error
    if line.status != ExecutionStatus.FAILED or error is None:
        return "not_failed"
    if line.parent_job is not None:
        return "child_execution"
    if error.category is Category.PERMANENT and not request.force:
        return "permanent_error"
    if line.manual_retries >= MANUAL_RETRIES_MAX:
        return "retry_cap"
    if line.last_manual_retry_at is not None and now < line.last_manual_retry_at + COOLDOWN_SECONDS:
        return "cooldown"
    if request.full and has_results and not request.confirm:
        return "confirmation_required"
    return None


def _some_execution(world: World) -> ExecutionLine | None:
    lines = list(world.invariants.executions.values())
    return world.random.choice(lines) if lines and world.random.random() < 0.95 else None


async def prune(world: World) -> Afterwards:
    process = world.some_process()
    age, limit = world.random.choice((0.0, 100.0)), world.random.choice((1, 500))
    world.tell(f"{process} prunes what is older than {age}")
    world.invariants.pruned_before = max(world.invariants.pruned_before or 0.0, world.clock.now - age)
    world.tell(f"    {await process.engine.prune(age, limit)}")
    return None


async def look(world: World) -> Afterwards:
    """People look: whatever state an execution is in, it can be shown."""
    process, line = world.some_process(), _some_execution(world)
    if line is not None:
        try:
            view = await process.engine.view(line.id)
            ensure(view.summary and view.jobs, "nothing to show of {}", view)
        except UnknownExecution:
            ensure(not world.alone_in_time, "execution {} is unknown", line.id)
    await process.engine.queue(status=world.random.choice(list(JobStatus)))
    return None
