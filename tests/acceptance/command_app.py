"""What the worker command is given in tests: `holdfast worker --app command_app:hf`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast import Context, Holdfast, Retry
from running import eventually

hf = Holdfast()  # the database is named on the command line


@hf.step(retry=Retry(max_attempts=20, delays=[0.05]))
def tell_process(ctx: Context) -> int:
    return os.getpid()


def note_start(path: str) -> None:
    with Path(path).open("a") as lines:
        lines.write(f"{os.getpid()}\n")


@hf.step(retry=Retry(max_attempts=20, delays=[0.05]))
async def wait_for_file(ctx: Context) -> str:
    note_start(ctx.workload["started"])
    await eventually(Path(ctx.workload["until"]).exists, 600)
    return "done"


@hf.step(retry=Retry(max_attempts=20, delays=[0.05]))
async def block_the_loop(ctx: Context) -> None:
    note_start(ctx.workload["started"])
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.05)  # noqa: ASYNC251 - on purpose


@hf.step(timeout=3)  # its thread has begun by then, on a busy machine too
def outlast_the_timeout(ctx: Context) -> None:
    note_start(ctx.workload["started"])
    time.sleep(600)


@hf.step(retry=Retry(max_attempts=2, delays=[0.05]))
def exit_with_two(ctx: Context) -> None:
    os._exit(2)


hf.pipeline("outlast", [outlast_the_timeout])
hf.pipeline("exit", [exit_with_two])
hf.pipeline("block", [block_the_loop])
hf.pipeline("tell", [tell_process])
hf.pipeline("wait", [wait_for_file])
