"""Traces are what Python itself prints, without the markers under the lines."""

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import traces
from holdfast.core.traces import TRACE_FRAMES_MAX, trace_text


def told_by_python(error: BaseException) -> str:
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), limit=-TRACE_FRAMES_MAX)
    return "".join(
        ["Traceback (most recent call last):\n", *frames.format(), *traceback.format_exception_only(error)]
    )


def raised_by(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def recurse(depth: int) -> None:
    if depth:
        recurse(depth - 1)
    raise ValueError("deep")


def there(depth: int) -> None:
    back(depth - 1)


def back(depth: int) -> None:
    if depth <= 0:
        raise ValueError("to and fro")
    there(depth)


def fail(error: BaseException) -> None:
    raise error


def noted() -> None:
    error = ValueError("x")
    error.add_note("seen on Tuesday")
    raise error


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


twin_a, twin_b = (lambda n: twin_b(n - 1), lambda n: twin_a(n - 1) if n > 0 else fail(ValueError("twins")))


@pytest.mark.parametrize(
    "call",
    [
        lambda: fail(ValueError("plain")),
        lambda: fail(ValueError()),
        lambda: fail(ValueError("two\nlines")),
        lambda: fail(KeyError("key")),
        lambda: fail(OSError(2, "No such file", "x.txt")),
        lambda: fail(asyncio.CancelledError()),
        lambda: fail(Mute()),
        lambda: compile("x = = 1", "a file", "exec"),
        lambda: undefined_name,  # type: ignore[name-defined]  # noqa: F821
        lambda: "text".no_such_method(),  # type: ignore[attr-defined]
        lambda: __import__("no_such_module"),
        lambda: eval("1 / 0"),
        noted,
        lambda: recurse(1),
        lambda: recurse(3),
        lambda: recurse(4),
        lambda: recurse(50),
        lambda: recurse(3 * TRACE_FRAMES_MAX),
        lambda: there(2 * TRACE_FRAMES_MAX),
        lambda: twin_a(20),
    ],
)
def test_a_trace_reads_as_python_prints_it_the_first_time_and_later(call: Callable[[], Any]) -> None:
    for _ in range(3):
        error = raised_by(call)
        assert trace_text(error) == told_by_python(error)


def function_in(path: Path, source: str) -> Callable[[], None]:
    path.write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), names)
    function: Callable[[], None] = names["work"]
    return function


def test_equal_code_in_two_files_is_told_apart(tmp_path: Path) -> None:
    source = "def work():\n    raise ValueError('same')\n"
    for name in ("one.py", "two.py"):
        error = raised_by(function_in(tmp_path / name, source))
        assert str(tmp_path / name) in trace_text(error)


def test_code_that_was_loaded_anew_shows_its_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    before = raised_by(function_in(path, "def work():\n    raise ValueError('before')\n"))
    assert "raise ValueError('before')" in trace_text(before)
    after = raised_by(function_in(path, "def work():\n    raise ValueError('after the change')\n"))
    assert "raise ValueError('after the change')" in trace_text(after)


def test_the_places_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "PLACES_MAX", 5)
    for number in range(20):
        error = raised_by(function_in(tmp_path / f"{number}.py", "def work():\n    raise ValueError('x')\n"))
        assert f"{number}.py" in trace_text(error)
        assert len(traces._places) <= 5
