"""Files kept by name: whole or not at all, and never outside the folder."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.errors import InvalidInput, PermanentError, TransientError
from holdfast.core.failures import classify, failure_from_exception
from holdfast.storage import Saved, Storage, disk
from running import eventually, run
from storage_scenario import NAMES_THAT_LEAD_ELSEWHERE, chunks_of, content, everything, write


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path))


def test_what_is_written_is_read_again(storage: Storage, tmp_path: Path) -> None:
    large = os.urandom(1_000_000)
    saved = write(storage, "reports/2024/März.csv", large[:1], b"", large[1:700_000], large[700_000:])
    assert saved == Saved("reports/2024/März.csv", len(large), hashlib.sha256(large).hexdigest())
    assert content(storage, saved.name) == large
    assert everything(tmp_path) == ["reports/2024/März.csv"]


def test_an_empty_file_is_a_file(storage: Storage) -> None:
    assert write(storage, "empty").size == 0
    assert run(storage.exists("empty"))
    assert content(storage, "empty") == b""


def test_a_name_is_written_again_and_deleted_twice(storage: Storage) -> None:
    write(storage, "a", b"first, and longer")
    write(storage, "a", b"second")
    assert content(storage, "a") == b"second"
    for _ in range(2):
        run(storage.delete("a"))
        assert not run(storage.exists("a"))
    run(storage.delete("never/was"))


def test_a_reader_has_one_version_though_it_is_replaced(storage: Storage) -> None:
    write(storage, "a", b"old" * 300_000)

    async def scenario() -> bytes:
        reader = storage.read("a")
        got = [await anext(reader)]
        await storage.write_stream("a", chunks_of([b"new"]))
        got += [chunk async for chunk in reader]
        return b"".join(got)

    assert run(scenario()) == b"old" * 300_000
    assert content(storage, "a") == b"new"


@pytest.mark.parametrize("name", NAMES_THAT_LEAD_ELSEWHERE, ids=lambda name: ascii(name)[:20])
def test_names_that_lead_elsewhere_are_refused(storage: Storage, tmp_path: Path, name: Any) -> None:
    for verb in (storage.exists, storage.delete):
        with pytest.raises(InvalidInput, match="name of a stored file"):
            run(verb(name))
    with pytest.raises(InvalidInput):
        write(storage, name, b"x")
    with pytest.raises(InvalidInput):
        content(storage, name)
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    "fault", [ValueError("broken"), asyncio.CancelledError(), OSError(errno.ENOSPC, "full")]
)
def test_nothing_is_kept_of_a_stream_that_breaks(
    storage: Storage, tmp_path: Path, fault: BaseException
) -> None:
    write(storage, "a", b"whole")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        raise fault

    with pytest.raises(type(fault)):
        run(storage.write_stream("a", broken()))
    assert content(storage, "a") == b"whole"
    assert everything(tmp_path) == ["a"]


def test_a_cancelled_write_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    async def scenario() -> None:
        never = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield b"x" * 500_000
            await never.wait()

        task = asyncio.ensure_future(storage.write_stream("a", endless()))
        await eventually(lambda: any(path.stat().st_size for path in tmp_path.iterdir()))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(scenario())
    assert everything(tmp_path) == []


def test_a_full_disk_is_transient(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TransientError, match="No space left") as raised:
        write(storage, "a", b"x")
    assert classify(failure_from_exception(raised.value)).error_type == "storage_unavailable"
    assert everything(tmp_path) == []


def test_what_is_not_there(storage: Storage) -> None:
    with pytest.raises(PermanentError, match="no file 'a'") as raised:
        content(storage, "a")
    judged = classify(failure_from_exception(raised.value))
    assert (judged.error_type, judged.category) == ("not_found", Category.PERMANENT)
    assert "re-upload" not in judged.guidance


def test_a_name_that_is_taken_by_a_folder(storage: Storage, tmp_path: Path) -> None:
    write(storage, "a/b", b"x")
    for name in ("a", "a/b/c"):
        with pytest.raises(PermanentError) as raised:
            write(storage, name, b"x")
        assert raised.value.error_type == "validation_error"
    assert everything(tmp_path) == ["a/b"]
    assert not run(storage.exists("a"))


DYING = """
import asyncio, sys
from holdfast.storage import Storage
async def endless():
    yield b"x" * 500_000
    print("written", flush=True)
    await asyncio.sleep(600)
asyncio.run(Storage.open(sys.argv[1]).write_stream("a", endless()))
"""


def test_the_partial_file_of_a_dead_process_is_never_whole_and_goes_away(
    storage: Storage, tmp_path: Path
) -> None:
    process = subprocess.Popen([sys.executable, "-c", DYING, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"written\n"
        (partial,) = tmp_path.iterdir()
        long_ago = time.time() - 2 * disk.PARTIAL_SECONDS_MIN
        os.utime(partial, (long_ago, long_ago))
        write(storage, "b", b"x")
        assert partial.exists()  # its writer lives
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert not run(storage.exists("a"))
    os.utime(partial, None)
    write(Storage.open(str(tmp_path)), "b", b"x")
    assert partial.exists()  # too young to be judged
    os.utime(partial, (long_ago, long_ago))
    write(Storage.open(str(tmp_path)), "b", b"x")
    assert everything(tmp_path) == ["b"]


def test_addresses_of_storages(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    opened = Storage.open(f"file://{tmp_path}/with%20space")
    write(opened, "a", b"x")
    assert everything(tmp_path) == ["with space/a"]


@pytest.mark.parametrize("url", ["", "http://host/x", "file://host/x", "file:///", "a\0b"])
def test_addresses_that_are_no_storage(url: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        Storage.open(url)
    assert raised.value.guidance
