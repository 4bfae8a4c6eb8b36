"""A worker process to be killed: three stages that leave a line in a file whenever they run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from holdfast import Context, Holdfast, Retry

LEASE_SECONDS = 4.5


def app(url: str, folder: Path) -> Holdfast:
    hf = Holdfast(url)

    def ran(ctx: Context) -> None:
        with (folder / "ran.txt").open("a") as lines:
            lines.write(f"{ctx.step} {ctx.round}.{ctx.attempt}\n")

    @hf.step(retry=3)
    def parse(ctx: Context) -> str:
        ran(ctx)
        return "parsed"

    @hf.step(retry=Retry(delays=[0.1, 0.1]))
    def embed(ctx: Context) -> str:
        ran(ctx)
        deadline = time.monotonic() + 300
        while not (folder / "embed may end").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return ctx.outputs["parse"] + ", embedded"

    @hf.step(retry=3)
    async def analyze(ctx: Context) -> str:
        ran(ctx)
        return ctx.outputs["embed"] + ", analyzed"

    hf.pipeline("documents", [parse, embed, analyze])
    return hf


if __name__ == "__main__":
    app(sys.argv[1], Path(sys.argv[2])).run_worker(lease_seconds=LEASE_SECONDS)
