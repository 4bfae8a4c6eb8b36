"""The plain words for each error type: what happened, and what to do about it.

Every error type that Holdfast knows is here with its category. A type of the user's own, or a known one
put in another category, borrows the generic words of that category. Guidance for an error that will be
retried may promise the retry; `guidance_when_final` is what to say once none is left.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Category(StrEnum):
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    category: Category
    user_message: str
    guidance: str
    final_guidance: str
    """Instead of `guidance` once no retry is left; the same for permanent errors."""


def _heals(user_message: str, guidance: str, final_guidance: str) -> CatalogueEntry:
    return CatalogueEntry(Category.TRANSIENT, user_message, guidance, final_guidance)


def _stays(user_message: str, guidance: str) -> CatalogueEntry:
    return CatalogueEntry(Category.PERMANENT, user_message, guidance, guidance)


def _may_heal(user_message: str, guidance: str, final_guidance: str) -> CatalogueEntry:
    return CatalogueEntry(Category.UNKNOWN, user_message, guidance, final_guidance)


CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType(
    {
        "timeout": _heals(
            "Processing timed out",
            "Will retry automatically. Large documents may take longer.",
            "It took too long at the last attempt as well. Retry it when there is less load, "
            "or with a smaller document.",
        ),
        "rate_limit": _heals(
            "Service temporarily busy",
            "Will retry in a few seconds.",
            "The service was still busy at the last attempt. Retry it later.",
        ),
        "service_unavailable": _heals(
            "Processing service unavailable",
            "Will retry automatically.",
            "The service was still unavailable at the last attempt. Retry it later, "
            "or contact the administrator.",
        ),
        "connection_error": _heals(
            "Network connection error",
            "Will retry automatically.",
            "The connection still failed at the last attempt. Check the network, then retry it.",
        ),
        "database_lock": _heals(
            "Database temporarily busy",
            "Will retry automatically.",
            "The database was still busy at the last attempt. Retry it later.",
        ),
        "storage_unavailable": _heals(
            "Storage temporarily unavailable",
            "Will retry automatically.",
            "Storage was still unavailable at the last attempt. Retry it once storage is back, "
            "or contact the administrator.",
        ),
        "worker_lost": _heals(
            "Processing was interrupted",
            "Will retry automatically. Nothing needs to be done.",
            "The worker stopped before it could finish. Retry it, "
            "or contact the administrator if it happens again.",
        ),
        "process_crashed": _heals(
            "Processing ended unexpectedly",
            "Will retry automatically. Nothing needs to be done.",
            "The step's process was ended before it could finish. "
            "Check the data and the libraries that read it, then retry it.",
        ),
        "transient_error": _heals(
            "A temporary problem occurred",
            "Will retry automatically.",
            "The problem was still there at the last attempt. Retry it later.",
        ),
        "not_ready": _heals(
            "Not ready yet",
            "Will retry automatically. It usually takes a little while.",
            "It was still not ready at the last attempt. Retry it later.",
        ),
        "invalid_file": _stays("File appears to be invalid or corrupted", "Please re-upload the document."),
        "encrypted_file": _stays(
            "File is protected by a password", "Please remove the password and upload the file again."
        ),
        "empty_file": _stays("File is empty", "Please check the file and upload it again."),
        "file_too_large": _stays(
            "File is too large", "Please upload a smaller file, or split it into several files."
        ),
        "unsupported_format": _stays("File format not supported", "Supported formats: PDF, XLSX, DOCX, TXT"),
        "auth_error": _stays("Access denied", "Contact administrator if issue persists."),
        "not_found": _stays("Document file not found", "Please re-upload the document."),
        "validation_error": _stays("The data is not valid", "Please correct the data and submit it again."),
        "malformed_archive": _stays(
            "Archive is damaged or not an archive", "Please create the archive again and upload the new one."
        ),
        "no_conf_files": _stays(
            "No .conf files in the archive", "Please upload an archive that contains at least one .conf file."
        ),
        "permanent_error": _stays(
            "Processing is not possible",
            "Trying again will not help. Contact administrator if issue persists.",
        ),
        "memory_limit": _may_heal(
            "Processing needed too much memory",
            "Will retry if retries are left. Large data may need a higher limit.",
            "Give the step more memory, or smaller data, then retry it.",
        ),
        "process_exited": _may_heal(
            "Processing ended before it was finished",
            "Will retry if retries are left. Contact administrator if issue persists.",
            "The step ended its own process instead of returning. Contact the administrator.",
        ),
        "unknown": _may_heal(
            "An unexpected error occurred",
            "Will retry if retries are left. Contact administrator if issue persists.",
            "Retry it once more, or contact the administrator if it happens again.",
        ),
    }
)

# Whose words an error type of the user's own borrows, and a known one put in another category.
GENERIC_TYPE: Mapping[Category, str] = MappingProxyType(
    {
        Category.TRANSIENT: "transient_error",
        Category.PERMANENT: "permanent_error",
        Category.UNKNOWN: "unknown",
    }
)

_PROMISES_RETRY = re.compile(
    r"\b(?:will|shall|going to)\b[^.]*\b(?:retr(?:y|ied|ies)|tr(?:y|ied) again)\b"
    r"|\bretr(?:y|ies|ied) automatically\b|\bautomatic(?:ally)? retr|\bretrying\b",
    re.IGNORECASE,
)


def category_of(error_type: str) -> Category:
    entry = CATALOGUE.get(error_type)
    return Category.UNKNOWN if entry is None else entry.category


def entry_for(error_type: str, category: Category) -> CatalogueEntry:
    """The catalogue's words; where the category is not the catalogue's own, only its user_message."""
    generic = CATALOGUE[GENERIC_TYPE[category]]
    entry = CATALOGUE.get(error_type, generic)
    if entry.category is category:
        return entry
    return CatalogueEntry(category, entry.user_message, generic.guidance, generic.final_guidance)


def guidance_when_final(error_type: str, category: Category, guidance: str) -> str:
    """What to do now that no automatic retry is left: never a promise of one."""
    if category is Category.PERMANENT:
        return guidance
    entry = entry_for(error_type, category)
    own_words = guidance not in ("", entry.guidance)
    if own_words and not _PROMISES_RETRY.search(guidance):
        return guidance
    return entry.final_guidance


# Where nobody uploaded a document: the words of a playbook's steps, in place of those that speak of one.
_WITHOUT_DOCUMENTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "not_found": (
            "Something that the step needs was not found",
            "Check what the step is given, then retry it.",
        ),
        "invalid_file": ("A file appears to be invalid or corrupted", "Replace the file, then retry it."),
        "encrypted_file": (
            "A file is protected by a password",
            "Give the step a file without one, then retry it.",
        ),
        "empty_file": ("A file is empty", "Check where the file comes from, then retry it."),
        "file_too_large": ("A file is too large", "Give the step a smaller file, or several."),
        "unsupported_format": ("A format is not supported", "Convert the data, or use a step that reads it."),
        "timeout": ("Processing timed out", "Will retry automatically. A longer timeout may help."),
    }
)


def words_without_documents(error_type: str, user_message: str, guidance: str) -> tuple[str, str]:
    """The message and the guidance of an error, for work that is about no document. What a rule or an
    exception has said in its own words stays."""
    entry = CATALOGUE.get(error_type)
    if entry is None or (user_message, guidance) != (entry.user_message, entry.guidance):
        return user_message, guidance
    return _WITHOUT_DOCUMENTS.get(error_type, (user_message, guidance))
