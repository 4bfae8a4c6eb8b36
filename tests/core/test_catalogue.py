"""The words for people: complete, and never a promise of a retry that will not come."""

import pytest

from holdfast.core.catalogue import (
    CATALOGUE,
    Category,
    category_of,
    entry_for,
    guidance_when_final,
    words_without_documents,
)

T, P, U = Category.TRANSIENT, Category.PERMANENT, Category.UNKNOWN

PROMISE = ("will retry", "will be retried", "retrying", "automatically")


@pytest.mark.parametrize(
    ("error_type", "category", "user_message", "guidance"),
    [
        ("timeout", T, "Processing timed out", "Will retry automatically. Large documents may take longer."),
        ("rate_limit", T, "Service temporarily busy", "Will retry in a few seconds."),
        ("service_unavailable", T, "Processing service unavailable", "Will retry automatically."),
        ("connection_error", T, "Network connection error", "Will retry automatically."),
        ("invalid_file", P, "File appears to be invalid or corrupted", "Please re-upload the document."),
        ("unsupported_format", P, "File format not supported", "Supported formats: PDF, XLSX, DOCX, TXT"),
        ("auth_error", P, "Access denied", "Contact administrator if issue persists."),
        ("not_found", P, "Document file not found", "Please re-upload the document."),
    ],
)
def test_the_catalogue_says_what_the_contract_says(
    error_type: str, category: Category, user_message: str, guidance: str
) -> None:
    entry = CATALOGUE[error_type]
    assert (entry.category, entry.user_message, entry.guidance) == (category, user_message, guidance)


def test_the_catalogue_is_complete() -> None:
    transient = "timeout rate_limit service_unavailable connection_error database_lock storage_unavailable"
    permanent = "invalid_file encrypted_file empty_file file_too_large unsupported_format not_found"
    expected = {
        **dict.fromkeys([*transient.split(), "worker_lost", "transient_error", "not_ready"], T),
        "process_crashed": T,
        **dict.fromkeys(["memory_limit", "process_exited"], U),
        **dict.fromkeys(
            [*permanent.split(), "auth_error", "validation_error", "malformed_archive", "no_conf_files"], P
        ),
        "permanent_error": P,
        "unknown": U,
    }
    assert {name: entry.category for name, entry in CATALOGUE.items()} == expected
    assert CATALOGUE["unknown"].user_message == "An unexpected error occurred"


@pytest.mark.parametrize("error_type", CATALOGUE)
def test_nothing_final_or_permanent_promises_a_retry(error_type: str) -> None:
    entry = CATALOGUE[error_type]
    assert entry.user_message and entry.guidance and entry.final_guidance
    assert not any(promise in entry.final_guidance.lower() for promise in PROMISE)
    if entry.category is P:
        assert entry.final_guidance == entry.guidance
    else:
        assert "Will retry" in entry.guidance
        assert "upload" not in entry.guidance + entry.final_guidance


@pytest.mark.parametrize("category", Category)
@pytest.mark.parametrize("error_type", [*CATALOGUE, "their_own"])
def test_guidance_follows_the_category_that_was_chosen(error_type: str, category: Category) -> None:
    entry = entry_for(error_type, category)
    assert entry.category is category
    assert ("will retry" in entry.guidance.lower()) == (category is not P)
    final = guidance_when_final(error_type, category, entry.guidance)
    assert not any(promise in final.lower() for promise in PROMISE)


def test_a_type_keeps_its_message_in_another_category_and_a_type_of_their_own_has_the_generic_words() -> None:
    assert entry_for("timeout", P).user_message == CATALOGUE["timeout"].user_message
    assert entry_for("their_own", P) == CATALOGUE["permanent_error"]
    assert (category_of("timeout"), category_of("their_own")) == (T, U)


@pytest.mark.parametrize(
    ("guidance", "kept"),
    [
        ("Ask the portal's owner.", True),
        ("You can retry it by hand.", True),
        ("We will retry it soon.", False),
        ("It will be tried again.", False),
        ("Retrying…", False),
        ("", False),
    ],
)
def test_own_guidance_is_kept_when_final_unless_it_promises_a_retry(guidance: str, kept: bool) -> None:
    final = guidance_when_final("timeout", T, guidance)
    assert final == (guidance if kept else CATALOGUE["timeout"].final_guidance)


def test_own_guidance_of_a_permanent_error_stays() -> None:
    assert guidance_when_final("permanent_error", P, "Give up.") == "Give up."


def test_what_is_about_no_document_is_told_without_one() -> None:
    for error_type, entry in CATALOGUE.items():
        message, guidance = words_without_documents(error_type, entry.user_message, entry.guidance)
        assert message and guidance
        told = f"{message} {guidance}".lower()
        if error_type not in ("malformed_archive", "no_conf_files"):  # which only an archive's pipeline has
            assert "upload" not in told and "document" not in told and "pdf" not in told, error_type


def test_own_words_stay_where_there_is_no_document() -> None:
    assert words_without_documents("not_found", "No such city", "Check the name.") == (
        "No such city",
        "Check the name.",
    )
    assert words_without_documents("of_my_own", "Message", "Guidance") == ("Message", "Guidance")
