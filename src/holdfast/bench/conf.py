"""What configuration archives cost: text that is parsed, stanzas that are stored, an archive as a whole.

    parse     a .conf file to stanzas, beside Splunk's own parser library where that is installed
    stored    the same to rows, through the pipeline's own writer, with the words for the search
    raw       those rows read back and inserted into empty tables, as many a transaction, without the words
    archive   a .tar.gz by the real step in a process whose memory is watched; and one of ten times

The text is the same each time: about 37 characters a line and six settings a stanza, with comments and
continued lines. This file is also the program of that process:

    python -m holdfast.bench.conf URL UPLOAD
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import io
import logging
import os
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec

from holdfast.app import Holdfast
from holdfast.bench.engine_run import RUN_SECONDS_MAX
from holdfast.bench.fleet import memory_bytes
from holdfast.bench.places import Place
from holdfast.bench.raw_sqlite import SETTINGS
from holdfast.core.model import ExecutionStatus
from holdfast.pipelines.conf_archives import parse as parse_step
from holdfast.pipelines.conf_archives.conf_parser import Fault, parse
from holdfast.pipelines.conf_archives.conf_text import text_blocks
from holdfast.pipelines.conf_archives.intake import CONF_UPLOADS
from holdfast.pipelines.conf_archives.placing import place_of
from holdfast.pipelines.conf_archives.run_writer import PART_ROWS_MAX, FileRead, RunWriter
from holdfast.pipelines.conf_archives.tables import tables_for
from holdfast.pipelines.upload import Upload
from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import table_writer

PEER = "addonfactory-splunk-conf-parser-lib"
PEER_MODULE = "addonfactory_splunk_conf_parser_lib"
PEER_MISSING = f"conf: {PEER} is not installed, so not measured; pip install 'holdfast[bench]' brings it"

ARCHIVE_TIMES = 10
STANZAS_PER_FILE = 2_000
SEED = 1
MEMORY_POLL_SECONDS = 0.01
MEMORY_BYTES_MIN = 1_000_000  # what an archive takes at least, so that a ratio tells of more than noise
READY, GO = b"ready\n", b"go\n"

_PIPELINE = "conf"
_PATH = "TA_bench/default/props.conf"
_VOCABULARY = (
    "index source host time format extract field lookup alias eval transform report enable disable max size"
    " path log access error auth user web proxy event line break pattern date stamp queue limit"
)
_WORDS = _VOCABULARY.split()
_COLUMNS = "run_id, file_id, name, source_path, position, line, has_header, entries"
_RAW_SQLITE = f"INSERT INTO holdfast_conf_stanzas ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_RAW_POSTGRES = f"""
INSERT INTO holdfast.conf_stanzas ({_COLUMNS}, words)
SELECT *, ''::tsvector FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::int[], $6::int[],
                                   $7::boolean[], $8::text[])
"""


# The text


def conf_text(stanzas: int) -> bytes:
    """So many stanzas, each of another name."""
    chosen = random.Random(SEED)

    def words(count: int) -> str:
        return " ".join(chosen.choices(_WORDS, k=count))

    lines = []
    for number in range(stanzas):
        if number % 4 == 0:
            lines.append(f"# {words(6)}")
        lines.append(f"[{chosen.choice(_WORDS)}:{chosen.choice(_WORDS)}:{number}]")
        for setting in range(chosen.randint(4, 8)):
            value = f"{words(4)} {chosen.randrange(10_000)}"
            if chosen.random() < 0.04:
                value += f" \\\n    {words(5)}"
            lines.append(f"{words(2).replace(' ', '_')}_{setting} = {value}")
        lines.append("")
    return "\n".join(lines).encode()


def write_archive(path: Path, stanzas: int) -> None:
    """A .tar.gz of files that all have the same text, one app each; the last is shorter."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        text = b""
        for number, begin in enumerate(range(0, stanzas, STANZAS_PER_FILE)):
            count = min(STANZAS_PER_FILE, stanzas - begin)
            if not text or count < STANZAS_PER_FILE:
                text = conf_text(count)
            info = tarfile.TarInfo(f"etc/apps/TA_{number}/default/props.conf")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))


