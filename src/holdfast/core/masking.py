"""Text that may be kept and shown: secrets masked, bounded, nothing that a store refuses.

    text from anywhere ──cut generously──▶ storable ──mask_secrets──▶ masked ──cut exactly──▶ kept

The first cut keeps masking cheap: masking megabytes to keep a page of them would be waste. The exact cut
comes last: a cut through the middle of a secret would hide it from the mask.
"""

import re
from collections.abc import Iterable

MESSAGE_CHARS_MAX = 4000
TRACE_BYTES_MAX = 16 * 1024
SECRET_CHARS_MIN = 5  # of fewer, too little is left in base64 to be found

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")

_AUTHORIZATION = re.compile(
    r"(authorization(?:\\*['\"]\]?\s*[:=,]|\s*[:=])\s*)"
    r"(?:(b?(['\"]))[^\r\n]*?\3|[^\r\n]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bbearer\s+)[A-Za-z0-9._~+/-]+=*", re.IGNORECASE)
_OWN_TOKEN = re.compile(r"(\bholdfast_[0-9a-f]{12}_)[A-Za-z0-9_-]{43}")
# Up to the last @ of the word, since passwords hold unescaped ones; "host:80/..." is a port. The bounds
# keep hostile text from costing quadratic time.
_URL_PASSWORD = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@'\"]{0,256}:)(?!\d{1,5}(?:[/?#'\"),;]|$))[^\s]{1,1024}(?=@)",
    re.IGNORECASE,
)


def mask_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace the given secrets, Authorization values, bearer tokens, tokens of servers and passwords in URLs
    by ***."""
    if secrets:
        # The longest first, or a secret that begins with another one would leave its tail behind.
        for secret in sorted(set(secrets), key=len, reverse=True):
            if len(secret) >= SECRET_CHARS_MIN:
                text = text.replace(secret, "***")
    # Most text has none of these; looking for a word is far cheaper than for a pattern.
    words = text.lower()
    if "authorization" in words:
        text = _AUTHORIZATION.sub(lambda match: f"{match[1]}{match[2] or ''}***{match[3] or ''}", text)
    if "holdfast_" in words:
        text = _OWN_TOKEN.sub(r"\1***", text)
    if "bearer" in words:
        text = _BEARER.sub(r"\1***", text)
    return _URL_PASSWORD.sub(r"\1***", text) if "://" in words else text


def clean_message(text: str) -> str:
    masked = mask_secrets(_storable(text[: 4 * MESSAGE_CHARS_MAX]))
    return masked if len(masked) <= MESSAGE_CHARS_MAX else f"{masked[: MESSAGE_CHARS_MAX - 1]}…"


def _storable(text: str) -> str:
    # Plain text, which most of it is, is told at the cost of one look.
    return text if text.isascii() and "\x00" not in text else _NOT_STORABLE.sub("\ufffd", text)


def clean_trace(text: str) -> str:
    """Keep the end, where the error is."""
    masked = mask_secrets(_storable(text[-4 * TRACE_BYTES_MAX :]))
    if masked.isascii():
        return masked[-TRACE_BYTES_MAX:]
    return masked.encode()[-TRACE_BYTES_MAX:].decode(errors="ignore")
