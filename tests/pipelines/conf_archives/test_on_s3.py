"""Uploads kept in a bucket of a real S3 server, and what becomes of them while it does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from conf_scenario import APP, rehearsed, tgz
from holdfast.core.errors import PermanentError, TransientError
from holdfast.pipelines.conf_archives.intake import CONF_UPLOADS
from holdfast.storage import Storage
from holdfast.storage.s3 import S3Storage


async def away(*_: object, **__: object) -> NoReturn:
    raise TransientError("the bucket does not answer", error_type="storage_unavailable")


def test_an_archive_is_kept_in_the_bucket_and_parsed_from_there(s3_url: str, tmp_path: Path) -> None:
    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as confs:
        run = confs.run("web.tgz", tgz(APP))
        assert (run.status, run.metrics.stanzas_created) == ("COMPLETE", 6)
        assert confs.do(Storage.open(s3_url).exists(CONF_UPLOADS.stored_name(run.sha256)))
        assert not list((tmp_path / "spool").glob("*.draft"))


def test_an_upload_waits_for_a_bucket_that_is_away(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as confs:
        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "exists", away)
            patch.setattr(S3Storage, "_upload", away)
            taken = confs.upload("web.tgz", tgz(APP))
            assert taken.created and not taken.stored
            confs.drain(within=100)
            waiting = confs.shown(taken.id)
            assert (waiting.status, waiting.retry_count) == ("PENDING", 2)
        confs.drain()
        run = confs.shown(taken.id)
        assert (run.status, run.retry_count, run.metrics.stanzas_created) == ("COMPLETE", 2, 6)
        assert confs.delays(run.id) == [60, 180]
        assert not list((tmp_path / "spool").glob("*.draft"))


def drafts_in(folder: Path) -> list[Path]:
    return list((folder / "spool").glob("*.draft"))


def test_what_is_uploaded_again_while_a_bucket_is_away_lies_there_once(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as confs:
        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "exists", away)
            taken = [confs.upload(f"{n}.tgz", tgz(APP)) for n in range(3)]
            assert [(one.id, one.created) for one in taken] == [
                *((taken[0].id, True), (taken[0].id, False), (taken[0].id, False))
            ]
            assert len(drafts_in(tmp_path)) == 1
        # It came by another way meanwhile, and the draft is not needed.
        assert confs.upload("again.tgz", tgz(APP), again=True).stored
        confs.drain()
        assert confs.shown(taken[0].id).status == "COMPLETE" and drafts_in(tmp_path) == []


def test_a_bucket_that_refuses_leaves_no_draft(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> NoReturn:
        raise PermanentError("not for you", error_type="auth_error")

    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as confs:
        monkeypatch.setattr(S3Storage, "exists", refused)
        with pytest.raises(PermanentError, match="not for you"):
            confs.upload("web.tgz", tgz(APP))
        assert drafts_in(tmp_path) == []


def test_a_draft_that_is_another_files_is_not_kept_as_this_one(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as confs:
        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "exists", away)
            taken = confs.upload("web.tgz", tgz(APP))
        [draft] = drafts_in(tmp_path)
        draft.write_bytes(b"x" * draft.stat().st_size)
        confs.drain()
        run = confs.shown(taken.id)
        assert (run.status, run.metrics.error_type) == ("FAILED", "storage_unavailable")
        assert not confs.do(Storage.open(s3_url).exists(CONF_UPLOADS.stored_name(taken.sha256)))


def test_an_upload_that_lies_on_another_machine_is_told_so(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsed(tmp_path, HOLDFAST_STORAGE=s3_url) as confs:
        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "exists", away)
            patch.setattr(S3Storage, "_upload", away)
            taken = confs.upload("web.tgz", tgz(APP))
        monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "other machine"))
        confs.drain()
        run = confs.shown(taken.id)
        assert (run.status, run.metrics.error_type) == ("FAILED", "storage_unavailable")
        assert "spool of this machine" in (run.error_message or "")
        # It was not lost by being looked for elsewhere.
        confs.rehearsal.clock.advance(100)
        monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "spool"))
        confs.retry(run.id)
        confs.drain()
        assert confs.shown(run.id).status == "COMPLETE"
