"""Which names entries may have, and where links may lead.

    name ──▶ parts ──▶ path ──▶ claimed: as a file, a folder or a link, once

A path is what is left of a name without `.` parts and doubled slashes, below the path of the archive it
lies in. Nothing is ever written under such a path; the rules are there because a name that breaks one of
them was made to hurt whoever unpacks it, and because the same path twice would mean two things.

A claimed path is remembered by eight bytes of a keyed hash, so that a hundred thousand of them, with the
folders that nobody listed, need three megabytes, and nobody outside can choose names that are slow to look
up. Two names with one hash would be refused as one; that happens once in a billion of the largest archives.
"""

from __future__ import annotations

import os
import re
from array import array
from enum import IntEnum
from hashlib import blake2b
from typing import Literal

from holdfast.core.errors import PermanentError
from holdfast.pipelines.conf_archives.archive_entry import HardLink, SymbolicLink
from holdfast.pipelines.conf_archives.archive_limits import Budget
from holdfast.pipelines.conf_archives.archive_refusals import (
    PACK_AGAIN,
    PACK_LINKED,
    PACK_ONCE,
    RENAME,
    malformed,
    shown,
    too_much,
)

_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EITHER_SLASH = re.compile(r"[/\\]")
_FOLDER_ICON = "Icon\r"
_SLOTS_MIN = 1024


class Claim(IntEnum):
    """What a path is taken for. Kept in the two lowest bits of a hash; none of them is 0, which is free."""

    FILE = 1
    FOLDER = 2
    LINK = 3


