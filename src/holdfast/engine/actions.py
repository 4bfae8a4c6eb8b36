"""What a job is to do, as JSON text: the fields of its step with its retry policy.

A version never changes, so what is told of a step is made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.model import JobRow
from holdfast.engine.definitions import Definitions
from holdfast.engine.events import text_of
from holdfast.playbook.definition import Step

CACHED_MAX = 10_000
# What a step of a program's own pipeline is.
OF_PIPELINE = "python"


class Actions:
    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._texts: dict[tuple[int, str], str] = {}

    async def texts(self, jobs: Sequence[JobRow]) -> list[str]:
        """Of each job, with its templates as they were written."""
        return [await self.text(job.definition_id, job.step) for job in jobs]

    async def text(self, definition_id: int, name: str) -> str:
        key = (definition_id, name)
        if key not in self._texts:
            if len(self._texts) >= CACHED_MAX:
                self._texts.clear()
            step = (await self._definitions.load(definition_id)).step(name)
            self._texts[key] = text_of(fields_of(step, step.config))
        return self._texts[key]

    async def fields(self, definition_id: int, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """The same with this config, whose templates have been rendered."""
        return fields_of((await self._definitions.load(definition_id)).step(name), config)


def fields_of(step: Step, config: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": step.type or OF_PIPELINE,
        "handler": step.handler,
        **config,
        "retry": step.retry.to_dict(),
        "timeout": step.timeout_seconds,
    }
    if step.limit:
        fields["limit"] = step.limit
    if step.lane is not None:
        fields["lane"] = step.lane
    if step.for_each is not None:
        each = step.for_each
        fields["for_each"] = {"items": each.items, "as": each.as_, "fail_fast": each.fail_fast}
        if each.concurrency is not None:
            fields["for_each"]["concurrency"] = each.concurrency
    return fields
