"""The step `embedding`: each chunk gets its vector, batch by batch.

A batch counts as soon as it is stored. An attempt goes on where the one before has stopped: what has a vector
of the same model is not asked for again.
"""

from __future__ import annotations

from typing import Any

from holdfast.pipelines.documents.embedders import open_embedder
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.stage_attempt import ALREADY_COMPLETED, stage_attempt
from holdfast.pipelines.documents.writer import EMBEDDED
from holdfast.worker.context import Context


def embed_document(ctx: Context) -> dict[str, Any]:
    with stage_attempt(ctx, Stage.EMBEDDING) as attempt:
        if attempt.found == "complete":
            return ALREADY_COMPLETED
        writer = attempt.writer
        embedder = open_embedder(attempt.settings)
        vectors = writer.vectors_of(embedder.model)
        total, _ = writer.counts()
        kept = done = writer.count_vectors(vectors)
        after = -1
        while batch := writer.chunks_without(vectors, after, embedder.batch_max):
            found = embedder.embed([chunk.text for chunk in batch], beat=attempt.beat)
            writer.add_vectors(vectors, batch, found)
            after = batch[-1].number
            done += len(batch)
            ctx.progress(min(1.0, done / max(1, total)))
            attempt.beat()
        vectors.finish(ctx.database)
        attempt.complete(EMBEDDED, embedder.model)
    kept_now = kept - vectors.replaced
    return {"model": embedder.model, "chunks": total, "embedded": done - kept, "kept": kept_now}
