"""What it costs to watch: the time of /metrics and /api/metrics with a great many executions in the database.

    finished   all of them have ended, and are kept: what is open is counted, and that is nothing
    queued     all of them wait: counting them takes long, so that the last count is told and renewed beside

The server is a process of its own; the first answer, which nothing was counted for before, is told apart.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.bench import copies
from holdfast.bench.over_http import served
from holdfast.bench.places import Place
from holdfast.bench.scenarios import Scenario

SCRAPES = 50
# Between two of them; a count that takes long is renewed meanwhile.
PAUSE_SECONDS = 0.1
ANSWER_SECONDS_MAX = 120.0


class Answers(NamedTuple):
    """Seconds of the first answer, and of those that followed."""

    first: float
    following: list[float]


class Scraped(NamedTuple):
    finished: Answers
    finished_api: Answers
    queued: Answers


async def scraped(place: Place, scenario: Scenario, rows: int, progress: Callable[[str], None]) -> Scraped:
    async with place.database() as finished, place.database() as queued:
        progress(f"{scenario.name} on {place.store}: {rows:,} finished, {rows:,} queued")
        await copies.fill_finished(place, finished, scenario, rows)
        await copies.fill_queued(place, queued, scenario, rows)
        for url in (finished, queued):
            await place.maintain(url)
            await place.settle(url)
        progress(f"{scenario.name} on {place.store}: {SCRAPES} answers of each")
        of_finished = await _answers(finished, "/metrics", "/api/metrics")
        of_queued = await _answers(queued, "/metrics")
        return Scraped(*of_finished, *of_queued)


async def _answers(url: str, *paths: str) -> list[Answers]:
    async with served(url) as server:
        return [await asyncio.to_thread(_ask, server.url, path) for path in paths]


def _ask(server: str, path: str) -> Answers:
    address = urlsplit(server)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=ANSWER_SECONDS_MAX)
    taken = []
    try:
        for _ in range(SCRAPES + 1):
            began = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            taken.append(time.perf_counter() - began)
            if answer.status != 200:
                raise RuntimeError(f"{path} answered {answer.status}: {body[:200]!r}")
            time.sleep(PAUSE_SECONDS)
    finally:
        connection.close()
    return Answers(taken[0], taken[1:])
