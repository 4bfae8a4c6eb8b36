"""The handlers of steps with a built-in type: what a worker offers beside a program's own pipelines.

    job ──▶ its `with` and its config rendered ──▶ StepCall ──▶ the type's run
                └ secrets are read here, and masked in all that is told of the attempt

A registered function is called instead with the input, by the names of its parameters. Inline code and shell
commands are offered only by a worker with leave for them: a job of that kind is never given to any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.errors import PermanentError
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, decode_payload
from holdfast.playbook.rendering import Inserted, render
from holdfast.steps.arguments import ArgumentsMissing, arguments_for
from holdfast.steps.interface import StepCall, StepSettings
from holdfast.steps.registry import CODE, FUNCTION_PREFIX, MODULES, SHELL, run_of
from holdfast.steps.sql_literals import Written
from holdfast.worker.attempt import Handler, is_async
from holdfast.worker.context import Context
from holdfast.worker.secrets import AttemptSecrets, SecretSource


@dataclass(frozen=True, slots=True)
class Leave:
    """What the owner of a worker lets playbooks do on its machine."""

    code: bool = False
    shell: bool = False


NO_LEAVE = Leave()


def typed_handlers(
    leave: Leave = NO_LEAVE,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    *,
    payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Handler]:
    """By the keys that a worker offers; `functions` by their names, `module:function`."""
    environ = os.environ if environ is None else environ
    settings = replace(
        StepSettings.from_environment(environ, allow_code=leave.code, allow_shell=leave.shell),
        payload_bytes_max=payload_bytes_max,
    )
    secrets = SecretSource(environ)
    withheld = {key for key, is_left in ((CODE, leave.code), (SHELL, leave.shell)) if not is_left}
    handlers = {
        key: Handler(
            _step_of_type(key, settings, secrets), is_async=True, has_own_process=key in (CODE, SHELL)
        )
        for key in MODULES
        if key not in withheld
    }
    for name, function in (functions or {}).items():
        handlers[FUNCTION_PREFIX + name] = Handler.of(_step_of_function(function, settings, secrets))
    return handlers


def _step_of_type(key: str, settings: StepSettings, source: SecretSource) -> Callable[[Context], Any]:
    async def run(context: Context) -> Any:
        return await run_of(key)(_call(context, settings, source))

    return run


def _step_of_function(
    function: Callable[..., Any], settings: StepSettings, source: SecretSource
) -> Callable[[Context], Any]:
    def arguments(context: Context) -> tuple[list[Any], dict[str, Any]]:
        given = _call(context, settings, source).input
        try:
            return arguments_for(function, given, context)
        except ArgumentsMissing as error:
            raise PermanentError(
                f"{error}.",
                error_type="validation_error",
                user_message="The step's input is not complete",
                guidance=error.guidance,
            ) from None

    if is_async(function):

        async def run_async(context: Context) -> Any:
            positional, named = arguments(context)
            return await function(*positional, **named)

        return run_async

    def run(context: Context) -> Any:
        positional, named = arguments(context)
        return function(*positional, **named)

    return run


def _call(context: Context, settings: StepSettings, source: SecretSource) -> StepCall:
    job = context.job
    secrets = context.secrets = AttemptSecrets(source, job.secrets)
    rendered = render(job, workload=context.workload, outputs=context.outputs, find=secrets.find)
    config = rendered.config
    if isinstance(parts := config.get("query"), list):
        query = [Written(*part) if isinstance(part, Inserted) else part for part in parts]
        config = {**config, "query": query}
    return StepCall(
        config=config,
        input=rendered.input,
        execution_id=job.execution_id,
        step=job.step,
        attempt=job.attempt,
        timeout_seconds=job.timeout_seconds,
        progress=context.progress,
        settings=settings,
        traceparent=context.traceparent,
        parked=None if job.parked is None else decode_payload(job.parked),
    )
