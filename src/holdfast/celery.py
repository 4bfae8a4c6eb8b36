"""Holdfast on a Celery fleet, the Celery workers' side: the task that takes attempts over and runs them.

    from celery import Celery
    from holdfast.celery import install
    from shop.jobs import hf

    app = Celery("shop", broker="redis://broker/0")
    install(app, hf)

Or, without an app of your own, `celery -A holdfast.celery:app worker`: it is made of the environment's
HOLDFAST_APP, HOLDFAST_BROKER and the others that `_ready_app` reads.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_shutdown, worker_shutdown

from holdfast.app import Holdfast
from holdfast.cli.options import SERVER_VARIABLE
from holdfast.cli.telling import OTEL_VARIABLE, check_tracing, trace_attempts
from holdfast.cli.worker import BROKER_VARIABLE, program
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.model import Lane
from holdfast.core.retry import checked_seconds
from holdfast.fleet.message import QUEUE_PREFIX_DEFAULT, TASK_NAME, check_prefix, lease_in, queue_of
from holdfast.fleet.runner import RunnerOfProcess
from holdfast.worker.loop import LEASE_SECONDS_DEFAULT

log = logging.getLogger("holdfast.fleet")

APP_VARIABLE = "HOLDFAST_APP"
FUNCTIONS_VARIABLE = "HOLDFAST_FUNCTIONS"
QUEUE_VARIABLE = "HOLDFAST_QUEUE"
LEASE_VARIABLE = "HOLDFAST_LEASE"
ALLOW_VARIABLE = "HOLDFAST_ALLOW"


class _Program:
    """A program as runners know it: each process has its own connections, and sends its own spans."""

    def __init__(self, hf: Holdfast, *, is_traced: bool, **options: Any) -> None:
        self._hf = hf.apart()
        self._options = options
        self.keep_counts = self._hf.keep_counts
        if is_traced:
            trace_attempts(self._hf)

    async def fed_worker(self, worker_id: str) -> Any:
        return await self._hf.fed_worker(worker_id, **self._options)

    async def close(self) -> None:
        await self._hf.close()
        await self._hf.send_last_spans()


def install(
    app: Celery,
    hf: Holdfast,
    *,
    lease: float | str = LEASE_SECONDS_DEFAULT,
    allow_code: bool = False,
    allow_shell: bool = False,
) -> Any:
    """Give a Celery app the task by which a dispatcher hands it attempts. `lease` is for how long an attempt
    is held without a heartbeat of the process that runs it. With HOLDFAST_OTEL=1 each attempt is a span."""
    if not isinstance(hf, Holdfast):
        raise InvalidInput(f"install() takes a Celery app and a Holdfast object, not {hf!r}.")
    options: dict[str, Any] = {
        "lease_seconds": checked_seconds(lease, "lease"),
        "allow_code": allow_code,
        "allow_shell": allow_shell,
        "is_traced": _is_traced(os.environ.get(OTEL_VARIABLE, "")),
    }
    runner = RunnerOfProcess(lambda: _Program(hf, **options))

    def stop_runner(**_: object) -> None:
        runner.stop()

    # The one tells of a process that was forked, the other where Celery's own process runs the tasks.
    worker_process_shutdown.connect(stop_runner, weak=False)
    worker_shutdown.connect(stop_runner, weak=False)

    @app.task(  # type: ignore[untyped-decorator, unused-ignore]
        name=TASK_NAME,
        shared=False,
        acks_late=True,
        acks_on_failure_or_timeout=True,
        reject_on_worker_lost=False,
        ignore_result=True,
        serializer="json",
        typing=False,
    )
    def attempt(*_: object, **words: Any) -> None:
        try:
            lease = lease_in(words)
        except HoldfastError as error:
            log.error("A message was dropped. %s %s", error, error.guidance)
            return
        runner().run(lease)

    return attempt


@functools.cache
def _ready_app() -> Celery:
    environment = os.environ
    broker = environment.get(BROKER_VARIABLE)
    if not broker:
        raise InvalidInput(
            f"{BROKER_VARIABLE} does not name a broker.",
            guidance=f"For example {BROKER_VARIABLE}=redis://host/0.",
        )
    prefix = check_prefix(environment.get(QUEUE_VARIABLE) or QUEUE_PREFIX_DEFAULT)
    functions = tuple(filter(None, environment.get(FUNCTIONS_VARIABLE, "").split(",")))
    hf = program(environment.get(APP_VARIABLE) or None, environment.get(SERVER_VARIABLE) or None, functions)
    app = Celery("holdfast", broker=broker)
    app.conf.update(settings(prefix))
    allowed = _allowed(environment.get(ALLOW_VARIABLE, ""))
    lease = environment.get(LEASE_VARIABLE) or LEASE_SECONDS_DEFAULT
    install(app, hf, lease=lease, allow_code="code" in allowed, allow_shell="shell" in allowed)
    return app


def settings(prefix: str = QUEUE_PREFIX_DEFAULT) -> dict[str, Any]:
    """For a Celery worker that does nothing else: manual work first, nothing fetched ahead, and no patience
    that runs out while the broker is away."""
    return {
        "task_queues": {queue_of(prefix, lane): {} for lane in (Lane.MANUAL, Lane.BULK)},
        "task_default_queue": queue_of(prefix, Lane.BULK),
        "worker_prefetch_multiplier": 1,
        "task_acks_late": True,
        "task_ignore_result": True,
        "accept_content": ["json"],
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_transport_options": {"queue_order_strategy": "priority"},
    }


def _is_traced(word: str) -> bool:
    """Told at the start, not by each task, where the libraries for it are missing."""
    if word.strip().lower() in ("", "0", "false", "no", "off", "n", "f"):
        return False
    check_tracing()
    return True


def _allowed(words: str) -> set[str]:
    allowed = {word.strip() for word in words.split(",") if word.strip()}
    if unknown := allowed - {"code", "shell"}:
        raise InvalidInput(
            f"{ALLOW_VARIABLE} cannot allow {', '.join(sorted(unknown))}.",
            guidance="Allowed are: code, shell.",
        )
    return allowed


def __getattr__(name: str) -> Any:
    """`app` is made when it is asked for: whoever only installs needs no environment for it."""
    if name == "app":
        return _ready_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
