"""What an operator decides about documents, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from holdfast.core.errors import InvalidInput
from holdfast.core.masking import mask_secrets
from holdfast.pipelines.amounts import bytes_of, count_of, delays_of, seconds_of

UPLOAD_BYTES_MAX = "HOLDFAST_DOCUMENTS_UPLOAD_BYTES_MAX"
UNPACKED_BYTES_MAX = "HOLDFAST_DOCUMENTS_UNPACKED_BYTES_MAX"
PARSE_TIMEOUT = "HOLDFAST_DOCUMENTS_PARSE_TIMEOUT"
PARSE_MEMORY = "HOLDFAST_DOCUMENTS_PARSE_MEMORY"
CHUNK_CHARS = "HOLDFAST_DOCUMENTS_CHUNK_CHARS"
RETRY_DELAYS = "HOLDFAST_DOCUMENTS_RETRY_DELAYS"

UPLOAD_BYTES_MAX_DEFAULT = 256 * 1024**2
UNPACKED_BYTES_MAX_DEFAULT = 2 * 1024**3
PARSE_SECONDS_DEFAULT = 600.0
PARSE_MEMORY_DEFAULT = 1024**3
PARSE_MEMORY_MIN = 128 * 1024**2
CHUNK_CHARS_DEFAULT = 1_200
CHUNK_CHARS_MIN, CHUNK_CHARS_MOST = 200, 8_000
OVERLAP_SHARE = 1 / 8
TEXT_CHARS_MAX = 100_000_000
RETRY_DELAYS_DEFAULT = (5.0, 10.0, 20.0)
BATCH_DEFAULT, BATCH_MOST = 64, 2_048
TIMEOUT_DEFAULT = 60.0


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """A service with an OpenAI-compatible API; `url` is what stands before its routes."""

    url: str
    model: str
    api_key: str | None = field(repr=False)
    timeout_seconds: float
    batch_max: int = 1


@dataclass(frozen=True, slots=True)
class DocumentSettings:
    """`embeddings` and `analysis` are None where it is done here, by the model and the rules that come with
    Holdfast."""

    upload_bytes_max: int
    unpacked_bytes_max: int
    parse_seconds_max: float
    parse_memory_bytes: int
    chunk_chars_max: int
    retry_delays: tuple[float, ...]
    embeddings: EndpointSettings | None
    analysis: EndpointSettings | None
    text_chars_max: int = TEXT_CHARS_MAX

    @property
    def overlap_chars(self) -> int:
        return int(self.chunk_chars_max * OVERLAP_SHARE)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> DocumentSettings:
        delays = environ.get(RETRY_DELAYS, "").strip()
        return cls(
            upload_bytes_max=bytes_of(environ, UPLOAD_BYTES_MAX, UPLOAD_BYTES_MAX_DEFAULT),
            unpacked_bytes_max=bytes_of(environ, UNPACKED_BYTES_MAX, UNPACKED_BYTES_MAX_DEFAULT),
            parse_seconds_max=_seconds(environ, PARSE_TIMEOUT, PARSE_SECONDS_DEFAULT),
            parse_memory_bytes=bytes_of(
                environ, PARSE_MEMORY, PARSE_MEMORY_DEFAULT, least=PARSE_MEMORY_MIN, example="1GB"
            ),
            chunk_chars_max=count_of(
                environ, CHUNK_CHARS, CHUNK_CHARS_DEFAULT, least=CHUNK_CHARS_MIN, most=CHUNK_CHARS_MOST
            ),
            retry_delays=delays_of(RETRY_DELAYS, delays, "5,10,20") if delays else RETRY_DELAYS_DEFAULT,
            embeddings=_endpoint(environ, "HOLDFAST_EMBEDDINGS"),
            analysis=_endpoint(environ, "HOLDFAST_ANALYSIS"),
        )


def _endpoint(environ: Mapping[str, str], prefix: str) -> EndpointSettings | None:
    url, model = (environ.get(f"{prefix}_{name}", "").strip() for name in ("URL", "MODEL"))
    if not url:
        if model:
            raise InvalidInput(
                f"{prefix}_MODEL is set, and {prefix}_URL is not.",
                guidance=f"Set {prefix}_URL to the address of the service, such as https://host/v1,"
                f" or leave both out.",
            )
        return None
    parts = urlsplit(url)
    is_address = parts.scheme in ("http", "https") and parts.hostname and _has_good_port(parts)
    if not is_address or parts.query or parts.fragment:
        raise InvalidInput(
            f"{prefix}_URL is {mask_secrets(url)!r}.",
            guidance=f"Set {prefix}_URL to what stands before the names of the API, such as https://host/v1.",
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            f"{prefix}_URL has a password in it.",
            guidance=f"Leave it out there, and give it as {prefix}_API_KEY.",
        )
    if not model:
        raise InvalidInput(
            f"{prefix}_URL is set, and {prefix}_MODEL is not.",
            guidance=f"Set {prefix}_MODEL to the name of a model that the service has.",
        )
    return EndpointSettings(
        url=url.rstrip("/"),
        model=model,
        api_key=environ.get(f"{prefix}_API_KEY", "").strip() or None,
        timeout_seconds=_seconds(environ, f"{prefix}_TIMEOUT", TIMEOUT_DEFAULT),
        batch_max=count_of(environ, f"{prefix}_BATCH", BATCH_DEFAULT, least=1, most=BATCH_MOST),
    )


def _has_good_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    seconds = seconds_of(name, text) if text else default
    if seconds <= 0:
        raise InvalidInput(f"{name} is {text!r}.", guidance=f"Set {name} to a duration such as 10m.")
    return seconds
