"""Jobs for workers in other languages: rendered, which Holdfast's own workers do themselves.

    Leased ──▶ its `with` and its config rendered ──▶ ForeignJob
                └ no secret is read here: `{{ secret('NAME') }}` stands for it, and the worker fills it in

A worker fills in the names that the job lists, in `action` and `input`, and nothing else. What was handed in
may not look like such a place: somebody who may submit work could have a secret written where they can read
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import string
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput, settings_refused
from holdfast.core.failures import failure_from_exception
from holdfast.core.handlers import CODE, FUNCTION_PREFIX, HTTP, SHELL, SQL
from holdfast.core.model import HANDLER_CHARS_MAX, NO_ELEMENT, Failed, Lane, Leased, LeaseRef, Report
from holdfast.core.payload import check_name, decode_payload
from holdfast.engine import Engine
from holdfast.engine.events import text_of
from holdfast.playbook.rendering import Inserted, Rendered, render

# What a worker may say that it runs, and the key of such jobs.
_STEP_TYPES = {
    "http": HTTP,
    **dict.fromkeys(("sql", "sqlite", "postgres", "duckdb"), SQL),
    "python": CODE,
    "shell": SHELL,
}
_HOLDFASTS_OWN = ("sleep", "playbook", "each")
# In JSON text, where line ends and other space are written as escapes.
_A_PLACE = re.compile(r"\{\{[-+]?(?:\s|\\[nrtf]|\\u00[01][0-9a-f])*secret\b")
# Of Unicode's private use: characters that no filter changes, and the numbers of places among them.
_FIRST_NUMBER = 0xE000
_USED_BY_NOBODY = [chr(code) for code in range(0xF000, 0xF8FF)]
_NO_INPUT = msgspec.Raw(b"{}")


class ForeignJob(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, as a worker in any language is given it. `action` is JSON text; `input` what was handed on,
    with the step's own `with` and, of an element, its item and `index`; `outputs` the results of earlier
    steps, by name. `secrets` are the names whose `{{ secret('NAME') }}` the worker is to fill in, in `action`
    and `input`. `clear` names the steps whose leftovers of an earlier round are to be cleared first."""

    queue_id: int
    fence: str
    execution_id: int
    path: str
    step: str
    handler: str
    type: str
    attempt: int
    max_attempts: int
    round: int
    lane: Lane
    element: int | None
    lease_until: float
    timeout_seconds: float
    alone: bool
    action: str
    input: msgspec.Raw
    workload: msgspec.Raw
    outputs: dict[str, msgspec.Raw]
    secrets: list[str]
    clear: list[str]


def handlers_of(types: Sequence[str]) -> list[str]:
    """The keys of jobs for what a lease names: a type of steps (`http`; `python` is inline code), a function
    (`images:thumbnail`), or a key as it is (`reports/fetch`)."""
    if not types:
        raise InvalidInput(
            "The lease names nothing that the worker could run.",
            guidance=f"Name types of steps ({', '.join(_STEP_TYPES)}), functions (module:function) or"
            " handlers (path/step); or leave out `types` for whatever there is.",
        )
    return [_handler_of(check_name(name, what="type", length_max=HANDLER_CHARS_MAX)) for name in types]


def _handler_of(name: str) -> str:
    if name in _HOLDFASTS_OWN:
        raise InvalidInput(
            f"Steps of type {name} are run by Holdfast's own workers alone.",
            guidance="Leave it out, and start one of them beside this worker: holdfast worker.",
        )
    if name == "function":
        raise InvalidInput(
            "A worker is not given functions that it does not name.",
            guidance="Name each of them as `call` does in the playbook, such as images:thumbnail.",
        )
    return _STEP_TYPES.get(name) or (name if "/" in name else FUNCTION_PREFIX + name)


async def foreign_jobs(engine: Engine, jobs: Sequence[Leased]) -> list[ForeignJob]:
    """Those that can be run. Where a template of a job has no value, its attempt is reported as failed, as a
    worker of Holdfast's own would report it."""
    ready: list[ForeignJob] = []
    failed: list[Report] = []
    try:
        for job in jobs:
            try:
                ready.append(await _foreign_job(engine, job))
            except Exception as error:
                # Without the way to it, which is ours.
                failure = failure_from_exception(error.with_traceback(None))
                failed.append(Report(job.queue_id, job.fence, Failed(failure, cleared=not job.clear)))
        await engine.report(failed)
    except BaseException:
        # Leased and never handed out, they would end as lost by a worker that never saw them.
        with contextlib.suppress(Exception):
            await engine.release([LeaseRef(job.queue_id, job.fence) for job in jobs])
        raise
    return ready


