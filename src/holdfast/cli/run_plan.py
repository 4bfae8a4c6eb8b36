"""`holdfast run --dry-run`: the plan of a playbook as a tree, and what each step may cost in time."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import HEAD, counted, hint, is_terminal, say, show_json, shown
from holdfast.playbook.outline import outline

if TYPE_CHECKING:
    from holdfast.playbook.definition import Definition

WRAPPED_CHARS_MIN = 30


def show_plan(definition: Definition, workload: Mapping[str, Any], as_json: bool) -> None:
    """Needs no database, and changes none."""
    from holdfast.playbook.definition import content_hash

    content = definition.to_json()
    if as_json:
        show_json(
            {
                "path": definition.path,
                "hash": content_hash(content),
                "workload": workload,
                "definition": json.loads(content),
                "plan": outline(definition, workload),
            }
        )
        return
    say(f"{definition.path}: {counted(len(definition.steps), 'step')}", HEAD)
    click.echo()
    width = shutil.get_terminal_size().columns if is_terminal() else None
    for line in shown(outline(definition, workload)).splitlines():
        for part in _folded(line, width):
            click.echo(part)
    click.echo()
    hint("A permanent error is final at once; a service that asks to wait may lengthen a delay, up to 1 h.")
    hint("Nothing was stored or run.")


def _folded(line: str, width: int | None) -> list[str]:
    """On a terminal a long line goes on below its own beginning."""
    if width is None or len(line) <= width:
        return [line]
    lead = len(line) - len(line.lstrip(" │├└─"))
    indent = "".join(char if char in " │" else " " for char in line[:lead]) + "  "
    if len(indent) > width - WRAPPED_CHARS_MIN:
        return [line]
    parts = textwrap.wrap(line[lead:], width - len(indent), break_on_hyphens=False, drop_whitespace=True)
    return [line[:lead] + parts[0], *(indent + part for part in parts[1:])]
