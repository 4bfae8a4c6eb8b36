"""Documents kept in a bucket of a real S3 server, and what becomes of them while it does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from document_files import pdf
from document_scenario import rehearsed, text
from holdfast.core.errors import TransientError
from holdfast.pipelines.documents.intake import DOCUMENT_UPLOADS
from holdfast.storage import Storage
from holdfast.storage.s3 import S3Storage


async def away(*_: object, **__: object) -> NoReturn:
    raise TransientError("the bucket does not answer", error_type="storage_unavailable")


def test_a_document_is_kept_in_the_bucket_and_read_from_there(s3_url: str, tmp_path: Path) -> None:
    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as docs:
        document = docs.run("report.pdf", pdf(["The turbine was inspected.", "It was found in order."]))
        assert (document.status, document.chunks) == ("complete", 2)
        assert docs.do(Storage.open(s3_url).exists(DOCUMENT_UPLOADS.stored_name(document.sha256)))
        assert not list((tmp_path / "spool").glob("*.draft"))


def test_an_upload_waits_for_a_bucket_that_is_away(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as docs:
        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "exists", away)
            patch.setattr(S3Storage, "_upload", away)
            taken = docs.upload("notes.txt", text(3))
            assert taken.created and not taken.stored
            docs.drain(within=6)
            waiting = docs.shown(taken.id)
            assert (waiting.status, waiting.retry_count) == ("retrying", 2)
            assert waiting.processing_error is not None
            assert waiting.processing_error.error_type == "storage_unavailable"
        docs.drain()
        document = docs.shown(taken.id)
        assert (document.status, document.retry_count) == ("complete", 2)
        assert docs.delays(document.id) == [5, 10]
        assert not list((tmp_path / "spool").glob("*.draft"))
