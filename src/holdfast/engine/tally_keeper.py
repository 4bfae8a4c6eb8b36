"""Writes what an engine has counted to its store, every few seconds and at its end.

It observes: where the store is away or refuses, work goes on and the counts are written later; what was not
written when the process dies is lost, a few seconds of counts. Only what changed is written, and nothing
where nothing did, so an idle process costs nothing.

Where somebody has folded this engine's source meanwhile, because it was silent for long (a machine that
slept), it begins a new one with what came since: nothing is counted twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from holdfast.engine.tallies import OTHERS, Key, Tallies, labels_text
from holdfast.store.interface import Store
from holdfast.store.tallies import Tally

log = logging.getLogger("holdfast.engine")

WRITE_SECONDS = 5.0
FOLD_SECONDS = 300.0
SILENT_SECONDS = 3600.0
CLOSE_SECONDS_MAX = 2.0
NEVER = float("-inf")


class TallyKeeper:
    def __init__(self, store: Store, tallies: Tallies) -> None:
        self._store = store
        self._tallies = tallies
        self._source = secrets.token_hex(8)
        self._is_new = True
        self._written: dict[Key, int] = {}
        self._before: dict[Key, int] = {}
        """What was written under sources that this engine had before."""
        self._writing = asyncio.Lock()
        self._is_failing = False
        self._kept = 0
        self._written_at = time.monotonic()
        self._beside: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Write now and then until cancelled; and fold what others left, which any number may do."""
        folded_at = NEVER
        self._kept += 1
        try:
            while True:
                await asyncio.sleep(WRITE_SECONDS)
                await self.write()
                if time.monotonic() - folded_at >= FOLD_SECONDS:
                    folded_at = time.monotonic()
                    await self._fold()
        finally:
            self._kept -= 1

    def nudge(self) -> None:
        """For a program that only submits, where nobody keeps: written beside its next submit."""
        is_due = time.monotonic() - self._written_at >= WRITE_SECONDS
        if is_due and not self._kept and (self._beside is None or self._beside.done()):
            self._beside = asyncio.create_task(self.write())

    async def write(self) -> None:
        """What has changed since the last time. It never raises: a failure is told once, until it works
        again."""
        async with self._writing:
            self._written_at = time.monotonic()
            try:
                await self._write()
                self._is_failing = False
            except Exception as error:
                if not self._is_failing:
                    log.warning("What was counted for /metrics is written later: %s", error)
                self._is_failing = True

    async def close(self) -> None:
        """The last counts, and the end of this source. The engine may be used on: it begins another one."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self.write()
                if self._is_new or self._is_failing:
                    return
                source = self._source
                self._begin_anew()
                await self._store.fold_tallies(seen_before=NEVER, source=source, others=OTHERS)
        except Exception as error:  # then a sweeper does it, when the source has been silent for long
            log.debug("What was counted was not added up at the end: %s", error)

    async def _write(self) -> None:
        values = self._tallies.values()
        if not await self._written_all(values):
            self._begin_anew()
            await self._written_all(values)

    async def _written_all(self, values: dict[Key, int]) -> bool:
        changed = [
            Tally(name, labels_text(labels), value - self._before.get((name, labels), 0))
            for (name, labels), value in values.items()
            if value != self._written.get((name, labels), 0)
        ]
        if not changed:
            return True
        now = await self._store.now()
        if not await self._store.write_tallies(self._source, changed, now, is_new=self._is_new):
            return False
        self._written, self._is_new = values, False
        return True

    def _begin_anew(self) -> None:
        self._source, self._is_new = secrets.token_hex(8), True
        self._before = self._written

    async def _fold(self) -> None:
        try:
            now = await self._store.now()
            await self._store.fold_tallies(seen_before=now - SILENT_SECONDS, others=OTHERS)
        except Exception as error:
            log.debug("What ended processes have counted was not added up: %s", error)
