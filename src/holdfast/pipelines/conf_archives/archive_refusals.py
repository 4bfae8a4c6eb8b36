"""How an archive is refused: which entry, by which rule, and what its owner can do.

Names come from strangers: they are shown as Python would write them, so that nothing in them reaches a
terminal or a log as it is, and shortened.
"""

from __future__ import annotations

from holdfast.core.errors import PermanentError

SHOWN_CHARS_MAX = 200

PACK_AGAIN = "Pack the files again with tar or zip, and upload the new archive."
PACK_LESS = "Upload the configuration files alone, or in several smaller archives."
PACK_OPEN = "Pack the files again without a password, and upload the new archive."


def shown(name: str) -> str:
    """A name in quotes, printable and not long."""
    text = repr(name[: SHOWN_CHARS_MAX + 1])
    if len(text) <= SHOWN_CHARS_MAX and len(name) <= SHOWN_CHARS_MAX:
        return text
    return text[: SHOWN_CHARS_MAX - 2] + "…" + text[0]


def malformed(
    message: str, *, user_message: str = "The archive cannot be read safely", guidance: str = PACK_AGAIN
) -> PermanentError:
    return PermanentError(
        message, error_type="malformed_archive", user_message=user_message, guidance=guidance
    )


def damaged(message: str) -> PermanentError:
    return malformed(
        message,
        user_message="The archive is damaged or incomplete",
        guidance=f"Check whether the file was copied whole. Else: {PACK_AGAIN[0].lower()}{PACK_AGAIN[1:]}",
    )


def too_much(message: str) -> PermanentError:
    return malformed(message, user_message="The archive holds more than is allowed", guidance=PACK_LESS)


def encrypted(message: str) -> PermanentError:
    return PermanentError(
        message,
        error_type="encrypted_file",
        user_message="The archive is protected by a password",
        guidance=PACK_OPEN,
    )
