"""The work of `holdfast run`: a worker in this process for one playbook, its execution watched to the end.

The worker offers only what the playbook needs, and takes nothing but this execution's jobs and those of the
children that it starts. Leave for inline code and shell a run has for its own file; for what others may have
put into a database, as children are, it must be given by name on PostgreSQL and through a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from holdfast.addresses import is_server
from holdfast.cli.going_on import advised, forced_resume, resume_command, typed
from holdfast.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, login_name, opened
from holdfast.cli.output import hint, show_json, stdout_for_json
from holdfast.cli.run_end import as_record, show_end, show_kept, told_cut_off
from holdfast.cli.run_leases import Leases
from holdfast.cli.run_screen import screen_for
from holdfast.cli.run_story import Line, Stand, StepStory, Story
from holdfast.core.errors import InvalidInput, RetryRefused, UnknownPipeline
from holdfast.core.model import Lane
from holdfast.engine import Engine, Submission
from holdfast.engine.flow import ENTRY_HANDLER
from holdfast.engine.manual_retry import RetryRequest
from holdfast.engine.sweeper import Sweeper
from holdfast.steps.registry import CODE, EACH, FUNCTION_PREFIX, MODULES, SHELL
from holdfast.tasks import end_tasks
from holdfast.worker.connection import Connection, DirectConnection
from holdfast.worker.loop import LEASE_SECONDS_DEFAULT, Worker
from holdfast.worker.typed import Leave, typed_handlers

if TYPE_CHECKING:
    from holdfast.cli.run_screen import Screen
    from holdfast.client import AnyEngine
    from holdfast.engine import ExecutionView
    from holdfast.playbook.definition import Definition
    from holdfast.worker.attempt import Handler

CONCURRENCY = 16
GRACE_SECONDS = 5.0
REFRESH_SECONDS = 0.1
PAUSE_SECONDS = 0.02
# Through a server each look is a request, and others have theirs.
REFRESH_SECONDS_AFAR = 0.5
PAUSE_SECONDS_AFAR = 0.1
HINDRANCE_SECONDS = 2.0
SHOW_CURSOR = b"\x1b[?25h"
EVENTS_PER_PAGE = 1_000


class Needs(NamedTuple):
    """What a worker must offer for a playbook and its children. `foreign` has the pipelines among them, whose
    steps only a program has."""

    handlers: frozenset[str]
    foreign: frozenset[str]

    @property
    def functions(self) -> list[str]:
        return sorted(
            key.removeprefix(FUNCTION_PREFIX) for key in self.handlers if key.startswith(FUNCTION_PREFIX)
        )


class Run:
    def __init__(
        self, url: str, file: str | None, folder: str, *, as_json: bool, allow_code: bool, allow_shell: bool
    ) -> None:
        self._url = url
        self._file = file
        self._folder = folder
        self._as_json = as_json
        self._allow_code = allow_code
        self._allow_shell = allow_shell
        self._leaves_threads = False
        self._document: TextIO | None = None
        self._now = self._began = 0.0

    def to_its_end(self, work: Coroutine[Any, Any, int]) -> int:
        """The exit code, once all is told."""
        with stdout_for_json() if self._as_json else contextlib.nullcontext() as self._document:
            code = asyncio.run(work)
            if self._leaves_threads:
                # A function was cut off whose thread goes on: an ordinary exit would wait for it.
                (self._document or sys.stdout).flush()
                os._exit(code)
        return code

    async def start(self, definition: Definition, source: str, workload: dict[str, Any]) -> int:
        async with opened(self._url, create=True) as engine:
            handlers = await self._handlers(engine, definition, definition)
            added = await engine.catalog.add(definition, source)
            # This version, whoever adds another; and a person waits for it, so it goes before bulk work.
            asked = Submission(
                path=definition.path, workload=workload, lane=Lane.MANUAL, version=added.entry.version
            )
            [submitted] = await engine.submit([asked])
            return await self._work(engine, Story(submitted.id, definition), handlers)

    async def resume(self, execution_id: int) -> int:
        async with opened(self._url) as engine:
            view = await engine.view(execution_id)
            definition = await engine.catalog.definition(view.execution.path, view.execution.version)
            story = Story(execution_id, definition)
            if view.status == "completed":
                await _follow(engine, story)
                return await self._tell_end(engine, story)
            if view.status == "cancelled":
                raise InvalidInput(
                    f"Execution {execution_id} was cancelled.",
                    guidance="Run its playbook again from the start.",
                )
            handlers = await self._handlers(engine, definition, self._definition_of_file())
            await _follow(engine, story)  # what was before is known, and not told again
            if view.status == "failed":
                try:
                    await engine.retry(execution_id, RetryRequest(by=login_name()))
                except RetryRefused as refusal:
                    resume = self._resume(story)
                    forced = forced_resume(execution_id, self._url, resume)
                    raise advised(refusal, view, resume, forced) from None
            return await self._work(engine, story, handlers)

    # what the worker needs

    async def _handlers(
        self, engine: AnyEngine, definition: Definition, own: Definition | None
    ) -> dict[str, Handler]:
        """`own` is what stands in the file itself."""
        from holdfast.functions import imported_functions

        needs = await needs_of(engine, definition)
        if definition.path in needs.foreign:
            raise InvalidInput(
                f"{definition.path} is a pipeline of a program, which alone has its steps.",
                guidance="Start that program's worker:  "
                + typed("holdfast worker --app your_module:hf", app=True),
            )
        self._check_leave(definition, needs, own)
        functions = imported_functions(needs.functions, self._folder)
        leave = Leave(code=CODE in needs.handlers, shell=SHELL in needs.handlers)
        offered = typed_handlers(leave, functions, payload_bytes_max=engine.payload_bytes_max)
        if needs.foreign and not self._as_json:
            named = ", ".join(sorted(needs.foreign))
            hint(f"The steps of {named} are a program's: they run where its worker does.")
        return {key: handler for key, handler in offered.items() if key in needs.handlers}

    def _definition_of_file(self) -> Definition | None:
        from holdfast.cli.playbook_files import STDIN, load

        if self._file in (None, STDIN):
            return None
        try:
            return load(str(self._file)).definition
        except InvalidInput:  # it was changed since; the execution has its own version
            return None

    @property
    def _where(self) -> str:
        return "this server" if is_server(self._url) else "this database"

    def _check_leave(self, definition: Definition, needs: Needs, own: Definition | None) -> None:
        if self._url.startswith("sqlite"):
            return
        if own == definition and not any(step.type == "playbook" for step in definition.steps):
            return
        named = frozenset() if own is None else _functions_of(own)
        if (stored := [name for name in needs.functions if name not in named]) and not self._allow_code:
            # `os:system` is a function, too.
            raise InvalidInput(
                f"{definition.path} calls {', '.join(stored)}, as {self._where} has it and no file of yours.",
                guidance="Whoever may write to it chooses what runs on this machine. Allow that with"
                " --allow-code, or run a file that names these functions.",
            )
        for key, what, flag, is_given in (
            (CODE, "inline code", "--allow-code", self._allow_code),
            (SHELL, "shell commands", "--allow-shell", self._allow_shell),
        ):
            if key in needs.handlers and not is_given:
                raise InvalidInput(
                    f"{definition.path} or a playbook that it starts has {what}, as {self._where} has it.",
                    guidance="Whoever may write to it chooses what runs on this machine."
                    f" Allow that with {flag}, or run it on a SQLite file of your own.",
                )

    # working and watching

    async def _work(self, engine: AnyEngine, story: Story, handlers: Mapping[str, Handler]) -> int:
        screen = screen_for(silent=self._as_json)
        with _told_by(screen), interruptible(told_cut_off(story.execution_id, self._resume(story))) as stop:
            try:
                async with working_for(engine, handlers, family=story.execution_id) as working:
                    await self._watch(engine, story, screen, stop, working)
                    if stop.is_set() and any(step.stand is Stand.RUNNING for step in story.steps.values()):
                        screen.say(f"Stopping: what runs may finish within {GRACE_SECONDS:.0f} s.")
                self._leaves_threads = working.worker.leaves_threads
                for line in await _follow(engine, story):
                    screen.line(line, self._began)
            finally:
                screen.close(story, self._now)  # told without asking: the database may be what has failed
        return await self._tell_end(engine, story)

    async def _watch(
        self, engine: AnyEngine, story: Story, screen: Screen, stop: asyncio.Event, working: Working
    ) -> None:
        leases = Leases(engine, working.worker.worker_id)
        pause, refresh = PAUSE_SECONDS, REFRESH_SECONDS
        if not isinstance(engine, Engine):
            pause, refresh = PAUSE_SECONDS_AFAR, REFRESH_SECONDS_AFAR
        # Of one that is resumed, what was before is history: its time is counted from here.
        is_resumed = story.last_event is not None
        still_since, hindrance = await engine.now(), ""
        self._began = still_since
        while True:
            ticket = engine.work_ticket()
            told = await _follow(engine, story)
            now = self._now = await engine.now()
            if not is_resumed and story.started_at is not None:
                self._began = story.started_at
            for line in (*told, *await leases.look(story, now)):
                screen.line(line, self._began)
            if told or _is_moving(story):
                still_since, hindrance = now, ""
            elif now - still_since >= HINDRANCE_SECONDS:
                still_since, hindrance = now, (await engine.view(story.execution_id)).summary
            screen.refresh(story, now, hindrance)
            if story.is_ended or stop.is_set():
                return
            if working.task.done():
                working.task.result()
            await asyncio.sleep(pause)
            await engine.wait_for_work(ticket, refresh)

    async def _tell_end(self, engine: AnyEngine, story: Story) -> int:
        view = await engine.view(story.execution_id)
        if self._as_json:
            show_json(as_record(view, story), self._document)
        elif view.status == "running":
            show_kept(view, self._url, self._resume(story))
        else:
            show_end(view, story, self._url, self._resume(story))
        return _exit_code(view)

    def _resume(self, story: Story) -> str:
        return resume_command(story.execution_id, self._url, self._file, self._folder)


def _functions_of(definition: Definition) -> frozenset[str]:
    return frozenset(
        step.handler.removeprefix(FUNCTION_PREFIX)
        for step in definition.steps
        if step.handler.startswith(FUNCTION_PREFIX)
    )


def _exit_code(view: ExecutionView) -> int:
    if view.status == "running":
        return EXIT_INTERRUPTED
    return 0 if view.status == "completed" else EXIT_FAILED


async def needs_of(engine: AnyEngine, definition: Definition) -> Needs:
    """Of a playbook and, as far as they are named and not computed, of those that it starts."""
    handlers: set[str] = set()
    foreign: set[str] = set()
    seen: set[tuple[str, int | None]] = set()
    open_ = [definition]
    while open_:
        current = open_.pop()
        for step in current.steps:
            if step.is_control:
                handlers.add(ENTRY_HANDLER)  # it is a job where it is the entry and decides
                continue
            known = step.handler in MODULES or step.handler.startswith(FUNCTION_PREFIX)
            (handlers if known else foreign).add(step.handler if known else current.path)
            if step.for_each is not None:
                handlers.add(EACH)
            child = _child_of(step.type, step.config)
            if child is not None and child not in seen:
                seen.add(child)
                open_.append(await _child(engine, current.path, step.name, child))
    return Needs(frozenset(handlers), frozenset(foreign))


async def _child(engine: AnyEngine, path: str, step: str, child: tuple[str, int | None]) -> Definition:
    try:
        return await engine.catalog.definition(*child)
    except UnknownPipeline as error:
        raise InvalidInput(
            f"Step {step} of {path} starts {child[0]}, which is not in the catalog.",
            guidance=f"Add its file to the same database first:  {typed('holdfast catalog add FILE')}",
        ) from error


def _child_of(type_: str, config: Mapping[str, Any]) -> tuple[str, int | None] | None:
    path, version = config.get("path"), config.get("version")
    if type_ != "playbook" or not isinstance(path, str) or "{{" in path:
        return None
    return path, version if isinstance(version, int) else None


async def _follow(engine: AnyEngine, story: Story) -> list[Line]:
    """Read on in the history, and in those of the executions that it has started; the lines of what happened
    since, of a child's steps with the names of both."""
    lines: list[Line] = []
    while True:
        page = await engine.events(story.execution_id, after=story.last_event, limit=EVENTS_PER_PAGE)
        for event in page:
            lines += story.tell(event)
        if len(page) < EVENTS_PER_PAGE:
            break
    for step in story.steps.values():
        await _find_children(engine, story, step)
        for child in (*step.former, *([step.child] if step.child is not None else [])):
            if not child.is_ended:
                told = await _follow(engine, child)
                lines += [line._replace(step=f"{step.name}/{line.step}") for line in told]
        step.former = [child for child in step.former if not child.is_ended]
    return lines


