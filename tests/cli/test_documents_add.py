"""`holdfast documents add`: files and folders, uploaded and processed, on a database and through a server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from command_scenario import LIMIT_SECONDS, Said, holdfast, holdfast_meanwhile, on_a_terminal, process
from holdfast import Holdfast
from holdfast.cli.documents_door import door_to
from holdfast.cli.options import opened
from holdfast.core.errors import TransientError
from holdfast.pipelines import registry
from holdfast.pipelines.documents import embedding
from holdfast.pipelines.registry import all_functions
from running import eventually, run
from served_stores import commands_go_through_a_server, served

DEED = "The seller Acme Corp. pays EUR 1,250.00 to Globex Inc. by 3 March 2024. Signed in Bergen."


def places(folder: Path) -> dict[str, str]:
    return {"HOLDFAST_STORAGE": str(folder / "files"), "HOLDFAST_SPOOL": str(folder / "spool")}


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in places(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_RETRY_DELAYS", "0.01")


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    """A folder with two documents, one that is none, and what is passed over."""
    folder = tmp_path / "papers"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "deed.txt").write_text(DEED)
    (folder / "sub" / "notes").write_text("Notes on the delivery to Bergen.")
    (folder / "sub" / "fake.pdf").write_text("no PDF")
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / ".git" / "hidden.txt").write_text("hidden")
    return folder


def added(url: str, *args: object) -> Said:
    """With a worker at the same database: behind a server the command has none of its own."""

    async def work() -> Said:
        hf = Holdfast(url)
        hf.add_functions(all_functions())
        async with hf, hf.working(concurrency=2):
            return await holdfast_meanwhile(url, "documents", "add", *args)

    return run(work())


def test_a_folder_is_uploaded_processed_and_told(store_url: str, papers: Path) -> None:
    holdfast(store_url, "migrate")
    said = added(store_url, papers)
    assert said.code == 1, said
    lines = said.out.splitlines()
    assert lines[0] == "deed.txt: uploaded, 89 bytes; document 1"
    assert "Document 1 complete: deed.txt, 1 chunk, " in said.out
    assert "Document 2 failed: fake.pdf: The file is not what its name says." in said.out
    assert "Document 3 complete: notes" in said.out
    assert lines[-1] == "3 files: 2 complete, 1 failed."
    assert "1 file skipped: 1 .png." in said.err and "hidden" not in said.out
    assert "holdfast documents show 1" in said.err

    again = added(store_url, papers / "deed.txt", "--json")
    assert again.code == 0
    [item], [file] = again.json["items"], again.json["files"]
    assert (item["id"], item["status"], file["created"]) == (1, "complete", False)


def test_a_database_needs_no_worker_beside_the_command(sqlite_url: str, papers: Path) -> None:
    said = holdfast(sqlite_url, "documents", "add", papers / "deed.txt")
    assert said.code == 0, said
    assert said.out.splitlines()[1].startswith("Document 1 complete: deed.txt, 1 chunk, ")


def test_the_same_content_is_the_same_document_unless_another_is_asked_for(
    sqlite_url: str, papers: Path
) -> None:
    copy = papers / "copy.txt"
    copy.write_text(DEED)
    said = holdfast(sqlite_url, "documents", "add", papers / "deed.txt", copy, "--no-wait")
    assert said.code == 0 and "deed.txt: uploaded, 89 bytes; document 1" in said.out
    assert "copy.txt: uploaded before; document 1" in said.out
    assert "2 files: 2 to be processed, 1 uploaded before." in said.out
    assert "once a worker runs here:  holdfast worker --db" in said.err
    other = holdfast(sqlite_url, "documents", "add", copy, "--again", "--no-wait", "--json")
    assert [item["id"] for item in other.json["items"]] == [2]


def test_a_document_that_failed_before_is_told_with_how_to_make_a_new_one(
    sqlite_url: str, papers: Path
) -> None:
    fake = papers / "sub" / "fake.pdf"
    assert "--again" not in holdfast(sqlite_url, "documents", "add", fake).err
    said = holdfast(sqlite_url, "documents", "add", fake)
    assert said.code == 1 and "Document 1 is that of the upload before." in said.err
    assert "--again" in said.err and "holdfast documents retry" not in said.err


def test_what_may_heal_is_told_once_while_it_waits_and_with_how_to_go_on(
    sqlite_url: str, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise TransientError("no answer", error_type="service_unavailable")

    monkeypatch.setattr(embedding, "embed_document", failing)
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_RETRY_DELAYS", "0.6")
    said = holdfast(sqlite_url, "documents", "add", papers / "deed.txt")
    assert said.code == 1
    waiting = [line for line in said.out.splitlines() if "Retrying (attempt 1/1)" in line]
    assert waiting == ["Document 1 (deed.txt): Processing service unavailable. Retrying (attempt 1/1)"]
    assert "holdfast documents retry 1 --db" in said.err


def test_one_file_that_cannot_be_taken_in_keeps_no_other_from_it(
    sqlite_url: str, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DOCUMENTS_UPLOAD_BYTES_MAX", "50")
    broken = papers / "broken.txt"
    broken.symlink_to("/proc/self/mem")  # a file that opens, and whose first byte gives EIO
    files = [papers / "deed.txt", broken, papers / "sub" / "notes"]
    said = holdfast(sqlite_url, "documents", "add", *files)
    assert said.code == 1, said
    assert f"Not uploaded: {files[0]}: The file 'deed.txt' has more than 50 bytes." in said.out
    assert f"Not uploaded: {str(broken)!r} cannot be read: Input/output error." in said.out
    assert "Document 1 complete: notes" in said.out
    assert "3 files: 1 complete, 2 not uploaded." in said.out
    with served(sqlite_url) as address:
        told = holdfast(address, "documents", "add", *files, "--no-wait", "--json")
    codes = [one["error"]["code"] for one in told.json["refused"]]
    assert told.code == 1 and codes == ["file_too_large", "invalid_input"]


@pytest.mark.parametrize("name", ["missing", "pipe", "empty"])
def test_what_cannot_be_a_document_at_all_is_refused_before_anything_is_sent(
    sqlite_url: str, papers: Path, name: str
) -> None:
    (papers / "empty").mkdir()
    os.mkfifo(papers / "pipe")
    alone = name == "empty"
    said = holdfast(sqlite_url, "documents", "add", *([] if alone else [papers]), papers / name)
    words = {"missing": "is not there", "pipe": "is no file and no folder", "empty": "There is no document"}
    assert said.code == 2 and words[name] in said.err, said
    assert holdfast(sqlite_url, "migrate").code == 0
    assert holdfast(sqlite_url, "documents", "list").out == "No documents.\n"


def test_without_what_reads_documents_it_only_uploads(
    sqlite_url: str, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    said = holdfast(sqlite_url, "documents", "add", papers)
    assert said.code == 2 and "is not installed here" in said.err and "--no-wait" in said.err
    assert holdfast(sqlite_url, "documents", "add", papers, "--no-wait").code == 0


def test_a_storage_that_does_not_answer_ends_it_with_what_was_uploaded_before(
    sqlite_url: str, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.pipelines.intake import Intake

    take, calls = Intake.take, iter([False, True])

    async def taking(self: Intake, *args: object, **more: object) -> object:
        if next(calls):
            raise TransientError("the bucket is away", error_type="storage_unavailable")
        return await take(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Intake, "take", taking)
    said = holdfast(sqlite_url, "documents", "add", papers, "--no-wait")
    assert said.code == 2, said
    assert "the bucket is away. Uploaded before, and kept: document 1 (deed.txt)." in said.err


@pytest.mark.parametrize(
    ("on_disk", "name"),
    [
        (b"a\x1b]0;evil\x07.txt", "a]0;evil.txt"),
        ("gpj.\u202etxt.exe.txt".encode(), "gpj.txt.exe.txt"),
        (b"back\\slash.txt", "back_slash.txt"),
        (b"latin\xff.txt", "latin\xff.txt"),
        (b"x" * 240 + b".txt", "x" * 196 + ".txt"),
    ],
    ids=["escape", "bidi", "backslash", "bytes", "long"],
)
def test_a_strange_name_is_kept_alike_on_both_ways_and_shown_safely(
    sqlite_url: str, tmp_path: Path, on_disk: bytes, name: str
) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + on_disk))
    path.write_text(DEED)

    def names() -> list[str]:
        said = holdfast(sqlite_url, "documents", "add", path, "--no-wait", "--json", "--again")
        return [item["filename"] for item in said.json["items"]]

    assert names() == [name]
    with commands_go_through_a_server(sqlite_url):
        assert names() == [name]
    shown = holdfast(sqlite_url, "documents", "list").out
    assert "\x1b" not in shown and "\u202e" not in shown


def test_many_documents_are_looked_at_in_pages_over_what_lies_between(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.cli import documents_add

    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"Document number {number}.")
    monkeypatch.setattr(documents_add, "PAGE_DOCUMENTS", 3)
    assert holdfast(sqlite_url, "documents", "add", folder, "--no-wait").code == 0

    async def looked() -> list[int]:
        async with opened(sqlite_url) as engine:
            door = await door_to(engine)
            return sorted(await documents_add.look(door, [1, 2, 5, 6, 7, 8]))

    assert run(looked()) == [1, 2, 5, 6, 7, 8]


def test_a_terminal_shows_one_bar_for_all_files(sqlite_url: str, papers: Path, tmp_path: Path) -> None:
    code, shown = on_a_terminal(sqlite_url, "documents", "add", papers, **places(tmp_path))
    assert code == 1
    assert "Processing" in shown and "━" in shown
    assert "/3 complete" in shown and "Document 1 complete: deed.txt" in shown
    assert "3 files: 2 complete, 1 failed." in shown


def test_whoever_interrupts_it_is_told_how_it_goes_on(sqlite_url: str, papers: Path, tmp_path: Path) -> None:
    assert holdfast(sqlite_url, "documents", "add", papers / "deed.txt", "--no-wait").code == 0
    assert holdfast(sqlite_url, "pause", "step", "documents/embedding").code == 0

    async def is_parsed() -> bool:
        said = await asyncio.to_thread(holdfast, sqlite_url, "documents", "show", 1, "--json")
        return bool(said.json["last_completed_stage"] == "parsed")

    with process("documents", "add", papers / "deed.txt", "--db", sqlite_url, **places(tmp_path)) as adding:
        run(eventually(is_parsed))
        adding.send_signal(signal.SIGINT)
        _, err = adding.communicate(timeout=LIMIT_SECONDS)
    assert adding.returncode == 130 and "Traceback" not in err, err
    assert "What was uploaded is kept (1 document)" in err and "holdfast worker --db" in err
    assert "the same command again" in err
