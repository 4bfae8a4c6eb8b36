"""What is large or strange in a run: bounded, told, and the same on both stores."""

from __future__ import annotations

import asyncio
import codecs
import io
import tarfile

import pytest

from conf_scenario import APP, Confs, many_stanzas, tar, tgz
from holdfast import Holdfast
from holdfast.core.errors import InvalidInput, PermanentError, StaleLease
from holdfast.pipelines.conf_archives import reading, settings, stanzas
from holdfast.pipelines.conf_archives.effective import effective
from holdfast.pipelines.conf_archives.intake import CONF_RULES
from holdfast.pipelines.conf_archives.run_writer import RunWriter
from holdfast.pipelines.conf_archives.stanzas import cursor_of
from holdfast.pipelines.intake import Intake, TakenIn
from holdfast.pipelines.places import open_storage
from holdfast.worker.context import Context
from hostile_archives import Zipped, zip_of
from pipeline_scenario import pieces

# What is large


def test_a_page_of_large_stanzas_ends_before_its_limit(confs: Confs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stanzas, "PAGE_BYTES_MAX", 1_000)
    text = "".join(f"[s{n}]\nk = {'x' * 400}\n" for n in range(5))
    run = confs.run("a.conf", text.encode())
    found: list[str] = []
    cursor = None
    for _ in range(10):
        page = confs.do(confs.reader(run).stanzas(cursor=cursor, limit=100))
        assert 1 <= len(page.items) <= 2
        found += [stanza.name for stanza in page.items]
        if page.is_last:
            break
        cursor = cursor_of(page.items[-1])
    assert found == ["s0", "s1", "s2", "s3", "s4"]


def test_long_names_count_for_a_page_and_for_a_merge(confs: Confs, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"[{n}{'x' * 3_000}]\n" for n in range(5))
    run = confs.run("a.tgz", tgz({"app/default/props.conf": text}))
    with monkeypatch.context() as patch:
        patch.setattr(stanzas, "PAGE_BYTES_MAX", 7_000)
        page = confs.do(confs.reader(run).stanzas(limit=100))
        assert len(page.items) == 2 and not page.is_last
    monkeypatch.setattr(stanzas, "HELD_CHARS_MAX", 10_000)
    with pytest.raises(InvalidInput, match="too large to merge"):
        confs.do(effective(confs.reader(run), app=None, conf=None, name=None, begin=0, limit=1))


def test_a_few_bytes_do_not_become_any_number_of_rows(confs: Confs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "STORED_BYTES_MIN", 1_000_000)
    path = "p" * 900 + ".conf"
    run = confs.run("bomb.tgz", tgz({path: "[]\n" * 20_000}))
    assert (run.status, run.metrics.error_type) == ("FAILED", "malformed_archive")
    assert "takes more than 1,000,000 bytes to be stored" in (run.error_message or "")
    assert path[:100] in (run.error_message or "") and confs.rows(run.id) == (0, 0)
    few = {f"{n}{path}": "[a]\n" for n in range(5)}
    assert confs.run("few.tgz", tgz(few)).status == "COMPLETE"
    many = {f"{n}.conf": "no setting\n" * 90 for n in range(300)}
    assert confs.run("faults.tgz", tgz(many)).metrics.error_type == "malformed_archive"


def test_what_all_stanzas_inherit_is_merged_for_one_page_alone(confs: Confs) -> None:
    text = "[default]\n" + "".join(f"k{n} = v\n" for n in range(300))
    text += "".join(f"[s{n:04}]\n" for n in range(4_000))
    run = confs.run("a.tgz", tgz({"app/default/props.conf": text}))
    asked = {"app": None, "conf": None, "name": None}
    found, end = confs.do(effective(confs.reader(run), **asked, begin=0, limit=2))
    assert [(stanza.name, len(stanza.keys)) for stanza in found] == [("default", 300), ("s0000", 300)]
    assert end == 2
    found, end = confs.do(effective(confs.reader(run), **asked, begin=0, limit=1_000))
    assert end is not None and len(found) < 1_000  # it would be an answer of many megabytes
    rest, _ = confs.do(effective(confs.reader(run), **asked, begin=end, limit=1))
    assert rest[0].name > found[-1].name


