"""A server process of the benchmark: the API on a free port, and nothing in it but that.

    python -m holdfast.bench.http_server URL

It says its address on a line and serves until its standard input ends: with the word of over_http.py, or
because whoever started it has died.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from holdfast.app import Holdfast
from holdfast.engine import Engine
from holdfast.server.service import Service


async def serve(url: str) -> None:
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    async with Holdfast(url) as hf, hf.sweeping():
        engine = Engine((await hf.own_engine()).store)
        async with Service(engine, port=0) as service:
            print(service.url, flush=True)
            await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
