"""How much an archive may hold, and how much of that is used up.

One budget goes through all levels of an archive, so that what is packed three times counts three times.
Sizes are taken from it as they are declared, before a byte is unpacked; the readers see to it that no entry
turns out larger than it said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.pipelines.conf_archives.archive_refusals import needs_memory, shown, too_much

RATIO_BYTES_MIN = 16 * 1024**2  # unpacked, before the ratio tells anything

# All levels share it; what else they need is a few megabytes.
DECODER_MEMORY_BYTES = 65 * 1024**2
# What xz needs to unpack what it packed with -9, with -8, with -7, by default, and with -4.
XZ_MEMORY_BYTES = (DECODER_MEMORY_BYTES, 33 * 1024**2, 17 * 1024**2, 9 * 1024**2, 5 * 1024**2)
BZIP2_MEMORY_BYTES = 4 * 1024**2


@dataclass(frozen=True)
class ArchiveLimits:
    total_bytes_max: int = 4 * 1024**3  # of all entries, unpacked, nested archives included
    ratio_max: float = 200.0  # unpacked : packed, looked at once more than 16 MiB have been unpacked
    entries_max: int = 100_000  # all entries in all levels: files, folders, links
    depth_max: int = 3  # archives in archives in archives
    path_depth_max: int = 50
    path_chars_max: int = 1000
    path_bytes_max: int = 2000  # in UTF-8: an index of PostgreSQL takes no more than 2,700


class Budget:
    """What is left of the limits for an archive of so many bytes."""

    def __init__(self, limits: ArchiveLimits, packed_bytes: int) -> None:
        self.limits = limits
        self._packed_bytes = packed_bytes
        self._entries = 0
        self._unlisted_folders = 0
        self._unpacked_bytes = 0
        self._memory_left = DECODER_MEMORY_BYTES

    def take_entry(self, path: str) -> None:
        self._entries += 1
        if self._entries > self.limits.entries_max:
            raise self._too_many(f"entries; {shown(path)} is one too many")

    def take_entries_ahead(self, count: int) -> None:
        """Whether so many more would be too many, before the first of them is looked at."""
        if self._entries + count > self.limits.entries_max:
            raise self._too_many(f"entries: {self._entries + count:,} are announced")

    def take_unlisted_folder(self, path: str) -> None:
        """A folder that is no entry takes memory as well: its name is remembered."""
        self._unlisted_folders += 1
        if self._unlisted_folders > self.limits.entries_max:
            raise self._too_many(f"folders that it does not list; {shown(path)} is one too many")

    def _too_many(self, what: str) -> Exception:
        return too_much(f"The archive holds more than {self.limits.entries_max:,} {what}.")

    def take_bytes(self, size: int, path: str) -> None:
        self._unpacked_bytes += size
        if self._unpacked_bytes > self.limits.total_bytes_max:
            raise too_much(
                f"The archive unpacks to more than {self.limits.total_bytes_max:,} bytes; the limit is passed"
                f" by entry {shown(path)} with its {size:,} bytes."
            )
        is_told = self._unpacked_bytes > RATIO_BYTES_MIN
        if is_told and self._unpacked_bytes > self.limits.ratio_max * self._packed_bytes:
            raise too_much(
                f"The archive unpacks to more than {self.limits.ratio_max:g} times its {self._packed_bytes:,}"
                f" bytes; the limit is passed by entry {shown(path)} with its {size:,} bytes."
            )

    def xz_memory_steps(self) -> list[int]:
        """How much memory an xz may be given, the least first."""
        return [step for step in reversed(XZ_MEMORY_BYTES) if step <= self._memory_left]

    @contextmanager
    def memory_lent(self, size: int, archive: str) -> Iterator[None]:
        """To the decoder of one level, for as long as it is read."""
        if size > self._memory_left:
            raise needs_memory(archive)
        self._memory_left -= size
        try:
            yield
        finally:
            self._memory_left += size
