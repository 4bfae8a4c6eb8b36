"""One draft on the disk: its bytes, what was noted of them, and how many of them can be trusted.

    <key>.draft     the bytes; whoever writes them holds its lock
    <key>.note      {"note": {...}, "boot": "...", "synced": 16777216, "kept": null}
    <key>.noting    the next note, until it is renamed

A process that is killed loses nothing that was written: the system has it. A machine that loses its power may
lose what was not synced, or give back zeros in its place. So a note tells in which life of the machine its
bytes were written: in the same one all of them count, in a later one only those that were synced. Without a
note that can be read, none do. Hence the order: a note goes before the bytes that it speaks of are replaced,
and is written after those that it promises are synced.

A draft that is being put into its place says so in its note, which stays when the bytes have gone: whoever
comes next, because the end of the attempt was never heard of, finds that there is nothing left to do.

Everything here blocks, and is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.core.errors import InvalidInput, PermanentError
from holdfast.storage.disk import make_folders, to_its_end
from holdfast.storage.interface import Saved

NOTE_BYTES_MAX = 64 * 1024
SYNC_BYTES = 16 * 1024**2
PIECE_BYTES = 4 * 1024**2  # hashed or read in one go; an attempt that is cancelled waits for no more
DRAFT_SECONDS_MAX = 7 * 86400.0  # untouched for longer, a draft is of no use to anybody
LOOK_AFTER_SECONDS = 86400.0

_BYTES, _NOTE, _NOTING = ".draft", ".note", ".noting"
_NOT_OURS = frozenset({errno.ELOOP, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENXIO})
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_looked_after: dict[Path, float] = {}


@functools.cache
def this_boot() -> str:
    """What names this life of the machine; where nothing does, this process."""
    try:
        return _BOOT_ID.read_text().strip() or secrets.token_hex(16)
    except OSError:
        return f"process-{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class DraftFolder:
    """Where drafts lie."""

    path: Path
    prefix: str = ""
    """Of the names of its drafts, where several storages share the folder."""
    is_private: bool = False
    """Whether nobody but its owner may look into it: it lies where everybody may make folders."""

    def open(self) -> int:
        """The folder's descriptor. All is done through it, so that nobody can put another folder in its
        place meanwhile; a link in its place is not followed."""
        if self.is_private:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        else:
            make_folders(self.path.parent)
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(0o700 if self.is_private else 0o777)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise self._refused("it is a link, or no folder") from error
            raise
        found = os.fstat(descriptor)
        if self.is_private and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            os.close(descriptor)
            raise self._refused("others may look into it")
        return descriptor

    def _refused(self, why: str) -> PermanentError:
        guidance = (
            "Set HOLDFAST_SPOOL to a folder that only the worker's user can open, or that is yet to be made."
            if self.is_private
            else "Remove it: the worker makes a folder in its place."
        )
        return PermanentError(
            f"Drafts of files cannot lie in {self.path}: {why}.",
            error_type="auth_error",
            user_message="The storage may not be used",
            guidance=guidance,
        )

    def look_after(self, descriptor: int) -> None:
        """Now and then, remove what nobody has gone on with."""
        now = time.monotonic()
        if now - _looked_after.get(self.path, -LOOK_AFTER_SECONDS) < LOOK_AFTER_SECONDS:
            return
        _looked_after[self.path] = now
        names = set(os.listdir(descriptor))
        for name in names:
            stem, dot, kind = name.rpartition(".")
            is_alone = stem + _BYTES not in names
            with contextlib.suppress(OSError):  # another one was quicker, or it is not ours to remove
                if not _is_untouched(os.stat(name, dir_fd=descriptor, follow_symlinks=False)):
                    continue
                if dot + kind == _BYTES:
                    self._remove_untouched(stem)
                elif dot + kind in (_NOTE, _NOTING) and is_alone:
                    os.unlink(name, dir_fd=descriptor)

    def _remove_untouched(self, stem: str) -> None:
        file = DraftFile(self, stem)
        try:
            if file.lock() and file.is_untouched():
                file.remove()
        finally:
            file.close()


def _is_untouched(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime > DRAFT_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class _Noted:
    note: dict[str, Any]
    boot: str
    synced: int
    kept: Saved | None


class DraftFile:
    """The draft of this stem, once `take` has said yes. One that is private is for nobody to go on with: no
    note is kept, and it is removed when it is left."""

    def __init__(self, folder: DraftFolder, stem: str, *, is_private: bool = False) -> None:
        self.size = 0
        self.note: dict[str, Any] = {}
        self.kept: Saved | None = None
        """What an earlier attempt was about to make of it, where its bytes are here no more."""
        self.is_over = False
        """It was moved or removed: there is nothing to leave."""
        self._folder = folder
        self._stem = stem
        self._is_private = is_private
        self._folder_descriptor = -1
        self._descriptor = -1
        self._has_note = False
        self._synced = 0
        self._digest = hashlib.sha256()
        self._digested = 0
        self._keeping: Saved | None = None

    @property
    def path(self) -> Path:
        return self._folder.path / (self._stem + _BYTES)

    # ── to have it ──

    def take(self) -> bool | None:
        """Whether it is ours now. No: another attempt has it. None: it is not ours to use, now or later."""
        try:
            is_ours = self.lock()
        except OSError as error:
            if error.errno in _NOT_OURS and self._folder_descriptor >= 0 and not self._is_private:
                return None
            raise
        if is_ours:
            try:
                self._folder.look_after(self._folder_descriptor)
                self._find()
            except BaseException:
                self.close()  # unseen, it is left as it is
                raise
        return is_ours

    def lock(self) -> bool:
        if self._folder_descriptor < 0:
            self._folder_descriptor = self._folder.open()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._stem + _BYTES, flags, 0o666, dir_fd=self._folder_descriptor)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_at_its_place(descriptor):  # the one that had it kept it, or forgot it
                os.close(descriptor)
                return False
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def _is_at_its_place(self, descriptor: int) -> bool:
        try:
            there = os.stat(self._stem + _BYTES, dir_fd=self._folder_descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(descriptor))

    def is_untouched(self) -> bool:
        return _is_untouched(os.fstat(self._descriptor))

    def _find(self) -> None:
        """What is there and can be trusted."""
        os.utime(self._descriptor)  # whoever looks for abandoned drafts sees that it is not one
        there = os.fstat(self._descriptor).st_size
        noted = self._read_note()
        if noted is not None and noted.kept is not None and not there:
            self.kept = noted.kept
            return
        if noted is None or noted.synced > there:
            self.forget()
            return
        self.note, self._has_note, self._synced = noted.note, True, noted.synced
        if noted.boot == this_boot():
            self.size = there
            return
        self.size = noted.synced
        os.ftruncate(self._descriptor, self.size)
        self._write_note()

    def _read_note(self) -> _Noted | None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with open(os.open(self._stem + _NOTE, flags, dir_fd=self._folder_descriptor), "rb") as file:
                read = json.loads(file.read(2 * NOTE_BYTES_MAX))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(read, dict):
            return None
        note, boot, synced = read.get("note"), read.get("boot"), read.get("synced")
        if not isinstance(note, dict) or not isinstance(boot, str) or type(synced) is not int or synced < 0:
            return None
        return _Noted(note, boot, synced, _saved(read.get("kept")))

    # ── to write it ──

    def forget(self) -> None:
        """Every byte, and the note before them: bytes of one note are never taken for those of another."""
        if not self._is_private and self._unlink(_NOTE):
            os.fsync(self._folder_descriptor)
        os.ftruncate(self._descriptor, 0)
        self.kept = self._keeping = None
        self.size = self._synced = self._digested = 0
        self._digest = hashlib.sha256()
        self.note, self._has_note = {}, False

    def begin(self, note: Mapping[str, Any]) -> None:
        """The note is a checked one."""
        if self.size or self._has_note or self.kept is not None:
            self.forget()
        self.note = dict(note)
        self._write_note()

    def append(self, chunks: Iterable[bytes]) -> None:
        """Write them after what is there. What is counted is what was written, also where there is no room
        for all of it."""
        if self.kept is not None:
            self.forget()
        self._keeping = None  # what was about to be kept was less
        if not self._has_note:
            self._write_note()
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                count = os.pwrite(self._descriptor, rest, self.size)
                if self._digested == self.size:
                    self._digest.update(rest[:count])
                    self._digested += count
                self.size += count
                rest = rest[count:]
        if self.size - self._synced >= SYNC_BYTES and not self._is_private:
            self.settle()

    def settle(self) -> None:
        """All of it can be trusted from now on, whatever happens to the machine."""
        self._sync()
        self._write_note()

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError:
            # What the system could not write it may have dropped, and say nothing the next time.
            self._cut(self._synced)
            raise
        self._synced = self.size

    def _cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self.size = size
        if self._digested > size:
            self._digest, self._digested = hashlib.sha256(), 0

    def _write_note(self) -> None:
        if self._is_private:
            self._has_note = True
            return
        kept = None if self._keeping is None else asdict(self._keeping)
        told = {"note": self.note, "boot": this_boot(), "synced": self._synced, "kept": kept}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = self._folder_descriptor
        with open(os.open(self._stem + _NOTING, flags, 0o666, dir_fd=folder), "wb") as file:
            file.write(json.dumps(told).encode())
            file.flush()
            if self._synced:  # else there is nothing that it could save from a loss of power
                os.fsync(file.fileno())
        os.rename(self._stem + _NOTING, self._stem + _NOTE, src_dir_fd=folder, dst_dir_fd=folder)
        self._has_note = True
        if self._synced:
            os.fsync(folder)

    # ── to read it ──

    def digest_more(self) -> bool:
        """Whether bytes are left that were not hashed: those of earlier attempts, a piece at a time."""
        if self._digested < self.size:
            piece = self.read_piece(self._digested)
            self._digest.update(piece)
            self._digested += len(piece)
        return self._digested < self.size

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def read_piece(self, offset: int) -> bytes:
        piece = os.pread(self._descriptor, min(PIECE_BYTES, self.size - offset), offset)
        if not piece and offset < self.size:
            raise OSError(errno.EIO, "the file is shorter than it was")
        return piece

    async def pieces(self) -> AsyncIterator[bytes]:
        offset = 0
        while offset < self.size:
            piece = await to_its_end(functools.partial(self.read_piece, offset))
            yield piece
            offset += len(piece)

    # ── to end it ──

    def promise(self, saved: Saved) -> None:
        """Note what it is about to become. It is synced before: bytes that are missing then were moved."""
        self._sync()
        self._keeping = saved
        self._write_note()

    def move_to(self, target: Path) -> None:
        """It is whole, was promised, and is there from now on."""
        os.replace(self._stem + _BYTES, target, src_dir_fd=self._folder_descriptor)
        self.is_over = True

    def remove(self) -> None:
        for kind in (_NOTE, _NOTING, _BYTES):  # bytes without a note are none, should we end in between
            self._unlink(kind)
        self.is_over = True

    def remove_bytes(self) -> None:
        """They are elsewhere now; the note goes on telling where."""
        self._unlink(_BYTES)
        self.is_over = True

    def leave(self) -> None:
        """For the next one, if there is anything to go on with."""
        if self.is_over or self._descriptor < 0:
            return
        if self.kept is not None:
            self.remove_bytes()
        elif self._is_private or not self._has_note:
            self.remove()
        elif self.size > self._synced:
            self.settle()

    def close(self) -> None:
        """And with it the lock."""
        for descriptor in (self._descriptor, self._folder_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._folder_descriptor = -1

    def _unlink(self, kind: str) -> bool:
        try:
            os.unlink(self._stem + kind, dir_fd=self._folder_descriptor)
        except FileNotFoundError:
            return False
        return True


def _saved(kept: object) -> Saved | None:
    match kept:
        case {"name": str(name), "size": int(size), "sha256": str(sha256)}:
            return Saved(name, size, sha256)
        case _:
            return None


def checked_note(note: Mapping[str, Any]) -> dict[str, Any]:
    """As whoever goes on will read it."""
    try:
        text = json.dumps(dict(note), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"The note of a draft must be a mapping that JSON can hold: {error}.",
            guidance="Note texts, numbers, and lists and mappings of them.",
        ) from error
    if len(text) > NOTE_BYTES_MAX:
        raise InvalidInput(
            f"The note of a draft has {len(text):,} bytes; the limit is {NOTE_BYTES_MAX:,}.",
            guidance="Note only what tells whether the bytes can be gone on with.",
        )
    read: dict[str, Any] = json.loads(text)
    return read
