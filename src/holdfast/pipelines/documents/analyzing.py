"""The step `analyzing`: what the document says, found by rules that come with Holdfast, or by a model.

    chunks ──▶ findings ──stored, all at once──▶ analyzed ──with the step──▶ complete

An attempt that finds the findings stored has nothing left to do but to complete the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.pipelines.documents.findings.finding import ChunkText, Finding
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.stage_attempt import ALREADY_COMPLETED, StageAttempt, stage_attempt
from holdfast.pipelines.documents.writer import COMPLETE
from holdfast.worker.context import Context


def analyze_document(ctx: Context) -> dict[str, Any]:
    with stage_attempt(ctx, Stage.ANALYZING) as attempt:
        if attempt.found == "complete":
            return ALREADY_COMPLETED
        if attempt.found != "analyzed":
            attempt.writer.store_findings(_found(attempt))
        _, count = attempt.writer.counts()
        attempt.complete(COMPLETE)
    by = "rules" if attempt.settings.analysis is None else attempt.settings.analysis.model
    return {"findings": count, "by": by}


def _found(attempt: StageAttempt) -> list[Finding]:
    ctx, endpoint = attempt.ctx, attempt.settings.analysis
    chunk_count, _ = attempt.writer.counts()

    def chunks() -> Iterator[ChunkText]:
        for chunk in attempt.writer.chunk_texts():
            yield chunk
            ctx.progress(min(1.0, (chunk.number + 1) / max(1, chunk_count)))

    def beat(_: float | None) -> None:
        attempt.beat()

    if endpoint is None:
        from holdfast.pipelines.documents.findings.local import analyze

        return analyze(chunks(), beat=beat)
    from holdfast.pipelines.documents.endpoint import Endpoint
    from holdfast.pipelines.documents.endpoint_answers import Service
    from holdfast.pipelines.documents.findings.llm import analyze_by_model

    service = Endpoint(endpoint, Service.ANALYSIS)
    return analyze_by_model(
        chunks(),
        endpoint,
        ask=lambda body: service.post("/chat/completions", body, beat=attempt.beat),
        beat=beat,
    )
