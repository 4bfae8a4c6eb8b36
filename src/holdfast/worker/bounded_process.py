"""What processes have in common that run what may do harm: they die with whoever started them, and keep a
limit of memory. Called in the process itself, but for `data_bytes`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import resource
import signal
import sys

EXIT_ORPHANED = 97
# Beyond the worker's, so that a system without memory takes the child and not the worker.
OOM_SCORE_MORE = 200
OOM_SCORE_MAX = 1000
_PR_SET_PDEATHSIG = 1

HAS_MEMORY_LIMITS = sys.platform == "linux"
"""Elsewhere the system takes such a limit and does not keep it."""


def die_with(parent_pid: int) -> None:
    """The system is asked to kill this process with the thread that started it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as score:
            more = min(int(score.read()) + OOM_SCORE_MORE, OOM_SCORE_MAX)
            score.seek(0)
            score.write(str(more))
    if os.getppid() != parent_pid:  # it died before the system was asked
        os._exit(EXIT_ORPHANED)


def limit_memory(count: int | None) -> None:
    """Data, not address space: it leaves out what a program maps and does not write (libraries, files, the
    reserves of threads), so that the limit is near to what is really used."""
    if count is not None and HAS_MEMORY_LIMITS:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        soft = count if most == resource.RLIM_INFINITY else min(count, most)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, most))


def bytes_used(memory_bytes: int | None, *, collect_share: float) -> int:
    """What counts towards a limit and was not given back; garbage is collected beyond this share of it."""
    if not HAS_MEMORY_LIMITS:
        return 0
    used = data_bytes("self")
    if memory_bytes is not None and used > memory_bytes * collect_share:
        gc.collect()
        used = data_bytes("self")
    return used


def data_bytes(pid: int | str) -> int:
    """What a process uses of its limit just now."""
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[5]) * resource.getpagesize()


def is_out_of_memory(error: BaseException) -> bool:
    # A mapping of memory that is refused is an OSError.
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
