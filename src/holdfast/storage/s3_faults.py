"""What an S3 server refused or did not answer, in our words.

The library says it in one text, of which the first lines hold the server's status and its own code for the
error. Where neither is told, the server was not reached or broke off: that may heal.
"""

from __future__ import annotations

import re

from holdfast.core.errors import PermanentError, TransientError
from holdfast.core.masking import mask_secrets
from holdfast.storage.faults import no_space, not_found, too_large

SHOWN_CHARS_MAX = 300

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_SAID = re.compile(r"<Message>([^<]*)</Message>")
# Whatever their status is: S3 tells some of them as faults of the caller.
_MAY_HEAL = frozenset(
    {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"}
    | {"ThrottlingException", "TooManyRequests", "NoSuchUpload"}
)
_FULL = frozenset({"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage"})
# What tells a machine at AWS who it is; asked where nothing else says it, and at no other place is it there.
_INSTANCE = re.compile(r"/latest/(?:api/token|meta-data/)")


def s3_fault(error: Exception, name: str, storage: str, *, is_write: bool) -> PermanentError | TransientError:
    text = str(error).split("\n\nDebug source", 1)[0]
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = found[1] if (found := _CODE.search(text)) else ""
    why = _why(text, status, code)
    if code in _FULL or status == 507:
        return no_space(f"file {name!r}", storage, why)
    if code in _MAY_HEAL:
        return _unavailable(name, storage, why)
    if code == "EntityTooLarge":
        return too_large(f"file {name!r}", storage, why)
    if _INSTANCE.search(text) and (status is None or status == 404):
        return _refused(name, storage, "no credentials are given")
    if code == "NoSuchBucket":
        return _refused(name, storage, "there is no such bucket")
    if isinstance(error, FileNotFoundError) and not is_write:
        return not_found(name, storage)
    if status is None:
        return _refused(name, storage, why) if _is_of_settings(error) else _unavailable(name, storage, why)
    if status >= 500 or status in (404, 408, 409, 429):
        return _unavailable(name, storage, why)
    return _refused(name, storage, why)


def took_too_long(name: str, storage: str, seconds: float) -> TransientError:
    return _unavailable(name, storage, f"no answer within {seconds:g} seconds")


def cut_short(name: str, storage: str, count: int, size: int) -> TransientError:
    return _unavailable(name, storage, f"{count:,} of {size:,} bytes came")


def _unavailable(name: str, storage: str, why: str) -> TransientError:
    return TransientError(
        f"The file {name!r} could not be kept or read in the storage {storage}: {why}.",
        error_type="storage_unavailable",
    )


def _refused(name: str, storage: str, why: str) -> PermanentError:
    for_what = f" for the file {name!r}" if name else ""
    return PermanentError(
        f"The storage {storage} may not be used{for_what}: {why}.",
        error_type="auth_error",
        user_message="The storage may not be used",
        guidance=f"Check that the bucket of {storage} is there, and what AWS_ACCESS_KEY_ID,"
        " AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL say where the worker runs.",
    )


def _is_of_settings(error: Exception) -> bool:
    """Nothing was sent: what the AWS_* variables say cannot be used, or may not be."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError, UnknownConfigurationKeyError

    kinds = (ValueError, PermissionDeniedError, UnauthenticatedError, UnknownConfigurationKeyError)
    told = ("builder error", "URL scheme is not allowed")
    return isinstance(error, kinds) or any(words in str(error) for words in told)


def _why(text: str, status: int | None, code: str) -> str:
    if code:
        said = found[1].strip() if (found := _SAID.search(text)) else ""
        told = f"{code} ({said.rstrip('.')})" if said else code
    elif status is not None:
        told = f"status {status}"
    else:
        told = " ".join(text.split()).rstrip(".")
    masked = mask_secrets(told[: 4 * SHOWN_CHARS_MAX])
    return masked if len(masked) <= SHOWN_CHARS_MAX else f"{masked[: SHOWN_CHARS_MAX - 1]}…"