async def _find_children(engine: AnyEngine, story: Story, step: StepStory) -> None:
    """Those of the attempts that have one. One that is not there was not started yet, or is gone."""
    for attempt in tuple(step.unseen):
        child = await _child_story(engine, story, step, attempt)
        is_last = attempt == step.attempt
        if child is not None and is_last:
            step.child = child
        elif child is not None:
            step.former.append(child)
        if child is not None or not is_last or step.stand is not Stand.ASIDE:
            step.unseen.remove(attempt)


async def _child_story(engine: AnyEngine, story: Story, step: StepStory, attempt: int) -> Story | None:
    jobs = (await engine.view(story.execution_id)).jobs
    own = [job for job in jobs if (job.step, job.element, job.visit) == (step.name, -1, step.visit)]
    if not own:
        return None
    # Once nobody waits for it any more, it cannot be found where its path is computed.
    path = str(story.definition.step(step.name).config.get("path"))
    child = await engine.child_execution(own[-1].queue_id, attempt, path)  # the job of the last round
    if child is None:
        return None
    return Story(child.id, await engine.catalog.definition(child.path, child.version))


def _is_moving(story: Story) -> bool:
    moving = (Stand.RUNNING, Stand.RETRY, Stand.ASIDE)
    return any(step.stand in moving or step.until is not None for step in story.steps.values())


