"""`holdfast catalog`: the playbooks and pipelines that are known, their versions, and what differs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import database_option, json_option, opened

if TYPE_CHECKING:
    from holdfast.engine.catalog import AddedPlaybook, CatalogDiff, CatalogEntry, CatalogText
    from holdfast.engine.records import Page


@click.group(short_help="Playbooks and their versions.")
def catalog() -> None:
    """Playbooks and pipelines by path and version.

    A version is known by what it means: a text that differs in comments or layout only is the same one. New
    executions get the version that was registered last; what runs keeps the one it began with.
    """


@catalog.command("add", epilog="Example:  holdfast catalog add flows/*.yaml")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@database_option
@json_option
def add(files: tuple[str, ...], url: str, as_json: bool) -> None:
    """Register playbooks; `-` reads stdin. All of them, or none where one is refused.

    A SQLite database that does not exist is made.
    """
    from holdfast.cli.output import show_json
    from holdfast.cli.playbook_files import check, refuse

    checked = check(files)
    playbooks = refuse(checked)

    async def register() -> list[AddedPlaybook]:
        async with opened(url, create=True) as engine:
            return [await engine.catalog.add(item.definition, item.source) for item in playbooks]

    added = asyncio.run(register())
    if as_json:
        show_json(
            {
                "items": [
                    {"file": file, **_added_record(item)} for file, item in zip(files, added, strict=True)
                ]
            }
        )
        return
    for item in added:
        _tell_added(item)


@catalog.command("list", epilog="Example:  holdfast catalog list")
@click.argument("path", required=False)
@click.option("--limit", type=int, default=100, show_default=True, help="Rows of a page.")
@click.option("--cursor", metavar="TEXT", help="Go on after the page before: its `next`.")
@database_option
@json_option
def list_(path: str | None, limit: int, cursor: str | None, url: str, as_json: bool) -> None:
    """List what is known, each with the version that new executions get; or all versions of PATH."""
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import hint, say, show_json

    async def look() -> tuple[Page, float]:
        async with opened(url) as engine:
            now = await engine.now()
            if path is not None:
                return await engine.catalog.versions(path, limit=limit, cursor=cursor), now
            return await engine.catalog.entries(limit=limit, cursor=cursor), now

    page, now = asyncio.run(look())
    if as_json:
        show_json(page)
        return
    if not page.items:
        if cursor is not None:
            say("No more.")
            return
        say("The catalog is empty.")
        hint(f"Add a playbook:  {typed('holdfast catalog add FILE')}")
        return
    _show_entries(page.items, now, versions=path is not None)
    if page.next:
        hint(f"More:  --cursor {page.next}")


@catalog.command("show", epilog="Example:  holdfast catalog show examples/fetch_and_store --version 2")
@click.argument("path")
@click.option("--version", type=int, metavar="N", help="This version.  [default: the current one]")
@database_option
@json_option
def show(path: str, version: int | None, url: str, as_json: bool) -> None:
    """Show PATH: the YAML as it was written, or, of a pipeline that a program defined, its steps in words."""
    from holdfast.cli.output import hint, show_json, shown

    async def look() -> tuple[CatalogText, float]:
        async with opened(url) as engine:
            return await engine.catalog.text(path, version), await engine.now()

    found, now = asyncio.run(look())
    if as_json:
        show_json({**_entry_record(found.entry), "text": found.text})
        return
    hint(_told_entry(found.entry, now))
    # As it is, so that it can be kept in a file.
    click.echo(shown(found.text), nl=not found.text.endswith("\n"))


@catalog.command("diff", epilog="Example:  holdfast catalog diff examples/fetch_and_store 1 3")
@click.argument("path")
@click.argument("old", type=int, required=False)
@click.argument("new", type=int, required=False)
@database_option
@json_option
def diff(path: str, old: int | None, new: int | None, url: str, as_json: bool) -> None:
    """What differs between version OLD and version NEW of PATH.

    Without NEW: between OLD and the current version. Without both: between the current version and the one
    that was current before it.
    """
    from holdfast.cli.output import say, show_json

    async def look() -> CatalogDiff:
        async with opened(url) as engine:
            return await engine.catalog.diff(path, old, new)

    found = asyncio.run(look())
    if as_json:
        show_json(
            {
                "path": path,
                "old": _entry_record(found.old),
                "new": _entry_record(found.new),
                "diff": found.text,
            }
        )
        return
    if not found.text:
        say(f"Version {found.old.version} and version {found.new.version} of {path} read the same.")
        return
    _show_diff(found.text)


def _tell_added(added: AddedPlaybook) -> None:
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import counted, hint, say

    entry, before = added.entry, added.replaces
    steps = counted(entry.steps, "step")
    if added.change == "same":
        say(f"{entry.path}: version {entry.version} ({steps}) is known, and the current one already.")
        return
    what = "is new" if added.change == "new" else "was known and is the current one again"
    say(f"{entry.path}: version {entry.version} ({steps}) {what}.")
    if before is not None:
        kind = " of a program" if before.kind == "python" else ""
        hint(f"  It takes the place of version {before.version}{kind}, which its executions keep.")
        diff = f"holdfast catalog diff {entry.path} {before.version} {entry.version}"
        hint(f"  What differs:  {typed(diff)}")


def _show_entries(entries: Sequence[CatalogEntry], now: float, *, versions: bool) -> None:
    from holdfast.cli.output import ago, table

    rows = []
    for entry in entries:
        number = str(entry.version) if versions else f"{entry.version} of {entry.versions}"
        row = [entry.path, number, entry.kind.value, entry.steps, ago(entry.registered_at, now)]
        rows.append([*row, entry.hash[:12], "current" if entry.is_current else ""] if versions else row)
    head = ["path", "version", "kind", "steps", "registered"]
    styles = ["" if entry.is_current else "dim" for entry in entries]
    table([*head, "hash", ""] if versions else head, rows, styles=styles)


def _told_entry(entry: CatalogEntry, now: float) -> str:
    from holdfast.cli.output import ago

    current = "the current one" if entry.is_current else "not the current one"
    return (
        f"{entry.path} ({entry.kind.value}): version {entry.version} of {entry.versions}, {current};"
        f" registered {ago(entry.registered_at, now)}."
    )


def _show_diff(text: str) -> None:
    from holdfast.cli.output import BAD, GOOD, is_terminal, shown

    for line in shown(text).splitlines():
        colour = {"+": GOOD, "-": BAD, "@": "cyan"}.get(line[:1])
        is_head = line.startswith(("+++", "---"))
        click.secho(line, fg=colour if not is_head else None, bold=is_head or None, color=is_terminal())


def _added_record(added: AddedPlaybook) -> dict[str, object]:
    before = added.replaces
    return {
        **_entry_record(added.entry),
        "change": added.change.value,
        "replaces": None if before is None else before.version,
    }


def _entry_record(entry: CatalogEntry) -> dict[str, object]:
    import msgspec

    record: dict[str, object] = msgspec.to_builtins(entry)
    return record
