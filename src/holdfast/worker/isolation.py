"""`isolation="process"`: what a step may ask for, and which functions another process can find.

    isolation="thread"     in the worker itself: async functions on its loop, plain ones in threads
    isolation="process"    in a process of the worker's own, which may be killed; `memory` limits it

A child process imports the function by its module and name. What has no such name (a lambda, a function
inside another, a bound method) is refused where the step is defined, and so is a name that leads to
something else.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.errors import DefinitionInvalid
from holdfast.core.sizes import parse_bytes, shown_bytes

ISOLATIONS = ("thread", "process")
# A Python with Holdfast in it takes about 20 MB before the step's own module is there.
MEMORY_BYTES_MIN = 64 * 1024**2
MEMORY_BYTES_MAX = 2**60

is_loading = False
"""Whether this process is a child that imports a step's module: no place to start a worker."""


@dataclass(frozen=True, slots=True)
class ProcessIsolation:
    """How much memory a step's process may have; None leaves it to the system."""

    memory_bytes: int | None = None


class FunctionName(msgspec.Struct, frozen=True):
    """Where another process finds a function."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def isolation_from(isolation: object, memory: object, what: str) -> ProcessIsolation | None:
    """What was written beside a step, checked; None for `thread`."""
    if isolation not in ISOLATIONS:
        raise DefinitionInvalid(
            f"isolation of {what} cannot be {isolation!r}.", guidance=f"Allowed are: {', '.join(ISOLATIONS)}."
        )
    if isolation == "process":
        return ProcessIsolation(None if memory is None else _memory_bytes(memory, what))
    if memory is not None:
        raise DefinitionInvalid(
            f"{what} has a memory limit and runs in the worker's own process, where none can be set.",
            guidance='Write isolation="process" beside it, or leave memory= out.',
        )
    return None


def _memory_bytes(memory: object, what: str) -> int:
    amount = parse_bytes(memory)
    if amount is None:
        raise DefinitionInvalid(
            f"memory of {what} cannot be {memory!r}.",
            guidance='Give bytes as a whole number, or a text such as "512MB" or "2GB".',
        )
    if not MEMORY_BYTES_MIN <= amount <= MEMORY_BYTES_MAX:
        raise DefinitionInvalid(
            f"memory of {what} cannot be {memory!r}: that is {amount:,.0f} bytes.",
            guidance=f"Python itself needs some: give at least {shown_bytes(MEMORY_BYTES_MIN)}.",
        )
    return int(amount)


def name_of_function(function: Any, what: str) -> FunctionName:
    """The name another process imports it by, or an error that says what to do."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or inspect.ismethod(function):
        raise _refused(what, f"{function!r} is no function with a name in a module")
    if "<lambda>" in name:
        raise _refused(what, "it is a lambda, which has no name")
    if "<locals>" in name:
        outer = name.split(".<locals>")[0]
        raise _refused(what, f"{name.rpartition('.')[2]} is defined inside {outer}")
    if module == "__main__" and not main_program():
        raise _refused(what, "it is in a __main__.py, or was typed into an interpreter")
    return FunctionName(module, name)


def check_name_leads_to(function: Any, what: str) -> None:
    """Refuse a function whose name belongs to another by now: a child would run that one instead. To be
    asked once the module is complete; a name that is not there yet is the child's to tell."""
    place = name_of_function(function, what)
    found: Any = sys.modules.get(place.module)
    for part in place.name.split("."):
        found = getattr(found, part, None)
    if found is not None and function not in _wrapped_in(found):
        raise _refused(what, f"the name {place} leads to {found!r}")


def _wrapped_in(found: Any) -> list[Any]:
    """The object itself, and what decorators have wrapped: a step has `function`, others `__wrapped__`."""
    layers: list[Any] = []
    while found is not None and not any(found is layer for layer in layers):
        layers.append(found)
        found = getattr(found, "__wrapped__", None) or getattr(found, "function", None)
    return layers


def main_program() -> dict[str, str]:
    """How another process imports the program that runs here, in the words of `multiprocessing.spawn`; empty
    where there is nothing it would import."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {} if spec.name.endswith("__main__") else {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": path}


def _refused(what: str, why: str) -> DefinitionInvalid:
    return DefinitionInvalid(
        f"{what} cannot run in a process of its own: {why}.",
        guidance="A child process imports it by its name: define it with def at the top of a module.",
    )
