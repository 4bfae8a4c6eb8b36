"""How a file is refused: which file, by which rule, and what its owner can do.

Names come from strangers: they are shown as Python would write them, so that nothing in them reaches a
terminal or a log as it is, and shortened.
"""

from __future__ import annotations

from holdfast.core.errors import HoldfastError, PermanentError
from holdfast.core.sizes import shown_bytes

SHOWN_CHARS_MAX = 120
FORMATS = "Supported formats: PDF, XLSX, DOCX, TXT"


class ReadingNeedsMemory(HoldfastError, MemoryError):
    """The reading process had no more memory. Known as `memory_limit` by its second base."""

    code = "memory_limit"
    user_message = "The document needs too much memory to be read"
    guidance = "Split it into several files and upload those, or give the reading of documents more memory."


class ReaderFailed(HoldfastError):
    """A reader broke in a way that says nothing about the file: its category is unknown."""

    code = "reader_failed"


def shown(name: str) -> str:
    """A name in quotes, printable and not long."""
    text = repr(name[: SHOWN_CHARS_MAX + 1])
    if len(text) <= SHOWN_CHARS_MAX and len(name) <= SHOWN_CHARS_MAX:
        return text
    return text[: SHOWN_CHARS_MAX - 2] + "…" + text[0]


def invalid(message: str, *, user_message: str | None = None, guidance: str | None = None) -> PermanentError:
    return PermanentError(
        message,
        error_type="invalid_file",
        user_message=user_message,
        guidance=guidance
        or "Please re-upload the document. If that does not help, open it on your computer, save it again,"
        " and upload that.",
    )


def encrypted(message: str) -> PermanentError:
    return PermanentError(message, error_type="encrypted_file")


def empty(message: str) -> PermanentError:
    return PermanentError(message, error_type="empty_file")


def without_text(message: str) -> PermanentError:
    return PermanentError(
        message,
        error_type="no_text",
        user_message="The document has pictures and no text",
        guidance="Run text recognition (OCR) over it, and upload the result.",
    )


def unsupported(message: str, *, guidance: str | None = None) -> PermanentError:
    return PermanentError(message, error_type="unsupported_format", guidance=guidance or FORMATS)


def unpacks_to_too_much(message: str) -> PermanentError:
    return PermanentError(
        message,
        error_type="file_too_large",
        user_message="The file unpacks to far more than its own size",
        guidance="Save the document again with the program that it was made with, or split it into several.",
    )


def too_much_text(filename: str, chars_max: int) -> PermanentError:
    return PermanentError(
        f"{shown(filename)} has more than {chars_max:,} characters of text.",
        error_type="file_too_large",
        user_message="The document has too much text",
        guidance="Split it into several files, and upload those.",
    )


def needs_memory(filename: str, bytes_max: int | None) -> ReadingNeedsMemory:
    limit = "there is" if bytes_max is None else f"its limit of {shown_bytes(bytes_max)}"
    return ReadingNeedsMemory(f"Reading {shown(filename)} needs more memory than {limit}.")