# Parsing


def parse_seconds(path: Path, stanzas: int) -> float:
    started = time.perf_counter()
    with path.open("rb") as file:
        found = sum(1 for _ in parse(text_blocks(file)[1]))
    taken = time.perf_counter() - started
    _check("stanzas were parsed", found, stanzas)
    return taken


def has_peer() -> bool:
    return importlib.util.find_spec(PEER_MODULE) is not None


def peer_seconds(path: Path, stanzas: int) -> float:
    parser = importlib.import_module(PEER_MODULE).TABConfigParser()
    started = time.perf_counter()
    parser.read(path, encoding="utf-8")
    taken = time.perf_counter() - started
    _check(f"stanzas were parsed by {PEER}", len(parser.sections()), stanzas)
    return taken


def _check(what: str, found: int, expected: int) -> None:
    """Work that was not done has no rate."""
    if found != expected:
        raise RuntimeError(f"{found:,} {what}, and not {expected:,}.")


# Storing


async def make_tables(url: str) -> None:
    async with Holdfast(url) as app:
        await (await app.own_engine()).store.make_tables(tables_for(url.partition(":")[0]))


async def stored_seconds(place: Place, url: str, path: Path, stanzas: int) -> float:
    await make_tables(url)
    await place.settle(url)
    taken = await asyncio.to_thread(_store, url, path)
    _check("stanzas were stored", await stored_count(place, url), stanzas)
    _check("stanzas have words", await _words_count(place, url), stanzas)
    return taken


def _store(url: str, path: Path) -> float:
    size = path.stat().st_size
    with closing(table_writer(url)) as tables, path.open("rb") as file:
        writer = RunWriter(tables, 1, "1-1", time.time, sys.maxsize)
        writer.begin(Upload(filename=path.name, size=size, sha256="", file=CONF_UPLOADS.stored_name("")))
        started = time.perf_counter()
        encoding, blocks = text_blocks(file)
        read = FileRead(_PATH, place_of(_PATH), encoding, size, "")
        for found in parse(blocks):
            if isinstance(found, Fault):
                read.add_fault(found)
            else:
                writer.add_stanza(read, found)
        writer.end_file(read)
        writer.flush()
        return time.perf_counter() - started


async def stored_rows(place: Place, url: str) -> list[tuple[Any, ...]]:
    query = f"SELECT {_COLUMNS} FROM holdfast_conf_stanzas ORDER BY run_id, file_id, position"
    return [tuple(row) for row in await place.fetch(url, _named(place, query))]


async def stored_count(place: Place, url: str) -> int:
    [[count]] = await place.fetch(url, _named(place, "SELECT count(*) FROM holdfast_conf_stanzas"))
    return int(count)


async def _words_count(place: Place, url: str) -> int:
    query = "SELECT count(*) FROM holdfast_conf_words"
    if place.store != "sqlite":
        query = "SELECT count(*) FROM holdfast.conf_stanzas WHERE length(words) > 0"
    [[count]] = await place.fetch(url, query)
    return int(count)


def _named(place: Place, query: str) -> str:
    return query if place.store == "sqlite" else in_schema(query)


async def raw_seconds(place: Place, url: str, rows: Sequence[tuple[Any, ...]]) -> float:
    await make_tables(url)
    parts = [rows[begin : begin + PART_ROWS_MAX] for begin in range(0, len(rows), PART_ROWS_MAX)]
    if place.store == "sqlite":
        await place.settle(url)
        taken = await asyncio.to_thread(_raw_sqlite, url, parts)
    else:
        await place.fetch(url, "DROP INDEX holdfast.conf_stanzas_words")
        await place.settle(url)
        taken = await _raw_postgres(url, parts)
    _check("rows were inserted", await stored_count(place, url), len(rows))
    return taken


