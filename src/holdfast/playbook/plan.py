"""What comes next: pure questions to a definition, answered without looking at a store."""

from __future__ import annotations

from holdfast.playbook.definition import Definition, Step


def first_step(definition: Definition) -> Step:
    return definition.steps[0]


def step_after(definition: Definition, name: str) -> Step | None:
    """The step that starts when `name` has completed; None where it was the last."""
    following = definition.position(name) + 1
    return definition.steps[following] if following < len(definition.steps) else None


def steps_before(definition: Definition, name: str) -> tuple[str, ...]:
    """The steps whose outputs `name` may read, and which a resume at `name` keeps."""
    return tuple(step.name for step in definition.steps[: definition.position(name)])


def steps_between(definition: Definition, start: str, end: str) -> tuple[str, ...]:
    """From `start` to `end`, both included: what a retry from `start` clears when `end` had failed."""
    return tuple(
        step.name for step in definition.steps[definition.position(start) : definition.position(end) + 1]
    )
