"""What was written, as models; or faults in plain words.

Every step is checked for itself, so one that is wrong hides no fault of another, and what can be read of it
(its name, what it leads to) still takes part in the checks of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.playbook.document import Document, Path, shown
from holdfast.playbook.faults import Fault, Faults, listed, value_shown
from holdfast.playbook.foreign import FOREIGN_FIELDS, FOREIGN_TYPES, TOOL_MAPPING
from holdfast.playbook.language import (
    NAME_RULE,
    PATH_RULE,
    STEP_MODELS,
    STEPS_MAX,
    TYPES,
    WORD_RULE,
    ActionFields,
    Arc,
    BarrierFields,
    BasicAuth,
    BearerAuth,
    Defaults,
    ErrorRuleFields,
    ForEachFields,
    Head,
    HeaderAuth,
    RetryFields,
    SqlStep,
    StepFields,
)

_NEXT_FORMS: Final = "a step's name, a list of them, or {step, when, with}."
# What is allowed in a field, where the model's own words would not help.
_ALLOWED: Final = {
    "next": _NEXT_FORMS,
    "then": _NEXT_FORMS,
    "else": _NEXT_FORMS,
    "retry": "true, false, a number of attempts from 1, or a mapping such as {max_attempts: 3}.",
    "for_each": 'a list, an expression for one such as "{{ fetch.data }}", or {items, as, concurrency, …}.',
    "when": 'an expression such as "{{ fetch.data.ok }}".',
    "barrier": "{after: step, delay: 15m}.",
    "auth": "{type: bearer, token}, {type: basic, username, password} or {type: header, name, value}.",
    "step": NAME_RULE + ".",
    "path": PATH_RULE + ".",
    "as": WORD_RULE + ".",
    "call": "module:function such as my_handlers:store, or a name that a program registered.",
    "operation": "letters (a-z, A-Z), digits, '_' and '-'; 50 characters at most.",
    "commands": "a list of statements, or a text of several.",
    "items": 'a list, or an expression for one such as "{{ fetch.data }}".',
    "in": 'a list, or an expression for one such as "{{ fetch.data }}".',
    "after": "the name of an earlier step.",
    "error_type": "a text: what the error is called.",
    "params": "a mapping of names to values (for sql a list too), or a template for one.",
    "errors": "a list of rules such as {status: 409, error_type: busy, category: transient}.",
    "workload": "a mapping of names to values.",
    "metadata": "a mapping such as {name: fetch, path: examples/fetch}.",
    "apiVersion": "holdfast/v1, noetl.io/v1.",
    "command": "a list of arguments such as [echo, hello]; or a text beside `shell: true`.",
}
# The same, where one type of step means something else by the field.
_ALLOWED_IN_TYPE: Final[dict[tuple[type[BaseModel], str], str]] = {
    (SqlStep, "auth"): 'the name of the secret that holds the URL, such as pg_local; or url: "{{ … }}".',
}
_KINDS: Final = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_NESTED: Final[dict[str, type[BaseModel]]] = {
    "retry": RetryFields,
    "barrier": BarrierFields,
    "next": Arc,
    "then": Arc,
    "else": Arc,
    "for_each": ForEachFields,
    "errors": ErrorRuleFields,
    "defaults": Defaults,
}
_AUTH: Final[dict[str, type[BaseModel]]] = {
    "<bearer>": BearerAuth,
    "<basic>": BasicAuth,
    "<header>": HeaderAuth,
}


_TAGS: Final = frozenset({"<yes or no>", "<number>", "<text>", "<list>", "<mapping>", *_AUTH})


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step as it stands in the file; without a `model` where its shape is wrong."""

    path: Path
    name: str
    kind: str | None
    model: StepFields | None
    raw: Mapping[str, Any]


