"""Where drafts lie, and what the disk does to them: no room, links that lead elsewhere, uploads that fail."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.catalogue import Category, guidance_when_final
from holdfast.core.errors import InvalidInput, PermanentError, TransientError
from holdfast.core.failures import classify, failure_from_exception
from holdfast.storage import Storage, draft_file, folder, s3
from running import run
from storage_scenario import content, everything, found, kept, put, write

# ── no room ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """From now on a disk that takes so many bytes more of drafts, then none, as the system itself says it."""
    room = [10**12]
    real = os.pwrite
    full = os.open("/dev/full", os.O_WRONLY)

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if room[0] == 0:
            return os.write(full, data)  # no space left on device
        count = real(descriptor, data[: room[0]], offset)
        room[0] -= count
        return count

    monkeypatch.setattr(draft_file.os, "pwrite", pwrite)
    yield lambda count: room.__setitem__(0, count)
    os.close(full)


def test_a_full_disk_is_transient_and_what_is_there_is_kept(
    storage: Storage, where: Path, small_disk: Callable[[int], None]
) -> None:
    whole = os.urandom(1_000_000)

    async def scenario() -> None:
        async with storage.draft("key") as draft:
            await draft.begin({"a": 1})
            await draft.write(whole[:300_000])
            small_disk(100_000)
            with pytest.raises(TransientError, match="no room for 400,000 bytes more") as raised:
                await draft.write(whole[300_000:700_000])
            assert str(where) in str(raised.value)
            assert draft.size == 400_000
            for verb in (draft.write(b"x"), draft.keep("a")):  # none is missing in the middle
                with pytest.raises(TransientError):
                    await verb
        assert raised.value.error_type == "storage_unavailable"
        judged = classify(failure_from_exception(raised.value))
        assert judged.user_message == "No space is left where files are kept"
        assert judged.guidance.startswith("Will retry automatically once there is room")
        final = guidance_when_final("storage_unavailable", Category.TRANSIENT, judged.guidance)
        assert "Will retry" not in final and "Storage" in final
        small_disk(10**12)
        async with storage.draft("key") as draft:
            assert (draft.size, draft.note) == (400_000, {"a": 1})
            await draft.write(whole[400_000:])
            await draft.keep("a")

    run(scenario())
    assert content(storage, "a") == whole


def test_no_room_for_what_was_gathered_is_told_once_the_block_is_left(
    storage: Storage, small_disk: Callable[[int], None]
) -> None:
    small_disk(2)
    with pytest.raises(TransientError, match="no room for 3 bytes more"):
        put(storage, "key", b"abc")
    with pytest.raises(LookupError):
        run(fails_with_gathered_bytes(storage))  # which is why it was left, and is told
    small_disk(10**12)
    assert found(storage, "key")[0] == 2


async def fails_with_gathered_bytes(storage: Storage) -> None:
    async with storage.draft("key") as draft:
        await draft.write(b"c")
        raise LookupError


def test_bytes_that_could_not_be_synced_are_not_trusted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(storage, "key", b"synced")

    def full(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(draft_file.os, "fsync", full)
        with pytest.raises(TransientError, match="no room"):
            put(storage, "key", b" and lost")
    assert found(storage, "key")[0] == len(b"synced")


# ── where they lie ───────────────────────────────────────────────────────────────────────────────


def test_a_link_in_the_place_of_the_drafts_is_not_followed(
    storage: Storage, where: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where.parent.mkdir(exist_ok=True)
    where.symlink_to(elsewhere)
    with pytest.raises(PermanentError, match="is a link") as raised:
        put(storage, "key", b"abc")
    assert raised.value.error_type == "auth_error"
    assert everything(elsewhere) == []


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_in_the_place_of_a_draft_is_left_alone(
    storage: Storage, where: Path, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    put(storage, "key", b"abc")
    (place,) = where.glob("*.draft")
    place.unlink()
    make = {"link": lambda: place.symlink_to(victim), "folder": place.mkdir, "pipe": lambda: os.mkfifo(place)}
    make[kind]()
    assert run(kept(storage, "key", b"whole")).size == 5
    assert content(storage, "a") == b"whole"
    assert victim.read_bytes() == b"precious"


def test_a_link_in_the_place_of_the_file_is_replaced(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    files = tmp_path / "files"
    files.mkdir()
    (files / "a").symlink_to(victim)
    storage = Storage.open(str(files))
    run(kept(storage, "key", b"new"))
    assert (victim.read_bytes(), content(storage, "a")) == (b"precious", b"new")
    assert not (files / "a").is_symlink()


def test_a_name_that_is_taken_by_a_folder_leaves_the_draft(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    write(storage, "a/b", b"x")
    with pytest.raises(PermanentError) as raised:
        run(kept(storage, "key", b"abc", name="a"))
    assert raised.value.error_type == "validation_error"
    assert found(storage, "key")[0] == 3


def test_a_folder_on_another_file_system_is_kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(str(tmp_path))
    whole = os.urandom(5_000_000)
    put(storage, "key", whole)

    def refuse(file: draft_file.DraftFile, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(draft_file.DraftFile, "move_to", refuse)
    assert run(kept(storage, "key", name="mounted/a")).sha256 == hashlib.sha256(whole).hexdigest()
    assert content(storage, "mounted/a") == whole
    assert everything(tmp_path) == [".drafts/key.note", "mounted/a"]


def test_the_spool_is_for_its_owner_alone(s3_url: str, tmp_path: Path) -> None:
    storage, spool = Storage.open(s3_url), tmp_path / "spool"
    put(storage, "key", b"abc")
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
    spool.chmod(0o755)
    with pytest.raises(PermanentError, match="others may look into it") as raised:
        put(storage, "key", b"abc")
    assert raised.value.guidance is not None
    assert "HOLDFAST_SPOOL" in raised.value.guidance


def test_where_the_spool_is() -> None:
    assert s3.spool_folder({}) == Path(tempfile.gettempdir()) / "holdfast-spool"
    assert s3.spool_folder({"HOLDFAST_SPOOL": "/spool"}) == Path("/spool")


def test_drafts_cannot_be_asked_for_as_files(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    put(storage, "key", b"abc")
    with pytest.raises(InvalidInput):
        content(storage, f"{folder.DRAFTS}/key.draft")


def test_an_upload_that_fails_leaves_the_draft_whole(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(s3_url)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(PermanentError):
            run(kept(Storage.open(s3_url), "key", b"whole"))
    assert found(storage, "key")[0] == 5
    assert run(kept(storage, "key")).size == 5
    assert content(storage, "a") == b"whole"


def test_a_keep_that_is_cancelled_leaves_the_draft_or_the_file(storage: Storage) -> None:
    whole = os.urandom(20_000_000)

    async def scenario() -> None:
        async def attempt() -> None:
            async with storage.draft("key") as draft:
                await draft.write(whole[draft.size :])
                keeping.set()
                await draft.keep("a")

        for pauses in (1, 5, 50):
            keeping = asyncio.Event()
            task = asyncio.ensure_future(attempt())
            await keeping.wait()
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with storage.draft("key") as draft:
            await draft.write(whole[draft.size :])
            assert (await draft.keep("a")).sha256 == hashlib.sha256(whole).hexdigest()

    run(scenario())
    assert content(storage, "a") == whole
