"""`holdfast ingest`: archives from files, uploaded and parsed, on a database and through a server."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_scenario import LIMIT_SECONDS, Said, holdfast, holdfast_meanwhile, on_a_terminal, process
from conf_scenario import APP, tgz
from holdfast import Holdfast
from holdfast.core.errors import TransientError
from holdfast.pipelines.conf_archives import parsing
from holdfast.pipelines.intake import Intake, TakenIn
from holdfast.pipelines.registry import all_functions
from running import eventually, run
from served_stores import commands_go_through_a_server, served
from store_scenario import opened


def places(folder: Path) -> dict[str, str]:
    return {"HOLDFAST_STORAGE": str(folder / "files"), "HOLDFAST_SPOOL": str(folder / "spool")}


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in places(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_CONF_RETRY_DELAYS", "0.01")


@pytest.fixture
def url(store_url: str) -> str:
    """An empty database, with its tables; the server in front of it, where there is one, has the settings
    above."""

    async def make() -> None:
        async with opened(store_url):
            await asyncio.sleep(0)

    run(make())
    return store_url


def archive(folder: Path, name: str = "web.tgz", content: bytes | None = None) -> Path:
    path = folder / name
    path.write_bytes(tgz(APP) if content is None else content)
    return path


def ingested(url: str, *args: object) -> Said:
    """With a worker at the same database: behind a server the command has none of its own."""

    async def work() -> Said:
        hf = Holdfast(url)
        hf.add_functions(all_functions())
        async with hf, hf.working(concurrency=2):
            return await holdfast_meanwhile(url, "ingest", *args)

    return run(work())


def test_files_are_uploaded_parsed_and_told(url: str, tmp_path: Path) -> None:
    faulty = archive(tmp_path, "props.conf", b"[a]\nno setting\n")
    said = ingested(url, archive(tmp_path), faulty)
    assert said.code == 0, said
    assert said.out.splitlines()[0].startswith("web.tgz: uploaded, ")
    assert "Run 1 COMPLETE: 4 files, 6 stanzas" in said.out
    assert "Run 2 COMPLETE: 1 file, 1 stanza, 1 line could not be read" in said.out
    assert "/v1/runs/1/stanzas" in said.err and "/v1/runs/2/files?errors=true" in said.err

    again = ingested(url, tmp_path / "web.tgz")
    assert again.code == 0 and "web.tgz: uploaded before, at " in again.out and "; run 1" in again.out
    other = ingested(url, tmp_path / "web.tgz", "--again", "--json")
    [told] = other.json["items"]
    assert (told["id"], told["status"], told["metrics"]["stanzas_created"]) == (3, "COMPLETE", 6)


def test_a_run_that_fails_ends_with_the_reason_and_exit_code_1(url: str, tmp_path: Path) -> None:
    bad = archive(tmp_path, "bad.tgz", b"\x1f\x8bno gzip")
    said = ingested(url, bad, archive(tmp_path))
    assert said.code == 1
    assert "Run 1 FAILED: " in said.out and "Run 2 COMPLETE" in said.out
    assert "--again" not in said.err and "holdfast retry" not in said.err
    again = ingested(url, bad)
    assert again.code == 1 and "Run 1 is that of the upload before." in again.err and "--again" in again.err
    assert "holdfast retry" not in again.err


def test_a_run_that_fails_of_what_may_heal_ends_with_how_to_go_on(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise TransientError("no answer", error_type="storage_unavailable")

    monkeypatch.setattr(parsing, "fetch", failing)
    said = holdfast(sqlite_url, "ingest", archive(tmp_path))
    assert said.code == 1 and "Run 1 FAILED: Storage temporarily unavailable" in said.out
    assert "Run it on:  holdfast retry 1" in said.err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("setup.exe", b"MZ" * 600, "setup.exe"), ("missing.tgz", None, "is not there")],
)
def test_what_cannot_be_taken_in_is_refused(
    url: str, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    said = holdfast(url, "ingest", path)
    assert said.code == 2 and words in said.err, said


def test_a_folder_is_refused_with_the_way_to_pack_it(url: str, tmp_path: Path) -> None:
    said = holdfast(url, "ingest", tmp_path)
    assert said.code == 2 and "is a folder" in said.err and "tar czf" in said.err


def meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], *, behind: str = "file") -> None:
    """Let this happen behind the first file or, while it is sent, behind its first chunk. Who takes files in
    is the command or the server, which runs in this process too."""
    take, changes = Intake.take, iter([change])

    async def happening(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if behind == "chunk":
                next(changes, lambda: None)()
            yield chunk

    async def taking(self: Intake, filename: str, chunks: AsyncIterator[bytes], **more: Any) -> TakenIn:
        taken = await take(self, filename, happening(chunks), **more)
        next(changes, lambda: None)()
        return taken

    monkeypatch.setattr(Intake, "take", taking)


def vanish(path: Path) -> None:
    path.unlink()


def break_down(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")  # a file that opens, and whose first byte gives EIO


@pytest.mark.parametrize(
    ("change", "words"), [(vanish, "No such file or directory"), (break_down, "Input/output error")]
)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_file_that_can_no_longer_be_read_is_told_with_the_runs_made_before_it(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    words: str,
    options: list[str],
) -> None:
    first, second = (archive(tmp_path, name, b"[a]\n") for name in ("a.conf", "b.conf"))
    meanwhile(monkeypatch, lambda: change(second))
    said = holdfast(url, "ingest", first, second, *options)
    assert said.code == 2, said
    told = f"{str(second)!r} cannot be read: {words}. Uploaded before, and kept: run 1 (a.conf)."
    if options:
        error = said.json["error"]
        assert (error["code"], error["message"]) == ("invalid_input", told)
        assert "Check that it is there" in error["guidance"]
    else:
        assert told in said.err and "a.conf: uploaded, 4 bytes; run 1" in said.out
        assert "Check that it is there" in said.err
    assert runs_made(url) == [1]


@pytest.mark.parametrize(("new_size", "word"), [(1024**2, "shorter"), (33 * 1024**2, "longer")])
def test_a_file_that_changes_while_it_is_sent_is_refused_and_makes_no_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_size: int, word: str
) -> None:
    """It is larger than what a connection holds: at its first chunk most of it is still to be read."""
    path = archive(tmp_path, "big.tgz", b"\x1f\x8b")
    os.truncate(path, 32 * 1024**2)
    meanwhile(monkeypatch, lambda: os.truncate(path, new_size), behind="chunk")
    said = holdfast(url, "ingest", path, "--no-wait")
    assert said.code == 2, said
    assert f"{str(path)!r} changed while it was sent: it is {word} than the 33,554,432 bytes" in said.err
    assert runs_made(url) == []
    assert holdfast(url, "ingest", path, "--no-wait").code == 0


def runs_made(url: str) -> list[int]:
    return sorted(one["id"] for one in holdfast(url, "executions", "--json").json["items"])


def test_what_comes_to_a_server_as_something_else_is_told(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Intake.take

    async def changed(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk.replace(b"a", b"b")

    async def taking(self: Intake, filename: str, chunks: AsyncIterator[bytes], **more: Any) -> TakenIn:
        return await take(self, filename, changed(chunks), **more)

    monkeypatch.setattr(Intake, "take", taking)
    path = archive(tmp_path, "a.conf", b"[a]\n")
    with served(sqlite_url) as address:
        said = holdfast(address, "ingest", path, "--no-wait")
        assert said.code == 2 and "What the server got is not what was sent; it made run 1 of it" in said.err
        assert f"holdfast cancel 1 --server {address}" in said.err


@pytest.mark.parametrize(
    ("on_disk", "name"),
    [
        ("b\\.conf", "b_.conf"),
        ("default\\props.conf", "default_props.conf"),
        ("a%22b%.conf", "a_22b%.conf"),
        ('a"b.conf', 'a"b.conf'),
        (" a\nb.conf ", "ab.conf"),
    ],
)
def test_a_file_has_the_same_name_on_a_database_and_through_a_server(
    sqlite_url: str, tmp_path: Path, on_disk: str, name: str
) -> None:
    path = archive(tmp_path, on_disk, b"[a]\n")

    def ingested_as() -> list[tuple[str, int]]:
        said = holdfast(sqlite_url, "ingest", path, "--no-wait", "--json")
        return [(item["filename"], item["id"]) for item in said.json["items"]]

    assert ingested_as() == [(name, 1)]
    with commands_go_through_a_server(sqlite_url):
        assert ingested_as() == [(name, 1)]


def test_a_name_of_which_nothing_can_be_kept_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    said = holdfast(sqlite_url, "ingest", archive(tmp_path, " \x01", b"[a]\n"))
    assert said.code == 2 and "blanks and control characters only" in said.err
    said = holdfast(sqlite_url, "ingest", archive(tmp_path, "back\\", b"[a]\n"))
    assert said.code == 2 and "The file 'back_' has a name that none of the accepted formats has" in said.err


def test_without_waiting_the_run_is_left_to_a_worker(url: str, tmp_path: Path) -> None:
    said = holdfast(url, "ingest", archive(tmp_path), "--no-wait")
    assert said.code == 0 and "Run 1 PENDING" in said.out and "once a worker runs" in said.err
    assert ingested(url, tmp_path / "web.tgz").code == 0


def test_a_database_needs_no_worker_beside_the_command(sqlite_url: str, tmp_path: Path) -> None:
    said = holdfast(sqlite_url, "ingest", archive(tmp_path))
    assert said.code == 0 and "Run 1 COMPLETE" in said.out


def test_a_terminal_shows_a_bar_for_each_file(sqlite_url: str, tmp_path: Path) -> None:
    bad = archive(tmp_path, "bad.tgz", b"\x1f\x8bno gzip")
    code, shown = on_a_terminal(sqlite_url, "ingest", archive(tmp_path), bad, **places(tmp_path))
    assert code == 1
    assert "run 1 COMPLETE" in shown and "run 2 FAILED" in shown and "━" in shown
    assert "Run 1 COMPLETE: 4 files, 6 stanzas" in shown


def test_a_retry_is_told_once_while_it_waits(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, failures = parsing.fetch, iter([True, True])

    def failing(*args: object) -> None:
        if next(failures, False):
            raise TransientError("no answer", error_type="storage_unavailable")
        fetch(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(parsing, "fetch", failing)
    monkeypatch.setenv("HOLDFAST_CONF_RETRY_DELAYS", "0.5,0.5")
    said = holdfast(sqlite_url, "ingest", archive(tmp_path))
    assert said.code == 0
    waiting = [line for line in said.out.splitlines() if "Storage temporarily unavailable" in line]
    assert waiting and len(waiting) <= 2


def test_a_storage_that_does_not_answer_keeps_no_interrupted_command_alive(
    sqlite_url: str, tmp_path: Path
) -> None:
    async def becomes(step: str, status: str) -> None:
        async def has_become() -> bool:
            return (await asyncio.to_thread(statuses, sqlite_url))[step] == status

        await eventually(has_become)

    path = archive(tmp_path)
    assert holdfast(sqlite_url, "ingest", path, "--no-wait").code == 0
    assert holdfast(sqlite_url, "pause", "step", "conf_archives/parse").code == 0
    with process("ingest", path, "--db", sqlite_url, **places(tmp_path)) as ingesting:
        run(becomes("store", "done"))
        [stored] = [file for file in (tmp_path / "files" / "conf_archives").rglob("*") if file.is_file()]
        with kept_waiting(stored):
            assert holdfast(sqlite_url, "resume", "step", "conf_archives/parse").code == 0
            run(becomes("parse", "leased"))
            ingesting.send_signal(signal.SIGINT)
            _, err = ingesting.communicate(timeout=LIMIT_SECONDS)
        assert ingesting.returncode == 130 and "is kept" in err and "Traceback" not in err, err
    assert statuses(sqlite_url)["parse"] == "queued"  # its attempt was given back


@contextlib.contextmanager
def kept_waiting(path: Path) -> Iterator[None]:
    """Whoever opens it waits, for as long as the kernel lets somebody have a file alone (45 seconds)."""
    with path.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # of those who wait; SIGIO would end this process
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield


def statuses(url: str) -> dict[str, str]:
    jobs = holdfast(url, "queue", "--json").json["items"]
    return {"parse": "", **{job["step"]: job["status"] for job in jobs}}
