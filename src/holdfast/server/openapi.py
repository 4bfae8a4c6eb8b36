"""The OpenAPI document, made from the endpoints' own types: what they decode and encode is what it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.access import Right, roles_with
from holdfast.server.endpoints import Endpoint
from holdfast.server.uploads import FILE_FIELD, MEDIA_TYPE
from holdfast.wire import ErrorAnswer

_NAME = re.compile(r"\{(\w+)(?::(\w+))?\}")
_REF = "#/components/schemas/{name}"
_ABOUT = (
    "Durable multi-stage jobs over HTTP. Times are seconds since 1970 in the database's clock. A list is"
    ' {"items": […], "next": cursor or null}; whatever goes wrong is {"error": {code, message, guidance}}.'
)
_TEXTS = {
    200: "Done",
    201: "Made",
    202: "Accepted",
    304: "Not changed",
    409: "None was accepted",
}
_FILES = {
    "type": "object",
    "properties": {
        FILE_FIELD: {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    },
    "required": [FILE_FIELD],
}


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    kinds: list[Any] = [ErrorAnswer]
    for endpoint in endpoints:
        kinds += [kind for kind in endpoint.answers.values() if kind is not None]
        if endpoint.body not in (None, bytes):
            kinds.append(endpoint.body)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = {_key(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _NAME.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "browser": {"type": "http", "scheme": "basic", "description": "The password is the token"},
            },
        },
        "security": [{}, {"token": []}, {"browser": []}],
    }


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(endpoint: Endpoint, by_kind: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in endpoint.answers.items():
        responses[str(status)] = {"description": _TEXTS[status]}
        if kind is not None:
            responses[str(status)]["content"] = {"application/json": {"schema": by_kind[_key(kind)]}}
    for status, media_type in endpoint.plain.items():
        name = media_type.partition(";")[0]
        responses[str(status)] = {
            "description": _TEXTS[status],
            "content": {name: {"schema": {"type": "string"}}},
        }
    responses["4XX"] = _problem("What was wrong with the request, and what to do")
    responses["503"] = _problem("The database cannot be reached now; try again")
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "x-holdfast-roles": [role.value for role in roles_with(endpoint.needs)],
        "operationId": endpoint.handler.__module__.rpartition("api_")[2] + "_" + endpoint.handler.__name__,
        "tags": [endpoint.tag],
        "parameters": [*_in_path(endpoint), *_in_query(endpoint, components), *_in_headers(endpoint)],
        "responses": responses,
    }
    if endpoint.needs is Right.NONE:
        operation["security"] = []
    if endpoint.upload:
        operation["requestBody"] = {"required": True, "content": {MEDIA_TYPE: {"schema": _FILES}}}
    elif endpoint.body is bytes:
        # JSON is YAML, too; there it is an object.
        kinds = {name: "object" if name == "application/json" else "string" for name in endpoint.media_types}
        content = {name: {"schema": {"type": kind}} for name, kind in kinds.items()}
        operation["requestBody"] = {"required": True, "content": content}
    elif endpoint.body is not None:
        operation["requestBody"] = {
            "required": not endpoint.body_optional,
            "content": {name: {"schema": by_kind[_key(endpoint.body)]} for name in endpoint.media_types},
        }
    return operation


def _problem(about: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="ErrorAnswer")}
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _in_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    kinds = {"int": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": kinds.get(kind, {"type": "string", "minLength": 1}),
        }
        for name, kind in _NAME.findall(endpoint.path)
    ]


def _in_query(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    [_], found = msgspec.json.schema_components([endpoint.query], ref_template=_REF)
    own = found.pop(endpoint.query.__name__)
    components.update(found)
    required = own.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(schema)}
        for name, schema in own["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not there has no value; none is written as null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        return dict(kinds[0])
    return {name: value for name, value in schema.items() if not (name == "default" and value is None)}


def _in_headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}
        for name, about in endpoint.headers.items()
    ]