class Report:
    """Where faults go, with the line of their place and its name for people."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.faults = Faults()
        self.step_names: dict[int, str] = {}

    def add(self, path: Path, message: str, allowed: str = "", *, line: int | None = None) -> None:
        self.faults.add(Fault(line or self.document.line(path), self.field(path), message, allowed))

    def field(self, path: Path) -> str:
        if (
            len(path) > 1
            and path[0] == "workflow"
            and isinstance(path[1], int)
            and path[1] in self.step_names
        ):
            rest = shown(path[2:])
            return f"step {self.step_names[path[1]]}" + (f", {rest}" if rest else "")
        return shown(path)


def check_head(report: Report) -> Head | None:
    written = {name: value for name, value in report.document.value.items() if name != "workflow"}
    if not written.get("workbook", True):
        del written["workbook"]
    try:
        return Head.model_validate(written)
    except ValidationError as error:
        _add_all(report, error, (), Head)
        return None


def check_steps(report: Report) -> list[WrittenStep]:
    written = report.document.value.get("workflow")
    if not isinstance(written, list) or not written:
        message = (
            "'workflow' is missing." if written is None else f"The workflow cannot be {value_shown(written)}."
        )
        report.add(("workflow",), message, "a list of steps, each with `- step: name`.")
        return []
    if len(written) > STEPS_MAX:
        message = f"The workflow has {len(written):,} steps."
        report.add(("workflow",), message, f"At most {STEPS_MAX:,}; divide it into playbooks.")
        return []
    for index, raw in enumerate(written):
        if isinstance(raw, dict) and isinstance(raw.get("step"), str):
            report.step_names[index] = raw["step"][:100]
    steps = [_check_step(report, index, raw) for index, raw in enumerate(written)]
    return [step for step in steps if step is not None]


def _check_step(report: Report, index: int, raw: Any) -> WrittenStep | None:
    path: Path = ("workflow", index)
    if not isinstance(raw, dict):
        report.add(
            path, f"A step cannot be {value_shown(raw)}.", "a mapping that begins with `- step: name`."
        )
        return None
    kind = _step_kind(report, path, raw)
    model: StepFields | None = None
    try:
        if kind is None:
            # Its own fields are anybody's guess; those that all steps have are not.
            common = [field.alias or name for name, field in ActionFields.model_fields.items()]
            known = {name: raw[name] for name in common if name in raw and name not in ("type", "tool")}
            ActionFields.model_validate(known)
        else:
            model = STEP_MODELS[kind].model_validate(raw)
    except ValidationError as error:
        _add_all(report, error, path, ActionFields if kind is None else STEP_MODELS[kind])
    name = raw.get("step")
    return WrittenStep(path, name if isinstance(name, str) else "", kind, model, raw)


def _step_kind(report: Report, path: Path, raw: Mapping[str, Any]) -> str | None:
    if raw.get("type") is not None and raw.get("tool") is not None:
        report.add(
            (*path, "tool"), "`type` and `tool` are written together.", "one of them: they are the same."
        )
    field = "type" if raw.get("type") is not None else "tool"
    written = raw.get(field)
    if written is None:
        return "control"
    if isinstance(written, dict):
        report.add((*path, field), f"`{field}` cannot be a mapping.", TOOL_MAPPING)
    elif isinstance(written, str) and written in TYPES:
        return TYPES[written]
    elif isinstance(written, str) and written.lower() in FOREIGN_TYPES:
        report.add((*path, field), f"There is no type {written!r}.", FOREIGN_TYPES[written.lower()])
    else:
        hint = report.faults.did_you_mean(written, TYPES)
        report.add((*path, field), f"There is no type {value_shown(written)}.{hint}", listed(TYPES))
    return None


def _add_all(report: Report, error: ValidationError, base: Path, model: type[BaseModel]) -> None:
    for item in error.errors(include_url=False):
        _add(report, item, base, model)


def _add(report: Report, item: ErrorDetails, base: Path, model: type[BaseModel]) -> None:
    kind, context, value = item["type"], item.get("ctx", {}), item["input"]
    # The tags of alternatives are no part of the place; what an author calls a field may look like one.
    *around, last = item["loc"] or ("<mapping>",)
    parts = [part for part in around if part not in _TAGS]
    path: Path = (*base, *parts, *([last] if last not in _TAGS or kind == "extra_forbidden" else []))
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    allowed = _ALLOWED_IN_TYPE.get((model, name)) or _ALLOWED.get(name, "")
    cannot = f"It cannot be {value_shown(value)}."
    match kind:
        case "refused":
            field = (context["field"],) if context["field"] else ()
            report.add((*path, *field), context["said"], context["allowed"])
        case "extra_forbidden":
            _add_unknown_field(report, path, _model_around(item["loc"], model))
        case "missing":
            report.add(path[:-1], f"{name!r} is missing.", allowed)
        case "literal_error":
            near = report.faults.did_you_mean(value, _quoted(context["expected"]))
            report.add(path, cannot + near, listed(_quoted(context["expected"])) + ".")
        case "greater_than_equal" | "less_than_equal":
            report.add(path, cannot, allowed if name == "retry" else _range(item, model, name))
        case "too_short" | "too_long":
            limit = (
                f"at least {context['min_length']}"
                if kind == "too_short"
                else f"at most {context['max_length']}"
            )
            report.add(path, f"It has {context['actual_length']} items.", f"{limit}.")
        case "union_tag_invalid" if isinstance(value, dict) and "type" in value:
            report.add((*path, "type"), f"It cannot be {value_shown(value['type'])}.", allowed)
        case "string_pattern_mismatch" | "union_tag_invalid" | "union_tag_not_found":
            report.add(path, cannot, allowed or "a mapping, or a template for one.")
        case _:
            report.add(path, cannot, allowed or f"{_KINDS.get(kind, str(item['msg']))}.")


def _add_unknown_field(report: Report, path: Path, model: type[BaseModel]) -> None:
    name = str(path[-1])
    known = _fields_of(model)
    if name in FOREIGN_FIELDS:
        report.add(path, f"There is no field {name!r} here.", FOREIGN_FIELDS[name])
        return
    near = report.faults.did_you_mean(name, known)
    report.add(path, f"There is no field {value_shown(name)} here.{near}", f"{listed(known)}.")


def _fields_of(model: type[BaseModel]) -> list[str]:
    """Its own first, then those that every step has."""
    common = ActionFields.model_fields if issubclass(model, StepFields) else {}
    names = sorted(model.model_fields, key=lambda name: name in common)
    fields = [model.model_fields[name].alias or name for name in names]
    return [*fields, "workflow"] if model is Head else fields


def _model_around(loc: tuple[int | str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The model that refused the last part: the innermost that the way there goes through."""
    for part in reversed(loc[:-1]):
        if part in _AUTH:
            return _AUTH[str(part)]
        if isinstance(part, str) and part in _NESTED:
            return _NESTED[part]
    return model


