"""The command line, and the place where the parts are put together for it.

Each command lives in a file of its own and imports what it needs only when it runs, so that `--help`
answers at once.
"""

from __future__ import annotations

import sys

import click

from holdfast import __version__
from holdfast.cli.bench import bench
from holdfast.cli.demo import demo
from holdfast.core.errors import HoldfastError

EXIT_REFUSED = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="holdfast")
def commands() -> None:
    """Durable multi-stage jobs that heal what can heal and say plainly what cannot."""


commands.add_command(bench)
commands.add_command(demo)


def main() -> None:
    """Run a command; an error of ours is a sentence and what to do next, never a stack trace."""
    try:
        commands()
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        if error.guidance:
            click.echo(f"  {error.guidance}", err=True)
        sys.exit(EXIT_REFUSED)
