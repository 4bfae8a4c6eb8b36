"""Steps for processes of their own: what a child is asked to import and run."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Context, ErrorRule, Holdfast, PermanentError, Retry
from holdfast.step_function import StepFunction

definer = Holdfast("sqlite:///never-opened.db")
AGAIN = Retry(max_attempts=5, delays=[0.01])

_ready_on_the_loop: asyncio.Event | None = None


def isolated(**options: Any) -> Any:
    return definer.step(isolation="process", **options)


@isolated()
def doubled(ctx: Context) -> dict[str, Any]:
    return {"twice": ctx.workload["number"] * 2, "pid": os.getpid(), "step": ctx.step, **dict(ctx.outputs)}


@isolated()
async def doubled_later(ctx: Context) -> dict[str, Any]:
    """Keeps something on the event loop from one call to the next."""
    global _ready_on_the_loop
    if _ready_on_the_loop is None:
        _ready_on_the_loop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, _ready_on_the_loop.set)
    await _ready_on_the_loop.wait()
    return {"twice": ctx.workload["number"] * 2, "pid": os.getpid()}


@isolated(retry=AGAIN)
def told_then_ended(ctx: Context) -> str:
    """Tells its progress and its process, then waits for a file."""
    ctx.progress(0.25)
    ctx.progress(0.75)
    Path(ctx.workload["pid"]).write_text(str(os.getpid()))
    while not Path(ctx.workload["go on"]).exists():
        time.sleep(0.01)
    return "ended"


@isolated(retry=AGAIN)
def refuses(ctx: Context) -> None:
    raise PermanentError(f"no page {ctx.workload}", error_type="no_page", guidance="Ask for another.")


@isolated()
async def divides(ctx: Context) -> float:
    return 1 / int(ctx.workload)


def in_the_worker(ctx: Context) -> float:
    return 1 / int(ctx.workload)


@isolated()
def unstorable(ctx: Context) -> Any:
    return {1, 2, 3} if ctx.workload == "set" else "x" * 2_000_000


@isolated(retry=AGAIN, max_crashes=2)
def segfaults(ctx: Context) -> None:
    ctypes.string_at(0)


@isolated()
def killed_by_another(ctx: Context) -> None:
    os.kill(os.getpid(), 9)


@isolated()
def exits_hard(ctx: Context) -> None:
    os._exit(3)


@isolated()
def exits(ctx: Context) -> None:
    sys.exit("nothing to do")


@isolated(memory="160MB")
def eats(ctx: Context) -> int:
    """Whole blocks, small objects, or a mapping."""
    if ctx.workload == "mapping":
        import mmap

        mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held: list[object] = []
    while True:
        held.append(bytearray(2**20) if ctx.workload == "blocks" else [len(held)])


@isolated(memory="160MB")
def keeps(ctx: Context) -> int:
    """Holds on to what it was given, beyond its end."""
    kept.append(bytearray(ctx.workload))
    return os.getpid()


kept: list[bytearray] = []


@isolated(timeout=0.5)
def sleeps(ctx: Context) -> None:
    time.sleep(3600)


@isolated(timeout=0.5)
def sleeps_in_another_group(ctx: Context) -> None:
    os.setpgid(0, os.getpgid(os.getppid()))
    time.sleep(3600)


@isolated(timeout=0.5)
def holds_the_interpreter(ctx: Context) -> None:
    """In C, with the interpreter's lock: nothing else in that process runs any more."""
    re.match(r"(a*)*b", "a" * 60)


@isolated(timeout=0.5)
def starts_a_program(ctx: Context) -> None:
    with Path(ctx.workload).open("w") as told:
        program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        told.write(str(program.pid))
    program.wait()


@isolated()
def closes_everything(ctx: Context) -> None:
    os.closerange(3, 256)
    time.sleep(3600)


def undo(ctx: Context) -> None:
    with Path(ctx.workload["undone"]).open("a") as lines:
        lines.write(f"{os.getpid()}\n")


@isolated(clear=undo)
def fails_in_its_first_round(ctx: Context) -> int:
    if ctx.round == 1:
        raise PermanentError("not yet")
    return os.getpid()


@isolated()
def asks_for_a_transaction(ctx: Context) -> None:
    ctx.transaction()


OURS = ErrorRule("ours", exception="ProcessCrashed", category="permanent")


@isolated(errors=[OURS], memory="1GB", retry=AGAIN)
def segfaults_as_known(ctx: Context) -> None:
    ctypes.string_at(0)


def hidden(step: StepFunction) -> StepFunction:
    """A step whose module the child cannot import."""
    function = step.function
    function.__module__ = "no_such_module_anywhere"
    return step


@hidden
@isolated(retry=AGAIN)
def in_a_missing_module(ctx: Context) -> None:
    return None


@isolated(retry=AGAIN)
def crashes_once(ctx: Context) -> int:
    marker = Path(ctx.workload)
    if not marker.exists():
        marker.touch()
        ctypes.string_at(0)
    return ctx.attempt


@isolated()
def forks(ctx: Context) -> str:
    """The child comes back as well, with a result of its own or an error."""
    child = os.fork()
    if child == 0:
        if ctx.workload == "raises":
            raise RuntimeError("in the child")
        return "from the child"
    os.waitpid(child, 0)
    return f"from {ctx.workload}"
