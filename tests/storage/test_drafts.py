"""Files that take several attempts: what is there is gone on with, on every kind of storage."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput, PermanentError, TransientError
from holdfast.storage import Saved, Storage, draft_file, drafts, s3
from running import run
from storage_scenario import (
    NAMES_THAT_LEAD_ELSEWHERE,
    bytes_in,
    chunks_of,
    content,
    everything,
    found,
    kept,
    put,
    write,
)


def test_a_draft_that_was_never_begun_is_empty_and_leaves_nothing(storage: Storage, where: Path) -> None:
    assert found(storage, "key") == (0, {})
    assert everything(where) == []


def test_it_is_gone_on_with_and_kept(storage: Storage, where: Path) -> None:
    first, second = os.urandom(700_000), os.urandom(300_001)
    assert put(storage, "key", first, note={"etag": "x", "sizes": [1, None]}) == len(first)

    async def scenario() -> Saved:
        async with storage.draft("key") as draft:
            assert (draft.size, draft.note) == (len(first), {"etag": "x", "sizes": [1, None]})
            assert await draft.sha256() == hashlib.sha256(first).hexdigest()
            await draft.write(second[:10])
            await draft.write(second[10:])
            assert draft.size == len(first + second)
            return await draft.keep("june/north.csv")

    whole = first + second
    assert run(scenario()) == Saved("june/north.csv", len(whole), hashlib.sha256(whole).hexdigest())
    assert content(storage, "june/north.csv") == whole
    assert bytes_in(where) == []
    assert found(storage, "key") == (0, {})


def test_a_file_larger_than_any_piece(storage: Storage) -> None:
    whole = os.urandom(draft_file.SYNC_BYTES + draft_file.PIECE_BYTES + 7)
    put(storage, "key", *[whole[at : at + 1_000_000] for at in range(0, len(whole) - 3, 1_000_000)][:-1])

    async def scenario() -> Saved:
        async with storage.draft("key") as draft:
            assert 0 < draft.size < len(whole)
            await draft.write(whole[draft.size :])
            return await draft.keep("a")

    assert run(scenario()).sha256 == hashlib.sha256(whole).hexdigest()
    assert content(storage, "a") == whole


def test_keeping_replaces_what_was_there_and_an_empty_draft_is_a_file(storage: Storage) -> None:
    write(storage, "a", b"older and longer")

    async def scenario() -> None:
        async with storage.draft("key") as draft:
            assert (await draft.keep("a")).size == 0

    run(scenario())
    assert content(storage, "a") == b""


def test_begin_forgets_what_is_there(storage: Storage) -> None:
    put(storage, "key", b"old bytes", note={"etag": "old"})

    async def scenario() -> None:
        async with storage.draft("key") as draft:
            await draft.write(b"gathered only")
            await draft.begin({"etag": "new"})
            assert (draft.size, draft.note) == (0, {"etag": "new"})
            await draft.write(b"new")

    run(scenario())
    assert found(storage, "key") == (3, {"etag": "new"})
    assert run(kept(storage, "key")).sha256 == hashlib.sha256(b"new").hexdigest()


def test_bytes_without_a_note_are_gone_on_with(storage: Storage) -> None:
    put(storage, "key", b"abc")
    assert found(storage, "key") == (3, {})


def test_discard_forgets_all_of_it(storage: Storage, where: Path) -> None:
    put(storage, "key", b"abc", note={"a": 1})

    async def scenario() -> None:
        async with storage.draft("key") as draft:
            await draft.write(b"more")
            await draft.discard()
            assert (draft.size, draft.note) == (0, {})

    run(scenario())
    assert everything(where) == []


@pytest.mark.parametrize("fault", [LookupError("x"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_was_gathered_is_there_however_the_block_was_left(
    storage: Storage, fault: BaseException
) -> None:
    async def scenario() -> None:
        with pytest.raises(type(fault)):
            async with storage.draft("key") as draft:
                await draft.begin({"a": 1})
                await draft.write(b"a few bytes")
                raise fault

    run(scenario())
    assert found(storage, "key") == (11, {"a": 1})


def test_an_attempt_that_is_cancelled_again_and_again_leaves_all_of_it(storage: Storage) -> None:
    async def scenario() -> None:
        begun = asyncio.Event()

        async def attempt() -> None:
            async with storage.draft("key") as draft:
                await draft.write(bytes(100_000))
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(attempt())
        await begun.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()

    run(scenario())
    assert found(storage, "key") == (100_000, {})


def test_gathered_bytes_are_written_at_256_kib_and_once_a_second(
    storage: Storage, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(drafts.time, "monotonic", lambda: clock[0])

    def on_disk() -> int:
        return sum(path.stat().st_size for path in where.glob("*.draft"))

    async def scenario() -> None:
        async with storage.draft("key") as draft:
            await draft.write(bytes(1000))
            assert on_disk() == 0
            clock[0] += 1.0
            await draft.write(b"x")
            assert on_disk() == 1001
            for _ in range(300):
                await draft.write(bytes(1024))
            assert on_disk() >= 256 * 1024

    run(scenario())


@pytest.mark.parametrize("key", ["", "a/b", "..", "a.b", "x" * 101, "a b", "é", "a\n", None, 5])
def test_keys_that_are_none_are_refused(storage: Storage, key: Any) -> None:
    with pytest.raises(InvalidInput, match="key of a draft"):
        found(storage, key)


@pytest.mark.parametrize("name", NAMES_THAT_LEAD_ELSEWHERE, ids=lambda name: ascii(name)[:20])
def test_a_draft_is_not_kept_under_a_name_that_leads_elsewhere(tmp_path: Path, name: Any) -> None:
    storage = Storage.open(str(tmp_path))
    put(storage, "key", b"abc")
    with pytest.raises(InvalidInput, match="name of a stored file"):
        run(kept(storage, "key", name=name))
    assert found(storage, "key")[0] == 3


@pytest.mark.parametrize("note", [{"a": object()}, {"a": float("nan")}, {"a": "x" * 70_000}, [1], "text"])
def test_notes_that_cannot_be_kept_are_refused(tmp_path: Path, note: Any) -> None:
    storage = Storage.open(str(tmp_path))
    put(storage, "key", b"abc", note={"a": 1})
    with pytest.raises(InvalidInput, match="note of a draft"):
        put(storage, "key", note=note)
    assert found(storage, "key") == (3, {"a": 1})


def test_a_note_that_is_refused_loses_nothing(storage: Storage) -> None:
    async def scenario() -> None:
        async with storage.draft("key") as draft:
            await draft.write(b"gathered, ")
            with pytest.raises(InvalidInput):
                await draft.begin({"a": object()})
            await draft.write(b"and more")
            assert (await draft.keep("a")).size == 18

    run(scenario())
    assert content(storage, "a") == b"gathered, and more"


def test_no_more_than_its_limit(storage: Storage) -> None:
    put(storage, "key", b"abc", note={"a": 1})

    async def scenario() -> None:
        async with storage.draft("key", bytes_max=4) as draft:
            await draft.write(b"d")
            with pytest.raises(PermanentError, match="more than 4 bytes") as raised:
                await draft.write(b"e")
            assert raised.value.error_type == "file_too_large"
            assert draft.size == 4
        async with storage.draft("key", bytes_max=3) as draft:
            assert (draft.size, draft.note) == (0, {})

    run(scenario())


def test_a_draft_that_was_kept_takes_no_more(storage: Storage) -> None:
    async def scenario() -> None:
        async with storage.draft("key") as draft:
            await draft.keep("a")
            for verb in (
                draft.write(b"x"),
                draft.begin({}),
                draft.sha256(),
                draft.keep("b"),
                draft.discard(),
            ):
                with pytest.raises(RuntimeError, match="was kept"):
                    await verb

    run(scenario())


# ── kept, and nobody heard of it ─────────────────────────────────────────────────────────────────


async def kept_before(storage: Storage) -> Saved | None:
    async with storage.draft("key") as draft:
        return draft.kept


def test_an_attempt_that_comes_again_is_told_what_was_kept(storage: Storage) -> None:
    assert run(kept_before(storage)) is None
    put(storage, "key", b"abc")
    assert run(kept_before(storage)) is None
    saved = run(kept(storage, "key", b"def"))
    for _ in range(2):
        assert run(kept_before(storage)) == saved
        assert found(storage, "key") == (0, {})


def test_a_file_that_is_there_no_more_was_not_kept(storage: Storage) -> None:
    for lose in (storage.delete("a"), storage.write_stream("a", chunks_of([b"of another size"]))):
        run(kept(storage, "key", b"abc"))
        run(lose)
        assert run(kept_before(storage)) is None


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_draft_that_was_kept_can_be_written_anew(storage: Storage, is_begun: bool) -> None:
    run(kept(storage, "key", b"abc"))
    put(storage, "key", b"new bytes", note={"new": True} if is_begun else None)
    assert found(storage, "key") == (9, {"new": True} if is_begun else {})
    assert run(kept_before(storage)) is None
    assert run(kept(storage, "key", b"!")).size == 10
    assert content(storage, "a") == b"new bytes!"


def test_a_keep_that_failed_promises_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    write(storage, "a", b"old")

    async def fail(file: draft_file.DraftFile, name: str) -> None:
        raise TransientError("away")

    async def scenario() -> None:
        async with storage.draft("key") as draft:
            await draft.write(b"new")
            monkeypatch.setattr(draft, "_keep", fail)
            with pytest.raises(TransientError):
                await draft.keep("a")
            await draft.begin({"again": True})
        async with storage.draft("key") as draft:
            assert (draft.kept, draft.size, draft.note) == (None, 0, {"again": True})

    run(scenario())


# ── two at a time ────────────────────────────────────────────────────────────────────────────────


def test_a_second_attempt_waits_for_the_first(storage: Storage) -> None:
    async def scenario() -> None:
        second: asyncio.Task[Saved]
        async with storage.draft("key") as draft:
            await draft.begin({})
            second = asyncio.ensure_future(kept(storage, "key", b"second"))
            await draft.write(b"first, ")
            await asyncio.sleep(0)
        assert (await second).size == len(b"first, second")

    run(scenario())
    assert content(storage, "a") == b"first, second"


def test_a_second_attempt_that_waits_in_vain_writes_a_draft_of_its_own(
    storage: Storage, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "LOCK_SECONDS_MAX", 0.0)

    async def scenario() -> None:
        async with storage.draft("key") as first:
            await first.begin({"who": "first"})
            await first.write(b"first")
            async with storage.draft("key") as second:
                assert (second.size, second.note) == (0, {})
                await second.begin({"who": "second"})
                await second.write(b"second")
                assert second.note == {"who": "second"}
                assert len(bytes_in(where)) == 2
            assert len(bytes_in(where)) == 1  # left without keep, it is gone
            assert (await kept(storage, "key", b"third", name="third")).size == 5
            await first.keep("first")

    run(scenario())
    assert (content(storage, "first"), content(storage, "third")) == (b"first", b"third")
    assert bytes_in(where) == []


def test_whoever_waits_for_a_draft_that_is_kept_gets_a_new_one(storage: Storage) -> None:
    async def scenario() -> None:
        async with storage.draft("key") as first:
            await first.write(b"first")
            entered = asyncio.Event()

            async def attempt() -> int:
                entered.set()
                async with storage.draft("key") as second:
                    await second.write(b"x")
                    return second.size

            second = asyncio.ensure_future(attempt())
            await entered.wait()
            await first.keep("a")
        assert await second == 1

    run(scenario())
    assert content(storage, "a") == b"first"


def test_drafts_of_other_keys_and_other_storages_are_others(storage: Storage, tmp_path: Path) -> None:
    put(storage, "key", b"abc")
    assert found(storage, "other") == (0, {})
    other = Storage.open(
        "s3://holdfast-tests/elsewhere" if isinstance(storage, s3.S3Storage) else str(tmp_path)
    )
    assert found(other, "key") == (0, {})
