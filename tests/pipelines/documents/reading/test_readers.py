"""The pool: real processes that read, and are killed, hang, run out of memory, and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from document_files import GOOD_DOCX, GOOD_PDF, GOOD_XLSX, WORDS, pdf, xlsx
from holdfast.core.catalogue import Category
from holdfast.core.errors import PermanentError, TransientError
from holdfast.core.failures import classify, failure_from_exception
from holdfast.pipelines.documents.reading import readers as readers_module
from holdfast.pipelines.documents.reading.child import answer_to, failure_of
from holdfast.pipelines.documents.reading.chunk import Chunk, Facts, ReadLimits
from holdfast.pipelines.documents.reading.messages import Failed, Part, Task
from holdfast.pipelines.documents.reading.readers import Readers, readers
from holdfast.pipelines.documents.reading.reading_process import ended_with, looks_out_of_memory
from holdfast.pipelines.documents.reading.refusals import ReaderFailed
from holdfast.worker.bounded_process import HAS_MEMORY_LIMITS

LONG_SECONDS = 30.0


@pytest.fixture(scope="module")
def warm() -> Iterator[Readers]:
    """One for all tests that do it no harm."""
    pool = Readers(2)
    yield pool
    pool.close()


@pytest.fixture
def pool() -> Iterator[Readers]:
    pool = Readers(1)
    yield pool
    pool.close()


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[bytes], Path]:
    def stored(data: bytes) -> Path:
        path = tmp_path / f"file-{len(list(tmp_path.iterdir()))}"
        path.write_bytes(data)
        return path

    return stored


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A file that takes as long to read as it is left alone: nobody writes what is awaited."""
    path = tmp_path / "endless"
    os.mkfifo(path)
    return path


