"""Where pipelines keep files: the storage of this process's steps, and a private folder to work in."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import InvalidInput
from holdfast.steps.interface import StepSettings
from holdfast.storage import Storage
from holdfast.storage.draft_file import DraftFolder
from holdfast.storage.s3 import spool_folder

# Before the folder of a dead attempt is removed by another one. A living one holds a lock on its own; this is
# for the moment between the two.
WORK_SECONDS_MIN = 60.0


def open_storage(environ: Mapping[str, str] = os.environ) -> Storage:
    """That of this process's steps."""
    storage = StepSettings.from_environment(environ).storage
    try:
        return Storage.open(storage)
    except InvalidInput as error:
        raise InvalidInput(f"HOLDFAST_STORAGE: {error}", guidance=error.guidance) from None


def work_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where files lie while they are read; it is made. Refused where others may look into it: what was
    checked could be another file a moment later."""
    spool = DraftFolder(spool_folder(environ), is_private=True)
    os.close(spool.open())
    return spool.path


@contextmanager
def attempt_folder(prefix: str) -> Iterator[Path]:
    """A folder of this attempt's own; those that killed ones have left are removed."""
    spool = work_folder()
    _remove_abandoned(spool, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=spool))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(spool: Path, prefix: str) -> None:
    for folder in spool.glob(f"{prefix}*"):
        try:
            if time.time() - folder.stat().st_mtime < WORK_SECONDS_MIN:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another one was quicker, or it is not ours to look at
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # its attempt lives
        finally:
            os.close(descriptor)
