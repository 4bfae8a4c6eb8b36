"""`holdfast worker`: run the steps of playbooks and of a program's pipelines, in one process or several."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from holdfast.cli.options import SERVER_VARIABLE, URL_DEFAULT, URL_VARIABLE, Command
from holdfast.cli.telling import begin_log, telling_options, trace_attempts
from holdfast.core.errors import AccessRefused, HoldfastError, InvalidInput

if TYPE_CHECKING:
    from holdfast import Holdfast

BROKER_VARIABLE = "HOLDFAST_BROKER"


def program_options(command: Command) -> Command:
    """What a worker may be given to run: in `worker`, and in `serve`."""
    for option in reversed(_PROGRAM_OPTIONS):
        option(command)
    return command


_PROGRAM_OPTIONS = (
    click.option(
        "--app",
        metavar="MODULE:NAME",
        help="Where your Holdfast object is, e.g. shop.jobs:hf. Without it: steps of playbooks only.",
    ),
    click.option(
        "--functions",
        metavar="MODULE[:NAME]",
        multiple=True,
        help="Let playbooks call the public functions of this module, or this one; may be repeated.",
    ),
    click.option("--allow-code", is_flag=True, help="Run inline Python of playbooks, on this machine."),
    click.option("--allow-shell", is_flag=True, help="Run shell steps of playbooks, on this machine."),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 10_000),
        default=16,
        show_default=True,
        help="Handlers at a time, in each process.",
    ),
    click.option(
        "--lease",
        default="60s",
        show_default=True,
        metavar="DURATION",
        help="How long a job is held without a heartbeat; a dead worker's jobs are taken over after it.",
    ),
    click.option(
        "--grace",
        default="25s",
        show_default=True,
        metavar="DURATION",
        help="How long running handlers may go on after SIGTERM.",
    ),
)


@click.command()
@program_options
@click.option(
    "--db",
    metavar="URL",
    help="Use this database instead of the one that the program names."
    f" Where it names none: env {URL_VARIABLE}, else {URL_DEFAULT}.",
)
@click.option(
    "--server",
    metavar="URL",
    help="Work for this server (http://host:port) instead, without a database."
    f" Without --app: env {SERVER_VARIABLE}, which counts before {URL_VARIABLE}.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Worker processes, supervised: one that dies is started again.",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "celery"]),
    default="local",
    show_default=True,
    help="Run the steps in this process, or hand them to a Celery fleet.",
)
@click.option(
    "--broker",
    metavar="URL",
    help=f"The fleet's broker, e.g. redis://host:6379/0, with --executor celery. Env {BROKER_VARIABLE}.",
)
@click.option(
    "--queue",
    metavar="PREFIX",
    help="With --executor celery, send to its queues PREFIX.manual and PREFIX.bulk; holdfast without it.",
)
@click.option(
    "--resend",
    metavar="DURATION",
    help="With --executor celery, send an attempt that nobody took again after so long; 30s without it.",
)
@click.option("--lane", "lanes", multiple=True, type=click.Choice(["manual", "bulk"]), help="Only this lane.")
@click.option(
    "--ageing",
    metavar="DURATION",
    help="Bulk work that has been ready for so long takes its turn among the manual. Without it manual work"
    " always comes first.",
)
@telling_options("info")
def worker(
    app: str | None,
    functions: tuple[str, ...],
    allow_code: bool,
    allow_shell: bool,
    db: str | None,
    server: str | None,
    processes: int,
    executor: str,
    broker: str | None,
    queue: str | None,
    resend: str | None,
    concurrency: int,
    lanes: tuple[str, ...],
    lease: str,
    grace: str,
    ageing: str | None,
    log_level: str,
    log_format: str,
    otel: bool,
) -> None:
    """Work on what is queued, until SIGTERM or Ctrl-C.

    \b
    holdfast worker --app shop.jobs:hf
    holdfast worker --app shop.jobs:hf --db postgresql://db/shop --processes 4
    holdfast worker --functions my_handlers --allow-code
    holdfast worker --app shop.jobs:hf --server http://jobs.example:8083
    holdfast worker --app shop.jobs:hf --executor celery --broker redis://queue.example/0

    Whoever may add a playbook decides what --allow-code and --allow-shell run here: give them only where that
    is you, or somebody you would give a login.

    The first signal leases nothing more, lets running handlers finish within the grace period and gives back
    the rest. A second one ends the worker at once; what it held runs again when its leases have expired.
    """
    from holdfast.cli.supervisor import LIFELINE_VARIABLE, Supervisor
    from holdfast.core.retry import checked_seconds, parse_duration

    begin_log(log_level, log_format)
    lease_seconds = checked_seconds(lease, "lease")
    grace_seconds = parse_duration(grace, field="grace")
    ageing_seconds = None if ageing is None else checked_seconds(ageing, "ageing")
    url = _address(app, db, server)
    fleet = _fleet(executor, broker, queue, resend, processes)
    given = os.environ.pop(LIFELINE_VARIABLE, None)
    lifeline = None if given is None else int(given)
    if processes > 1:
        command = [sys.executable, "-m", "holdfast", *_without_processes(sys.argv[1:])]
        supervisor = Supervisor(command, processes, grace_seconds=grace_seconds, lifeline=lifeline)
        sys.exit(asyncio.run(supervisor.run()))
    try:
        hf = program(app, url, functions)
        if fleet is None:
            offer_built_in(hf)
        if otel and fleet is None:  # a dispatcher runs nothing
            trace_attempts(hf)
    except HoldfastError as error:
        _give_up(error, lifeline)
    options: dict[str, Any] = {
        "concurrency": concurrency,
        "lease_seconds": lease_seconds,
        "grace_seconds": grace_seconds,
        "ageing": ageing_seconds,
        "lanes": lanes or ("manual", "bulk"),
        "allow_code": allow_code,
        "allow_shell": allow_shell,
    }
    try:
        if fleet is None:
            hf.run_worker(lifeline=lifeline, **options)
        else:
            hf.run_dispatcher(**fleet, **options)
    except AccessRefused as error:
        _give_up(error, lifeline)


def _fleet(
    executor: str, broker: str | None, queue: str | None, resend: str | None, processes: int
) -> dict[str, Any] | None:
    """What a dispatcher is told of its fleet; None where the steps run here."""
    if executor == "local":
        for option, value in (("--broker", broker), ("--queue", queue), ("--resend", resend)):
            if value is not None:
                raise click.UsageError(f"{option} belongs to a Celery fleet: add --executor celery.")
        return None
    broker = broker or os.environ.get(BROKER_VARIABLE)
    if not broker:
        raise click.UsageError(
            "--executor celery needs the fleet's broker: --broker redis://host:6379/0,"
            f" or env {BROKER_VARIABLE}."
        )
    if processes > 1:
        raise click.UsageError(
            "--processes does not go with --executor celery: the fleet has the processes. Start the command"
            " twice where a second dispatcher is to stand in for the first."
        )
    told = {"broker": broker, "queue": queue, "resend": resend}
    return {name: value for name, value in told.items() if value is not None}


def _give_up(error: HoldfastError, lifeline: int | None) -> NoReturn:
    """For a reason that would be the same the next time: a supervisor, where there is one, is told that."""
    from holdfast.cli.output import shown
    from holdfast.cli.supervisor import EXIT_WRONG_COMMAND

    if lifeline is None:
        raise error
    click.echo(shown(f"holdfast: {error}\n  {error.guidance}"), err=True)
    sys.exit(EXIT_WRONG_COMMAND)


def _address(app: str | None, db: str | None, server: str | None) -> str | None:
    """The one that was typed, or the environment's; None where a program names its own."""
    from holdfast.addresses import check_server_url

    if db is not None and server is not None:
        raise click.UsageError("--db and --server name two places: give one of them.")
    if server is None and db is None and app is None:
        server = os.environ.get(SERVER_VARIABLE) or None
    return db if server is None else check_server_url(server)


