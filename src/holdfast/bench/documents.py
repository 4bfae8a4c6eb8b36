"""What documents cost: files that are read, documents that are worked on, chunks that are searched.

    read      files of each format, beside the bare library of each (bare_documents.py); all cores, beside one
    worked    documents through all three steps, by a worker in a process of its own
    embedded  the texts of their chunks, by the bare library of the local model
    search    queries, each of its own words, among so many chunks with their words and vectors

The files are the same each time (made_documents.py). This file is also the program of that process:

    python -m holdfast.bench.documents URL UPLOADS
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec

from holdfast.app import Holdfast
from holdfast.bench.bare_documents import TEXTS, BareProcess
from holdfast.bench.engine_run import RUN_SECONDS_MAX
from holdfast.bench.made_documents import Kind, MadeDocument, Prose, write_document
from holdfast.bench.places import Place
from holdfast.core.model import ExecutionStatus
from holdfast.pipelines.documents.embedders import open_embedder
from holdfast.pipelines.documents.intake import DOCUMENT_UPLOADS
from holdfast.pipelines.documents.playbook import PATH, Stage, playbook_text
from holdfast.pipelines.documents.reading.chunk import Chunk, Facts, ReadLimits
from holdfast.pipelines.documents.reading.readers import Readers
from holdfast.pipelines.documents.search import Search
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.documents.writer import EMBEDDED, PARSED, DocumentWriter
from holdfast.pipelines.registry import all_functions
from holdfast.pipelines.upload import Upload
from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import table_writer

KINDS: tuple[Kind, ...] = get_args(Kind)
MODULES = ("charset_normalizer", "docx", "lxml", "numpy", "pypdfium2", "python_calamine", "wordllama")
MISSING = (
    "documents: its readers are not installed, so not measured; pip install 'holdfast[documents]' brings them"
)

CORES = os.cpu_count() or 1
READ_ROUNDS = 3  # for each of a sitting's: a reading is short
SIZES = (1 / 20, 1 / 4, 1)  # of the longest file of each kind
TIMES: dict[Kind, int] = {"pdf": 1, "docx": 1, "xlsx": 1, "txt": 10}  # in a round: text is read in no time
MIX_TIMES = 4  # on all cores: so that they end at about the same time
DOCUMENTS_PER_PAGE = 1 / 5
DOCUMENT_PAGES = 10
CHUNKS_PER_PAGE = 100
CHUNKS_PER_DOCUMENT = 100
QUERIES = 40
READY, GO = b"ready\n", b"go\n"

_WARM = "warm"
_OURS = ("HOLDFAST_DOCUMENTS_", "HOLDFAST_EMBEDDINGS_", "HOLDFAST_ANALYSIS_")


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in MODULES)


def _check(what: str, found: int, expected: int) -> None:
    """Work that was not done has no rate."""
    if found != expected:
        raise RuntimeError(f"{found:,} {what}, and not {expected:,}.")


# Reading


@dataclass(frozen=True, slots=True)
class ReadTurns:
    """Seconds of each round, by the kind; and of all files together, one after the other and on all cores."""

    pages: dict[Kind, int]
    characters: dict[Kind, int]
    ours: dict[Kind, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    bare: dict[Kind, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    ours_one: list[float] = field(default_factory=list)
    ours_cores: list[float] = field(default_factory=list)
    bare_one: list[float] = field(default_factory=list)
    bare_cores: list[float] = field(default_factory=list)


def read_in_turns(folder: Path, pages: int, rounds: int, progress: Callable[[str], None]) -> ReadTurns:
    files = {kind: make_files(folder, kind, pages) for kind in KINDS}
    with _both_sides() as (readers, bare):
        progress("documents: reading, first without a clock")
        characters = {
            kind: sum(_checked(readers, bare, each) for each in made) for kind, made in files.items()
        }
        pages_of = {kind: sum(each.pages for each in made) for kind, made in files.items()}
        turns = ReadTurns(pages_of, characters)
        for number in range(1, rounds * READ_ROUNDS + 1):
            progress(f"documents: reading, round {number} of {rounds * READ_ROUNDS}")
            for kind, made in files.items():
                ours = theirs = 0.0
                for path in [each.path for each in made] * TIMES[kind]:
                    theirs += bare[0].ask(kind, [path]).seconds
                    ours += our_seconds(readers, path)
                turns.bare[kind].append(theirs / TIMES[kind])
                turns.ours[kind].append(ours / TIMES[kind])
        mix = [each for made in files.values() for each in made * MIX_TIMES]
        mix.sort(key=lambda each: (-each.pages, each.kind))
        for number in range(1, rounds + 1):
            progress(f"documents: reading on {CORES} cores, round {number} of {rounds}")
            turns.ours_one.append(_all_seconds(mix, 1, lambda _, each: our_seconds(readers, each.path)))
            turns.ours_cores.append(_all_seconds(mix, CORES, lambda _, each: our_seconds(readers, each.path)))
            turns.bare_one.append(_all_seconds(mix, 1, lambda n, each: bare[n].ask(each.kind, [each.path])))
            turns.bare_cores.append(
                _all_seconds(mix, CORES, lambda n, each: bare[n].ask(each.kind, [each.path]))
            )
    return turns


def make_files(folder: Path, kind: Kind, pages: int) -> list[MadeDocument]:
    counts = [max(round(pages * size), 1) for size in SIZES]
    return [write_document(folder / f"{n}.{kind}", kind, count, n) for n, count in enumerate(counts)]


@contextmanager
def _both_sides() -> Iterator[tuple[Readers, list[BareProcess]]]:
    """A process for each core on either side."""
    bare: list[BareProcess] = []
    # None is replaced on the way: they stay warm.
    with closing(Readers(CORES, documents_per_process_max=sys.maxsize)) as readers:
        try:
            bare.extend(BareProcess() for _ in range(CORES))
            yield readers, bare
        finally:
            for process in bare:
                process.close()


def our_seconds(readers: Readers, path: Path) -> float:
    started = time.perf_counter()
    _read(readers, path)
    return time.perf_counter() - started


def _read(readers: Readers, path: Path) -> tuple[list[Chunk], Facts]:
    chunks: list[Chunk] = []
    facts = readers.read(
        path, filename=path.name, limits=ReadLimits(), on_chunks=lambda part, _: chunks.extend(part)
    )
    return chunks, facts


def _checked(readers: Readers, bare: Sequence[BareProcess], made: MadeDocument) -> int:
    """How many characters it has. Either side finds all of it, in each of its processes, before the clock
    runs."""

    def check(process: BareProcess) -> int:
        found = process.ask(made.kind, [made.path]).pieces
        _check(f"pieces were found in {made.path.name}", found, made.pieces)
        chunks, facts = _read(readers, made.path)
        _check(f"pieces are in the chunks of {made.path.name}", _pieces(made.kind, chunks), made.pieces)
        return facts.characters

    with ThreadPoolExecutor(len(bare)) as threads:
        return next(iter(threads.map(check, bare)))


def _pieces(kind: Kind, chunks: Sequence[Chunk]) -> int:
    texts = [chunk.text[chunk.overlap :] for chunk in chunks]
    if kind == "xlsx":
        return sum(line.count(" | ") + 1 for text in texts for line in text.split("\n") if line)
    return sum(len(text.replace("|", " ").replace("•", " ").split()) for text in texts)


def _all_seconds(
    mix: Sequence[MadeDocument], threads: int, read: Callable[[int, MadeDocument], object]
) -> float:
    """The longest first, so that all threads end at about the same time."""
    waiting = deque(mix)

    def work(thread: int) -> None:
        while True:
            try:
                each = waiting.popleft()
            except IndexError:
                return
            read(thread, each)

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        for done in [pool.submit(work, thread) for thread in range(threads)]:
            done.result()
        return time.perf_counter() - started


# The whole pipeline


@dataclass(frozen=True, slots=True)
class WorkedOn:
    """`embed_seconds` are of the bare library, for the texts of all those chunks."""

    seconds: float
    chunks: int
    embed_seconds: float


def document_count(pages: int) -> int:
    return max(round(pages * DOCUMENTS_PER_PAGE), len(KINDS))


async def worked_on(place: Place, url: str, folder: Path, pages: int) -> WorkedOn:
    """From the submit to the end of the last execution, by a worker that has read one of each kind before."""
    count = document_count(pages)
    uploads = await asyncio.to_thread(_uploads, folder, count)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast.bench.documents", url, msgspec.json.encode(uploads).decode()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**environ, "HOLDFAST_STORAGE": f"{folder}/storage", "HOLDFAST_SPOOL": f"{folder}/spool"},
    )
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX):
            seconds = await _told_to_work(place, url, child)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
    query = (
        f"SELECT id FROM holdfast_documents WHERE filename NOT LIKE '{_WARM}%' AND completed_at IS NOT NULL"
    )
    _check("documents were worked on", len(await place.fetch(url, _named(place, query))), count)
    query = f"SELECT text FROM holdfast_document_chunks WHERE document_id IN ({query})"
    texts = [text for (text,) in await place.fetch(url, _named(place, query))]
    return WorkedOn(seconds, len(texts), await asyncio.to_thread(_embed_seconds, folder, texts))


def _uploads(folder: Path, count: int) -> list[Upload]:
    """In a storage of their own, as if they had been uploaded; one of each kind goes before."""
    uploads = []
    for number in range(-len(KINDS), count):
        kind = KINDS[number % len(KINDS)]
        name = f"{'' if number >= 0 else _WARM}{number}.{kind}"
        made = write_document(folder / name, kind, DOCUMENT_PAGES, number + len(KINDS))
        content = made.path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        upload = Upload(
            filename=name, size=len(content), sha256=sha256, file=DOCUMENT_UPLOADS.stored_name(sha256)
        )
        stored = folder / "storage" / upload.file
        stored.parent.mkdir(parents=True, exist_ok=True)
        made.path.rename(stored)
        uploads.append(upload)
    return uploads


async def _told_to_work(place: Place, url: str, child: asyncio.subprocess.Process) -> float:
    assert child.stdin is not None and child.stdout is not None
    if await child.stdout.readline() != READY:
        raise RuntimeError("The process that is to work on documents did not begin; see what it said above.")
    await place.settle(url)
    child.stdin.write(GO)
    said = await child.stdout.readline()
    if not said:
        raise RuntimeError("The process that works on documents has died; see what it said above.")
    return float(said)


def _embed_seconds(folder: Path, texts: list[str]) -> float:
    path = folder / "texts.json"
    path.write_bytes(msgspec.json.encode(texts))
    with closing(BareProcess()) as bare:
        bare.ask(TEXTS, [path])
        done = bare.ask(TEXTS, [path])
    _check("texts have vectors", done.pieces, len(texts))
    return done.seconds


async def _work(url: str, uploads: Sequence[Any], when_told: Callable[[], bytes]) -> None:
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    async with Holdfast(url) as app:
        app.add_functions(all_functions())
        await app.add_playbook(playbook_text(DocumentSettings.from_environment()))
        async with app.working():
            await _worked(app, uploads[: len(KINDS)])
            if await asyncio.to_thread(when_told) != GO:
                return
            started = time.perf_counter()
            await _worked(app, uploads[len(KINDS) :])
            print(time.perf_counter() - started, flush=True)


async def _worked(app: Holdfast, uploads: Sequence[Any]) -> None:
    for execution in await app.submit_many(PATH, uploads):
        ended = await execution.wait(within=RUN_SECONDS_MAX)
        if ended.status is not ExecutionStatus.COMPLETED:
            raise RuntimeError(f"A document was not worked on: {ended.error}")


# Search


async def search_seconds(place: Place, url: str, chunks: int) -> list[float]:
    """Of each query, after one that nobody counts: it loads what is kept in memory."""
    async with Holdfast(url) as app:
        store = (await app.own_engine()).store
        await asyncio.to_thread(fill_chunks, url, chunks)
        query = _named(place, "SELECT count(*) FROM holdfast_document_embeddings")
        [[vectors]] = await place.fetch(url, query)
        _check("chunks have vectors", int(vectors), chunks)
        await place.maintain(url)
        await place.settle(url)
        search = Search(store, DocumentSettings.from_environment({}))
        taken = []
        for number, words in enumerate(queries(chunks)):
            started = time.perf_counter()
            found = await search.find(words)
            if number:
                taken.append(time.perf_counter() - started)
            if not (found.vectors and found.items):
                raise RuntimeError(f"Nothing was found for {words!r}: {found.reason}")
        return taken


def queries(chunks: int) -> Iterator[str]:
    """About what documents have: a word, two, a name and a word, a question; each another one."""
    documents = -(-chunks // CHUNKS_PER_DOCUMENT)
    for number in range(QUERIES + 1):
        prose = Prose(number % documents)
        word, other, name = (
            prose.words[number % 24],
            prose.words[(number + 7) % 24],
            prose.names[number % 6],
        )
        yield (
            f"{word} {number}",
            f"{word} {other}",
            f"{name} {word}",
            f"What did they say in {name} about the {word} and the {other}?",
        )[number % 4]


def fill_chunks(url: str, count: int) -> None:
    """Documents with so many chunks, as the first two steps leave them."""
    embedder = open_embedder(DocumentSettings.from_environment({}))
    with closing(table_writer(url)) as tables:
        for seed, begin in enumerate(range(0, count, CHUNKS_PER_DOCUMENT)):
            prose = Prose(seed)
            texts = [prose.paragraph(12) for _ in range(min(CHUNKS_PER_DOCUMENT, count - begin))]
            id_, task = seed + 1, f"{seed + 1}-1"
            writer = DocumentWriter(tables, id_, task, time.time)
            sha256 = hashlib.sha256(str(seed).encode()).hexdigest()
            writer.begin(Stage.PARSING, Upload(filename=f"{seed}.txt", size=1, sha256=sha256, file=str(seed)))
            writer.add_chunks([Chunk(text) for text in texts])
            writer.flush()
            now = time.time()
            facts = msgspec.json.encode(Facts("txt")).decode()
            parsed = (id_, task, now, "txt", None, facts, len(texts))
            tables.write(lambda tx, parsed=parsed: tx.execute(PARSED, *parsed))  # type: ignore[misc]
            vectors = writer.vectors_of(embedder.model)
            pending = writer.chunks_without(vectors, -1, len(texts))
            writer.add_vectors(
                vectors, pending, embedder.embed([each.text for each in pending], beat=lambda: None)
            )
            if (index := vectors.finish(url)) is not None:
                index.join()
            embedded = (id_, task, now, embedder.model)
            tables.write(lambda tx, embedded=embedded: tx.execute(EMBEDDED, *embedded))  # type: ignore[misc]


def _named(place: Place, query: str) -> str:
    return query if place.store == "sqlite" else in_schema(query)


def main() -> None:
    url, uploads = sys.argv[1:]

    def when_told() -> bytes:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        return sys.stdin.buffer.readline()

    asyncio.run(_work(url, msgspec.json.decode(uploads), when_told))


if __name__ == "__main__":
    main()