@contextlib.asynccontextmanager
async def working_for(
    engine: AnyEngine, handlers: Mapping[str, Handler], *, family: int | None, concurrency: int = CONCURRENCY
) -> AsyncIterator[Working]:
    """A worker beside us for as long as the block lasts, for this execution alone or for all that need its
    handlers; and a sweeper, unless a server sweeps."""
    connection: Connection = (
        DirectConnection(engine, family=family)
        if isinstance(engine, Engine)
        else engine.connection(family=family)
    )
    worker = Worker(
        connection,
        handlers,
        worker_id=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
        concurrency=concurrency,
        grace_seconds=GRACE_SECONDS,
        payload_bytes_max=engine.payload_bytes_max,
    )
    working, sweeping = asyncio.create_task(worker.run()), list[asyncio.Task[None]]()
    if isinstance(engine, Engine):
        sweeper = Sweeper(engine, lease_seconds=LEASE_SECONDS_DEFAULT, retention_seconds=None)
        sweeping.append(asyncio.create_task(sweeper.run()))
    try:
        yield Working(worker, working)
    finally:
        worker.stop()
        await asyncio.gather(end_tasks(*sweeping), asyncio.wait([working]))
        await connection.close()
    if not working.cancelled():
        working.result()


class Working(NamedTuple):
    worker: Worker
    task: asyncio.Task[None]


@contextlib.contextmanager
def interruptible(cut_off: str) -> Iterator[asyncio.Event]:
    """The first Ctrl-C or SIGTERM asks to stop. A second one ends the process at once, with these words.
    Plain handlers: a step that blocks the event loop must not keep it from that."""
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's
        return
    loop = asyncio.get_running_loop()
    is_asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            _end_now(cut_off)
        is_asked = True
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_now(words: str) -> None:
    """Nothing is flushed or locked here: any lock may be held by what was interrupted."""
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)
        os.write(2, f"\n{words}\n".encode())
    os._exit(EXIT_INTERRUPTED)


class _Teller(logging.Handler):
    """What steps print is shown with the run; what the worker logs of errors, the run tells itself."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "holdfast.steps":
            self._say(record.getMessage(), "dim")


@contextlib.contextmanager
def _told_by(screen: Screen) -> Iterator[None]:
    teller, ours = _Teller(screen.say), logging.getLogger("holdfast")
    steps = logging.getLogger("holdfast.steps")
    before = steps.level, ours.propagate
    ours.addHandler(teller)
    ours.propagate = False
    steps.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.removeHandler(teller)
        ours.propagate = before[1]
        steps.setLevel(before[0])
