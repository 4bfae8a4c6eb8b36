"""The step type `shell`: a command, on workers with leave for it only.

    command: [convert, in.png, out.jpg]     a list is run as it is: no shell looks at it
    command: "sort | uniq -c"               a text needs `shell: true`, and is given to /bin/sh
    env, cwd, stdin                         beside a minimal environment; the worker's own is not passed on

A text for a shell takes no templates: a value pasted into it could be read as a command. It goes in by `env`.

What the command wrote is kept within bounds. An exit code other than 0 is an error: 126 and 127 (cannot be
run, not found) are permanent, 75 (try again later) and 124 (timed out) heal. A signal comes from a system
short of memory or shut down, or it is a crash: all are tried again. Of any other code the words that the
command left behind may tell more; a playbook's `errors:` rules come before all of this.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
from holdfast.core.payload import a_type, decode_payload, encode_payload
from holdfast.steps.failing import FailedElsewhere
from holdfast.steps.fields import flag_field, mapping_field, refused
from holdfast.steps.interface import StepCall
from holdfast.steps.supervised import Ended, NotStarted, Program, run_supervised, signal_name, supervisor_lost

STREAM_BYTES_MAX = 1024 * 1024
TAIL_CHARS = 1_000
TRACE_CHARS = 8_000
# For the rest of the output beside its texts.
OUTPUT_BYTES_TO_SPARE = 1024
SHELL = "/bin/sh"

EXIT_TEMPORARY = 75
EXIT_TIMED_OUT = 124
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
# How a shell tells of a command that a signal has ended. A pipe that was closed early is no crash.
_CRASHES = {128 + number: number for number in map(int, signal.Signals) if number != signal.SIGPIPE}


async def run(call: StepCall) -> Any:
    is_shell = flag_field(call.config, "shell", default=False)
    command = _command(call.config.get("command"), is_shell=is_shell)
    ended = await run_supervised(
        Program(
            step=call.step,
            command=command,
            env=_env(mapping_field(call.config, "env")),
            cwd=_cwd(call.config.get("cwd")),
            stdin=_stdin(call.config.get("stdin")),
            memory_bytes=call.settings.code_memory_bytes,
            output_bytes_max=STREAM_BYTES_MAX,
        )
    )
    if ended.not_started is not None:
        raise _not_started(ended.not_started, command[0])
    if ended.exit_code is None:
        raise supervisor_lost(call.step, ended)
    if ended.exit_code != 0:
        raise _failed(ended.exit_code, ended, is_shell=is_shell)
    return output_of(ended, call.settings.payload_bytes_max)


# what is run


def _command(command: object, *, is_shell: bool) -> list[str]:
    if is_shell:
        if not isinstance(command, str):
            raise refused(f"With shell: true the command is a text, not {a_type(command)}.")
        return [SHELL, "-c", _argument(command)]
    if not isinstance(command, list) or not command:
        raise refused(
            f"The command must be a list that is not empty, not {a_type(command)}.",
            "Write it as a list, [program, argument]; a text for a shell needs `shell: true` beside it.",
        )
    return [_argument(part) for part in command]


def _argument(value: object, what: str = "The command") -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise refused(f"{what} has {a_type(value)} in it.", "Allowed are texts, numbers, true and false.")
    if "\0" in value:
        raise refused(f"{what} has a NUL character in it, which no program can be given.")
    return value


def _env(env: Mapping[str, Any]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name or "\0" in name:
            raise refused(
                f"env has the name {name!r}.", "A name has at least one character, no = and no NUL."
            )
    return {name: _argument(value, f"env {name}") for name, value in env.items() if value is not None}


def _cwd(cwd: object) -> str:
    """Where the worker was started, as long as the step says nothing else."""
    if cwd is None:
        return os.getcwd()
    if not isinstance(cwd, str) or not cwd or "\0" in cwd:
        raise refused(f"cwd must be the path of a folder, not {cwd!r}.")
    return os.path.abspath(cwd)


def _stdin(stdin: object) -> str | None:
    if stdin is None or isinstance(stdin, str):
        return stdin
    return encode_payload(stdin, what="stdin", bytes_max=1 << 30)  # a list or a mapping, as JSON


# what came of it


def output_of(ended: Ended, bytes_max: int) -> dict[str, Any]:
    """All of it where it can be stored; else `cut` names what was shortened or left out. A command that has
    done its work does not fail because it talks too much."""
    stdout, stderr = ended.stdout.text, ended.stderr.text
    cut = [name for name in ("stdout", "stderr") if getattr(ended, name).is_cut]
    data = None if "stdout" in cut else _data(stdout)
    room = bytes_max - OUTPUT_BYTES_TO_SPARE
    if _size(stdout) + _size(stderr) + _size(data) > room:
        whole = _Kept(stdout, stderr, data)
        kept = whole.within(room)
        cut += [
            name for name, all_of_it, rest in zip(kept._fields, whole, kept, strict=True) if rest != all_of_it
        ]
        stdout, stderr, data = kept
    if "stdout" in cut and data is None:
        cut.append("data")
    output = {"exit_code": 0, "stdout": stdout, "stderr": stderr, "data": data}
    return {**output, "cut": sorted(set(cut))} if cut else output


class _Kept(NamedTuple):
    stdout: str
    stderr: str
    data: Any

    def within(self, room: int) -> _Kept:
        """The end of stderr, then the data whole or not at all, then the beginning of stdout."""
        stderr = _shortened(self.stderr, room // 8, keep_end=True)
        room -= _size(stderr)
        data = self.data if _size(self.data) <= room * 3 // 4 else None
        return _Kept(_shortened(self.stdout, room - _size(data)), stderr, data)


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _shortened(text: str, bytes_max: int, *, keep_end: bool = False) -> str:
    while (size := _size(text)) > bytes_max:
        chars = len(text) * bytes_max // size * 15 // 16  # how much a character takes differs
        if not chars:
            return ""
        text = text[-chars:] if keep_end else text[:chars]
    return text


def _data(stdout: str) -> Any:
    try:
        data = decode_payload(stdout)
        encode_payload(data, what="data", bytes_max=1 << 30)
        return data
    except (PayloadInvalid, PayloadTooLarge, msgspec.MsgspecError, RecursionError):
        return stdout.removesuffix("\n").removesuffix("\r")


# what went wrong


def _not_started(told: NotStarted, program: str) -> FailedElsewhere:
    if told.what == "cwd":
        return FailedElsewhere.of(
            f"The working directory of the command cannot be used: {told.reason}.",
            exception="CommandNotStarted",
            error_type="not_found",
            user_message="The command's working directory cannot be used",
            guidance="Correct cwd, or create the folder on the machines of the workers.",
        )
    if told.errno in (errno.EAGAIN, errno.ENOMEM):
        return FailedElsewhere.of(
            f"The command could not be started: {told.reason}.",
            exception="CommandNotStarted",
            error_type="transient_error",
        )
    if told.errno == errno.ENOENT:
        return _not_runnable(EXIT_NOT_FOUND, f"there is no program {program!r} on this worker")
    return _not_runnable(EXIT_NOT_EXECUTABLE, f"{program!r}: {os.strerror(told.errno or errno.EACCES)}")


def _not_runnable(exit_code: int, reason: str) -> FailedElsewhere:
    is_missing = exit_code == EXIT_NOT_FOUND
    return FailedElsewhere.of(
        f"The command {'was not found' if is_missing else 'cannot be executed'}: {reason}",
        exception="CommandNotStarted",
        error_type="not_found" if is_missing else "validation_error",
        user_message=f"The command {'was not found' if is_missing else 'cannot be executed'}",
        guidance="Correct the command, or install the program on the machines of the workers.",
    )


def _failed(exit_code: int, ended: Ended, *, is_shell: bool) -> FailedElsewhere:
    said = ended.stderr.text.strip() or ended.stdout.kept[-4 * TAIL_CHARS :].decode(errors="replace").strip()
    tail = said[-TAIL_CHARS:] if len(said) <= TAIL_CHARS else f"…{said[-TAIL_CHARS:]}"
    if is_shell and exit_code in (EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE):
        return _not_runnable(exit_code, tail or f"the shell ended with exit code {exit_code}")
    number = -exit_code if exit_code < 0 else _CRASHES.get(exit_code) if is_shell else None
    if number is not None:
        ending = f"The command was ended by {signal_name(number)}"
    else:
        ending = f"The command ended with exit code {exit_code}"
    error_type = {EXIT_TEMPORARY: "transient_error", EXIT_TIMED_OUT: "timeout"}.get(exit_code)
    return FailedElsewhere.of(
        f"{ending}: {tail}" if tail else f"{ending}, and wrote nothing.",
        exception="CommandFailed",
        error_type="process_crashed" if number is not None else error_type,
        stack_trace=_told(ended),
    )


def _told(ended: Ended) -> str:
    parts = []
    for name, text in (("stdout", ended.stdout.text), ("stderr", ended.stderr.text)):
        if text.strip():
            parts.append(f"{name}:\n{text.rstrip()[-TRACE_CHARS:]}\n")
    return "\n".join(parts)
