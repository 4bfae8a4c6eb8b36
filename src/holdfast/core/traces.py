"""The trace of an exception, as Python prints it, at a price that thousands of failures can pay.

Python's own formatting looks at the source file of every frame, each time. Here the lines of a frame are made
once, by Python, and remembered: failures come in thousands, from the same few places. The markers under the
lines are left out: they are found by parsing the line, which makes a trace fifty times as dear.

What is out of the ordinary (groups, notes, errors that Python adds a guess to, recursion) is left to Python.
"""

import traceback
from collections.abc import Iterable
from types import CodeType, FrameType, TracebackType

TRACE_FRAMES_MAX = 100
CHAINED_ERRORS_MAX = 10
PLACES_MAX = 1_000

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"

# Of these Python tells more than their message.
_TOLD_BY_PYTHON = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)

# By the identity of the code, which is kept with it so that nothing else can take its place: code that is
# equal may stand in another file.
_places: dict[tuple[int, int], tuple[CodeType, str]] = {}


def trace_text(exc: BaseException) -> str:
    return "".join(_lines(exc, CHAINED_ERRORS_MAX))


def _lines(exc: BaseException, errors_left: int) -> list[str]:
    if isinstance(exc, BaseExceptionGroup):
        return traceback.format_exception(exc)
    lines: list[str] = []
    earlier = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    if earlier is not None and errors_left:
        lines += _lines(earlier, errors_left - 1)
        lines.append(_CAUSED if exc.__cause__ else _DURING)
    if exc.__traceback__ is not None:
        lines.append("Traceback (most recent call last):\n")
        lines += _frames(exc.__traceback__)
    lines += _last_lines(exc)
    return lines


def _frames(trace: TracebackType) -> list[str]:
    lines: list[str] = []
    step: TracebackType | None = trace
    while step is not None:
        code = step.tb_frame.f_code
        place = (id(code), step.tb_lineno)
        known = _places.get(place)
        if known is None:
            known = (code, "".join(_told_by_python([(step.tb_frame, step.tb_lineno)])))
            if len(_places) >= PLACES_MAX:
                _places.clear()
            _places[place] = known
        if len(lines) == TRACE_FRAMES_MAX or (lines and lines[-1] == known[1]):
            return _told_by_python(traceback.walk_tb(trace))  # which tells how often a recursion went round
        lines.append(known[1])
        step = step.tb_next
    return lines


def _told_by_python(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    return traceback.StackSummary.extract(frames, limit=-TRACE_FRAMES_MAX).format()


def _last_lines(exc: BaseException) -> list[str]:
    kind = type(exc)
    module = kind.__module__
    is_plain = isinstance(module, str) and getattr(exc, "__notes__", None) is None
    if not is_plain or isinstance(exc, _TOLD_BY_PYTHON):
        return traceback.format_exception_only(exc)
    try:
        message = str(exc)
    except Exception:
        return traceback.format_exception_only(exc)
    name = kind.__qualname__ if module in ("__main__", "builtins") else f"{module}.{kind.__qualname__}"
    return [f"{name}: {message}\n" if message else f"{name}\n"]
