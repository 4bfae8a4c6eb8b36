"""The index of pgvector over the vectors of one model: made beside everything else, and never waited for.

    a document has its vectors ──▶ there are many, and nobody has tried for an hour: this one's turn
                               ──▶ a thread with a connection of its own: CREATE INDEX CONCURRENTLY

To make it takes minutes where the vectors are long or many. So it is not the step that makes it, but a
thread of the step's process, and in a way that lets others read and write meanwhile. Workers are where
vectors come from: no server has to run, and nobody has to search. The thread keeps no process alive. Where
the process ends before, the database ends what it was told to do all the same.

That it was tried is written down before, as nobody can do so after a crash. Whatever came of it, the next
try is an hour later: the disk that was full still is, and until then each search takes longer, and that is
all. What a build that failed has left costs each write and helps no search; the next try removes it first.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import TableTransaction

if TYPE_CHECKING:
    from holdfast.pipelines.documents.vectors import VectorKind

log = logging.getLogger("holdfast.documents")

INDEXED_FROM = 50_000  # vectors of a model; fewer are compared one by one in less than 20 ms
INDEXED_DIMENSIONS_MAX = 4_000  # that an index of pgvector takes
TRIED_AGAIN_SECONDS = 3_600
MEMORY_KILOBYTES_MIN = 256 * 1024
# Longer than any of it takes. That of the connection is made for statements that somebody waits for.
BUILD_SECONDS_MAX = 7 * 24 * 3_600.0
_INDEXING = 7_230_519_003_118_223

_IS_THERE = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid"
_COUNT = """
SELECT count(*) FROM (
    SELECT 1 FROM holdfast_document_embeddings WHERE model = $1 AND dimensions = $2 LIMIT $3
) AS counted"""
_TAKE_TURN = f"""
INSERT INTO holdfast_document_indexes AS held (name, tried_at)
VALUES ($1, extract(epoch FROM clock_timestamp())::float8)
ON CONFLICT (name) DO UPDATE SET tried_at = excluded.tried_at
WHERE held.tried_at < excluded.tried_at - {TRIED_AGAIN_SECONDS}
RETURNING 1"""
_HAS_ENDED = """
UPDATE holdfast_document_indexes SET tried_at = extract(epoch FROM clock_timestamp())::float8
WHERE name = $1"""
# In one process: helpers need shared memory, of which a container has little, and a core each.
_SETTINGS = f"""
SELECT set_config('maintenance_work_mem', greatest(setting::bigint, {MEMORY_KILOBYTES_MIN})::text, false),
       set_config('max_parallel_maintenance_workers', '0', false),
       set_config('statement_timeout', '0', false),
       set_config('lock_timeout', '0', false)
FROM pg_settings WHERE name = 'maintenance_work_mem'"""


def is_turn(tx: TableTransaction, model: str, dims: int) -> bool:
    """Whether the index is wanted, and is this one's to make. Then it is nobody else's for an hour."""
    if dims > INDEXED_DIMENSIONS_MAX:
        return False
    name = index_name(model, dims)
    if tx.fetch(_IS_THERE, f"holdfast.{name}"):
        return False
    [(count,)] = tx.fetch(_COUNT, model, dims, INDEXED_FROM)
    return count >= INDEXED_FROM and bool(tx.fetch(_TAKE_TURN, name))


def start_making(url: str, kind: VectorKind, model: str, dims: int) -> threading.Thread:
    """On the database of this address, for the one whose turn it is."""

    def make() -> None:
        try:
            asyncio.run(_make(url, kind, model, dims))
        except Exception:
            log.warning(
                "The index of vectors of %s could not be made. It is tried again in an hour.",
                model,
                exc_info=True,
            )

    thread = threading.Thread(target=make, name="holdfast-index-of-vectors", daemon=True)
    thread.start()
    return thread


async def _make(url: str, kind: VectorKind, model: str, dims: int) -> None:
    from holdfast.store.postgres import PostgresStore

    name = index_name(model, dims)
    db: Any = await PostgresStore(url).connect()
    try:
        # Tried, not waited for: who waits is waited for by the one who makes an index. The lock ends with
        # the connection; one at a time, as each takes the memory and a core.
        if not await db.fetchval("SELECT pg_try_advisory_lock($1)", _INDEXING):
            return
        if await db.fetch(_IS_THERE, f"holdfast.{name}"):
            return
        await db.execute(_SETTINGS)
        for statement in (
            f"DROP INDEX CONCURRENTLY IF EXISTS holdfast.{name}",
            f"CREATE INDEX CONCURRENTLY {name} ON holdfast_document_embeddings"
            f" USING hnsw ((vector{kind.cast}({dims})) {kind.schema}.halfvec_ip_ops)"
            f" WHERE {of_model(model, dims)}",
            "ANALYZE holdfast_document_embeddings",
        ):
            await db.execute(in_schema(statement), timeout=BUILD_SECONDS_MAX)
    except Exception:
        with suppress(Exception):  # where the connection is gone, the hour began when it was taken up
            await db.execute(in_schema(_HAS_ENDED), name)
        raise
    finally:
        db.terminate()


def index_name(model: str, dims: int) -> str:
    return f"document_embeddings_near_{hashlib.sha256(f'{dims} {model}'.encode()).hexdigest()[:12]}"


def of_model(model: str, dims: int) -> str:
    """The condition that an index is made for: written out, as one with a place for the name would not be
    recognised."""
    # As no place of the store's schema, whatever the model is called.
    name = model.replace("\\", "\\\\").replace("'", "''").replace("_", "\\005f")
    return f"model = U&'{name}' AND dimensions = {dims}"
