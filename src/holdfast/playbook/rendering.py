"""What a step with a type is run with: its input and its config, with their templates rendered.

    job ──▶ variables ──▶ its own `with` rendered ──▶ its config rendered ──▶ Rendered

Whoever renders brings the secrets: a worker its own, by their values; a server that hands the job on to a
worker elsewhere, what stands in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.core.errors import HoldfastError, PermanentError, settings_refused
from holdfast.core.handlers import CODE, EACH, FUNCTION_PREFIX, PLAYBOOK, SHELL, SQL
from holdfast.core.model import Leased
from holdfast.core.payload import decode_payload
from holdfast.playbook.template import (
    ConditionInvalid,
    Secrets,
    TemplateFailed,
    Text,
    Value,
    compile_text,
    compile_value,
)
from holdfast.playbook.variables import INDEX_NAME, step_variables

# What their outcome holds is stored as it is, for others to work with: a secret in it could not be masked.
_NO_SECRETS = {EACH: "the items of for_each", PLAYBOOK: "what a child execution is given"}
_CACHED_CHARS_MAX = 20_000


class Inserted(NamedTuple):
    """The value of a template among the text of a query, and how it is written there."""

    value: Any
    text: str


class Rendered(NamedTuple):
    """A `query` of the config is a list where templates stand among its text, of texts and `Inserted` values:
    those must not be read as SQL."""

    config: dict[str, Any]
    input: dict[str, Any]


class Reading(NamedTuple):
    """How secrets are read, and who is told which of them before."""

    find: Secrets
    need: Callable[[str], object]


def render(
    job: Leased,
    *,
    workload: Any,
    outputs: Mapping[str, Any],
    find: Secrets,
    need: Callable[[str], object] | None = None,
) -> Rendered:
    """PermanentError where it cannot be. `workload` and `outputs` are the job's own, decoded. `find` gives a
    secret by its name; `need`, which is `find` unless another is given, is told of all that may be read
    before anything is."""
    secrets = Reading(find, find if need is None else need)
    key = FUNCTION_PREFIX if job.handler.startswith(FUNCTION_PREFIX) else job.handler
    element = _element(job)
    given = {**element, **_mapping(job.input)}

    def variables() -> dict[str, object]:
        return _variables(job, given, element, workload, outputs)

    try:
        if key == EACH:
            # Its `with` is the elements' own: it may read `item`, which is not there yet.
            items = _rendered(_items(job.for_each), "for_each", key, variables(), secrets)
            return Rendered({"items": items}, given)
        given |= _rendered(_compiled(job.inputs), "with", key, variables(), secrets)
        return Rendered(_config(key, job, variables(), secrets), given)
    except ConditionInvalid as error:
        # Refused when it was registered, unless another version of ours did that.
        raise _template_failed(error, str(error)) from None


def _config(key: str, job: Leased, variables: Mapping[str, object], secrets: Reading) -> dict[str, Any]:
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
    query = _mapping(config).get("query") if "{{" in config else None
    text = compile_text(query) if isinstance(query, str) else None
    return text if text is not None and text.is_mixed else None


def _query_parts(query: Text, variables: Mapping[str, object], secrets: Reading) -> list[str | Inserted]:
    for name in sorted(query.secrets):
        secrets.need(name)
    try:
        parts = query.evaluate_parts(variables, secrets.find, "query")
    except TemplateFailed as error:
        raise _template_failed(error, str(error)) from None
    return [part if isinstance(part, str) else Inserted(*part) for part in parts]


def _element(job: Leased) -> dict[str, Any]:
    """What an element of a for_each is given beside what was handed on to its step."""
    if job.item is None:
        return {}
    return {
        job.item_name: decode_payload(job.item),
        INDEX_NAME: _mapping(job.input).get(INDEX_NAME, job.element),
    }


def _variables(
    job: Leased,
    given: Mapping[str, Any],
    element: Mapping[str, Any],
    workload: Any,
    outputs: Mapping[str, Any],
) -> dict[str, object]:
    return step_variables(
        workload=workload if isinstance(workload, dict) else {},
        input=given,
        outputs=outputs,
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


def _rendered(value: Value, field: str, key: str, variables: Mapping[str, object], secrets: Reading) -> Any:
    if value.secrets and key in _NO_SECRETS:
        raise settings_refused(
            f"{_NO_SECRETS[key].capitalize()} has a secret in it, and is stored.",
            "Read the secret in the step that needs it.",
        )
    for name in sorted(value.secrets):
        secrets.need(name)  # before anything else: what is missing is told as that
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
        raise settings_refused(
            "The command is a text for a shell and has a template in it: a value could be read as a command.",
            'Hand the value over by env: {NAME: "{{ … }}"} and write "$NAME", or use a list without a shell.',
        )