def _raw_sqlite(url: str, parts: list[Sequence[tuple[Any, ...]]]) -> float:
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as db:
        for setting in SETTINGS:
            db.execute(setting)
        started = time.perf_counter()
        for part in parts:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(_RAW_SQLITE, part)
            db.execute("COMMIT")
        return time.perf_counter() - started


async def _raw_postgres(url: str, parts: list[Sequence[tuple[Any, ...]]]) -> float:
    db = await asyncpg.connect(url)
    try:
        insert = await db.prepare(_RAW_POSTGRES)
        started = time.perf_counter()
        for part in parts:
            await insert.fetch(*map(list, zip(*part, strict=True)))
        return time.perf_counter() - started
    finally:
        await db.close()


# A whole archive


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """`memory_bytes` is by how much the process grew at the most."""

    seconds: float
    memory_bytes: int


async def archive_run(place: Place, url: str, stanzas: int) -> ArchiveRun:
    """The step `parse` in a fresh process, from the start of its worker to the end of its execution."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-conf-") as folder:
        upload = await asyncio.to_thread(_upload, Path(folder), stanzas)
        await make_tables(url)
        await place.settle(url)
        folders = {"HOLDFAST_STORAGE": f"{folder}/storage", "HOLDFAST_SPOOL": f"{folder}/spool"}
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.bench.conf", url, msgspec.json.encode(upload).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **folders},
        )
        try:
            async with asyncio.timeout(RUN_SECONDS_MAX):
                run = await _watched(child)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
    _check("stanzas of the archive were stored", await stored_count(place, url), stanzas)
    return run


def _upload(folder: Path, stanzas: int) -> Upload:
    """An archive in a storage of its own, as if it had been uploaded."""
    packed = folder / "bench.tar.gz"
    write_archive(packed, stanzas)
    with packed.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    upload = Upload(
        filename=packed.name, size=packed.stat().st_size, sha256=sha256, file=CONF_UPLOADS.stored_name(sha256)
    )
    stored = folder / "storage" / upload.file
    stored.parent.mkdir(parents=True)
    packed.rename(stored)
    return upload


async def _watched(child: asyncio.subprocess.Process) -> ArchiveRun:
    assert child.stdin is not None and child.stdout is not None
    if await child.stdout.readline() != READY:
        raise RuntimeError("The process that is to parse an archive did not begin; see what it said above.")
    before = most = memory_bytes(child.pid)
    child.stdin.write(GO)
    said = asyncio.create_task(child.stdout.readline())
    while not said.done():
        await asyncio.wait([said], timeout=MEMORY_POLL_SECONDS)
        most = max(most, memory_bytes(child.pid))
    if not said.result():
        raise RuntimeError("The process that parses an archive has died; see what it said above.")
    return ArchiveRun(float(said.result()), most - before)


async def _work(url: str, workload: Any, when_told: Callable[[], bytes]) -> None:
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    async with Holdfast(url) as app:
        app.pipeline(_PIPELINE, [app.step(name="parse", timeout=RUN_SECONDS_MAX, retry=False)(parse_step)])
        execution = await app.submit(_PIPELINE, workload)
        if await asyncio.to_thread(when_told) != GO:
            return
        started = time.perf_counter()
        async with app.working():
            ended = await execution.wait(within=RUN_SECONDS_MAX)
            taken = time.perf_counter() - started
            if ended.status is not ExecutionStatus.COMPLETED:
                raise RuntimeError(f"The archive was not parsed: {ended.error}")
            print(taken, flush=True)


def main() -> None:
    url, upload = sys.argv[1:]

    def when_told() -> bytes:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        return sys.stdin.buffer.readline()

    asyncio.run(_work(url, msgspec.json.decode(upload), when_told))


if __name__ == "__main__":
    main()