def read(pool: Readers, path: Path, filename: str = "a", **limits: float) -> tuple[Facts, list[Chunk]]:
    chunks: list[Chunk] = []
    facts = pool.read(
        path, filename=filename, limits=ReadLimits(**limits), on_chunks=lambda part, _: chunks.extend(part)
    )
    return facts, chunks


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def run_in_thread(target: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


@pytest.mark.parametrize(
    ("data", "kind"),
    [(GOOD_PDF, "pdf"), (GOOD_DOCX, "docx"), (GOOD_XLSX, "xlsx"), (WORDS.encode(), "txt")],
    ids=["pdf", "docx", "xlsx", "txt"],
)
def test_a_document_is_read_in_another_process(
    data: bytes, kind: str, warm: Readers, stored: Callable[[bytes], Path]
) -> None:
    facts, chunks = read(warm, stored(data))
    assert facts.kind == kind
    assert facts.characters == sum(len(chunk.text) - chunk.overlap for chunk in chunks)


def test_chunks_come_in_parts_with_the_share_that_is_read(
    warm: Readers, stored: Callable[[bytes], Path]
) -> None:
    shares: list[float] = []
    counts: list[int] = []

    def on_chunks(part: list[Chunk], share: float) -> None:
        shares.append(share)
        counts.append(len(part))

    path = stored(pdf([WORDS * 20] * 100))
    warm.read(path, filename="a.pdf", limits=ReadLimits(chunk_chars_max=200), on_chunks=on_chunks)
    assert len([count for count in counts if count]) > 5
    assert shares == sorted(shares)
    assert 0 < shares[len(shares) // 2] < 1


def test_a_refusal_comes_out_as_it_was_raised(warm: Readers, stored: Callable[[bytes], Path]) -> None:
    with pytest.raises(PermanentError) as raised:
        read(warm, stored(pdf([WORDS], user_password="secret")), "secret.pdf")
    assert raised.value.error_type == "encrypted_file"
    assert "'secret.pdf'" in str(raised.value)
    with pytest.raises(PermanentError) as raised:
        read(warm, stored(pdf(["image"])), "scan.pdf")
    assert raised.value.user_message == "The document has pictures and no text"
    assert "OCR" in (raised.value.guidance or "")


def test_a_process_is_used_again(pool: Readers, stored: Callable[[bytes], Path]) -> None:
    path = stored(WORDS.encode())
    read(pool, path)
    before = pool.pids
    read(pool, path)
    assert pool.pids == before


def test_a_process_is_replaced_when_it_has_read_its_share(stored: Callable[[bytes], Path]) -> None:
    pool = Readers(1, documents_per_process_max=1)
    try:
        path = stored(WORDS.encode())
        read(pool, path)
        assert pool.pids == []
        read(pool, path)
    finally:
        pool.close()


def test_a_process_that_died_while_idle_is_replaced(pool: Readers, stored: Callable[[bytes], Path]) -> None:
    path = stored(WORDS.encode())
    read(pool, path)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert read(pool, path)[0].kind == "txt"
    assert pool.pids != [pid]


def test_a_process_that_dies_as_it_is_asked_is_replaced(
    pool: Readers, stored: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(WORDS.encode())
    read(pool, path)
    (pid,) = pool.pids
    monkeypatch.setattr(readers_module, "_fits", lambda *_: os.kill(pid, signal.SIGKILL) or True)
    assert read(pool, path)[0].kind == "txt"


def test_a_process_that_is_killed_while_it_reads_is_told(pool: Readers, endless: Path) -> None:
    thread, errors = run_in_thread(lambda: read(pool, endless, "long.txt"))
    with endless.open("wb"):  # once the other end is open
        os.kill(pool.pids[0], signal.SIGKILL)
    thread.join(LONG_SECONDS)
    told = classify(failure_from_exception(errors[0]))
    assert (told.error_type, told.category) == ("process_crashed", Category.TRANSIENT)
    assert "'long.txt' was ended by SIGKILL" in str(errors[0])
    assert pool.pids == []


def test_the_deadline_ends_a_reading(pool: Readers, endless: Path) -> None:
    read(pool, stored_words(endless.parent))
    (pid,) = pool.pids
    with pytest.raises(TransientError, match=r"'long.txt' took longer than 0.3 s") as raised:
        read(pool, endless, "long.txt", seconds_max=0.3)
    assert raised.value.error_type == "timeout"
    assert is_gone(pid)


def stored_words(folder: Path) -> Path:
    path = folder / "words"
    path.write_text(WORDS)
    return path


def test_what_is_done_with_chunks_does_not_count_towards_the_deadline(
    warm: Readers, stored: Callable[[bytes], Path]
) -> None:
    path = stored(WORDS.encode() * 4000)
    read(warm, path)
    slow = iter([1.2])
    limits = ReadLimits(seconds_max=1.0)
    facts = warm.read(
        path, filename="a", limits=limits, on_chunks=lambda part, _: part and time.sleep(next(slow, 0.0))
    )
    assert facts.kind == "txt"


def test_what_on_chunks_raises_ends_the_reading(pool: Readers, endless: Path) -> None:
    class LostLease(Exception):
        pass

    read(pool, stored_words(endless.parent))
    (pid,) = pool.pids
    calls = []

    def on_chunks(part: list[Chunk], share: float) -> None:
        calls.append(part)
        if len(calls) > 2:  # told that it waits, that it has begun, and then again and again
            raise LostLease

    with pytest.raises(LostLease):
        pool.read(endless, filename="a", limits=ReadLimits(), on_chunks=on_chunks)
    assert is_gone(pid)
    assert pool.pids == []


def test_who_waits_for_a_process_is_told_so_and_may_leave(
    pool: Readers, endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers_module, "TOLD_SECONDS", 0.02)
    thread, errors = run_in_thread(lambda: read(pool, endless))
    wait_until(lambda: pool.pids)

    class LostLease(Exception):
        pass

    calls = []

    def on_chunks(part: list[Chunk], share: float) -> None:
        calls.append((part, share))
        if len(calls) > 3:
            raise LostLease

    with pytest.raises(LostLease):
        pool.read(endless, filename="b", limits=ReadLimits(seconds_max=0.01), on_chunks=on_chunks)
    assert calls == [([], 0.0)] * 4
    pool.close()
    thread.join(LONG_SECONDS)
    assert isinstance(errors[0], TransientError)


def test_readings_at_once_use_several_processes(warm: Readers, stored: Callable[[bytes], Path]) -> None:
    path = stored(WORDS.encode() * 2000)
    barrier = threading.Barrier(2, timeout=LONG_SECONDS)

    def at_once() -> None:
        first = True

        def on_chunks(part: list[Chunk], share: float) -> None:
            nonlocal first
            if part and first:
                first = False
                barrier.wait()  # passed only where both read

        warm.read(path, filename="a", limits=ReadLimits(), on_chunks=on_chunks)

    threads = [run_in_thread(at_once) for _ in range(2)]
    for thread, errors in threads:
        thread.join(LONG_SECONDS)
        assert errors == []
    assert len(warm.pids) == 2


@pytest.mark.skipif(not HAS_MEMORY_LIMITS, reason="only Linux keeps such limits")
def test_the_memory_limit_holds(pool: Readers, stored: Callable[[bytes], Path]) -> None:
    path = stored(xlsx({"S": [[f"{'long text ' * 30}{number}"] for number in range(200_000)]}))
    with pytest.raises(MemoryError, match="needs more memory than its limit of 80 MB") as raised:
        read(pool, path, "large.xlsx", memory_bytes_max=80 * 1024**2)
    told = classify(failure_from_exception(raised.value))
    assert (told.error_type, told.category) == ("memory_limit", Category.UNKNOWN)
    assert told.user_message == "The document needs too much memory to be read"
    # The same process, or another one, reads the next.
    assert read(pool, stored(WORDS.encode()), memory_bytes_max=80 * 1024**2)[0].kind == "txt"


def test_a_process_that_holds_on_to_memory_reads_no_more(
    pool: Readers, stored: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(WORDS.encode())
    monkeypatch.setattr(readers_module, "KEPT_BYTES_MAX", 1)
    read(pool, path)
    assert pool.pids == []


@pytest.mark.skipif(not HAS_MEMORY_LIMITS, reason="only Linux keeps such limits")
def test_a_process_that_holds_too_much_for_a_limit_is_replaced(
    pool: Readers, stored: Callable[[bytes], Path]
) -> None:
    path = stored(WORDS.encode())
    read(pool, path, memory_bytes_max=None)
    (process,) = pool._all
    read(pool, path, memory_bytes_max=process.bytes_used * 2 - 2)
    assert pool.pids != [process.pid]


def test_processes_that_are_idle_for_long_end_but_for_one(
    warm: Readers, stored: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    test_readings_at_once_use_several_processes(warm, stored)
    monkeypatch.setattr(readers_module, "IDLE_SECONDS_MAX", 0.0)
    read(warm, stored(WORDS.encode()))
    assert len(warm.pids) == 1


def test_children_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless")
    program = (
        "import sys, threading, time\n"
        "from holdfast.pipelines.documents.reading.readers import readers\n"
        "from holdfast.pipelines.documents.reading.chunk import ReadLimits\n"
        "pool = readers()\n"
        "args = dict(filename='a', limits=ReadLimits(), on_chunks=lambda *_: None)\n"
        f"path = {str(tmp_path / 'endless')!r}\n"
        "threading.Thread(target=lambda: pool.read(path, **args), daemon=True).start()\n"
        "while not pool.pids:\n"
        "    time.sleep(0.01)\n"
        "print(pool.pids[0], flush=True)\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
        wait_until(lambda: is_gone(child))


def test_a_pool_that_is_closed_reads_nothing(stored: Callable[[bytes], Path]) -> None:
    pool = Readers(1)
    pool.close()
    with pytest.raises(TransientError, match="closed"):
        read(pool, stored(WORDS.encode()))


def test_there_is_one_pool_for_a_process() -> None:
    assert readers() is readers()


def test_a_process_that_cannot_be_started_is_told(
    stored: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = Readers(1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(TransientError, match="could not be started") as raised:
        read(pool, stored(WORDS.encode()))
    assert raised.value.error_type == "process_crashed"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TransientError, match="ended with exit code 1"):
        read(pool, stored(WORDS.encode()))
    pool.close()


def test_a_file_that_is_gone_is_not_called_invalid(warm: Readers, tmp_path: Path) -> None:
    with pytest.raises(ReaderFailed, match="FileNotFoundError") as raised:
        read(warm, tmp_path / "nothing")
    assert "read_document" in raised.value.__notes__[-1]


# The child's side


class _Sent:
    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send_bytes(self, message: bytes) -> None:
        self.messages.append(message)


def test_a_task_is_answered_with_the_facts(stored: Callable[[bytes], Path]) -> None:
    sent = _Sent()
    answer = answer_to(Task(str(stored(WORDS.encode())), "a", ReadLimits()), sent)
    assert answer.facts.kind == "txt"
    assert len(sent.messages) == 2  # that it begins, and a part


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermanentError("no", error_type="invalid_file"), "permanent"),
        (TransientError("no"), "transient"),
        (MemoryError("no"), "memory"),
        (OSError(12, "Cannot allocate memory"), "memory"),
        (KeyError("a bug of ours"), "failed"),
    ],
    ids=["permanent", "transient", "memory", "mapping", "bug"],
)
def test_an_error_crosses_as_plain_data(error: Exception, kind: str) -> None:
    assert failure_of(error).kind == kind


@pytest.mark.parametrize(
    ("code", "words", "seen", "is_memory"),
    [
        (-6, "memory allocation of 99 bytes failed", 0, True),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", 0, True),
        (-11, "", 60, True),
        (-11, "", 10, False),
        (-9, "memory allocation of 99 bytes failed", 100, False),
        (1, "", 100, False),
    ],
    ids=["rust", "c++", "much_seen", "little_seen", "killed", "exit"],
)
def test_what_ends_a_process_without_memory_is_known(
    code: int, words: str, seen: int, is_memory: bool
) -> None:
    assert looks_out_of_memory(code, words, seen, 100) is is_memory


def test_how_a_process_ended_is_told_in_words() -> None:
    assert ended_with(3) == "ended with exit code 3"
    assert ended_with(-11).startswith("was ended by SIGSEGV")
    assert ended_with(-99) == "was ended by signal 99"


def test_messages_are_small_and_whole() -> None:
    from holdfast.pipelines.documents.reading.messages import decode_answer, encode

    part = Part([Chunk("words", page=3)], 0.5)
    assert decode_answer(encode(part)) == part
    failed = Failed("memory", "no")
    assert decode_answer(encode(failed)) == failed
