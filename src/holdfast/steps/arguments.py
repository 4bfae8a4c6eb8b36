"""How a function is given a step's input: by the names of its parameters.

    def main()                    nothing
    def main(input_data)          the whole input; `input` does the same
    def main(rows, limit=10)      the input's `rows` and, where there is one, its `limit`
    def main(rows, **rest)        and everything else the input has
    def store(rows, ctx)          a registered function may ask for its Context

Imports nothing of Holdfast: inline code is called this way as well, in a process that loads little.
"""

from __future__ import annotations

import inspect

TYPE_CHECKING = False  # see the supervisor
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

WHOLE_INPUT = ("input_data", "input")
CONTEXT = "ctx"
NAMES_SHOWN_MAX = 20


class ArgumentsMissing(Exception):
    """The input does not have what the function asks for."""

    def __init__(self, message: str, guidance: str) -> None:
        super().__init__(message)
        self.guidance = guidance


def arguments_for(
    function: Callable[..., Any], given: Mapping[str, Any], context: object | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the named arguments to call it with."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins do not tell theirs
        return [], dict(given)
    own = [parameter.name for parameter in parameters if not _takes_context(parameter, context)]
    is_alone = len(own) == 1  # then `input_data` is the whole input, also of an input that has such a key
    positional: list[Any] = []
    named: dict[str, Any] = {}
    missing: list[str] = []
    taken: set[str] = set()
    skipped = False  # a positional one that keeps its default: those behind it must be named
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            skipped = True
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update({name: value for name, value in given.items() if name not in taken})
            continue
        if _takes_context(parameter, context):
            found, value = True, context
        else:
            found, value = _value_for(parameter.name, given, is_alone=is_alone)
        taken.add(parameter.name)
        if not found:
            if parameter.default is parameter.empty:
                missing.append(parameter.name)
            skipped = True
        elif parameter.kind is parameter.KEYWORD_ONLY or (
            skipped and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ):
            named[parameter.name] = value
        elif not skipped:
            positional.append(value)
    if missing:
        raise _missing(function, missing, given)
    return positional, named


def _value_for(name: str, given: Mapping[str, Any], *, is_alone: bool) -> tuple[bool, Any]:
    if name in WHOLE_INPUT and (is_alone or name not in given):
        return True, dict(given)
    return (True, given[name]) if name in given else (False, None)


def _takes_context(parameter: inspect.Parameter, context: object | None) -> bool:
    return context is not None and (parameter.name == CONTEXT or _is_for_context(parameter.annotation))


def _is_for_context(annotation: object) -> bool:
    """Annotations are texts where a module postpones them."""
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", "")
    return name.rpartition(".")[2] == "Context"


def _missing(function: Callable[..., Any], missing: list[str], given: Mapping[str, Any]) -> ArgumentsMissing:
    name = getattr(function, "__name__", repr(function))
    shown = ", ".join(list(given)[:NAMES_SHOWN_MAX]) or "nothing"
    more = f" and {len(given) - NAMES_SHOWN_MAX} more" if len(given) > NAMES_SHOWN_MAX else ""
    return ArgumentsMissing(
        f"{name}() asks for {', '.join(missing)}, and the step's input has {shown}{more}",
        guidance=f"Give it in the step's with:, for example with: {{{missing[0]}: …}};"
        " or name the parameter input_data, to be given the whole input.",
    )
