"""The JSON Schema of the playbook language, for editors: made from the models, so that it says the same.

A step is checked by the fields of its type: an editor offers `url` in an http step and `query` in a sql step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdfast.playbook.language import STEP_MODELS, STEPS_MAX, TYPES, Head

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def playbook_schema() -> dict[str, Any]:
    models: list[type[BaseModel]] = [Head, *STEP_MODELS.values()]
    made, schema = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/$defs/{model}"
    )
    definitions: dict[str, Any] = schema["$defs"]
    playbook = definitions.pop("Head")
    steps = {kind: made[model, "validation"] for kind, model in STEP_MODELS.items()}
    for kind in STEP_MODELS:
        _name_types(definitions[steps[kind]["$ref"].rpartition("/")[2]], kind)
    playbook["properties"]["workflow"] = {
        "type": "array",
        "minItems": 1,
        "maxItems": STEPS_MAX,
        "description": "The steps. `start` is the first one where there is one, else the one on top.",
        "items": _step_schema(steps),
    }
    playbook["required"] = [*playbook["required"], "workflow"]
    del playbook["description"]
    schema = {
        "$schema": DIALECT,
        "title": "Holdfast playbook",
        "description": "A workflow: named steps, what leads from one to the next, and how each may fail.",
        **{key: value for key, value in playbook.items() if key != "title"},
        "$defs": definitions,
    }
    _tidy(schema, definitions)
    return schema


def _step_schema(steps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """By what is written as type or tool; without one it is control flow."""
    choices = [
        {
            "if": {"anyOf": [_has("type", _words(kind)), _has("tool", _words(kind))]},
            "then": dict(steps[kind]),
        }
        for kind in steps
    ]
    untyped = {"not": {"anyOf": [_is_given("type"), _is_given("tool")]}}
    return {
        "type": "object",
        "required": ["step"],
        "properties": {"type": {"enum": [*TYPES, None]}, "tool": {"enum": [*TYPES, None]}},
        "allOf": [*choices, {"if": untyped, "then": dict(steps["control"])}],
    }


def _words(kind: str) -> list[str]:
    return [word for word, means in TYPES.items() if means == kind]


def _has(field: str, words: list[str]) -> dict[str, Any]:
    return {"properties": {field: {"enum": words}}, "required": [field]}


def _is_given(field: str) -> dict[str, Any]:
    return {"properties": {field: {"type": "string"}}, "required": [field]}


def _name_types(definition: dict[str, Any], kind: str) -> None:
    for field in ("type", "tool"):
        described = definition["properties"][field]["description"]
        definition["properties"][field] = {"enum": [*_words(kind), None], "description": described}


def _tidy(part: Any, definitions: dict[str, Any]) -> None:
    """Without what helps nobody: a title that repeats a field's name, and a default of nothing."""
    if isinstance(part, dict):
        given = [one for one in part.get("anyOf", ()) if one != {"type": "null"}]
        if len(given) == 1:
            del part["anyOf"]
            part.update(given[0])
        for name, inner in part.items():
            if name == "properties":
                for described in inner.values():
                    described.pop("title", None)
            _tidy(inner, definitions)
        if "default" in part and part["default"] is None:
            del part["default"]
            _accept_null(part, definitions)
        if "title" in part and "object" in part.get("type", ()) and "$schema" not in part:
            del part["title"]
    elif isinstance(part, list):
        for inner in part:
            _tidy(inner, definitions)


def _accept_null(part: dict[str, Any], definitions: dict[str, Any]) -> None:
    """A field may be left empty. That stands beside its type and is no alternative to it: behind one an
    editor would hide what is wrong in the field."""
    if "$ref" in part:
        part = definitions[part["$ref"].rpartition("/")[2]]
    if "const" in part:
        part["enum"] = [part.pop("const")]
    if None not in part.get("enum", [None]):
        part["enum"] = [*part["enum"], None]
    kinds = part.get("type", "null")
    if "null" not in kinds:
        part["type"] = [*([kinds] if isinstance(kinds, str) else kinds), "null"]
    for name in ("anyOf", "oneOf"):
        if name in part and {"type": "null"} not in part[name]:
            part[name] = [*part[name], {"type": "null"}]


if __name__ == "__main__":
    print(json.dumps(playbook_schema(), indent=2, ensure_ascii=False))
