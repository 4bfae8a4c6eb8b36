"""SQLite's errors told as ours: what is wrong with which file, and whether trying again may help."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.core.errors import StoreUnavailable, StoreUnusable

_UNUSABLE = {
    apsw.NotADBError: "is not a SQLite database",
    apsw.CorruptError: "is a damaged SQLite database",
    apsw.CantOpenError: "cannot be opened or created: the folder is missing, or not writable",
    apsw.ReadOnlyError: "is read-only, or its folder is",
    apsw.PermissionsError: "may not be accessed",
    apsw.AuthError: "may not be accessed",
}
# The fault of a value or a row, which will be the same next time.
_ABOUT_THE_DATA = (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError)
_UNAVAILABLE = {
    apsw.BusyError: "is locked by another process",
    apsw.LockedError: "is locked by another connection",
    apsw.FullError: "cannot grow: the disk is full",
    apsw.IOError: "had an input/output error",
}


def in_our_words(error: apsw.Error, path: Path) -> Exception:
    """The error to raise for SQLite's; one about the data stays what it is."""
    for kind, words in _UNUSABLE.items():
        if isinstance(error, kind):
            return StoreUnusable(
                f"The database {path} {words} ({error}).",
                guidance="Check the path and its permissions, or name another file.",
            )
    for kind, words in _UNAVAILABLE.items():
        if isinstance(error, kind):
            return StoreUnavailable(
                f"The database {path} {words} ({error}).",
                guidance="Nothing was written. It is safe to try again once the cause is gone.",
            )
    if isinstance(error, _ABOUT_THE_DATA):
        return error
    return StoreUnavailable(
        f"The database {path} failed ({type(error).__name__}: {error}).",
        guidance="Nothing was written. It is safe to try again.",
    )