def program(app: str | None, url: str | None, functions: tuple[str, ...]) -> Holdfast:
    from holdfast import Holdfast
    from holdfast.functions import functions_of

    if app is None:
        hf = Holdfast(url)
    else:
        hf = load_app(app)
        if url:
            hf.use_database(url)
    if functions:
        sys.path.insert(0, os.getcwd())
        for spec in functions:
            hf.add_functions(functions_of(spec))
    return hf


def offer_built_in(hf: Holdfast) -> None:
    """Let its workers run the built-in pipelines. A fleet elsewhere offers what its own program names."""
    from holdfast.addresses import is_server
    from holdfast.pipelines.registry import all_functions, check_settings

    check_settings(of_worker=True)
    hf.add_functions(all_functions(has_database=not is_server(hf.url)))


def _without_processes(arguments: list[str]) -> list[str]:
    """The same command for a single process. The last of repeated options counts."""
    return [*arguments, "--processes", "1"]


def load_app(name: str) -> Holdfast:
    """The Holdfast object that `module:name` names; modules of the current folder come first."""
    from holdfast import Holdfast

    module_name, _, attribute = name.partition(":")
    if module_name.startswith(".") or module_name.endswith(".py") or "/" in module_name:
        raise InvalidInput(
            f"--app {name} names a file; it takes the module's name.",
            guidance=_as_module(module_name, attribute or "hf"),
        )
    if not module_name or not attribute:
        raise InvalidInput(
            f"--app {name} does not name a Holdfast object.",
            guidance="Write the module and the variable, for example --app shop.jobs:hf.",
        )
    sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InvalidInput(
                f"There is no module {error.name}.",
                guidance="Start the worker in the folder that holds it, or install it.",
            ) from error
        raise _broken(module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(module_name, error) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Holdfast):
        known = [key for key, value in vars(sys.modules[module_name]).items() if isinstance(value, Holdfast)]
        raise InvalidInput(
            f"{attribute} in {module_name} is not a Holdfast object.",
            guidance=f"There is: {', '.join(known)}." if known else f"{module_name} has none.",
        )
    return found


def _as_module(file: str, attribute: str) -> str:
    """How a file would be named: from here where it is below this folder, else from its own."""
    path = Path(os.path.normpath(file.removesuffix(".py")))
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    if path.is_absolute() or ".." in path.parts:
        return f"Start the worker in {path.parent} and write --app {path.name}:{attribute}."
    module = ".".join(path.parts).lstrip(".")
    return f"Write --app {module or 'shop.jobs'}:{attribute}."


def _broken(module_name: str, error: BaseException) -> InvalidInput:
    """The program's own mistake, with its place; what Holdfast has refused there keeps its words."""
    from holdfast.cli.code_places import place_of
    from holdfast.cli.output import sentence

    told, advice = f"{type(error).__name__}: {error}", ""
    if isinstance(error, HoldfastError):
        told, advice = str(error), sentence(error.guidance or "")
    elif isinstance(error, SyntaxError):
        told = f"{type(error).__name__}: {error.msg}"
    place = place_of(error)
    return InvalidInput(
        f"{module_name} cannot be imported: {told}",
        guidance=f"{advice} See {place}.".strip() if place else advice,
    )
