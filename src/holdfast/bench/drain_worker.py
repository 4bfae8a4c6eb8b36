"""A worker process of the benchmark: with the default settings, and nothing in it but the worker.

    python -m holdfast.bench.drain_worker URL SCENARIO FILE PLACE

It connects, says `ready`, waits for a line on its standard input, and works until that ends: with the word
of fleet.py, or because whoever started it has died. What it holds then it gives back. How often its handlers
were called stands at its place in a file of numbers, which costs no more than a write to memory.
"""

from __future__ import annotations

import asyncio
import mmap
import sys
from pathlib import Path
from typing import Final

from holdfast.bench.scenarios import SCENARIOS, Scenario, application
from holdfast.worker.context import Context

READY = b"ready\n"
GO = b"go\n"
NUMBER: Final = "Q"
NUMBER_BYTES = 8


def main() -> None:
    url, scenario, file, place = sys.argv[1:]
    with (
        Path(file).open("r+b") as opened,
        mmap.mmap(opened.fileno(), 0) as mapped,
        memoryview(mapped) as raw,
        raw.cast(NUMBER) as numbers,
    ):
        asyncio.run(work(url, SCENARIOS[scenario], numbers, int(place)))


async def work(url: str, scenario: Scenario, numbers: memoryview[int], place: int) -> None:
    calls = 0

    def count(_: Context) -> None:
        nonlocal calls
        calls += 1
        numbers[place] = calls

    async with application(url, scenario, count) as app:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        if await asyncio.to_thread(sys.stdin.buffer.readline) != GO:
            return
        async with app.working():
            await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    main()
