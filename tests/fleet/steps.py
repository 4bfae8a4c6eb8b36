"""The program that the Celery workers of these tests run; each of its attempts leaves a line in a file."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import NamedTuple

from holdfast import Context, Holdfast
from holdfast.app import URL_VARIABLE

FOLDER_VARIABLE = "FLEET_FOLDER"
LOOK_SECONDS = 0.01
HANDLER_SECONDS_MAX = 120.0


def isolated(ctx: Context) -> int:
    return os.getpid()


class Line(NamedTuple):
    word: str
    step: str
    number: str
    attempt: str
    pid: str
    at: str


def lines(folder: Path) -> list[Line]:
    """What the attempts have told, in its order."""
    path = folder / "lines"
    return [Line(*line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def program(url: str | None, folder: Path) -> Holdfast:
    hf = Holdfast(url)

    def tell(ctx: Context, word: str) -> None:
        told = f"{word} {ctx.step} {ctx.workload['number']} {ctx.attempt} {os.getpid()} {time.time():.6f}\n"
        file = os.open(folder / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, told.encode())
        os.close(file)

    def may_end(ctx: Context) -> bool:
        return (folder / f"may-end-{ctx.workload['number']}").exists()

    @hf.step
    async def parse(ctx: Context) -> int:
        tell(ctx, "ran")
        return int(ctx.workload["number"])

    @hf.step
    def embed(ctx: Context) -> int:
        tell(ctx, "ran")
        return int(ctx.outputs["parse"]) + 1

    @hf.step
    async def deliver(ctx: Context) -> int:
        tell(ctx, "ran")
        return int(ctx.outputs["embed"]) + 1

    @hf.step(retry={"max_attempts": 3, "initial_delay": 0.01})
    async def hold(ctx: Context) -> None:
        """Until it may end."""
        tell(ctx, "began")
        deadline = time.monotonic() + HANDLER_SECONDS_MAX
        while not may_end(ctx) and time.monotonic() < deadline:  # noqa: ASYNC110 - a file says so
            await asyncio.sleep(LOOK_SECONDS)
        tell(ctx, "ended")

    @hf.step(timeout=4, retry=False)
    def overrun(ctx: Context) -> None:
        """Beyond its timeout, in a thread that nobody can end."""
        tell(ctx, "began")
        deadline = time.monotonic() + HANDLER_SECONDS_MAX
        while not may_end(ctx) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        tell(ctx, "ended")

    @hf.step(limit="door")
    async def enter(ctx: Context) -> None:
        tell(ctx, "began")
        await asyncio.sleep(0.05)
        tell(ctx, "ended")

    hf.pipeline("chain", [parse, embed, deliver])
    hf.pipeline("hold", [hold])
    hf.pipeline("overrun", [overrun])
    hf.pipeline("door", [enter])
    hf.pipeline("isolated", [hf.step(isolation="process")(isolated)])
    return hf


if FOLDER_VARIABLE in os.environ:
    hf = program(os.environ.get(URL_VARIABLE), Path(os.environ[FOLDER_VARIABLE]))
