"""A run from its upload to its end: what is read, what is told, what is refused."""

from __future__ import annotations

import bz2
import fcntl
import lzma
import os
import shutil
from collections.abc import Callable
from typing import NoReturn

import pytest

from conf_scenario import APP, Confs, many_stanzas, settings_of, sha256, tar, tgz, zipped
from holdfast.core.errors import PermanentError, TransientError
from holdfast.pipelines import held_row, upload
from holdfast.pipelines.conf_archives import parsing
from holdfast.pipelines.conf_archives.intake import CONF_UPLOADS
from holdfast.pipelines.conf_archives.run_writer import RunWriter
from holdfast.pipelines.conf_archives.runs import NotComplete
from holdfast.pipelines.upload import Upload, ensure_stored
from holdfast.storage import Storage
from holdfast.worker.context import Context
from holdfast.worker.transaction import Transaction


def test_an_archive_is_stored_parsed_and_complete(confs: Confs) -> None:
    content = tgz(APP)
    run = confs.run("web.tgz", content)

    assert (run.status, run.error_message) == ("COMPLETE", None)
    assert (run.filename, run.size, run.sha256) == ("web.tgz", len(content), sha256(content))
    metrics = run.metrics
    assert (metrics.files_parsed, metrics.stanzas_created, metrics.parse_errors) == (4, 6, 0)
    assert (metrics.retry_count, metrics.error_type) == (0, None)
    assert run.task_id and run.started_at and run.completed_at and run.completed_at >= run.started_at

    stanzas = confs.stanzas(run)
    assert [(stanza.source_path, stanza.position, stanza.line, stanza.name) for stanza in stanzas] == [
        ("web/default/props.conf", 0, 1, "default"),
        ("web/default/props.conf", 1, 2, "access_combined"),
        ("web/default/props.conf", 2, 6, "source::/var/log/[a-z]/web.log"),
        ("web/local/props.conf", 0, 1, "access_combined"),
        ("web/default/inputs.conf", 0, 1, "monitor:///var/log/web.log"),
        ("web/metadata/default.meta", 0, 1, ""),
    ]
    assert stanzas[1].settings["EXTRACT-status"].endswith("# no comment")
    assert not stanzas[0].has_header and stanzas[1].has_header
    local = stanzas[3]
    assert local.settings == {"TIME_FORMAT": "%s.%3N", "description": "two \nlines"}
    assert [(entry.key, entry.value, entry.line) for entry in local.entries] == [
        ("TIME_FORMAT", "%s", 2),
        ("description", "two \nlines", 3),
        ("TIME_FORMAT", "%s.%3N", 5),
    ]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("a.tar", lambda: tar(APP)),
        ("a.tar.gz", lambda: tgz(APP)),
        ("a.spl", lambda: tgz(APP)),
        ("a.tar.bz2", lambda: bz2.compress(tar(APP))),
        ("a.tar.xz", lambda: lzma.compress(tar(APP))),
        ("a.zip", lambda: zipped(APP)),
    ],
)
def test_every_kind_of_archive_gives_the_same_stanzas(confs: Confs, name: str, made) -> None:  # type: ignore[no-untyped-def]
    run = confs.run(name, made())
    assert (run.status, run.metrics.stanzas_created) == ("COMPLETE", 6)


def test_a_single_conf_is_a_run_of_its_own(confs: Confs) -> None:
    run = confs.run("props.conf", b"\xef\xbb\xbf[a]\r\nb = c\r\n")
    [file] = confs.files(run)
    assert (file.path, file.conf, file.app, file.layer, file.encoding) == (
        "props.conf", "props", "", "", "utf-8-bom",
    )  # fmt: skip
    assert settings_of(confs.stanzas(run)) == {"a": {"b": "c"}}


def test_the_same_file_gives_the_same_run_unless_another_is_asked_for(confs: Confs) -> None:
    content = tgz(APP)
    first = confs.upload("web.tgz", content)
    again = confs.upload("copy.tgz", content)
    assert (again.id, again.created) == (first.id, False)
    other = confs.upload("web.tgz", content, again=True)
    assert other.created and other.id != first.id
    confs.drain()
    assert confs.shown(first.id).status == confs.shown(other.id).status == "COMPLETE"
    assert len(confs.stanzas(first.id)) == len(confs.stanzas(other.id)) == 6


def test_a_conf_of_another_name_is_another_one(confs: Confs) -> None:
    first = confs.upload("props.conf", b"[a]\n")
    assert confs.upload("inputs.conf", b"[a]\n").id != first.id
    assert confs.upload("props.conf", b"[a]\n").id == first.id