def decoded(name: bytes, otherwise: Literal["latin-1", "cp437"] = "latin-1") -> str:
    """UTF-8 where it is, else a character for each byte: a strange name is no reason to refuse a file."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode(otherwise)


def is_folder_icon(name: str) -> bool:
    """What macOS keeps in a folder that has an icon of its own, and packs beside that."""
    return name.rpartition("/")[2] in (_FOLDER_ICON, f"._{_FOLDER_ICON}")


class Names:
    """The names of one archive: `inside` is its path in the archives around it, "" for the outermost. In a
    zip a backslash parts folders too, as some packers on Windows write it."""

    def __init__(self, inside: str, budget: Budget, *, is_backslash_slash: bool = False) -> None:
        self.archive = f"The archive {shown(inside)} inside the archive" if inside else "The archive"
        self._inside = inside
        self._budget = budget
        self._limits = budget.limits
        self._slash = _EITHER_SLASH if is_backslash_slash else re.compile("/")
        self._claims = _Claims()

    def file(self, name: str) -> str:
        path = self.path_of(name)
        self._budget.take_entry(path)
        if path == self._inside:
            raise self._refused(name, "has a name without a file in it")
        self._claim(path, Claim.FILE)
        return path

    def folder(self, name: str) -> None:
        path = self.path_of(name)
        self._budget.take_entry(path)
        if path != self._inside:
            self._claim(path, Claim.FOLDER)

    def link(self, name: str, target: str, *, is_from_root: bool) -> str:
        """Its path, which is remembered, for nothing may lie below it. The target of a hard link is seen from
        the root, that of a symbolic one from the link's folder."""
        path = self.path_of(name)
        self._budget.take_entry(path)
        if path == self._inside:
            raise self._refused(name, "is a link in the place of the archive's root")
        depth = 0 if is_from_root else len(self._parts(name)) - 1
        if _ABSOLUTE.match(target) or _leads_above(target, depth):
            out = f"is a link that leads out of the archive, to {shown(target)}"
            raise self._refused(name, out, PACK_LINKED)
        self._claim(path, Claim.LINK)
        return path

    def symbolic_link(self, name: str, target: str) -> SymbolicLink:
        """What is known of one that was claimed."""
        parts = self._parts(name)[:-1]
        for part in self._parts(target):
            if part == "..":
                del parts[-1:]
            else:
                parts.append(part)
        return SymbolicLink(target, self._claims.of(self._path(parts)) == Claim.FOLDER)

    def hard_link(self, target: str) -> HardLink:
        try:
            path = self.path_of(target)
        except PermanentError:  # a file of that name would be refused, so there is none
            return HardLink(target, None)
        return HardLink(target, None if path == self._inside else path)

    def path_of(self, name: str) -> str:
        """The path of a name that keeps the rules."""
        if not name:
            raise self._refused(name, "has an empty name")
        if len(name) + len(self._inside) > self._limits.path_chars_max:
            raise self._too_long(name, f"longer than {self._limits.path_chars_max:,} characters")
        if not name.isascii() or not self._inside.isascii():
            bytes_count = len(name.encode(errors="replace")) + len(self._inside.encode(errors="replace"))
            if bytes_count > self._limits.path_bytes_max:
                raise self._too_long(name, f"longer than {self._limits.path_bytes_max:,} bytes in UTF-8")
        if _CONTROL.search(name.removesuffix(_FOLDER_ICON) if is_folder_icon(name) else name):
            raise self._refused(name, "has a control character in its name", RENAME)
        if _ABSOLUTE.match(name):
            raise self._refused(name, "has an absolute name")
        if ".." in name and ".." in _EITHER_SLASH.split(name):
            raise self._refused(name, "has a '..' in its name, which may lead out of the archive")
        parts = self._parts(name)
        if len(parts) + self._inside.count("/") > self._limits.path_depth_max:
            raise self._too_long(name, f"deeper than {self._limits.path_depth_max:,} folders")
        return self._path(parts)

    def shown(self, name: str) -> str:
        """A name that was not looked at yet, for a message."""
        return shown(f"{self._inside}/{name}" if self._inside else name)

    def _parts(self, name: str) -> list[str]:
        return [part for part in self._slash.split(name) if part not in ("", ".")]

    def _path(self, parts: list[str]) -> str:
        return "/".join([self._inside, *parts] if self._inside else parts)

    def _claim(self, path: str, claim: Claim) -> None:
        taken = self._claims.of(path)
        if taken == claim == Claim.FOLDER:
            return
        if taken:
            twice = f"Entry {shown(path)} is there twice, {_twice(taken, claim)}."
            raise malformed(twice, guidance=PACK_ONCE)
        self._claims.add(path, claim)
        self._claim_folders_above(path)

    def _claim_folders_above(self, path: str) -> None:
        above = path
        while (cut := above.rfind("/")) > len(self._inside):
            above = above[:cut]
            taken = self._claims.of(above)
            if taken == Claim.FOLDER:
                return  # and so is everything above it
            if taken:
                raise malformed(
                    f"Entry {shown(path)} lies below {shown(above)}, which is a {Claim(taken).name.lower()}."
                )
            self._budget.take_unlisted_folder(above)
            self._claims.add(above, Claim.FOLDER)

    def _refused(self, name: str, rule: str, guidance: str = PACK_AGAIN) -> PermanentError:
        return malformed(f"Entry {self.shown(name)} {rule}.", guidance=guidance)

    def _too_long(self, name: str, rule: str) -> PermanentError:
        return too_much(f"Entry {self.shown(name)} has a name that is {rule}.")


def _leads_above(target: str, depth: int) -> bool:
    for part in _EITHER_SLASH.split(target):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def _twice(first: int, second: int) -> str:
    names = [Claim(claim).name.lower() for claim in (first, second)]
    return f"both times as a {names[0]}" if first == second else f"as a {names[0]} and as a {names[1]}"


class _Claims:
    """A table of hashes, at most four fifths full, so that all paths of the largest archive are in one of
    2 MB: a path is in its slot, or in the next free one."""

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * _SLOTS_MIN
        self._count = 0
        self._key = os.urandom(16)

    def of(self, path: str) -> int:
        """A Claim, or 0."""
        return self._slots[self._slot_of(self._hash(path))] & 3

    def add(self, path: str, claim: Claim) -> None:
        value = self._hash(path)
        self._slots[self._slot_of(value)] = value | claim
        self._count += 1
        if 5 * self._count > 4 * len(self._slots):
            self._grow()

    def _hash(self, path: str) -> int:
        digest = blake2b(path.encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") & ~3

    def _slot_of(self, value: int) -> int:
        slots, mask = self._slots, len(self._slots) - 1
        slot = (value >> 2) & mask
        while slots[slot] and slots[slot] & ~3 != value:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        before, self._slots = self._slots, array("Q", [0]) * (2 * len(self._slots))
        for value in before:
            if value:
                self._slots[self._slot_of(value & ~3)] = value
