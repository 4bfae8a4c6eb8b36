"""The playbook of documents, its settings, and who offers its functions."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.errors import InvalidInput, PermanentError
from holdfast.pipelines import registry
from holdfast.pipelines.documents.intake import DOCUMENT_UPLOADS
from holdfast.pipelines.documents.playbook import PATH, Stage, playbook_text
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.registry import all_functions, built_in, check_settings, taking_in
from holdfast.playbook.load import load_playbook

OURS = {f"holdfast.pipelines.documents:{name}" for name in ("parse", "embed", "analyze")}


def settings(**environ: str) -> DocumentSettings:
    return DocumentSettings.from_environment(environ)


def test_each_stage_is_retried_after_5_10_and_20_seconds_and_what_is_unknown_once() -> None:
    definition = load_playbook(playbook_text(settings())).definition
    assert [step.name for step in definition.steps] == [stage.value for stage in Stage]
    for step in definition.steps:
        assert (step.retry.max_attempts, step.retry.delays) == (4, (5.0, 10.0, 20.0))
        assert step.retry.unknown_attempts == 2


def test_delays_and_bounds_can_be_set() -> None:
    found = settings(
        HOLDFAST_DOCUMENTS_RETRY_DELAYS="1, 1m",
        HOLDFAST_DOCUMENTS_UPLOAD_BYTES_MAX="2MB",
        HOLDFAST_DOCUMENTS_UNPACKED_BYTES_MAX="3MB",
        HOLDFAST_DOCUMENTS_PARSE_TIMEOUT="90s",
        HOLDFAST_DOCUMENTS_PARSE_MEMORY="512MB",
        HOLDFAST_DOCUMENTS_CHUNK_CHARS="800",
    )
    assert "delays: [1, 60]" in playbook_text(found)
    assert (found.parse_seconds_max, found.chunk_chars_max, found.overlap_chars) == (90.0, 800, 100)
    assert found.upload_bytes_max < found.unpacked_bytes_max < found.parse_memory_bytes
    assert found.embeddings is None and found.analysis is None


def test_services_are_named_by_their_address_and_their_model() -> None:
    found = settings(
        HOLDFAST_EMBEDDINGS_URL="https://models.example/v1/",
        HOLDFAST_EMBEDDINGS_MODEL="small",
        HOLDFAST_EMBEDDINGS_API_KEY="sk-secret",
        HOLDFAST_EMBEDDINGS_BATCH="16",
        HOLDFAST_ANALYSIS_URL="http://127.0.0.1:9",
        HOLDFAST_ANALYSIS_MODEL="large",
        HOLDFAST_ANALYSIS_TIMEOUT="2m",
    )
    assert found.embeddings is not None and found.analysis is not None
    assert (found.embeddings.url, found.embeddings.batch_max) == ("https://models.example/v1", 16)
    assert (found.analysis.timeout_seconds, found.analysis.api_key) == (120.0, None)
    assert found.embeddings.api_key == "sk-secret" and "sk-secret" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_DOCUMENTS_RETRY_DELAYS", "soon"),
        ("HOLDFAST_DOCUMENTS_UPLOAD_BYTES_MAX", "much"),
        ("HOLDFAST_DOCUMENTS_UNPACKED_BYTES_MAX", "0"),
        ("HOLDFAST_DOCUMENTS_PARSE_TIMEOUT", "0"),
        ("HOLDFAST_DOCUMENTS_PARSE_TIMEOUT", "later"),
        ("HOLDFAST_DOCUMENTS_PARSE_MEMORY", "1MB"),
        ("HOLDFAST_DOCUMENTS_CHUNK_CHARS", "10"),
        ("HOLDFAST_DOCUMENTS_CHUNK_CHARS", "1e9"),
        ("HOLDFAST_EMBEDDINGS_MODEL", "a model without a service"),
        ("HOLDFAST_EMBEDDINGS_URL", "models.example"),
        ("HOLDFAST_EMBEDDINGS_URL", "https://models.example/v1"),
        ("HOLDFAST_ANALYSIS_URL", "ftp://models.example"),
        ("HOLDFAST_ANALYSIS_URL", "http://models.example:99999999/v1"),
        ("HOLDFAST_ANALYSIS_URL", "https://models.example/v1?key=1"),
        ("HOLDFAST_ANALYSIS_URL", "https://me:secret@models.example/v1"),
    ],
)
def test_a_wrong_setting_is_told_by_its_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=name) as refused:
        settings(**{name: value})
    assert name.rpartition("_")[0] in refused.value.guidance
    assert "secret" not in str(refused.value)
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=name):
        check_settings(of_worker=True)
    with pytest.raises(InvalidInput, match=name):
        check_settings(of_worker=False)


def test_a_worker_offers_it_where_it_has_the_database_and_the_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(all_functions()) >= OURS
    assert not OURS & set(all_functions(has_database=False))
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    assert not OURS & set(all_functions()) and all_functions()


def test_it_is_no_pipeline_of_items() -> None:
    assert built_in(PATH) is not None
    assert taking_in(PATH) is None


SHA256 = "ab" * 32
UPLOAD = {"filename": "a.pdf", "size": 1, "sha256": SHA256, "file": f"documents/ab/{SHA256}"}


def test_an_upload_is_what_it_was_taken_in_as() -> None:
    assert msgspec.to_builtins(DOCUMENT_UPLOADS.upload_of(UPLOAD)) == UPLOAD
    draft = f"document-{'0' * 32}"
    assert DOCUMENT_UPLOADS.upload_of(UPLOAD | {"draft": draft}).draft == draft
    assert DOCUMENT_UPLOADS.new_draft_key().startswith("document-")


@pytest.mark.parametrize(
    "workload",
    [
        *(None, {}, UPLOAD | {"filename": ""}, UPLOAD | {"draft": f"conf-{'0' * 32}"}),
        UPLOAD | {"file": f"conf_archives/ab/{SHA256}"},
        UPLOAD | {"file": "../somewhere"},
        UPLOAD | {"size": 2**70},
    ],
)
def test_what_is_no_upload_says_how_to_make_one(workload: object) -> None:
    with pytest.raises(PermanentError, match="no upload of a document") as refused:
        DOCUMENT_UPLOADS.upload_of(workload)
    assert "holdfast documents add" in (refused.value.guidance or "")
