"""What an operator decides about configuration archives, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import InvalidInput
from holdfast.core.sizes import parse_bytes
from holdfast.pipelines.conf_archives.archive_limits import ArchiveLimits
from holdfast.pipelines.durations import delays_of
from holdfast.steps.interface import StepSettings
from holdfast.storage import Storage
from holdfast.storage.draft_file import DraftFolder
from holdfast.storage.s3 import spool_folder

UPLOAD_BYTES_MAX = "HOLDFAST_CONF_UPLOAD_BYTES_MAX"
UNPACKED_BYTES_MAX = "HOLDFAST_CONF_UNPACKED_BYTES_MAX"
ENTRIES_MAX = "HOLDFAST_CONF_ENTRIES_MAX"
RETRY_DELAYS = "HOLDFAST_CONF_RETRY_DELAYS"

UPLOAD_BYTES_MAX_DEFAULT = 1024**3
RETRY_DELAYS_DEFAULT = (60.0, 180.0, 600.0)
ENTRIES_MOST = 1_000_000
STORED_BYTES_MIN = 64 * 1024**2  # that any upload may make


@dataclass(frozen=True, slots=True)
class ConfSettings:
    upload_bytes_max: int
    limits: ArchiveLimits
    retry_delays: tuple[float, ...]

    def stored_bytes_max(self, uploaded_bytes: int) -> int:
        """What rows of an upload may hold: as much as may be unpacked of it."""
        by_ratio = int(self.limits.ratio_max * uploaded_bytes)
        return max(STORED_BYTES_MIN, min(self.limits.total_bytes_max, by_ratio))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> ConfSettings:
        delays = environ.get(RETRY_DELAYS, "").strip()
        usual = ArchiveLimits()
        return cls(
            upload_bytes_max=_bytes(environ, UPLOAD_BYTES_MAX, UPLOAD_BYTES_MAX_DEFAULT),
            limits=ArchiveLimits(
                total_bytes_max=_bytes(environ, UNPACKED_BYTES_MAX, usual.total_bytes_max),
                entries_max=_entries(environ, usual.entries_max),
            ),
            retry_delays=delays_of(RETRY_DELAYS, delays, "60,180,600") if delays else RETRY_DELAYS_DEFAULT,
        )


def open_storage(environ: Mapping[str, str] = os.environ) -> Storage:
    """That of this process's steps."""
    storage = StepSettings.from_environment(environ).storage
    try:
        return Storage.open(storage)
    except InvalidInput as error:
        raise InvalidInput(f"HOLDFAST_STORAGE: {error}", guidance=error.guidance) from None


def work_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where archives lie while they are read; it is made. Refused where others may look into it: what was
    checked could be another file a moment later."""
    spool = DraftFolder(spool_folder(environ), is_private=True)
    os.close(spool.open())
    return spool.path


def _bytes(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    amount = parse_bytes(text) if text else default
    if amount is None or amount < 1:
        raise InvalidInput(f"{name} is {text!r}.", guidance=f"Set {name} to a size such as 1GB.")
    return int(amount)


def _entries(environ: Mapping[str, str], default: int) -> int:
    text = environ.get(ENTRIES_MAX, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and 1 <= int(text) <= ENTRIES_MOST):
        raise InvalidInput(
            f"{ENTRIES_MAX} is {text!r}.",
            guidance=f"Set {ENTRIES_MAX} to a number from 1 to {ENTRIES_MOST:,} (written without commas).",
        )
    return int(text)
