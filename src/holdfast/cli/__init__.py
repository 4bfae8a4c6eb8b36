"""The command line, and the place where the parts are put together for it.

Each command lives in a file of its own and imports what it needs only when it runs, so that `--help`
answers at once. Whatever a command raises ends here as a sentence and an exit code that scripts can use:
0 done, 1 what was asked about failed, 2 refused, 3 the database cannot be used, 74 what it has to say cannot
be written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from holdfast import __version__
from holdfast.cli.audit import audit
from holdfast.cli.backup import backup, restored
from holdfast.cli.batch import batch
from holdfast.cli.bench import bench
from holdfast.cli.cancel import cancel
from holdfast.cli.catalog import catalog
from holdfast.cli.dead import dead
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.documents import documents
from holdfast.cli.events import events
from holdfast.cli.executions import executions
from holdfast.cli.ingest import ingest
from holdfast.cli.limits import limits
from holdfast.cli.migrate import migrate
from holdfast.cli.options import EXIT_DATABASE, EXIT_INTERRUPTED, EXIT_REFUSED
from holdfast.cli.output import complain
from holdfast.cli.pause import pause, resume
from holdfast.cli.queue import queue
from holdfast.cli.redrive import redrive
from holdfast.cli.retry import retry
from holdfast.cli.run import run
from holdfast.cli.serve import serve
from holdfast.cli.status import status
from holdfast.cli.submit import submit
from holdfast.cli.token import token
from holdfast.cli.validate import validate
from holdfast.cli.worker import worker
from holdfast.core.errors import HoldfastError, StoreError, StoreUrlInvalid

# What a shell reports of a program that was interrupted, or whose reader went away.
EXIT_BROKEN_PIPE = 141
EXIT_OUTPUT = 74
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

FAMILIES = {
    "Playbooks": ("run", "validate", "catalog"),
    "Work": ("submit", "batch", "ingest", "documents", "retry", "cancel", "redrive"),
    "Steer": ("limits", "pause", "resume"),
    "Look": ("status", "executions", "events", "queue", "dead", "audit"),
    "Run": ("serve", "worker", "token", "migrate", "backup", "restored", "doctor"),
    "Try": ("demo", "bench"),
}


class CommandLine(click.Group):
    def main(self, args: Any = None, *names: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        run = partial(super().main, args, *names, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        _open_standard_streams()
        given = sys.argv[1:] if args is None else list(args)
        sys.exit(_written(partial(exit_code_of, run, as_json="--json" in given)))

    def invoke(self, ctx: click.Context) -> Any:
        """`holdfast queue | head` ends without a word, as other tools do."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            ctx.exit(EXIT_BROKEN_PIPE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name for names in FAMILIES.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        for family, names in {**FAMILIES, "Other": others}.items():
            known = [(name, self.commands[name]) for name in names if name in self.commands]
            if known:
                with formatter.section(family):
                    formatter.write_dl([(name, command.get_short_help_str(80)) for name, command in known])


@click.group(
    cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="holdfast")
def commands() -> None:
    """Durable multi-stage jobs that heal what can heal and say plainly what cannot.

    New here? `holdfast demo` shows what it does; `holdfast doctor` says whether all is well.
    """
    logging.getLogger("asyncpg.pool").addFilter(_is_not_said_elsewhere)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a character that this terminal cannot show must not end a command
        reconfigure(errors="backslashreplace")


for _command in (
    *(run, validate, catalog),
    *(submit, batch, ingest, documents, retry, cancel, redrive),
    *(limits, pause, resume),
    *(status, executions, events, queue, dead, audit),
    *(serve, worker, token, migrate, backup, restored, doctor, demo, bench),
):
    commands.add_command(_command)


def _is_not_said_elsewhere(record: logging.LogRecord) -> bool:
    """What a pool of connections says of a lost one, with its trace, the commands say in words."""
    return not record.exc_info


def _open_standard_streams() -> None:
    """Where one was closed (`>&-`) its number would go to the next file that is opened: the database, to
    which any print of a step would be written then."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(number, True)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _written(run: Callable[[], int]) -> int:
    """The exit code of a command, or that of a full disk under its output."""
    try:
        return run()
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        _drop_output()
        with contextlib.suppress(OSError):
            complain(f"holdfast: The output cannot be written: {error.strerror}.")
            complain("  What was done is kept; repeat the command, or look with holdfast status.")
        return EXIT_OUTPUT


def _drop_output() -> None:
    """What is still in the buffer would be tried again at the end of the process."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code_of(run: Callable[[], Any], *, as_json: bool) -> int:
    """Run a command; an error of ours is a sentence and what to do next, never a stack trace."""
    try:
        answer = run()
        return answer if isinstance(answer, int) else 0
    except click.Abort:
        click.echo("Interrupted.", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        if not as_json:
            error.show()
        else:
            guidance = error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx else ""
            _tell_json("usage", error.format_message(), guidance)
        return error.exit_code
    except HoldfastError as error:
        guidance = error.guidance or ""
        if as_json:
            _tell_json(error.code, str(error), guidance)
        else:
            complain(f"holdfast: {error}", hang=4)
            if guidance:
                complain(f"  {guidance}")
        lost = isinstance(error, StoreError) and not isinstance(error, StoreUrlInvalid)
        return EXIT_DATABASE if lost else EXIT_REFUSED


def _tell_json(code: str, message: str, guidance: str) -> None:
    from holdfast.cli.output import show_json

    show_json({"error": {"code": code, "message": message, "guidance": guidance}})


def main() -> None:
    commands()
