"""The failures a test asked for, each used as often as it says, in the order they were asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.errors import InvalidInput
from holdfast.worker.context import Context

When = Callable[[Context], bool]


class Kind(StrEnum):
    FAIL = "fail"
    LOSE_WORKER = "lose_worker"
    TIME_OUT = "time_out"


class Cut(BaseException):
    """Ends a handler's attempt where its worker dies or its time is up; never seen outside a rehearsal."""


@dataclass(slots=True)
class Fault:
    """`times` is None where it happens every time; `after` the handler has run, not instead of it."""

    kind: Kind
    handler: str
    step: str
    error: BaseException | type[BaseException] | None
    times: int | None
    after: bool
    when: When | None
    place: str
    used: int = 0

    def __post_init__(self) -> None:
        if self.times is not None and not (
            isinstance(self.times, int) and not isinstance(self.times, bool) and self.times >= 1
        ):
            raise InvalidInput(
                f"{self.kind} of step {self.step} cannot happen {self.times!r} times.",
                guidance="Give a number from 1, or times=None for every time.",
            )
        if self.when is not None and not callable(self.when):
            raise InvalidInput(
                f"when of {self.kind}({self.step!r}) must be a function of the context, not {self.when!r}."
            )

    def is_for(self, handler: str, context: Context) -> bool:
        return (
            handler == self.handler
            and (self.times is None or self.used < self.times)
            and (self.when is None or bool(self.when(context)))
        )

    def strike(self) -> None:
        if self.error is None:
            raise Cut
        error = self.error if isinstance(self.error, BaseException) else self.error()
        # One object may be raised many times; its traceback must not grow.
        raise error.with_traceback(None)

    @property
    def is_unused(self) -> bool:
        return self.used < (1 if self.times is None else self.times)

    def __str__(self) -> str:
        told = "" if self.error is None else f", {self.error!r}"
        wanted = "" if self.times is None else f" of {self.times}"
        return f"{self.kind}({self.step!r}{told}) at {self.place}: happened {self.used}{wanted} times"


class Faults:
    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def take(self, handler: str, context: Context) -> Fault | None:
        """The first that is meant for this attempt; it counts as used."""
        for fault in self._faults:
            if fault.is_for(handler, context):
                fault.used += 1
                return fault
        return None

    def unused(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.is_unused]


def checked_error(error: object, step: str) -> BaseException | type[BaseException]:
    """An exception to raise: an object, or a class that needs no arguments."""
    kind = error if isinstance(error, type) else type(error)
    if not issubclass(kind, BaseException) or issubclass(kind, KeyboardInterrupt | Cut):
        raise InvalidInput(
            f"Step {step} cannot fail with {error!r}: that is no exception a handler could raise.",
            guidance='Give an exception, for example TimeoutError("gateway").',
        )
    if error is kind:
        try:
            kind()
        except TypeError as needs:
            raise InvalidInput(
                f"{kind.__name__} cannot be made without arguments ({needs}).",
                guidance=f"Give the exception itself: {kind.__name__}(...).",
            ) from None
    return error  # type: ignore[return-value]
