"""What went wrong with a disk, in our words: whether it may heal, and what to do next."""

from __future__ import annotations

import errno

from holdfast.core.errors import HoldfastError, PermanentError, TransientError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_MAY_HEAL = frozenset(
    {errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.ETIMEDOUT, errno.ENODEV}
    | {errno.ENXIO, errno.EBUSY, errno.EAGAIN, errno.ENOTCONN, errno.EHOSTDOWN}
)
_NAME_TAKEN = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY})


def no_space(what: str, storage: str, why: str, bytes_asked: int | None = None) -> TransientError:
    """`what` is the file or the draft that found no room."""
    asked = "" if bytes_asked is None else f" for {bytes_asked:,} bytes more"
    return TransientError(
        f"The {what} found no room{asked} in the storage {storage}: {why}.",
        error_type="storage_unavailable",
        user_message="No space is left where files are kept",
        guidance="Will retry automatically once there is room: free some space in the storage.",
    )


def file_fault(error: OSError, name: str, storage: str, bytes_asked: int | None = None) -> HoldfastError:
    why = error.strerror or type(error).__name__
    if error.errno in _FULL:
        return no_space(f"file {name!r}", storage, why, bytes_asked)
    if error.errno in _MAY_HEAL:
        return TransientError(
            f"The file {name!r} could not be kept or read in the storage {storage}: {why}.",
            error_type="storage_unavailable",
        )
    if error.errno == errno.EFBIG:
        return too_large(f"file {name!r}", storage, why)
    if isinstance(error, FileNotFoundError):
        return not_found(name, storage)
    if error.errno in _NAME_TAKEN:
        return PermanentError(
            f"The file {name!r} cannot be in the storage {storage}: {why}.",
            error_type="validation_error",
            user_message="The name of a stored file cannot be used",
            guidance="The name, or a folder in it, is taken by something else. Choose another one.",
        )
    return not_allowed(f"file {name!r}", storage, why)


def draft_fault(error: OSError, key: str, folder: str, bytes_asked: int | None = None) -> HoldfastError:
    """As file_fault; what is missing of a draft was removed by others, and a later attempt makes it anew."""
    why = error.strerror or type(error).__name__
    if error.errno in _FULL:
        return no_space(f"draft {key!r}", folder, why, bytes_asked)
    if error.errno in _MAY_HEAL or isinstance(error, FileNotFoundError):
        return TransientError(
            f"The draft {key!r} could not be written or read in {folder}: {why}.",
            error_type="storage_unavailable",
        )
    if error.errno == errno.EFBIG:
        return too_large(f"draft {key!r}", folder, why)
    return not_allowed(f"draft {key!r}", folder, why)


def not_found(name: str, storage: str) -> PermanentError:
    return PermanentError(
        f"There is no file {name!r} in the storage {storage}.",
        error_type="not_found",
        user_message="A stored file was not found",
        guidance="Check its name, and whether the step that saves it has run on the same storage.",
    )


def too_large(what: str, storage: str, why: str) -> PermanentError:
    return PermanentError(
        f"The {what} is too large for the storage {storage}: {why}.",
        error_type="file_too_large",
        user_message="A file is too large to be kept",
        guidance="Keep less in one file, or raise the limit.",
    )


def not_allowed(what: str, storage: str, why: str) -> PermanentError:
    return PermanentError(
        f"The storage {storage} may not be used for the {what}: {why}.",
        error_type="auth_error",
        user_message="The storage may not be used",
        guidance="Check the permissions of the folder in HOLDFAST_STORAGE, or name another one.",
    )