def test_of_a_key_that_is_often_repeated_a_hundred_places_are_told(confs: Confs) -> None:
    run = confs.run("a.tgz", tgz({"app/default/props.conf": "[s]\n" + "k = v\n" * 15_000}))
    [[stanza], end] = confs.do(effective(confs.reader(run), app=None, conf=None, name=None, begin=0, limit=1))
    [key] = stanza.keys
    assert (key.line, key.overrides[0], len(key.overrides), end) == (
        15_001, "app/default/props.conf:15000", 100, None,
    )  # fmt: skip


def test_a_run_without_layers_has_nothing_to_merge(confs: Confs) -> None:
    run = confs.run("props.conf", b"[a]\nb = c\n")
    with pytest.raises(InvalidInput, match="nothing to merge"):
        confs.do(effective(confs.reader(run), app=None, conf=None, name=None, begin=0, limit=1))


# What is strange


def linked_tar(*entries: tuple[str, bytes, str]) -> bytes:
    """Files by their bytes; hard links (b"1") and symbolic ones (b"2") by their targets."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, kind_or_text, linkname in entries:
            info = tarfile.TarInfo(name)
            if linkname:
                info.type, info.linkname = kind_or_text, linkname
                archive.addfile(info)
            else:
                info.size = len(kind_or_text)
                archive.addfile(info, io.BytesIO(kind_or_text))
    return target.getvalue()


def test_a_hard_link_is_another_name_of_its_file(confs: Confs) -> None:
    content = linked_tar(
        ("app/default/copy.conf.bak", b"[a]\nx = 1\n", ""),
        ("app/default/props.conf", b"1", "./app/default/copy.conf.bak"),
        ("app/local/props.conf", b"1", "app/default/copy.conf.bak"),
        ("app/default/tags.conf", b"[t]\n", ""),
    )
    run = confs.run("a.tar", content)
    assert (run.status, run.metrics.parse_errors, run.metrics.files_parsed) == ("COMPLETE", 0, 3)
    assert [(stanza.source_path, stanza.name) for stanza in confs.stanzas(run)] == [
        ("app/default/tags.conf", "t"),
        ("app/default/props.conf", "a"),
        ("app/local/props.conf", "a"),
    ]
    packed = confs.run("b.tgz", tgz({"in.tar": content, "x.conf": "[x]\n"}))
    assert "in.tar/app/local/props.conf" in [file.path for file in confs.files(packed)]


def test_links_alone_are_a_configuration_too(confs: Confs) -> None:
    content = linked_tar(("app/props", b"[a]\n", ""), ("app/default/props.conf", b"1", "app/props"))
    assert len(confs.stanzas(confs.run("a.tar", content))) == 1
    nothing = confs.run("b.tar", linked_tar(("app/default/props.conf", b"1", "app/props")))
    assert (nothing.status, nothing.metrics.error_type) == ("FAILED", "no_conf_files")


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        (b"2", "a.conf", "a link to 'a.conf', which is not followed"),
        (b"1", "app/default/gone.conf", "a hard link to 'app/default/gone.conf', which is no file"),
        (b"1", "app/default/link.conf", "which is no file"),
    ],
)
def test_what_a_link_leads_to_and_is_not_read_is_told(
    confs: Confs, kind: bytes, target: str, words: str
) -> None:
    content = linked_tar(
        ("app/default/a.conf", b"[a]\n", ""),
        ("app/default/link.conf", b"2", "a.conf"),
        ("app/default/it.conf", kind, target),
    )
    run = confs.run("a.tar", content)
    assert (run.status, run.metrics.parse_errors) == ("COMPLETE", 2)
    [_, told] = confs.files(run, faulty=True)
    assert told.path == "app/default/it.conf" and words in told.errors[0].message


def test_a_file_of_many_names_counts_as_often(confs: Confs, monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"[a]\n" * 50_000
    links = [(f"l{n}.conf", b"1", "a.conf") for n in range(12)]
    content = linked_tar(("a.conf", large, ""), *links)
    with monkeypatch.context() as patch:
        patch.setenv("HOLDFAST_CONF_UNPACKED_BYTES_MAX", "2MB")
        run = confs.run("a.tar", content)
        assert (run.status, run.metrics.error_type) == ("FAILED", "malformed_archive")
        assert "unpacks to more than" in (run.error_message or "")
    monkeypatch.setattr(reading, "LINKED_MAX", 2)
    run = confs.run("a.tar", linked_tar(("a.conf", b"[a]\n", ""), *links), again=True)
    assert (len(confs.stanzas(run)), run.metrics.parse_errors) == (3, 10)
    assert "more than 2" in confs.files(run, faulty=True)[0].errors[0].message


def test_an_archive_inside_that_cannot_be_read_is_told_and_stops_nobody(confs: Confs) -> None:
    secret = zip_of(Zipped(b"a.conf", flags=1))
    run = confs.run("a.tgz", tgz({"app/static/docs.zip": secret, "app/default/a.conf": "[a]\n"}))
    assert (run.status, run.metrics.stanzas_created) == ("COMPLETE", 1)
    [told] = confs.files(run, faulty=True)
    assert told.path == "app/static/docs.zip" and "encrypted" in told.errors[0].message


def test_a_file_in_two_encodings_is_told_with_the_line(confs: Confs) -> None:
    run = confs.run("a.conf", "[grün]\n".encode() + b"a = gr\xfcn\n")
    [file] = confs.files(run)
    assert (file.encoding, [error.line for error in file.errors]) == ("latin-1", [2])
    assert confs.files(confs.run("b.conf", b"[gr\xfcn]\n"))[0].errors == []


def test_characters_that_are_lost_are_told_with_their_line(confs: Confs) -> None:
    content = codecs.BOM_UTF16_LE + "[a]\r\nb = ".encode("utf-16-le") + b"\x00\xd8" + "\n".encode("utf-16-le")
    run = confs.run("a.conf", content)
    [file] = confs.files(run)
    assert [error.line for error in file.errors] == [2] and "no utf-16-le" in file.errors[0].message


def test_what_was_written_of_a_run_that_fails_for_good_is_removed(confs: Confs) -> None:
    run = confs.run("late.tar", tar({**many_stanzas(12_000), "../out.conf": "[x]\n"}))
    assert run.status == "FAILED" and confs.rows(run.id) == (0, 0)


def test_the_same_file_at_once_under_several_names_is_one_run(confs: Confs) -> None:
    content = tgz(APP)

    async def all_at_once() -> list[TakenIn]:
        intake = Intake(confs.engine, open_storage(), CONF_RULES, bytes_max=64 * 1024**2)
        return await asyncio.gather(*(intake.take(f"n{n}.tgz", pieces(content)) for n in range(6)))

    taken = confs.do(all_at_once())
    assert len({one.id for one in taken}) == 1 and sum(one.created for one in taken) == 1


@pytest.mark.parametrize("name", ["x" * 180 + ".conf", "a\u202fb.conf"])
def test_any_name_is_good_for_a_conf(confs: Confs, name: str) -> None:
    assert confs.run(name, b"[a]\nb = c\n").status == "COMPLETE"


def test_empty_files_of_other_names_are_other_runs(confs: Confs) -> None:
    assert confs.run("empty.conf", b"").id != confs.run("empty.tgz", b"").id


def test_a_cursor_beyond_all_files_finds_none(confs: Confs) -> None:
    run = confs.run("web.tgz", tgz(APP))
    assert confs.files(run, after=3_000_000_000) == []


def test_a_long_file_without_stanzas_tells_how_far_it_is_read_and_can_be_ended(
    confs: Confs, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    def watched(_: Context, share: float) -> None:
        told.append(share)
        if len(told) == 5:
            raise PermanentError("it is ended", error_type="ended")

    monkeypatch.setattr(Context, "progress", watched)
    run = confs.run("long.conf", b"# nothing but comments\n" * 100_000)
    assert run.metrics.error_type == "ended"
    assert len(told) == 5 and told == sorted(set(told)) and told[-1] < 0.3


def test_what_was_written_of_a_run_that_is_cancelled_meanwhile_is_removed(
    confs: Confs, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = confs.upload("many.tgz", tgz(many_stanzas(12_000)))
    flush, counts = RunWriter.flush, iter(range(100))

    def cancelled_at_the_second(writer: RunWriter) -> None:
        flush(writer)
        if next(counts) == 1:
            asyncio.run(cancel())
            raise StaleLease("cancelled")

    async def cancel() -> None:
        hf = Holdfast(confs.rehearsal.url)
        async with hf:
            await hf.cancel(taken.id)

    monkeypatch.setattr(RunWriter, "flush", cancelled_at_the_second)
    confs.drain()
    assert next(counts) > 1 and confs.shown(taken.id).status == "FAILED"
    assert confs.rows(taken.id) == (0, 0)