def test_states_go_from_pending_to_complete(confs: Confs, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = confs.upload("web.tgz", tgz(APP))
    assert taken.created and taken.stored
    pending = confs.shown(taken.id)
    assert (pending.status, pending.started_at, pending.task_id) == ("PENDING", None, None)
    with monkeypatch.context() as patch:
        patch.setattr(parsing, "table_writer", failing(TransientError("not now")))
        confs.drain(within=30)
    stored = confs.shown(taken.id)
    assert (stored.status, stored.retry_count, stored.error_message) == ("STORED", 1, "not now")
    with monkeypatch.context() as patch:
        patch.setattr(Context, "transaction", failing(TransientError("cut off at the very end")))
        confs.drain(within=60)
    waiting = confs.shown(taken.id)
    # It stays PARSING while its retry waits, and what was written of it is shown to nobody.
    assert (waiting.status, waiting.retry_count, waiting.completed_at) == ("PARSING", 2, None)
    assert waiting.started_at is not None and waiting.last_heartbeat is not None
    assert confs.rows(taken.id) == (4, 6)
    with pytest.raises(NotComplete, match="is PARSING"):
        confs.completed(taken.id)
    confs.drain()
    complete = confs.shown(taken.id)
    assert (complete.status, complete.error_message, complete.retry_count) == ("COMPLETE", None, 2)
    assert complete.task_id != waiting.task_id
    assert confs.rows(taken.id) == (4, 6)


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


def test_lines_that_cannot_be_read_are_told_and_stop_nobody(confs: Confs) -> None:
    files = {
        "app/default/broken.conf": "[a]\nb = 1\nno equals sign\nc\0d = 1\n[open\ne = 2\n",
        "app/default/good.conf": "[g]\nh = 1\n",
    }
    run = confs.run("app.tgz", tgz(files))
    assert run.status == "COMPLETE"
    broken, good = confs.files(run)
    assert broken.parse_errors == run.metrics.parse_errors == len(broken.errors) == 3
    assert [error.line for error in broken.errors] == [3, 4, 5]
    assert good.parse_errors == 0
    assert [file.path for file in confs.files(run, faulty=True)] == ["app/default/broken.conf"]


def test_an_attempt_in_vain_stops_while_it_clears_what_another_has_left(
    confs: Confs, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = confs.upload("many.tgz", tgz(many_stanzas(5_000)))
    with monkeypatch.context() as patch:
        patch.setattr(parsing, "table_writer", failing(TransientError("not now")))
        confs.drain(within=30)
    with monkeypatch.context() as patch:
        patch.setattr(Context, "transaction", failing(TransientError("cut off at the very end")))
        confs.drain(within=60)
    assert confs.rows(taken.id) == (1, 5_000)
    with monkeypatch.context() as patch:
        patch.setattr(held_row.Beat, "__call__", failing(TransientError("asked to stop")))
        confs.drain(within=180)
    assert 0 < confs.rows(taken.id)[1] < 5_000
    confs.drain()
    assert confs.shown(taken.id).status == "COMPLETE"
    assert confs.rows(taken.id) == (1, 5_000)


# What fails at once


@pytest.mark.parametrize(
    ("name", "content", "error_type"),
    [
        ("web.tgz", b"\x1f\x8bnot a gzip at all", "malformed_archive"),
        ("web.tgz", tgz(APP)[:-40], "malformed_archive"),
        ("web.zip", zipped(APP)[:200], "malformed_archive"),
        ("web.tar", b"x" * 2000, "malformed_archive"),
        ("evil.tgz", tgz({"../../etc/x.conf": "[a]\n"}), "malformed_archive"),
        ("empty.tgz", tgz({}), "no_conf_files"),
        ("readme.tgz", tgz({"web/README.txt": "x"}), "no_conf_files"),
        ("meta.tgz", tgz({"web/metadata/local.meta": "[]\n"}), "no_conf_files"),
        ("nothing.tgz", b"", "empty_file"),
    ],
    ids=[
        "no gzip",
        "cut tgz",
        "cut zip",
        "no tar",
        "leads out",
        "empty tar",
        "no conf",
        "only meta",
        "empty",
    ],
)
def test_what_never_will_be_read_fails_at_once_with_its_trace(
    confs: Confs, name: str, content: bytes, error_type: str
) -> None:
    run = confs.run(name, content)
    assert (run.status, run.metrics.error_type, run.retry_count) == ("FAILED", error_type, 0)
    assert run.error_message and run.user_message and run.guidance and run.completed_at
    assert "Traceback" in (confs.traceback(run) or "")
    assert confs.rows(run.id) == (0, 0)


def test_what_is_no_configuration_is_refused_before_it_is_a_run(confs: Confs) -> None:
    with pytest.raises(PermanentError, match=r"setup\.exe") as refused:
        confs.upload("setup.exe", b"MZ\x90\x00" * 500)
    assert refused.value.error_type == "unsupported_format"
    assert ".tgz" in (refused.value.guidance or "")
    assert not [path for path in (confs.folder / "files").rglob("*") if path.is_file()]


def test_what_an_archive_had_before_it_broke_is_not_kept(confs: Confs) -> None:
    content = tar({**many_stanzas(5_000), "../out.conf": "[x]\n"})
    run = confs.run("late.tar", content)
    assert (run.status, run.metrics.error_type) == ("FAILED", "malformed_archive")
    assert "../out.conf" in (run.error_message or "")
    assert confs.rows(run.id) == (0, 0)
    # A failed run shows nothing, whatever was written of it before.
    with pytest.raises(NotComplete, match="is FAILED"):
        confs.completed(run.id)


# What heals


def test_a_storage_that_is_away_is_waited_for_and_retried_three_times(confs: Confs) -> None:
    taken = confs.upload("web.tgz", tgz(APP))
    place = confs.folder / "files"
    place.rename(confs.folder / "away")
    place.write_text("no folder")
    confs.drain(within=70)
    assert confs.shown(taken.id).status == "PENDING"
    place.unlink()
    (confs.folder / "away").rename(place)
    confs.drain()
    run = confs.shown(taken.id)
    assert (run.status, run.retry_count, run.metrics.retry_count) == ("COMPLETE", 2, 2)
    assert confs.delays(run.id) == [60, 180]


def test_a_storage_that_stays_away_fails_the_run_after_three_retries(confs: Confs) -> None:
    taken = confs.upload("web.tgz", tgz(APP))
    (confs.folder / "files").rename(confs.folder / "away")
    (confs.folder / "files").write_text("no folder")
    confs.drain()
    run = confs.shown(taken.id)
    assert (run.status, run.retry_count) == ("FAILED", 3)
    assert run.metrics.error_type == "storage_unavailable"
    assert confs.delays(run.id) == [60, 180, 600]

    (confs.folder / "files").unlink()
    (confs.folder / "away").rename(confs.folder / "files")
    confs.retry(run.id)
    assert confs.shown(run.id).status in ("PENDING", "STORED")
    confs.drain()
    assert confs.shown(run.id).status == "COMPLETE"
    assert len(confs.stanzas(run)) == 6


@pytest.mark.parametrize("way", ["gone", "empty", "no folder"])
def test_a_storage_that_goes_away_before_the_file_is_parsed_is_waited_for(
    confs: Confs, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    place, away = confs.folder / "files", confs.folder / "away"
    waited_for = ensure_stored

    async def goes_away(storage: Storage, upload: Upload) -> None:
        await waited_for(storage, upload)
        place.rename(away)
        if way == "empty":
            place.mkdir()
        elif way == "no folder":
            place.write_text("nothing")

    taken = confs.upload("web.tgz", tgz(APP))
    monkeypatch.setattr(upload, "ensure_stored", goes_away)
    confs.drain(within=30)
    run = confs.shown(taken.id)
    assert (run.status, run.retry_count) == ("PARSING", 1), run.error_message
    assert confs.events_of(run.id)[-1] == "step_retry"
    monkeypatch.setattr(upload, "ensure_stored", waited_for)
    if place.exists():
        place.rmdir() if place.is_dir() else place.unlink()
    away.rename(place)
    confs.drain()
    assert confs.shown(run.id).status == "COMPLETE"


def test_what_is_left_of_a_run_that_did_not_end_well_is_removed(
    confs: Confs, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, transaction = tgz(many_stanzas(3_000)), Context.transaction

    def cut_off(ctx: Context) -> Transaction:
        if ctx.step == "parse":
            raise TransientError("cut off at the very end")
        return transaction(ctx)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "transaction", cut_off)
        cancelled = confs.upload("a.tgz", content).id
        confs.drain(within=30)
        confs.do(confs.engine.cancel(cancelled))
        assert confs.rows(cancelled) == (1, 3_000)
        failed = confs.run("b.tgz", content, again=True)
        assert (failed.status, failed.retry_count) == ("FAILED", 3)
    # The attempts at the second have removed what was left of the first, if not what they left themselves.
    assert confs.rows(cancelled) == (0, 0)
    assert confs.run("web.tgz", tgz(APP)).status == "COMPLETE"
    assert confs.rows(failed.id) == (0, 0)
    for run_id in (cancelled, failed.id):
        run = confs.shown(run_id)
        assert run.status == "FAILED" and run.task_id is not None
    confs.rehearsal.clock.advance(100)
    confs.retry(failed.id)
    confs.drain()
    assert confs.shown(failed.id).status == "COMPLETE" and confs.rows(failed.id) == (1, 3_000)


def test_a_spool_that_others_may_look_into_is_refused(confs: Confs) -> None:
    (confs.folder / "spool").mkdir()
    (confs.folder / "spool").chmod(0o777)
    run = confs.run("web.tgz", tgz(APP))
    assert run.status == "FAILED" and "others may look into it" in (run.error_message or "")
    assert "HOLDFAST_SPOOL" in (run.guidance or "")


def test_a_file_that_was_changed_in_the_storage_is_not_parsed(confs: Confs) -> None:
    taken = confs.upload("web.tgz", tgz(APP))
    stored = confs.folder / "files" / CONF_UPLOADS.stored_name(taken.sha256)
    stored.write_bytes(tgz({"x/default/other.conf": "[other]\n"}))
    confs.drain()
    run = confs.shown(taken.id)
    assert (run.status, run.metrics.error_type) == ("FAILED", "storage_unavailable")
    assert confs.rows(run.id) == (0, 0)


def test_a_cancelled_run_is_failed_and_says_so(confs: Confs) -> None:
    taken = confs.upload("web.tgz", tgz(APP))
    confs.do(confs.engine.cancel(taken.id, by="somebody"))
    run = confs.shown(taken.id)
    assert (run.status, run.metrics.error_type) == ("FAILED", "cancelled")


def test_a_run_outlives_its_history(confs: Confs) -> None:
    run = confs.run("web.tgz", tgz(APP))
    failed = confs.run("bad.tgz", b"\x1f\x8bnothing")
    confs.rehearsal.clock.advance(100)
    confs.do(confs.engine.prune(10))
    assert confs.shown(run.id).status == "COMPLETE"
    assert len(confs.stanzas(run)) == 6
    forgotten = confs.shown(failed.id)
    assert forgotten.status == "FAILED" and "history" in (forgotten.error_message or "")


def test_an_attempt_at_what_is_complete_already_changes_nothing(confs: Confs) -> None:
    run = confs.run("web.tgz", tgz(APP))
    again = confs.upload("web.tgz", tgz(APP), again=True)
    complete = (
        "UPDATE holdfast_conf_runs SET status = 'COMPLETE', task_id = '1-1', started_at = 1, completed_at = 2"
        " WHERE id = $1"
    )
    confs.do(confs.engine.store.write_rows(complete, again.id))
    confs.drain()
    view = confs.do(confs.engine.view(again.id))
    assert view.outputs["parse"] == {"status": "already_completed"}
    assert confs.rows(again.id) == (0, 0) and confs.rows(run.id) == (4, 6)
    assert confs.shown(again.id).completed_at == 2


def test_what_killed_attempts_have_left_in_the_spool_is_removed_and_what_others_use_is_not(
    confs: Confs,
) -> None:
    spool = confs.folder / "spool"
    left, young, used = (spool / f"conf-{name}" for name in ("left", "young", "used"))
    spool.mkdir(mode=0o700)
    for folder in (left, young, used):
        folder.mkdir()
        (folder / "archive").write_bytes(b"x")
    for folder in (left, used):
        os.utime(folder, (1_000_000, 1_000_000))
    elsewhere = confs.folder / "elsewhere"
    elsewhere.mkdir()
    os.utime(elsewhere, (1_000_000, 1_000_000))
    (spool / "conf-link").symlink_to(elsewhere)
    holder = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert confs.run("web.tgz", tgz(APP)).status == "COMPLETE"
        assert sorted(path.name for path in spool.glob("conf-*")) == ["conf-link", "conf-used", "conf-young"]
        assert elsewhere.exists()
    finally:
        os.close(holder)
        (spool / "conf-link").unlink()
        shutil.rmtree(young)
        shutil.rmtree(used)


def test_a_sign_of_life_is_given_where_nothing_is_written_for_long(
    confs: Confs, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[float] = []
    flush = RunWriter.flush
    asked = "SELECT last_heartbeat FROM holdfast_conf_runs"

    def watched(writer: RunWriter) -> None:
        flush(writer)
        [(beat,)] = writer._writer.write(lambda tx: tx.fetch(asked))
        beats.append(beat)

    monkeypatch.setattr(held_row, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(RunWriter, "flush", watched)
    run = confs.run("long.conf", b"# nothing but comments\n" * 20_000)
    assert run.status == "COMPLETE" and len(beats) >= 5
    assert beats == sorted(set(beats))