async def _foreign_job(engine: Engine, job: Leased) -> ForeignJob:
    action, input_, named = await _rendered(engine, job) if job.type else (None, None, [])
    return ForeignJob(
        queue_id=job.queue_id,
        fence=job.fence,
        execution_id=job.execution_id,
        path=job.path,
        step=job.step,
        handler=job.handler,
        type=job.type,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        round=job.round,
        lane=job.lane,
        element=None if job.element == NO_ELEMENT else job.element,
        lease_until=job.lease_until,
        timeout_seconds=job.timeout_seconds,
        alone=job.alone,
        action=action or await engine.step_actions.text(job.definition_id, job.step),
        input=_NO_INPUT if input_ is None else msgspec.Raw(input_.encode()),
        workload=msgspec.Raw(job.workload.encode()),
        outputs={name: msgspec.Raw(output.encode()) for name, output in job.outputs.items()},
        secrets=named,
        clear=list(job.clear),
    )


async def _rendered(engine: Engine, job: Leased) -> tuple[str, str, list[str]]:
    """The action and the input as JSON text, and the secrets that are to be filled in."""
    await asyncio.sleep(0)  # templates may take long, and others wait for their turn
    places = _Places("".join(secrets.choice(_USED_BY_NOBODY) for _ in range(20)))
    action, input_ = await _with_places(engine, job, places)
    if not places.names:
        return action, input_, []
    if any(map(_A_PLACE.search, (action, input_))):
        raise settings_refused(
            "A value that the step was given looks like the place of a secret.",
            "Correct the value: a worker would write the secret there.",
        )
    action, input_ = places.filled(action), places.filled(input_)
    # With values that have nothing in common with the first: what is made of them shows.
    others = _Places(f" {string.printable}{secrets.token_hex(20)} ")
    if [others.filled(text) for text in await _with_places(engine, job, others)] != [action, input_]:
        raise settings_refused(
            f"A template does more with a secret than to write it (of {', '.join(places.names)}), and only"
            " Holdfast's own workers can do that.",
            f"Write {_place_of(places.names[0])} alone or among text, or run the step with holdfast worker.",
        )
    return action, input_, places.names


async def _with_places(engine: Engine, job: Leased, places: _Places) -> tuple[str, str]:
    rendered = render(
        job,
        workload=decode_payload(job.workload),
        outputs={name: decode_payload(output) for name, output in job.outputs.items()},
        find=places.find,
        need=lambda name: None,
    )
    fields = await engine.step_actions.fields(job.definition_id, job.step, _config(rendered))
    return text_of(fields), text_of(rendered.input)


def _config(rendered: Rendered) -> dict[str, Any]:
    """A query in parts as mappings among texts: where a value is not told from the text around it, nobody can
    keep it from being read as SQL."""
    query = rendered.config.get("query")
    if not isinstance(query, list):
        return rendered.config
    parts = [part._asdict() if isinstance(part, Inserted) else part for part in query]
    return {**rendered.config, "query": parts}


class _Places:
    """Stands for the secrets that a job's templates read: each has a value that nobody can guess, and is told
    by it in what comes of them."""

    def __init__(self, value: str) -> None:
        self._value = value
        self._values: dict[str, str] = {}

    def find(self, name: str) -> str:
        number = chr(_FIRST_NUMBER + len(self._values))
        return self._values.setdefault(name, self._value[0] + number + self._value[1:])

    @property
    def names(self) -> list[str]:
        return sorted(self._values)

    def filled(self, text: str) -> str:
        """JSON text with the places where the worker is to fill in secrets."""
        for name, value in self._values.items():
            text = text.replace(text_of(value)[1:-1], text_of(_place_of(name))[1:-1])
        return text


def _place_of(name: str) -> str:
    return f"{{{{ secret('{name}') }}}}"
