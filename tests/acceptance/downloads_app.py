"""Workers of the pipeline `downloads`, to be killed in every phase; one that is told so dies in the moment at
which a file has been put into its place and nobody has been told.

    downloads_app.py URL FOLDER NAME PARENT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from faults.processes import die_with
from holdfast import Holdfast
from holdfast.pipelines.registry import all_functions
from holdfast.storage import Draft, Saved

CONCURRENCY = 4
LEASE_SECONDS = 5.0
DIE_AFTER_KEEPING = "die after keeping"


def die_after_keeping(folder: Path) -> None:
    """The first to put a file into its place while the folder says so is killed there."""
    keep = Draft.keep

    async def kept(self: Any, name: str) -> Saved:
        saved = await keep(self, name)
        try:
            (folder / DIE_AFTER_KEEPING).unlink()
        except FileNotFoundError:
            return saved
        (folder / "died with").write_text(name)
        os.kill(os.getpid(), signal.SIGKILL)
        return saved

    Draft.keep = kept  # type: ignore[method-assign]


if __name__ == "__main__":
    url, folder, name, parent = sys.argv[1:5]
    die_with(int(parent))
    die_after_keeping(Path(folder))
    hf = Holdfast(url)
    hf.add_functions(all_functions())
    hf.run_worker(worker_id=name, concurrency=CONCURRENCY, lease_seconds=LEASE_SECONDS, poll_seconds=0.5)
