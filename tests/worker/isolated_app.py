"""A worker whose step, in a process of its own, is defined in the script itself: to be killed, or stopped."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from holdfast import Context, Holdfast, Retry


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


hf = Holdfast(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///never-opened.db")


@hf.step(isolation="process", retry=Retry(max_attempts=2, delays=[0.01]))
def waits(ctx: Context) -> str:
    Path(ctx.workload["pid"]).write_text(str(os.getpid()))
    if ctx.workload["go on"] == "never":
        re.match(r"(a*)*b", "a" * 60)  # holds the interpreter: no thread of this process can look around
    wait_for(ctx.workload["go on"])
    return "ended"


hf.pipeline("waits", [waits])

if __name__ == "__main__" or "unguarded" in sys.argv:
    hf.run_worker()
