"""The step types that Holdfast has, by the key of their jobs: what a worker must offer to be given one.

A type's module is loaded when its first step runs: a program that has no `sql` step loads no database for it.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from holdfast.core.handlers import CODE, EACH, FUNCTION_PREFIX, HTTP, PLAYBOOK, SHELL, SLEEP, SQL
from holdfast.steps.interface import StepCall

Run: TypeAlias = Callable[[StepCall], Awaitable[Any]]

MODULES = {
    HTTP: "holdfast.steps.http",
    SQL: "holdfast.steps.sql",
    SLEEP: "holdfast.steps.sleep",
    PLAYBOOK: "holdfast.steps.playbook",
    EACH: "holdfast.steps.each",
    CODE: "holdfast.steps.python",
    SHELL: "holdfast.steps.shell",
}


_users: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()


@cache
def run_of(key: str) -> Run:
    run: Run = importlib.import_module(MODULES[key]).run
    return run


def open_types() -> None:
    """A worker begins in this event loop."""
    loop = asyncio.get_running_loop()
    _users[loop] = _users.get(loop, 0) + 1


async def close_types() -> None:
    """A worker ends: with the last one of this event loop, what types keep open is closed (connections)."""
    loop = asyncio.get_running_loop()
    _users[loop] = _users.get(loop, 1) - 1
    if _users[loop] > 0:
        return
    for name in MODULES.values():
        close = getattr(sys.modules.get(name), "close", None)
        if close is not None:
            await close()


__all__ = [
    "CODE",
    "EACH",
    "FUNCTION_PREFIX",
    "MODULES",
    "SHELL",
    "SQL",
    "close_types",
    "open_types",
    "run_of",
]
