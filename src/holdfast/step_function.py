"""A function made a step: what was written beside it, checked where it was written."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import DefinitionInvalid
from holdfast.core.handlers import handler_key
from holdfast.core.model import Lane
from holdfast.core.payload import member
from holdfast.core.retry import RetryPolicy, parse_duration
from holdfast.playbook.definition import STEP_TIMEOUT_SECONDS_DEFAULT, Barrier, Step
from holdfast.worker.attempt import Function, Handler
from holdfast.worker.isolation import check_name_leads_to, isolation_from, name_of_function

RetryLike: TypeAlias = RetryPolicy | bool | int | dict[str, Any] | None
BarrierLike: TypeAlias = Barrier | Mapping[str, Any] | None
ErrorRules: TypeAlias = Sequence[ErrorRule | Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """A function made a step. It can still be called as the function it is."""

    function: Function
    name: str
    retry: RetryLike = None
    timeout: float | str = STEP_TIMEOUT_SECONDS_DEFAULT
    clear: Function | None = None
    lane: Lane | str | None = None
    operation: str = ""
    priority: int | None = None
    limit: str = ""
    barrier: BarrierLike = None
    max_crashes: int = 3
    errors: ErrorRules = ()
    isolation: str = "thread"
    memory: int | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise DefinitionInvalid(
                f"The name of a step must be a text, not {self.name!r}.",
                guidance="Leave name= out to use the function's own name.",
            )
        _check_function(self.function, f"Step {self.name}")
        if self.clear is not None:
            _check_function(self.clear, f"clear of step {self.name}")
        if isolation_from(self.isolation, self.memory, f"Step {self.name}") is not None:
            name_of_function(self.function, f"Step {self.name}")
            if self.clear is not None:
                name_of_function(self.clear, f"clear of step {self.name}")

    def __call__(self, context: Any) -> Any:
        return self.function(context)

    def handler(self) -> Handler:
        """What a worker needs of it. The module that defines it is complete by now, or nearly."""
        isolation = isolation_from(self.isolation, self.memory, f"Step {self.name}")
        if isolation is not None:
            check_name_leads_to(self.function, f"Step {self.name}")
            if self.clear is not None:
                check_name_leads_to(self.clear, f"clear of step {self.name}")
        return Handler.of(self.function, self.clear, isolation)

    def compiled(self, pipeline: str, default_retry: RetryPolicy) -> Step:
        return Step(
            name=self.name,
            handler=handler_key(pipeline, self.name),
            retry=RetryPolicy.from_shorthand(self.retry, default_retry),
            timeout_seconds=parse_duration(self.timeout, field=f"timeout of step {self.name}"),
            max_crashes=self.max_crashes,
            lane=None if self.lane is None else member(Lane, self.lane, f"lane of step {self.name}"),
            operation=self.operation,
            priority=self.priority,
            limit=self.limit,
            barrier=Barrier.from_shorthand(self.barrier, self.name),
            errors=error_rules(self.errors, f"step {self.name}"),
        )


def is_list(value: object) -> bool:
    """Something to go through item by item; a text or a mapping is one thing, given by mistake."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def name_of(function: object) -> str:
    name = getattr(function, "__name__", None)
    if callable(function) and not isinstance(name, str):
        raise DefinitionInvalid(f"{function!r} has no name of its own.", guidance="Give hf.step() a name=.")
    return name or repr(function)


def _check_function(function: object, what: str) -> None:
    if isinstance(function, StepFunction) or not callable(function):
        raise DefinitionInvalid(f"{what} must be a function, not {function!r}.")
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object that can be called
    if any(inspect.isgeneratorfunction(it) or inspect.isasyncgenfunction(it) for it in (function, call)):
        raise DefinitionInvalid(
            f"{what} is a generator.", guidance="A step returns its result, it does not yield it."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins do not tell theirs
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise DefinitionInvalid(
            f"{what} is called with one argument, the context, and cannot be: {error}.",
            guidance="Define it as def step(ctx): ..., and take everything else from ctx.workload.",
        ) from None


def error_rules(rules: ErrorRules, of: str) -> tuple[ErrorRule, ...]:
    if not is_list(rules):
        raise DefinitionInvalid(
            f"errors of {of} must be a list of rules, not {rules!r}.",
            guidance='For example errors=[ErrorRule("not_ready", status=404)].',
        )
    try:
        return tuple(rule if isinstance(rule, ErrorRule) else ErrorRule.from_dict(rule) for rule in rules)
    except DefinitionInvalid as error:
        raise DefinitionInvalid(f"errors of {of}: {error}", guidance=error.guidance) from error
