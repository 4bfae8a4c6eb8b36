"""A test that hangs ends its process, and tells which test it was and where everything in it stood.

Without it a run would wait until somebody ends it from outside, and say nothing. A thread looks at the clock;
where even that cannot run, pytest's own fault handler (`faulthandler_timeout`) ends the process later.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import threading
import time
from collections.abc import Generator
from typing import TextIO

import pytest

from running import where_it_stands

LOOK_SECONDS = 0.5
EXIT_CODE = 70


class Watchdog:
    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._watched: tuple[str, float] | None = None
        # A copy, as pytest puts something else in its place while a test runs.
        self._told: TextIO = os.fdopen(os.dup(2), "w")
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        self._watched = (item.nodeid, time.monotonic())
        try:
            return (yield)
        finally:
            self._watched = None

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            watched = self._watched
            if watched is not None and time.monotonic() - watched[1] > self._seconds_max:
                self._end(watched[0])

    def _end(self, test: str) -> None:
        print(f"\n{test} has not ended within {self._seconds_max:g} s.", file=self._told)
        try:
            self._told.flush()
            faulthandler.dump_traceback(self._told)
            for loop in [o for o in gc.get_objects() if isinstance(o, asyncio.AbstractEventLoop)]:
                for task in asyncio.all_tasks(loop):
                    print(where_it_stands(task), file=self._told)
            self._told.flush()
        finally:
            os._exit(EXIT_CODE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("test_seconds_max", "A test that takes longer ends its process.", default="600")


def pytest_configure(config: pytest.Config) -> None:
    distributes = config.pluginmanager.hasplugin("dsession")  # its tests run in other processes
    if not (distributes or config.getoption("usepdb")):
        config.pluginmanager.register(Watchdog(float(config.getini("test_seconds_max"))))
