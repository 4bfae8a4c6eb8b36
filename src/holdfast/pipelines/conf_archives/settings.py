"""What an operator decides about configuration archives, from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.pipelines.amounts import bytes_of, count_of, delays_of
from holdfast.pipelines.conf_archives.archive_limits import ArchiveLimits

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
            upload_bytes_max=bytes_of(environ, UPLOAD_BYTES_MAX, UPLOAD_BYTES_MAX_DEFAULT),
            limits=ArchiveLimits(
                total_bytes_max=bytes_of(environ, UNPACKED_BYTES_MAX, usual.total_bytes_max),
                entries_max=count_of(environ, ENTRIES_MAX, usual.entries_max, least=1, most=ENTRIES_MOST),
            ),
            retry_delays=delays_of(RETRY_DELAYS, delays, "60,180,600") if delays else RETRY_DELAYS_DEFAULT,
        )
