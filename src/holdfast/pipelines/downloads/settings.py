"""What an operator decides about downloads, from the environment.

What the playbook says (delays, retries, credentials by their names) is settled where items are submitted: by
the server, or by a command that is given the database. What a file may weigh and where it goes is settled by
the worker that fetches it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidInput
from holdfast.core.masking import mask_secrets
from holdfast.core.retry import MAX_ATTEMPTS_MAX
from holdfast.pipelines.amounts import bytes_of, delays_of, parts_of, seconds_of

DELAY = "HOLDFAST_DOWNLOAD_DELAY"
MAX_RETRIES = "HOLDFAST_DOWNLOAD_MAX_RETRIES"
RETRY_DELAYS = "HOLDFAST_DOWNLOAD_RETRY_DELAYS"
AUTH = "HOLDFAST_DOWNLOAD_AUTH"
BYTES_MAX = "HOLDFAST_DOWNLOAD_BYTES_MAX"

DELAY_SECONDS_DEFAULT = 15 * 60.0
RETRIES_DEFAULT = 3
RETRY_DELAYS_DEFAULT = (60.0, 180.0, 300.0)
FILE_BYTES_MAX_DEFAULT = 10 * 1024**3

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_SECRET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")


@dataclass(frozen=True, slots=True)
class Credential:
    """The header that a portal is shown, and the secret that is its value."""

    origin: str
    header: str
    secret: str
    is_bearer: bool


@dataclass(frozen=True, slots=True)
class DownloadSettings:
    delay_seconds: float = DELAY_SECONDS_DEFAULT
    """From the moment at which all items of a batch have asked to the first download."""
    retries: int = RETRIES_DEFAULT
    """Of each of the two steps, after its first attempt."""
    retry_delays: tuple[float, ...] = RETRY_DELAYS_DEFAULT
    credentials: tuple[Credential, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> DownloadSettings:
        delay = environ.get(DELAY, "").strip()
        retries = environ.get(MAX_RETRIES, "").strip()
        delays = environ.get(RETRY_DELAYS, "").strip()
        return cls(
            delay_seconds=seconds_of(DELAY, delay) if delay else DELAY_SECONDS_DEFAULT,
            retries=_retries(retries) if retries else RETRIES_DEFAULT,
            retry_delays=delays_of(RETRY_DELAYS, delays, "60,180,300") if delays else RETRY_DELAYS_DEFAULT,
            credentials=_credentials(environ.get(AUTH, "")),
        )


def file_bytes_max(environ: Mapping[str, str]) -> int:
    return bytes_of(environ, BYTES_MAX, FILE_BYTES_MAX_DEFAULT, example="10GB")


def _retries(text: str) -> int:
    most = MAX_ATTEMPTS_MAX - 1
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) <= most):
        raise InvalidInput(
            f"{MAX_RETRIES} is {text!r}.", guidance=f"Set {MAX_RETRIES} to a number from 0 to {most}."
        )
    return int(text)


def _credentials(text: str) -> tuple[Credential, ...]:
    found = tuple(_credential(part) for part in parts_of(text))
    if len({(one.origin, one.header) for one in found}) < len(found):
        raise _wrong("the same header of an origin is named twice")
    return found


def _credential(text: str) -> Credential:
    origin, _, named = text.partition("=")
    header, colon, secret = named.rpartition(":")
    header = header.strip().lower() if colon else "authorization"
    if (known := _origin(origin.strip())) is None:
        raise _wrong(f"{mask_secrets(origin.strip())!r} is no origin of a portal")
    if not _HEADER.fullmatch(header) or not _SECRET.fullmatch(secret.strip()):
        raise _wrong(f"what stands behind {origin.strip()}= does not name a secret")
    return Credential(known, header, secret.strip(), is_bearer=not colon)


def _origin(text: str) -> str | None:
    """None where it is more than an origin, or less."""
    try:
        parts = urlsplit(text)
        known = origin_of(text)
    except ValueError:  # a port that is none
        return None
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
    is_host = _HOST.fullmatch(parts.hostname or "")
    return known if parts.scheme in ("http", "https") and is_host and not has_more else None


def _wrong(what: str) -> InvalidInput:
    return InvalidInput(
        f"{AUTH}: {what}.",
        guidance="Write https://portal.example=SECRET for a bearer token, or"
        " https://portal.example=Header-Name:SECRET, several of them with commas between.",
    )


def origin_of(url: str) -> str:
    """Scheme, host and port, written in one way."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
