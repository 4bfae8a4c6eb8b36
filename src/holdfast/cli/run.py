"""`holdfast run`: a playbook from its file to its end, in this process, watched.

    file ──▶ checked ──▶ registered and submitted ──▶ worked on here, shown as it goes ──▶ its result

It is kept in the database like any other execution, so it can be looked at, retried and resumed afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import database_option, json_option
from holdfast.core.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.playbook.definition import Definition


@click.command(
    epilog="Example:  holdfast run flow.yaml --set base_url=http://127.0.0.1:9000",
    short_help="Run a playbook to its end, here.",
)
@click.argument("file", required=False, metavar="FILE")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set one field of the workload; may be repeated. Dots go deeper (customer.id=7). A value that is"
    " JSON is taken as such, anything else as text.",
)
@click.option(
    "--workload",
    metavar="JSON|@FILE|-",
    help="The workload as JSON, over the playbook's own: given here, in a file, or on stdin.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the plan and each step's attempts; store and run nothing."
)
@click.option(
    "--resume",
    type=int,
    metavar="EXECUTION",
    help="Go on with this execution instead: one that was interrupted, or one that failed, from its failed"
    " stage. FILE then only tells the folder of its functions.",
)
@click.option("--allow-code", is_flag=True, help="Leave for inline Python, needed on PostgreSQL or a server.")
@click.option("--allow-shell", is_flag=True, help="Leave for shell steps, needed on PostgreSQL or a server.")
@database_option
@json_option
def run(
    file: str | None,
    settings: tuple[str, ...],
    workload: str | None,
    dry_run: bool,
    resume: int | None,
    allow_code: bool,
    allow_shell: bool,
    url: str,
    as_json: bool,
) -> None:
    """Run the playbook of FILE to its end, in this process, and show how it goes; `-` reads stdin.

    Functions that it calls are imported from the folder of FILE. Exit code 0 when it has completed, 1 when it
    has failed, 2 when it is refused. Ctrl-C stops the work and keeps the execution; --resume goes on with it.
    """
    if file is None and resume is None:
        raise click.UsageError("Name the file of a playbook.")
    if resume is not None and (settings or workload or dry_run):
        raise click.UsageError("--resume goes on with what there is: it takes no workload and no --dry-run.")
    folder = os.path.dirname(os.path.abspath(file)) if file not in (None, "-") else os.getcwd()
    if resume is not None:
        from holdfast.cli.run_work import Run

        going_on = Run(url, file, folder, as_json=as_json, allow_code=allow_code, allow_shell=allow_shell)
        sys.exit(going_on.to_its_end(going_on.resume(resume)))
    from holdfast.cli.playbook_files import load

    assert file is not None
    playbook = load(file)
    given = given_workload(playbook.definition, workload, settings)
    if dry_run:
        from holdfast.cli.run_plan import show_plan

        show_plan(playbook.definition, given, as_json)
        return
    from holdfast.cli.run_work import Run

    running = Run(url, file, folder, as_json=as_json, allow_code=allow_code, allow_shell=allow_shell)
    sys.exit(running.to_its_end(running.start(playbook.definition, playbook.source, given)))


def given_workload(definition: Definition, source: str | None, settings: tuple[str, ...]) -> dict[str, Any]:
    """The playbook's own workload, with what was given over it."""
    from holdfast.cli.submit import read_workload, refuse_slip, with_fields
    from holdfast.engine.beginning import with_defaults

    given = read_workload(source)
    if given is not None and not isinstance(given, dict):
        raise InvalidInput(
            "The workload of a playbook is an object.", guidance="""Write it like '{"file": "a.pdf"}'."""
        )
    # A copy: fields are set in it, and the definition must stay as it is.
    workload: dict[str, Any] = json.loads(json.dumps(with_defaults(definition, given)))
    for setting in settings:
        refuse_slip(setting, workload, definition)
    return dict(with_fields(workload, settings))
