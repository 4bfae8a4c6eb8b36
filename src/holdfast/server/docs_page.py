"""The page at /docs: the OpenAPI document for people, made here, without a script and without anything from
elsewhere."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; --accent: #0a7d62; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 { margin: .4rem 0; }
code { font: 13px/1.45 ui-monospace, monospace; }
details, section {
  border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .35rem .8rem;
}
summary { cursor: pointer; display: flex; gap: .8rem; align-items: baseline; flex-wrap: wrap; }
summary .method { font-weight: 700; min-width: 4rem; color: var(--accent); }
summary .about, .dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; }
td, th {
  text-align: left; padding: .2rem .6rem .2rem 0; vertical-align: top; border-bottom: 1px solid var(--line);
}
"""


_ALWAYS = ' <span class="dim">always</span>'


def docs_page(document: dict[str, Any]) -> str:
    schemas: dict[str, Any] = document["components"]["schemas"]
    families: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            families.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    parts = [f"<h2>{escape(tag)}</h2>\n" + "\n".join(shown) for tag, shown in families.items()]
    records = "\n".join(_record(name, schema) for name, schema in sorted(schemas.items()))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>
<body><h1>Holdfast API</h1>
<p class="dim">Version {escape(document["info"]["version"])}; the same for programs:
<a href="/openapi.json">openapi.json</a></p>
<p>{escape(document["info"]["description"])}</p>
{"".join(parts)}
<h2>Records</h2>
{records}
</body></html>
"""


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {})
    parts = [f'<p class="dim">With tokens, for: {_roles(operation)}.</p>']
    if operation["parameters"]:
        rows = "".join(_parameter(parameter) for parameter in operation["parameters"])
        parts.append(f"<table><tr><th>parameter</th><th>in</th><th>what</th></tr>{rows}</table>")
    for media_type, content in body.items():
        parts.append(f"<p>Takes <code>{escape(media_type)}</code>: {_kind(content['schema'])}</p>")
    for status, response in operation["responses"].items():
        kinds = [_kind(content["schema"]) for content in response.get("content", {}).values()]
        told = f": {kinds[0]}" if kinds else ""
        parts.append(f"<p><code>{escape(status)}</code> {escape(response['description'])}{told}</p>")
    head = f'<span class="method">{method.upper()}</span><code>{escape(path)}</code>'
    about = f'<span class="about">{_prose(operation["summary"])}</span>'
    id_ = escape(operation["operationId"])
    return f'<details id="{id_}"><summary>{head} {about}</summary>{"".join(parts)}</details>'


def _roles(operation: dict[str, Any]) -> str:
    return (
        "everybody" if operation.get("security") == [] else escape(", ".join(operation["x-holdfast-roles"]))
    )


def _parameter(parameter: dict[str, Any]) -> str:
    about = _prose(parameter.get("description", "")) or _kind(parameter["schema"])
    must = "" if not parameter["required"] else ' <span class="dim">required</span>'
    name = f"<code>{escape(parameter['name'])}</code>{must}"
    return f"<tr><td>{name}</td><td>{parameter['in']}</td><td>{about}</td></tr>"


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to records."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#record-{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(_kind(one) for one in schema['prefixItems'])}]"
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return "one of " + ", ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    kind = escape(str(schema.get("type", "any")))
    bounds = [
        f"{word} {schema[name]}"
        for name, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("maxLength", "up to"),
        )
        if name in schema
    ]
    default = schema.get("default")
    if default not in (None, "", [], {}):
        bounds.append(f"default {escape(json.dumps(default))}")
    return f"{kind} <span class='dim'>{', '.join(bounds)}</span>" if bounds else kind


def _record(name: str, schema: dict[str, Any]) -> str:
    about = f"<p>{_prose(schema['description'])}</p>" if schema.get("description") else ""
    if "properties" in schema:
        required = schema.get("required", ())
        rows = "".join(
            f"<tr><td><code>{escape(field)}</code>{_ALWAYS if field in required else ''}</td>"
            f"<td>{_kind(kind)}</td></tr>"
            for field, kind in schema["properties"].items()
        )
        inner = f"{about}<table>{rows}</table>"
    else:
        inner = f"{about}<p>{_kind(schema)}</p>"
    # Not folded: links lead here, and a browser unfolds nothing for them.
    return f'<section id="record-{escape(name)}"><h3><code>{escape(name)}</code></h3>{inner}</section>'


def _prose(text: str) -> str:
    """With what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
