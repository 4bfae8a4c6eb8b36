"""The supervisor of one program: a small process between the worker and what a step runs.

    worker ── what to run; then nothing more, until it closes the pipe ──▶ supervisor ──fork──▶ the program
    worker ◀── how it ended ── supervisor

It runs as a script of its own and imports nothing of Holdfast. It takes in what the program starts and leaves
behind (Linux: also what goes away into a session of its own), so that nothing is left running: not when the
program ends, not when the worker asks for its end, and not when the worker itself is killed, which closes the
pipe as well.

What to run comes through the pipe and not on the command line, where everybody on the machine could read it.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False  # what the types are made of takes longer to load than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CONTROL_FD = 0
LOOK_SECONDS = 1.0
LOOK_SECONDS_BLIND = 0.02
KILL_SECONDS_MAX = 5.0
KILL_PAUSE_SECONDS = 0.002
EXIT_NOT_STARTED = 127
LENGTH_BYTES = 8
# What describing a lack of memory needs.
MEMORY_BYTES_TO_SPARE = 64 * 1024**2
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    answer_fd, status_fd = int(sys.argv[1]), int(sys.argv[2])
    spec = _read_spec()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        for fd in (answer_fd, status_fd):
            os.set_inheritable(fd, False)  # not for what the program starts
        _become_program(spec, answer_fd, status_fd, supervisor)
        return
    for fd in (1, 2, answer_fd):
        os.close(fd)  # only the program holds them, so that their ends are its end
    is_wanted, status = _wait(pid)
    if status is None:
        status = _end(pid)
    _kill_the_rest()
    if is_wanted:
        os.write(status_fd, marshal.dumps(("ended", os.waitstatus_to_exitcode(status))))
    else:
        _remove(spec["folder"])  # the worker may be gone: nobody else is left to do it


def _read_spec() -> dict[str, Any]:
    length = int.from_bytes(_read(LENGTH_BYTES), "big")
    spec: dict[str, Any] = marshal.loads(_read(length))
    return spec


def _read(count: int) -> bytes:
    parts = []
    while count:
        part = os.read(CONTROL_FD, count)
        if not part:
            os._exit(1)  # the worker has gone before it had said what to run
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# the program


def _become_program(spec: dict[str, Any], answer_fd: int, status_fd: int, supervisor: int) -> None:
    """Run inline code and return when it has ended; a command never comes back."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it was killed before the system was asked
        os._exit(EXIT_NOT_STARTED)
    _give_input(spec["stdin"])
    _set_limits(spec["memory_bytes"], hard=spec["code"] is None)
    os.environ.clear()
    os.environ.update(spec["env"])
    if spec["code"] is not None:
        os.close(status_fd)
        os.chdir(spec["cwd"])
        _run_code(spec, answer_fd)
        return
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        _not_started(status_fd, "cwd", error)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and programs do not expect that
    os.close(answer_fd)
    try:
        os.execvpe(spec["command"][0], spec["command"], spec["env"])
    except (OSError, ValueError) as error:
        _not_started(status_fd, "command", error)


def _give_input(text: bytes | None) -> None:
    """In memory where the system can, else in a file without a name: whatever its size, nobody waits."""
    if text is None:
        fd = os.open(os.devnull, os.O_RDONLY)
    else:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("stdin")
        else:
            import tempfile

            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        view = memoryview(text)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, CONTROL_FD, inheritable=True)
    if fd != CONTROL_FD:
        os.close(fd)


def _set_limits(memory_bytes: int | None, *, hard: bool) -> None:
    """Data, not address space: it leaves out what is mapped and never written (libraries, files, the reserves
    of threads), so that the limit is near to what is really used."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    if memory_bytes is not None:
        most = memory_bytes if hard else memory_bytes + MEMORY_BYTES_TO_SPARE
        _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
        if allowed != resource.RLIM_INFINITY:
            most = min(most, allowed)
        resource.setrlimit(resource.RLIMIT_DATA, (min(memory_bytes, most), most))


def _run_code(spec: dict[str, Any], answer_fd: int) -> None:
    import importlib
    from types import ModuleType

    sys.path[:] = spec["path"]
    # The package without its __init__, which loads all of Holdfast and takes longer than most code runs.
    package = ModuleType("holdfast")
    package.__path__ = [spec["package"]]
    sys.modules["holdfast"] = package
    importlib.import_module("holdfast.steps.code_child").run(spec["code"], answer_fd)


def _not_started(status_fd: int, what: str, error: Exception) -> None:
    os.write(status_fd, marshal.dumps(("not_started", what, getattr(error, "errno", None), str(error))))
    os._exit(EXIT_NOT_STARTED)


# the supervisor


def _wait(pid: int) -> tuple[bool, int | None]:
    """Until the program has ended; False where the worker wants no more of it, or is gone itself. With how it
    ended, where the system cannot say that without giving the program's number away."""
    poll = select.poll()
    poll.register(CONTROL_FD, select.POLLIN | select.POLLHUP)
    look_seconds = LOOK_SECONDS
    try:
        poll.register(os.pidfd_open(pid), select.POLLIN)
    except (AttributeError, OSError):  # an older system
        look_seconds = LOOK_SECONDS_BLIND
    while True:
        if any(fd == CONTROL_FD for fd, _ in poll.poll(look_seconds * 1000)):
            return False, None  # it says nothing more: what can be read is the end
        if not hasattr(os, "waitid"):
            found_pid, status = os.waitpid(pid, os.WNOHANG)
            if found_pid:
                _kill(os.killpg, pid)
                return True, status
            continue
        # What the program has left behind is reaped meanwhile. The program itself is not yet: as long as
        # its number is taken, it is nobody else's.
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid == pid:
                return True, None
            os.waitpid(found.si_pid, 0)


def _end(pid: int) -> int:
    """Kill the program, if it has not ended, and its group."""
    _kill(os.killpg, pid)
    _kill(os.kill, pid)
    return os.waitpid(pid, 0)[1]


def _kill_the_rest() -> None:
    """Whatever is a child of this process by now, until there is none."""
    deadline = time.monotonic() + KILL_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in _children():
            _kill(os.killpg, child)
            _kill(os.kill, child)
        time.sleep(KILL_PAUSE_SECONDS)


def _kill(how: Callable[[int, int], None], pid: int) -> None:
    try:  # noqa: SIM105 - contextlib would have to be loaded
        how(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _children() -> list[int]:
    mine, found = os.getpid(), []
    if sys.platform != "linux":
        return []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    # The name before may hold anything, brackets too.
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == mine:
                found.append(int(name))
    return found


def _remove(folder: str | None) -> None:
    if folder is not None:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
