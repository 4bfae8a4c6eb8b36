"""Files in a bucket, on a real server: whole or not at all, and read as they were written."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.storage import Saved, Storage, s3
from running import eventually, run
from s3_server import BUCKET
from storage_scenario import NAMES_THAT_LEAD_ELSEWHERE, chunks_of, content, write
from store_scenario import ENVIRONMENT


@pytest.fixture
def storage(s3_url: str) -> Storage:
    return Storage.open(s3_url)


def test_what_is_written_is_read_again(storage: Storage) -> None:
    small = b"a few bytes"
    saved = write(storage, "reports/2024/März 100%?#.csv", small[:1], b"", small[1:])
    assert saved == Saved("reports/2024/März 100%?#.csv", len(small), hashlib.sha256(small).hexdigest())
    assert content(storage, saved.name) == small


def test_a_large_file_goes_in_parts(storage: Storage) -> None:
    large = os.urandom(2 * s3.PART_BYTES + 12_345)
    pieces = [large[start : start + 700_000] for start in range(0, len(large), 700_000)]
    saved = write(storage, "large", *pieces)
    assert (saved.size, saved.sha256) == (len(large), hashlib.sha256(large).hexdigest())
    assert content(storage, "large") == large


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


def test_a_file_lies_under_the_prefix(s3_url: str, storage: Storage) -> None:
    write(storage, "june/a", b"x")
    prefix = s3_url.removeprefix(f"s3://{BUCKET}/")
    assert content(Storage.open(f"s3://{BUCKET}"), f"{prefix}/june/a") == b"x"
    assert content(Storage.open(f"{s3_url}/june/"), "a") == b"x"


@pytest.mark.parametrize("name", NAMES_THAT_LEAD_ELSEWHERE, ids=lambda name: ascii(name)[:20])
def test_names_that_lead_elsewhere_are_refused(name: Any) -> None:
    storage = Storage.open("s3://bucket/prefix")
    for verb in (storage.exists, storage.delete):
        with pytest.raises(InvalidInput, match="name of a stored file"):
            run(verb(name))
    with pytest.raises(InvalidInput):
        write(storage, name, b"x")
    with pytest.raises(InvalidInput):
        content(storage, name)


def test_a_name_that_is_too_long_for_s3_is_refused() -> None:
    with pytest.raises(InvalidInput, match="more than 1024 bytes"):
        run(Storage.open("s3://bucket/" + "p" * 200).exists("/".join(["é" * 95] * 5)))


@pytest.mark.parametrize("sent", [1, 500_000, 3 * s3.PART_BYTES])
def test_nothing_is_kept_of_a_stream_that_breaks(storage: Storage, sent: int) -> None:
    write(storage, "a", b"whole")

    async def broken() -> AsyncIterator[bytes]:
        for _ in range(0, sent, 100_000):
            yield b"x" * min(sent, 100_000)
        raise LookupError("broken")

    for name in ("a", "b"):
        with pytest.raises(LookupError):
            run(storage.write_stream(name, broken()))
    assert content(storage, "a") == b"whole"
    assert not run(storage.exists("b"))


@pytest.mark.parametrize("sent", [1, 3 * s3.PART_BYTES])
def test_a_cancelled_write_leaves_no_object(storage: Storage, sent: int) -> None:
    async def scenario() -> None:
        all_sent = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield b"x" * sent
            all_sent.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(storage.write_stream("a", endless()))
        await eventually(all_sent.is_set)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not await storage.exists("a")

    run(scenario())


GREEDY = """
import asyncio, re, sys
from pathlib import Path
from holdfast.storage import Storage
def memory_max():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
async def main():
    storage = Storage.open(sys.argv[1])
    async def chunks(count):
        for _ in range(count):
            yield bytes(1_000_000)
    await storage.write_stream("a", chunks(1))
    async for _ in storage.read("a"): pass
    before = memory_max()
    await storage.write_stream("a", chunks(300))
    size = 0
    async for chunk in storage.read("a"): size += len(chunk)
    print(size, memory_max() - before)
asyncio.run(main())
"""


def test_a_file_is_never_in_memory_as_a_whole(s3_url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", GREEDY, s3_url]
    done = subprocess.run(command, env={**ENVIRONMENT, **os.environ}, stdout=subprocess.PIPE, check=True)
    size, grown = map(int, done.stdout.split())
    assert size == 300_000_000
    assert grown < 100_000_000


SHORT = """
import asyncio, sys
from holdfast.storage import Storage
async def chunks():
    yield bytes(1_000_000)
async def read(storage):
    async for _ in storage.read("a"): pass
asyncio.run(Storage.open(sys.argv[1]).write_stream("a", chunks()))
asyncio.run(read(Storage.open(sys.argv[1])))
"""


def test_a_process_that_ends_at_once_ends_well(s3_url: str) -> None:
    for _ in range(8):
        command = [sys.executable, "-W", "error", "-c", SHORT, s3_url]
        subprocess.run(command, env={**ENVIRONMENT, **os.environ}, check=True)


def test_a_reader_has_one_version_or_fails(storage: Storage) -> None:
    old, new = b"old!" * 5_000_000, b"new!" * 5_000_000
    write(storage, "a", old)

    async def scenario() -> bytes:
        reader = storage.read("a")
        got = [await anext(reader)]
        await storage.write_stream("a", chunks_of([new]))
        got += [chunk async for chunk in reader]
        return b"".join(got)

    assert run(scenario()) == old
    assert content(storage, "a") == new


def test_nothing_is_reached_or_imported_when_it_is_opened() -> None:
    code = (
        "import sys; from holdfast.storage import Storage; Storage.open('s3://bucket/prefix').draft('key');"
    )
    code += "assert not [name for name in sys.modules if name.startswith('obstore')]"
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)


def test_without_its_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="needs the package obstore") as raised:
        Storage.open("s3://bucket/prefix")
    assert raised.value.guidance == "pip install 'holdfast[s3]'"


def test_with_a_library_that_cannot_be_loaded_it_says_so_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = Storage.open("s3://bucket/prefix")
    for name in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    for verb in (storage.exists("a"), storage.delete("a"), storage.write_stream("a", chunks_of([b"x"]))):
        with pytest.raises(InvalidInput, match="needs the package obstore") as raised:
            run(verb)
        assert raised.value.guidance == "pip install 'holdfast[s3]'"
    with pytest.raises(InvalidInput):
        content(storage, "a")


@pytest.mark.parametrize(
    "url",
    [
        *("s3://", "s3:///x", "s3://b", "s3://bucket?x=y", "s3://bucket/a#b", "s3://bucket/../x"),
        *("s3://bucket/a//b", "s3://bucket/.hidden", "s3://bucket/%2e%2e/x", "s3://-bucket", "s3://buc ket"),
    ],
)
def test_addresses_that_are_no_bucket(url: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        Storage.open(url)
    assert raised.value.guidance


def test_credentials_in_an_address_are_refused_and_not_told() -> None:
    for address in ("s3://KEY:hunter2@bucket/x", "s3://hunter2@bucket"):
        with pytest.raises(InvalidInput, match="has credentials in it") as raised:
            Storage.open(address)
        assert "hunter2" not in str(raised.value)
        assert "AWS_SECRET_ACCESS_KEY" in raised.value.guidance
