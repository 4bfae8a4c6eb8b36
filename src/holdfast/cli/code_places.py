"""Where in the code something went wrong: what a developer looks for first in a stack trace.

An error is told in plain words elsewhere; this finds it again in the program. The frames of Holdfast and of
the machinery of imports lead there and are not the place.
"""

from __future__ import annotations

import importlib
import os
import re
import traceback

_FRAME = re.compile(r'[ |+-]*File "(?P<file>.+)", line (?P<line>\d+),? in (?P<name>.+)')
_NEWEST_FIRST = "(most recent call first)"
_HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_IMPORTING = os.path.join(os.path.dirname(os.path.abspath(importlib.__file__)), "")
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<")


def places_in_trace(trace: str) -> list[str]:
    """The exception and where it was raised, from the end of a trace as it is stored: its class and message,
    the frame that raised it and, where that is a library's, the one of the program that called it. Empty
    where the trace does not reach so far, or never leaves Holdfast."""
    lines = trace.splitlines()
    frames = [(number, found) for number, line in enumerate(lines) if (found := _FRAME.fullmatch(line))]
    if not frames:
        return []
    if any(_NEWEST_FIRST in line for line in lines):  # a process that crashed: Python tells it upside down
        what = lines[0]
        frames.reverse()
    else:
        rest = lines[frames[-1][0] + 1 :]
        what = next((line for line in rest if line and not line[0].isspace()), "")
    raised = frames[-1][1]
    own = next((found for _, found in reversed(frames) if not _is_library(found["file"])), raised)
    if own["file"].startswith(_HERE):  # a step of a built-in type: its message says it, our code does not
        return []
    told = [what, *(f"{found['file']}:{found['line']} in {found['name']}" for found in (own, raised))]
    return [line for line in dict.fromkeys(told) if line]


def place_of(error: BaseException) -> str:
    """Where a program that was being imported went wrong: `line 3 of /srv/jobs.py`, or nothing. Where a
    library raised it, the line of the program that used the library."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"line {error.lineno} of {error.filename}"  # the code has not run: it has no frame
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not frame.filename.startswith(("<", _IMPORTING, _HERE))]
    own = [frame for frame in others if not _is_library(frame.filename)]
    found = (own or others or frames)[-1:]
    return f"line {found[0].lineno} of {found[0].filename}" if found else ""


def _is_library(file: str) -> bool:
    return file.startswith(_HERE) or _LIBRARIES.search(file) is not None
