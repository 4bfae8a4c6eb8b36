"""The handlers of steps with a built-in type: what a worker offers beside a program's own pipelines.

    job ──▶ variables ──▶ its own `with` rendered ──▶ its config rendered ──▶ StepCall ──▶ the type's run
                              └ secrets are read here, and masked in all that is told of the attempt

A registered function is called instead with the input, by the names of its parameters. Inline code and shell
commands are offered only by a worker with leave for them: a job of that kind is never given to any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from holdfast.core.errors import HoldfastError, PermanentError
from holdfast.core.model import Leased
from holdfast.core.payload import PAYLOAD_BYTES_MAX_DEFAULT, decode_payload
from holdfast.playbook.template import (
    ConditionInvalid,
    TemplateFailed,
    Text,
    Value,
    compile_text,
    compile_value,
)
from holdfast.playbook.variables import INDEX_NAME, step_variables
from holdfast.steps.arguments import ArgumentsMissing, arguments_for
from holdfast.steps.fields import refused
from holdfast.steps.interface import StepCall, StepSettings
from holdfast.steps.registry import CODE, EACH, FUNCTION_PREFIX, MODULES, SHELL, SQL, run_of
from holdfast.steps.sql_literals import Written
from holdfast.worker.attempt import Handler, is_async
from holdfast.worker.context import Context
from holdfast.worker.secrets import AttemptSecrets, SecretSource

# What their outcome holds is stored as it is, for others to work with: a secret in it could not be masked.
_NO_SECRETS = {EACH: "the items of for_each", "type/playbook": "what a child execution is given"}
_CACHED_CHARS_MAX = 20_000


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
        return await run_of(key)(_call(key, context, settings, source))

    return run


def _step_of_function(
    function: Callable[..., Any], settings: StepSettings, source: SecretSource
) -> Callable[[Context], Any]:
    def arguments(context: Context) -> tuple[list[Any], dict[str, Any]]:
        given = _call(FUNCTION_PREFIX, context, settings, source).input
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


# rendering


def _call(key: str, context: Context, settings: StepSettings, source: SecretSource) -> StepCall:
    job = context.job
    secrets = context.secrets = AttemptSecrets(source, job.secrets)
    element = _element(job)
    given = {**element, **_mapping(job.input)}
    try:
        if key == EACH:
            # Its `with` is the elements' own: it may read `item`, which is not there yet.
            variables = _variables(context, given, element)
            config = {"items": _rendered(_items(job.for_each), "for_each", key, variables, secrets)}
        else:
            variables = _variables(context, given, element)
            given |= _rendered(_compiled(job.inputs), "with", key, variables, secrets)
            config = _config(key, job, _variables(context, given, element), secrets)
    except ConditionInvalid as error:
        # Refused when it was registered, unless another version of ours did that.
        raise _template_failed(error, str(error)) from None
    return StepCall(
        config=config,
        input=given,
        execution_id=job.execution_id,
        step=job.step,
        attempt=job.attempt,
        timeout_seconds=job.timeout_seconds,
        progress=context.progress,
        settings=settings,
        parked=None if job.parked is None else decode_payload(job.parked),
    )


def _config(
    key: str, job: Leased, variables: Mapping[str, object], secrets: AttemptSecrets
) -> dict[str, Any]:
    if key in (CODE, FUNCTION_PREFIX):
        return _mapping(job.config)  # Python has braces of its own: code is no template
    if key == SHELL:
        _check_no_templates_for_the_shell(_mapping(job.config))
    query = _mixed_query(job.config) if key == SQL else None
    if query is not None:
        rest = {name: value for name, value in _mapping(job.config).items() if name != "query"}
        rendered = _rendered(compile_value(rest), "", key, variables, secrets)
        return {**rendered, "query": _query_parts(query, variables, secrets)}
    config: dict[str, Any] = _rendered(_compiled(job.config), "", key, variables, secrets)
    return config


def _mixed_query(config: str) -> Text | None:
    """A query with templates among its text: what they yield must not be read as SQL."""
    query = _mapping(config).get("query") if "{{" in config else None
    text = compile_text(query) if isinstance(query, str) else None
    return text if text is not None and text.is_mixed else None


def _query_parts(
    query: Text, variables: Mapping[str, object], secrets: AttemptSecrets
) -> list[str | Written]:
    for name in sorted(query.secrets):
        secrets.find(name)
    try:
        parts = query.evaluate_parts(variables, secrets.find, "query")
    except TemplateFailed as error:
        raise _template_failed(error, str(error)) from None
    return [part if isinstance(part, str) else Written(*part) for part in parts]


def _element(job: Leased) -> dict[str, Any]:
    """What an element of a for_each is given beside what was handed on to its step."""
    if job.item is None:
        return {}
    return {
        job.item_name: decode_payload(job.item),
        INDEX_NAME: _mapping(job.input).get(INDEX_NAME, job.element),
    }


def _variables(context: Context, given: Mapping[str, Any], element: Mapping[str, Any]) -> dict[str, object]:
    job, workload = context.job, context.workload
    return step_variables(
        workload=workload if isinstance(workload, dict) else {},
        input=given,
        outputs=context.outputs,
        execution_id=job.execution_id,
        step=job.step,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        index=element.get(INDEX_NAME),
        item=element.get(job.item_name),
        as_=job.item_name,
    )


def _mapping(text: str) -> dict[str, Any]:
    value = decode_payload(text)
    return value if isinstance(value, dict) else {}


def _compiled(text: str) -> Value:
    return _cached(text) if len(text) <= _CACHED_CHARS_MAX else compile_value(_mapping(text))


@lru_cache(maxsize=1024)
def _cached(text: str) -> Value:
    return compile_value(_mapping(text))


def _items(text: str | None) -> Value:
    if text is None:
        return compile_value(None)
    return _cached_items(text) if len(text) <= _CACHED_CHARS_MAX else _compiled_items(text)


@lru_cache(maxsize=256)
def _cached_items(text: str) -> Value:
    return _compiled_items(text)


def _compiled_items(text: str) -> Value:
    items = decode_payload(text)
    if isinstance(items, str) and "{{" not in items:
        items = f"{{{{ {items} }}}}"
    return compile_value(items)


def _rendered(
    value: Value, field: str, key: str, variables: Mapping[str, object], secrets: AttemptSecrets
) -> Any:
    if value.secrets and key in _NO_SECRETS:
        raise refused(
            f"{_NO_SECRETS[key].capitalize()} has a secret in it, and is stored.",
            "Read the secret in the step that needs it.",
        )
    for name in sorted(value.secrets):
        secrets.find(name)  # before anything else: what is missing is told as that
    try:
        return value.evaluate(variables, secrets.find)
    except TemplateFailed as error:
        raise _template_failed(error, f"{field}.{error}" if field and error.place else str(error)) from None


def _template_failed(error: HoldfastError, message: str) -> PermanentError:
    return PermanentError(
        message,
        error_type="template_error",
        user_message="A template of the step has no value",
        guidance=error.guidance
        or "Correct the template in the playbook, or what it is given, and run that anew:"
        " this execution keeps the version that it began with.",
    )


def _check_no_templates_for_the_shell(config: Mapping[str, Any]) -> None:
    """A value that is pasted into a shell's text can be anything, also a command."""
    command = config.get("command")
    if config.get("shell") is not True or not isinstance(command, str):
        return
    reads = compile_value(command).reads
    if reads.names or reads.secrets or reads.steps or reads.all_steps:
        raise refused(
            "The command is a text for a shell and has a template in it: a value could be read as a command.",
            'Hand the value over by env: {NAME: "{{ … }}"} and write "$NAME", or use a list without a shell.',
        )
