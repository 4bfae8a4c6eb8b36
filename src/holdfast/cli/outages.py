"""Commands that watch go on when the database or the server was away for a while."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from holdfast.cli.output import sentence, shown
from holdfast.core.errors import ServerUnavailable, StoreUnavailable

T = TypeVar("T")

FIRST_WAIT_SECONDS = 1.0
WAIT_SECONDS_MAX = 15.0


async def through_outages(look: Callable[[], Awaitable[T]], *, until: float | None = None) -> T:
    """What it gives, however long the database or the server is away, or at the latest at this time of the
    monotonic clock; whoever watches is told of the outage once."""
    wait, away = FIRST_WAIT_SECONDS, ""
    while True:
        try:
            found = await look()
        except StoreUnavailable as error:
            left = math.inf if until is None else until - time.monotonic()
            if left <= 0:
                raise
            if not away:
                click.echo(f"{shown(sentence(str(error)))} The watching goes on when it is back.", err=True)
            away = "server" if isinstance(error, ServerUnavailable) else "database"
            await asyncio.sleep(min(wait, left))
            wait = min(2 * wait, WAIT_SECONDS_MAX)
        else:
            if away:
                click.echo(f"The {away} is back.", err=True)
            return found