def _range(item: ErrorDetails, model: type[BaseModel], name: str) -> str:
    """Both ends, though only one of them was passed."""
    around = _model_around(item["loc"], model) if name not in model.model_fields else model
    field = around.model_fields.get(name)
    bounds = {type(part).__name__: part for part in _metadata(field)}
    low, high = getattr(bounds.get("Ge"), "ge", None), getattr(bounds.get("Le"), "le", None)
    if low is None and high is None:
        context = item.get("ctx", {})
        low, high = context.get("ge"), context.get("le")
    if high is None:
        return f"a whole number from {low}."
    return f"a whole number from {1 if low is None else low} to {high:,}."


def _metadata(field: Any) -> Iterable[Any]:
    """Of a field, and of the alternatives that its annotation joins."""
    if field is None:
        return
    stack = [*field.metadata, field.annotation]
    while stack:
        part = stack.pop()
        inner = getattr(part, "__metadata__", None)
        if inner is not None:
            stack += [*inner, part.__origin__]
        elif type(part).__name__ == "FieldInfo":
            stack += part.metadata
        elif hasattr(part, "__args__"):
            stack += part.__args__
        else:
            yield part


def _quoted(expected: str) -> list[str]:
    """pydantic's "'a', 'b' or 'c'"."""
    return [part for part in expected.split("'")[1::2] if part]
