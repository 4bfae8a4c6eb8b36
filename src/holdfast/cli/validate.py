"""`holdfast validate`: are these playbooks right? All that is wrong in all of them, with its line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import EXIT_REFUSED, json_option

if TYPE_CHECKING:
    from holdfast.cli.playbook_files import Checked


@click.command(
    epilog="Example:  holdfast validate flows/*.yaml", short_help="Check playbooks, without running them."
)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@json_option
def validate(files: tuple[str, ...], as_json: bool) -> None:
    """Check playbooks: each fault of each FILE with its line, its field and what is allowed there.

    `-` reads stdin. Nothing is stored and no database is needed. Exit code 0 where all are right, else 2.
    """
    from holdfast.cli.output import counted, say, show_json
    from holdfast.cli.playbook_files import check

    checked = check(files)
    wrong = [item for item in checked if item.error is not None]
    if as_json:
        show_json({"ok": not wrong, "files": [_as_record(item) for item in checked]})
        sys.exit(EXIT_REFUSED if wrong else 0)
    for item in checked:
        _show(item)
    if wrong and len(checked) > 1:
        say(
            f"{counted(len(wrong), 'file')} of {len(checked):,} {'is' if len(wrong) == 1 else 'are'} refused."
        )
    sys.exit(EXIT_REFUSED if wrong else 0)


def _show(item: Checked) -> None:
    from holdfast.cli.output import BAD, GOOD, counted, say
    from holdfast.cli.playbook_files import HASH_CHARS, shown_name

    if item.playbook is None:
        assert item.error is not None
        for line in str(item.error).splitlines():
            say(line, BAD, hang=4)
        return
    definition = item.playbook.definition
    steps = counted(len(definition.steps), "step")
    say(
        f"{shown_name(item.file)}: {definition.path}, {steps}, {_hash(item)[:HASH_CHARS]}: right",
        GOOD,
    )


def _as_record(item: Checked) -> dict[str, Any]:
    from holdfast.cli.playbook_files import shown_name

    if item.playbook is None:
        return {"file": shown_name(item.file), "ok": False, "faults": item.faults}
    definition = item.playbook.definition
    return {
        "file": shown_name(item.file),
        "ok": True,
        "path": definition.path,
        "steps": len(definition.steps),
        "hash": _hash(item),
        "faults": [],
    }


def _hash(item: Checked) -> str:
    """What tells versions of a path from each other."""
    from holdfast.playbook.definition import content_hash

    assert item.playbook is not None
    return content_hash(item.playbook.definition.to_json())
