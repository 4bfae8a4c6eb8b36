"""Drafts after the worst: killed processes, a machine that lost its power, attempts that never came back.

However often it is cut off, what is kept in the end is exactly what was given, and nothing is trusted that
may have been damaged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.storage import Draft, Storage, draft_file, drafts
from running import run
from storage_scenario import bytes_in, content, everything
from store_scenario import ENVIRONMENT

# A file of 4,000,000 bytes that everybody can make anew.
WHOLE = random.Random(1).randbytes(4_000_000)

GOING_ON = """
import asyncio, random, sys, time
from holdfast.storage import Storage
whole = random.Random(1).randbytes(4_000_000)
async def main():
    async with Storage.open(sys.argv[1]).draft("key") as draft:
        if draft.size == 0:
            await draft.begin({"etag": "x"})
        print(draft.size, flush=True)
        while draft.size < len(whole):
            await draft.write(whole[draft.size : draft.size + 10_000])
            await asyncio.sleep(0.001)
        print("all of it", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""

SENDING = """
import asyncio, random, sys, time
from holdfast.storage import Storage, draft_file
def never_ends(file):
    print("sent", flush=True)
    time.sleep(600)
draft_file.DraftFile.remove_bytes = never_ends
async def main():
    async with Storage.open(sys.argv[1]).draft("key") as draft:
        await draft.write(random.Random(1).randbytes(4_000_000))
        await draft.keep("a")
asyncio.run(main())
"""

HOLDING = """
import asyncio, sys
from holdfast.storage import Storage
async def main():
    async with Storage.open(sys.argv[1]).draft("key") as draft:
        await draft.write(b"x")
        print("has it", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@contextlib.contextmanager
def process(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end, if not before."""
    environment = {**ENVIRONMENT, **os.environ}
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.send_signal(signal.SIGKILL)


def said(started: subprocess.Popen[bytes]) -> bytes:
    assert started.stdout is not None
    return started.stdout.readline().strip()


async def kept_rest(storage: Storage, whole: bytes = WHOLE) -> int:
    """Go on with it to its end; how many bytes were there."""
    async with storage.draft("key") as draft:
        there = draft.size
        await draft.write(whole[there:])
        saved = await draft.keep("a")
        assert saved.sha256 == hashlib.sha256(whole).hexdigest()
        return there


def size_on_disk(where: Path) -> int:
    return sum(path.stat().st_size for path in where.glob("*.draft"))


def test_killed_again_and_again_it_is_gone_on_with_from_the_bytes_on_disk(url: str, where: Path) -> None:
    sizes = []
    for goal in (1_000_000, 2_000_000, 3_000_000):
        with process(GOING_ON, url) as attempt:
            sizes.append(int(said(attempt)))
            deadline = time.monotonic() + 120
            while size_on_disk(where) < goal:
                assert attempt.poll() is None and time.monotonic() < deadline
                time.sleep(0.001)
        sizes.append(size_on_disk(where))
    storage = Storage.open(url)
    assert run(kept_rest(storage)) == sizes[-1]
    assert sizes[0] == 0 and sizes[1:-1:2] == sizes[2::2]  # where one was killed the next went on
    assert content(storage, "a") == WHOLE
    assert bytes_in(where) == []


def test_killed_once_it_was_sent_it_is_sent_again_without_a_new_byte(s3_url: str) -> None:
    with process(SENDING, s3_url) as sender:
        assert said(sender) == b"sent"
    storage = Storage.open(s3_url)
    run(storage.delete("a"))
    assert run(kept_rest(storage)) == len(WHOLE)
    assert content(storage, "a") == WHOLE


def test_a_draft_that_a_living_process_has_is_not_touched(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "LOCK_SECONDS_MAX", 0.1)

    async def size() -> int:
        async with Storage.open(url).draft("key") as draft:
            return draft.size

    with process(HOLDING, url) as holder:
        assert said(holder) == b"has it"
        assert run(size()) == 0
        assert run(kept_rest(Storage.open(url))) == 0
    assert content(Storage.open(url), "a") == WHOLE


SMALL_LIMIT = """
import asyncio, resource, signal, sys
from holdfast.core.errors import PermanentError
from holdfast.storage import Storage
async def main():
    async with Storage.open(sys.argv[1]).draft("key") as draft:
        await draft.begin({})
        await draft.write(bytes(100_000))
        await draft.sha256()
        resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))
        try:
            await draft.write(bytes(300_000))
        except PermanentError as error:
            print(error.error_type, draft.size, flush=True)
asyncio.run(main())
"""


def test_a_write_that_the_system_cuts_short_is_counted_as_it_was(tmp_path: Path) -> None:
    with process(SMALL_LIMIT, str(tmp_path)) as limited:
        assert said(limited) == b"file_too_large 250000"
        limited.wait()
    assert (tmp_path / ".drafts/key.draft").stat().st_size == 250_000


# ── another life of the machine ──────────────────────────────────────────────────────────────────


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of this life of the machine, for the test to change."""
    name = ["first"]
    monkeypatch.setattr(draft_file, "this_boot", lambda: name[0])
    return name


class Killed(Exception):
    pass


def kill(draft: Draft) -> None:
    """As if the process were gone: its locks too, and whatever it had gathered."""
    draft._drop_gathered()
    draft._file.close()
    raise Killed


async def write_and_be_killed(storage: Storage, *chunks: bytes, note: dict[str, Any] | None = None) -> None:
    try:
        async with storage.draft("key") as draft:
            if note is not None:
                await draft.begin(note)
            for chunk in chunks:
                await draft.write(chunk)
                await draft._write_out()
            kill(draft)
    except Killed:
        pass


async def looked_at(storage: Storage) -> tuple[int, dict[str, Any]]:
    async with storage.draft("key") as draft:
        return draft.size, draft.note


def test_after_a_reboot_only_what_was_synced_is_trusted(tmp_path: Path, boot: list[str]) -> None:
    storage = Storage.open(str(tmp_path))
    synced, lost = b"s" * draft_file.SYNC_BYTES, b"lost" * 1000
    run(write_and_be_killed(storage, synced, lost, note={"etag": "x"}))
    assert run(looked_at(storage)) == (len(synced + lost), {"etag": "x"})  # and left: now all is synced
    run(write_and_be_killed(storage, b"lost too"))
    boot[0] = "second"
    assert run(looked_at(storage)) == (len(synced + lost), {"etag": "x"})
    run(write_and_be_killed(storage, b"new"))
    assert run(looked_at(storage))[0] == len(synced + lost + b"new")


def test_after_a_reboot_nothing_is_trusted_where_nothing_was_synced(tmp_path: Path, boot: list[str]) -> None:
    storage = Storage.open(str(tmp_path))
    run(write_and_be_killed(storage, b"x" * 1_000_000, note={"etag": "x"}))
    boot[0] = "second"
    assert run(looked_at(storage)) == (0, {"etag": "x"})


def test_where_no_boot_is_told_another_process_is_another_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_file, "_BOOT_ID", tmp_path / "missing")
    draft_file.this_boot.cache_clear()
    try:
        ours = draft_file.this_boot()
        assert ours == draft_file.this_boot()
        draft_file.this_boot.cache_clear()
        assert draft_file.this_boot() != ours
    finally:
        draft_file.this_boot.cache_clear()


@pytest.mark.parametrize(
    "note",
    [
        *(None, b"", b"\0" * 200, b"{", b"[1]", b"{}", b"\xff", b'{"note": {}, "boot": "first"}'),
        *(b'{"note": 1, "boot": "first", "synced": 0}', b'{"note": {}, "boot": "first", "synced": true}'),
        *(b'{"note": {}, "boot": "first", "synced": -1}', b'{"note": {}, "boot": "first", "synced": 4}'),
        b"[" * 100_000,
    ],
    ids=lambda note: repr(note)[:30],
)
def test_bytes_whose_note_cannot_be_read_are_none(
    tmp_path: Path, boot: list[str], note: bytes | None
) -> None:
    storage = Storage.open(str(tmp_path))
    run(write_and_be_killed(storage, b"abc", note={"etag": "x"}))
    told = tmp_path / ".drafts/key.note"
    if note is None:
        told.unlink()
    else:
        told.write_bytes(note)
    assert run(looked_at(storage)) == (0, {})


def test_a_note_whose_bytes_are_gone_is_none(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    run(write_and_be_killed(storage, b"abc", note={"etag": "old"}))
    run(looked_at(storage))
    os.rename(tmp_path / ".drafts/key.draft", tmp_path / "a")  # without a word of it
    assert run(looked_at(storage)) == (0, {})
    assert everything(tmp_path) == ["a"]


@pytest.mark.parametrize("at", range(6))
def test_killed_at_any_line_of_begin_no_old_byte_is_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    storage = Storage.open(str(tmp_path))
    run(write_and_be_killed(storage, b"old bytes", note={"etag": "old"}))
    calls = [0]

    def dies_in_its_turn(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if calls[0] == at:
                raise Killed
            calls[0] += 1
            return real(*arguments, **options)

        return call

    async def begin() -> None:
        async with storage.draft("key") as draft:
            with monkeypatch.context() as patch, contextlib.suppress(Killed):
                for name in ("unlink", "fsync", "ftruncate", "open", "rename"):
                    patch.setattr(draft_file.os, name, dies_in_its_turn(getattr(os, name)))
                await draft.begin({"etag": "new"})
            kill(draft)

    with pytest.raises(Killed):
        run(begin())
    size, note = run(looked_at(storage))
    assert (size, note) == [(9, {"etag": "old"}), *[(0, {})] * 4, (0, {"etag": "new"})][at]


# ── any sequence ─────────────────────────────────────────────────────────────────────────────────

deeds = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40_000)),
        st.tuples(st.sampled_from(["leave", "kill", "lose power", "look"]), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(deeds=deeds, sync_bytes=st.sampled_from([1, 20_000, 10**9]))
def test_whatever_happens_what_is_kept_is_what_was_given(
    deeds: list[tuple[str, int]], sync_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        boot = ["0"]
        patch.setattr(draft_file, "this_boot", lambda: boot[0])
        patch.setattr(draft_file, "SYNC_BYTES", sync_bytes)
        patch.setattr(drafts, "WRITE_BYTES", 10_000)
        whole = WHOLE[:500_000]
        storage = Storage.open(folder)
        remaining = list(deeds)

        async def attempt() -> None:
            async with storage.draft("key") as draft:
                there = draft.size
                assert await draft.sha256() == hashlib.sha256(whole[:there]).hexdigest()
                while remaining:
                    deed, count = remaining.pop(0)
                    if deed == "write":
                        await draft.write(whole[draft.size : draft.size + count])
                    elif deed == "look":
                        expected = hashlib.sha256(whole[: draft.size]).hexdigest()
                        assert await draft.sha256() == expected
                    elif deed == "leave":
                        return
                    else:
                        if deed == "lose power":
                            boot[0] += "+"
                        kill(draft)

        async def scenario() -> None:
            while remaining:
                before = boot[0]
                try:
                    await attempt()
                except Killed:
                    if boot[0] != before:
                        forget_what_was_not_synced(Path(folder) / ".drafts")
            await kept_rest(storage, whole)

        run(scenario())
        assert content(storage, "a") == whole
        assert everything(Path(folder)) == [".drafts/key.note", "a"]


def forget_what_was_not_synced(where: Path) -> None:
    """What a loss of power does: zeros where bytes were."""
    told, file = where / "key.note", where / "key.draft"
    if told.exists() and file.exists():
        synced = json.loads(told.read_bytes())["synced"]
        size = file.stat().st_size
        os.truncate(file, synced)
        os.truncate(file, size)


# ── nobody came back ─────────────────────────────────────────────────────────────────────────────


def test_drafts_that_nobody_touched_for_a_week_are_removed(
    url: str, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.open(url)

    async def put(key: str) -> None:
        async with storage.draft(key) as draft:
            await draft.begin({"key": key})
            await draft.write(b"abc")

    async def look() -> set[str]:
        monkeypatch.setattr(draft_file, "_looked_after", {})
        async with storage.draft("looking"):
            return {
                path.name.rpartition("-")[2] for path in await asyncio.to_thread(lambda: [*where.iterdir()])
            }

    for key in ("old", "young", "locked", "orphan"):
        run(put(key))
    long_ago = time.time() - draft_file.DRAFT_SECONDS_MAX - 60
    for path in where.iterdir():
        if "young" not in path.name:
            os.utime(path, (long_ago, long_ago))
        if "orphan.draft" in path.name:
            path.unlink()
    stranger = where / "README"
    stranger.write_text("not ours")
    os.utime(stranger, (long_ago, long_ago))

    async def scenario() -> set[str]:
        async with storage.draft("locked"):
            os.utime(next(path for path in where.glob("*locked.draft")), (long_ago, long_ago))  # noqa: ASYNC240
            return await look()

    left = run(scenario()) - {"looking.draft"}
    assert left == {"young.draft", "young.note", "locked.draft", "locked.note", "README"}


def test_a_folder_is_looked_after_once_a_day(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    run(looked_at(storage))
    old = tmp_path / ".drafts/old.draft"
    old.touch()
    os.utime(old, (0, 0))
    run(looked_at(storage))
    assert old.exists()


def test_a_draft_is_touched_by_whoever_goes_on_with_it(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    run(write_and_be_killed(storage, b"abc"))
    os.utime(tmp_path / ".drafts/key.draft", (0, 0))
    run(looked_at(storage))
    assert time.time() - (tmp_path / ".drafts/key.draft").stat().st_mtime < draft_file.DRAFT_SECONDS_MAX
