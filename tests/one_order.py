"""A real worker process that runs one execution of the pipeline `order` to its end, and is then stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from command_scenario import LIMIT_SECONDS, Said, holdfast, process


def worked(app: str, url: str, *options: str, until: Callable[[], bool] = lambda: True, **env: str) -> Said:
    """How the worker ended, and what it said. It is not stopped before `until` is so."""
    with process("worker", "--app", app, "--db", url, *options, **env) as worker:
        deadline = time.monotonic() + 2 * LIMIT_SECONDS
        # Until then it has not registered its pipeline.
        while (submitted := holdfast(url, "submit", "order", "--workload", '"<7>"')).code != 0:
            assert time.monotonic() < deadline and worker.poll() is None, submitted
            time.sleep(0.05)
        while (shown := holdfast(url, "status", 1, "--json").json)["status"] == "running":
            assert time.monotonic() < deadline and worker.poll() is None, shown
            time.sleep(0.05)
        while not until():
            assert time.monotonic() < deadline and worker.poll() is None
            time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=LIMIT_SECONDS)
    assert shown["status"] == "completed", shown
    return Said(worker.returncode, out, err)
