"""A copy of a SQLite database that others are writing to: of one moment, checked, whole or not at all.

    database ──one read transaction──▶ .NAME.TOKEN.partial ──check, sync, link──▶ NAME

SQLite copies page by page within one transaction that reads: who writes goes on meanwhile, and is not in the
copy. A copy of the file with tools of the system has no such moment, and may leave out what is in the log.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from holdfast.core.errors import InvalidInput, StoreUnavailable, StoreUnusable
from holdfast.store.sqlite_errors import in_our_words
from holdfast.store.sqlite_schema import schema_of

BUSY_TIMEOUT_MS = 10_000


class Backup(NamedTuple):
    file: Path
    size: int
    schema_version: int


def back_up(database: Path, file: Path) -> Backup:
    """Blocks until it is on the disk. What is there under this name is never replaced."""
    refuse_existing(file)
    with _explained(file), _partial(file) as partial:
        version = _copy(database, partial)
        _check(partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        try:
            os.link(partial, file)  # as renaming does, but not over what came there meanwhile
        except FileExistsError:
            refuse_existing(file)
            raise
        except OSError:  # a file system without links
            refuse_existing(file)
            partial.rename(file)
        _sync_folder(file.parent)
        return Backup(file, file.stat().st_size, version)


def refuse_existing(file: Path) -> None:
    if file.exists() or file.is_symlink():
        raise InvalidInput(
            f"There is a file {file} already, and it is left as it is.",
            guidance="Give each backup a name of its own, with its date.",
        )


@contextlib.contextmanager
def _partial(file: Path) -> Iterator[Path]:
    """A file that only its owner can read: a backup holds what the database holds."""
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _copy(database: Path, partial: Path) -> int:
    """The version of its schema."""
    try:
        source = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)  # and never CREATE
        try:
            source.set_busy_timeout(BUSY_TIMEOUT_MS)
            if not source.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'holdfast_schema'").get:
                raise StoreUnusable(
                    f"The database {database} has no tables of Holdfast.",
                    guidance="Is it the right one? Other programs have tools of their own.",
                )
            _write(source, partial)
        finally:
            source.close()
    except (apsw.FullError, apsw.ReadOnlyError):
        raise  # of the copy
    except apsw.Error as error:
        raise in_our_words(error, database) from error
    copy = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return schema_of(copy)[0]
    finally:
        copy.close()


def _write(source: apsw.Connection, partial: Path) -> None:
    copy = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with copy.backup("main", source, "main") as pages:
            pages.step(-1)  # all at once: a second step would begin anew after each write of others
        # One file, without a log beside it. Whoever opens it with Holdfast gets the log back.
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()


def _check(partial: Path) -> None:
    if damage := damage_of(partial):
        raise StoreUnusable(
            f"The copy is damaged, and so is the database: {damage}",
            guidance="No backup was made. Keep the last one that was, and see what the disk says.",
        )


def damage_of(file: Path) -> str:
    """What is wrong with it, in SQLite's words; empty where nothing is."""
    try:
        database = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)  # and never CREATE
        try:
            database.set_busy_timeout(BUSY_TIMEOUT_MS)
            found = [text for (text,) in database.execute("PRAGMA integrity_check(3)")]
        finally:
            database.close()
    except apsw.CorruptError as error:
        found = [str(error)]
    return "" if found == ["ok"] else "; ".join(found)


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Of the copy; what is wrong with the database is told of that."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"The backup {file} could not be written: {error.strerror or error}.",
            guidance="Check that its folder is there, may be written and has room. No backup was made.",
        ) from error
    except apsw.Error as error:
        raise in_our_words(error, file) from error


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
