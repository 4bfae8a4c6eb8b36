"""`holdfast serve`: the HTTP API, and a worker beside it, as one service.

    database ──▶ engine ──▶ API (people, clients, workers elsewhere)
                      └──▶ a worker of this process, and a sweeper

The worker's engine and the API's share the store, so what is submitted to one is begun by the other at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.options import (
    EXIT_FAILED,
    URL_DEFAULT,
    URL_VARIABLE,
    json_option,
    missing_file,
    store_of,
)
from holdfast.cli.telling import begin_log, telling_options, trace_attempts
from holdfast.cli.worker import offer_built_in, program, program_options
from holdfast.core.errors import InvalidInput
from holdfast.logs import settings_in_use
from holdfast.wire import PORT_DEFAULT, TOKEN_VARIABLE

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.server.service import Service
    from holdfast.worker.loop import Worker

log = logging.getLogger("holdfast.server")


@click.command(short_help="Run the HTTP API, and a worker beside it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT_DEFAULT,
    show_default=True,
    help="0 for any that is free.",
)
@click.option(
    "--db",
    "url",
    metavar="URL",
    help="Use this database instead of the one that the program names."
    f" Where it names none: env {URL_VARIABLE}, else {URL_DEFAULT}.",
)
@click.option(
    "--require-token",
    is_flag=True,
    help="Ask for a token on 127.0.0.1 too: behind a proxy, or where users of this machine do not trust"
    " each other.",
)
@click.option("--no-worker", is_flag=True, help="Only the API: workers run elsewhere.")
@program_options
@click.option("--retention", metavar="DURATION", help='Prune executions that ended so long ago: "30d".')
@telling_options("warning")
@json_option
def serve(
    host: str,
    port: int,
    url: str | None,
    require_token: bool,
    no_worker: bool,
    app: str | None,
    functions: tuple[str, ...],
    allow_code: bool,
    allow_shell: bool,
    concurrency: int,
    lease: str,
    grace: str,
    retention: str | None,
    log_level: str,
    log_format: str,
    otel: bool,
    as_json: bool,
) -> None:
    """Serve the HTTP API of a database, described at /docs, and run a worker beside it, until SIGTERM or
    Ctrl-C.

    \b
    holdfast serve
    holdfast serve --db postgresql://db/shop --no-worker
    holdfast token create ann --role admin && holdfast serve --host 0.0.0.0

    On 127.0.0.1 everybody on this machine may use it. On any other address every request must carry a token
    of the database, made by `holdfast token create`; HOLDFAST_TOKEN of the server's environment is an
    admin's. Several servers may serve one PostgreSQL; each looks after leases that run out.

    The first signal answers all who wait, lets running handlers finish within the grace period and gives back
    the rest. A second one ends it at once.
    """
    from holdfast.addresses import is_server
    from holdfast.core.retry import checked_seconds, parse_duration
    from holdfast.server.access import is_loopback, nobody_could_come

    begin_log(log_level, log_format)
    token = os.environ.get(TOKEN_VARIABLE) or None
    if no_worker and (app or functions or allow_code or allow_shell):
        raise click.UsageError(
            "--app, --functions, --allow-code and --allow-shell are for the worker: leave out --no-worker."
        )
    hf = program(app, url, functions)
    offer_built_in(hf)
    if is_server(hf.url):
        raise InvalidInput(
            "A server needs a database, and this is the address of another server.",
            guidance=f"Name the database with --db or {URL_VARIABLE}.",
        )
    if not token and (require_token or not is_loopback(host)) and missing_file(store_of(hf.url)):
        raise nobody_could_come(host)  # and no database is made for it
    if otel and not no_worker:
        trace_attempts(hf)
    if retention is not None:
        hf.keep_for(retention)
    lease_seconds = checked_seconds(lease, "lease")
    options: dict[str, Any] = {
        "concurrency": concurrency,
        "lease_seconds": lease_seconds,
        "grace_seconds": parse_duration(grace, field="grace"),
        "allow_code": allow_code,
        "allow_shell": allow_shell,
    }
    place = Place(host, port, token, require_token)
    sys.exit(asyncio.run(_serve(hf, place, lease_seconds, None if no_worker else options, as_json)))


class Place(NamedTuple):
    """Where it listens, and what it wants to be shown there."""

    host: str
    port: int
    token: str | None
    require_token: bool


async def _serve(
    hf: Holdfast, place: Place, lease_seconds: float, options: dict[str, Any] | None, as_json: bool
) -> int:
    from holdfast.engine import Engine
    from holdfast.server.service import Service
    from holdfast.worker.signals import stopped_by_signals

    async with hf:
        own = await hf.own_engine()
        # One that has registered nothing: what is submitted by others gets the version registered last.
        api = Engine(own.store, payload_bytes_max=own.payload_bytes_max)
        stopping = asyncio.Event()
        grace = 0.0 if options is None else options["grace_seconds"]
        with stopped_by_signals(grace, lambda why: _stop(why, stopping)):
            async with Service(api, **place._asdict()) as service:
                _tell(service, hf, with_worker=options is not None, as_json=as_json)
                if options is None:
                    async with hf.sweeping(lease_seconds):
                        return await _until_stopped(service, None, stopping)
                async with hf.working(**options) as worker:
                    code = await _until_stopped(service, worker, stopping)
                _leave_threads(worker, code)
                return code


def _stop(why: str, stopping: asyncio.Event) -> None:
    told = f"{why}: stopping. Another signal ends it at once."
    settings = settings_in_use()
    if settings is not None and settings.form == "json":
        log.warning("%s", told)
    else:
        click.echo(told, err=True)
    stopping.set()


async def _until_stopped(service: Service, worker: Worker | None, stopping: asyncio.Event) -> int:
    """Serve until asked to stop, or until one of the parts ends by itself, which is an error."""
    parts = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(service.ended())]
    if worker is not None:
        parts.append(asyncio.ensure_future(worker.ended.wait()))
    try:
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.is_set():
            log.error("A part of the server has ended by itself; the rest is stopped.")
            return EXIT_FAILED
        service.begin_stop()
        return 0
    finally:
        for part in parts:
            part.cancel()


def _leave_threads(worker: Worker, code: int) -> None:
    if worker.leaves_threads:
        # Threads cannot be killed, and an ordinary exit would wait for them.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _tell(service: Service, hf: Holdfast, *, with_worker: bool, as_json: bool) -> None:
    from holdfast.cli.output import say, show_json
    from holdfast.core.masking import mask_secrets

    if as_json:
        show_json(
            {
                "url": service.url,
                "database": mask_secrets(hf.url),
                "worker": with_worker,
                "tokens": service.asks_for_tokens,
                "pid": os.getpid(),
            }
        )
    else:
        worker = "with a worker" if with_worker else "without a worker"
        say(f"Holdfast serves {mask_secrets(hf.url)} at {service.url} , {worker}.")
        who = "It asks for tokens" if service.asks_for_tokens else "Whoever is on this machine may use it"
        say(f"  {who}. The API is described at {service.url}/docs ; Ctrl-C stops it.")
    sys.stdout.flush()
