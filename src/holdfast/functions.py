"""Functions that playbooks call by name: `call: module:function`.

    @hf.function                       a program registers its own
    functions_of("my_handlers")        all that a module offers: its public functions
    imported_functions(names, folder)  those that a playbook names, found beside it

A worker offers what it has: a job that calls a function no living worker has is shown as such, and waits.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, overload

from holdfast.core.errors import DefinitionInvalid, InvalidInput
from holdfast.core.payload import check_name
from holdfast.step_function import StepFunction
from holdfast.worker.attempt import Handler
from holdfast.worker.isolation import main_program
from holdfast.worker.typed import Leave, typed_handlers

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class Functions:
    """The part of the Python API that registers functions for playbooks, and offers them to workers."""

    _functions: dict[str, Function]
    _handlers: dict[str, Handler]
    _payload_bytes_max: int

    @overload
    def function(self, function: F, /) -> F: ...

    @overload
    def function(self, *, name: str | None = None) -> Callable[[F], F]: ...

    def function(self, function: F | None = None, *, name: str | None = None) -> F | Callable[[F], F]:
        """Let playbooks call a function, as `module:function` or by another `name`. It is given the step's
        input by the names of its parameters: `input_data` is all of it, `ctx` the Context."""

        def register(function: F) -> F:
            self.add_functions({_name_of(function) if name is None else name: function})
            return function

        return register if function is None else register(function)

    def add_functions(self, functions: dict[str, Function]) -> None:
        """Let playbooks call these, by their names."""
        for name, function in functions.items():
            check_name(name, what="name of a function")
            _check(function, name)
            if self._functions.setdefault(name, function) is not function:
                raise DefinitionInvalid(
                    f"Another function is registered as {name} already.",
                    guidance="Give it a name= of its own.",
                )

    def _offered(self, *, allow_code: bool, allow_shell: bool) -> dict[str, Handler]:
        """The handlers of a worker: those of the step types that it has leave for, and the program's own."""
        leave = Leave(code=allow_code, shell=allow_shell)
        typed = typed_handlers(leave, self._functions, payload_bytes_max=self._payload_bytes_max)
        return {**typed, **self._handlers}


def functions_of(module_spec: str) -> dict[str, Function]:
    """`module`: its public functions, those that it defines; `module:function`: that one."""
    if ":" in module_spec:
        return {module_spec: _imported(module_spec)}
    module = _module(module_spec, module_spec)
    public = getattr(module, "__all__", None)
    names = [name for name in vars(module) if not name.startswith("_")] if public is None else list(public)
    found = {name: getattr(module, name, None) for name in names}
    functions: dict[str, Function] = {
        f"{module_spec}:{name}": value
        for name, value in found.items()
        if inspect.isfunction(value) and (public is not None or value.__module__ == module.__name__)
    }
    if not functions:
        raise InvalidInput(
            f"The module {module_spec} has no public functions.",
            guidance="Define some in it, without a leading underscore, or name one as module:function.",
        )
    return functions


def imported_functions(
    names: Iterable[str], folder: str | os.PathLike[str] | None = None
) -> dict[str, Function]:
    """The functions that a playbook calls, by the names it gives them. Modules are looked for in `folder`
    first, where the playbook lies; it stays on the path, as they may import more from there later."""
    if folder is not None and (place := str(Path(folder).resolve())) not in sys.path:
        sys.path.insert(0, place)
    return {name: _imported(name) for name in names}


def _imported(name: str) -> Function:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidInput(
            f"{name!r} is no name of a function.",
            guidance="Write module:function, for example my_handlers:store.",
        )
    found: Any = _module(module_name, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidInput(
                f"The module {module_name} has no {attribute}, which {name} names.",
                guidance=f"Define {attribute} in {getattr(found, '__file__', None) or module_name}.",
            )
        found = getattr(found, part)
    if isinstance(found, StepFunction):
        found = found.function
    _check(found, name)
    function: Function = found
    return function


def _module(module_name: str, wanted_for: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise InvalidInput(
                f"There is no module {missing}, which {wanted_for} names.",
                guidance="Put its file beside the playbook or into the current folder, or install it.",
            ) from None
        raise InvalidInput(
            f"The module {module_name} cannot be imported: it needs {missing}, which is not there.",
            guidance=f"Install {missing}.",
        ) from error
    except Exception as error:
        raise InvalidInput(
            f"The module {module_name} cannot be imported: {type(error).__name__}: {error}.",
            guidance="Correct the module: its lines are run when it is imported.",
        ) from error


def _check(function: object, name: str) -> None:
    if not callable(function) or isinstance(function, type):
        raise DefinitionInvalid(f"{name} must be a function, not {function!r}.")
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object that can be called
    if any(inspect.isgeneratorfunction(it) or inspect.isasyncgenfunction(it) for it in (function, call)):
        raise DefinitionInvalid(
            f"{name} is a generator.", guidance="It returns its result, it does not yield it."
        )


def _name_of(function: Function) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        raise DefinitionInvalid(
            f"{function!r} has no name that a playbook could call.", guidance="Give hf.function() a name=."
        )
    if module == "__main__":  # playbooks know the file by its name
        program = main_program()
        path = program.get("init_main_from_path")
        module = Path(path).stem if path else program.get("init_main_from_name", module)
    return f"{module}:{name}"
