"""How an archive is refused: which entry, by which rule, and what its owner can do.

Names come from strangers: they are shown as Python would write them, so that nothing in them reaches a
terminal or a log as it is, and shortened.
"""

from __future__ import annotations

from holdfast.core.errors import PermanentError

SHOWN_CHARS_MAX = 200

PACK_AGAIN = "Pack the files again with tar or zip, and upload the new archive."
PACK_LINKED = "Pack what the link leads to (tar -h), or leave the link out, and upload the new archive."
PACK_WHOLE = "Pack the files again without --sparse, and upload the new archive."
PACK_ONCE = "Leave one of the two out, and upload the new archive."
RENAME = "Rename the file, and upload the new archive."
PACK_LESS = "Upload the configuration files alone, or in several smaller archives."
PACK_OPEN = "Pack the files again without a password, and upload the new archive."


def shown(name: str) -> str:
    """A name in quotes, printable and not long."""
    text = repr(name[: SHOWN_CHARS_MAX + 1])
    if len(text) <= SHOWN_CHARS_MAX and len(name) <= SHOWN_CHARS_MAX:
        return text
    return text[: SHOWN_CHARS_MAX - 2] + "…" + text[0]


class NotReadHere(PermanentError):
    """Of an archive that means no harm and is whole, but is not read. Where it lies in another archive that
    one is still read; outside this package it is a PermanentError like any other."""

    @property
    def reason(self) -> str:
        """A part of a sentence."""
        message = str(self).rstrip(".")
        return message[0].lower() + message[1:]


def not_read_here(
    message: str,
    *,
    error_type: str = "malformed_archive",
    user_message: str = "The archive cannot be read safely",
    guidance: str = PACK_AGAIN,
) -> NotReadHere:
    return NotReadHere(message, error_type=error_type, user_message=user_message, guidance=guidance)


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


def needs_memory(archive: str) -> NotReadHere:
    return not_read_here(
        f"{archive} needs more memory to be unpacked than it is given here.",
        user_message="The archive needs too much memory to be unpacked",
        guidance="Pack the files again with `xz -6` or with gzip, and upload the new archive.",
    )


def too_much(message: str) -> PermanentError:
    return malformed(message, user_message="The archive holds more than is allowed", guidance=PACK_LESS)


def encrypted(message: str) -> NotReadHere:
    return not_read_here(
        message,
        error_type="encrypted_file",
        user_message="The archive is protected by a password",
        guidance=PACK_OPEN,
    )
