"""Documents: uploaded, parsed, embedded, analyzed; searchable, with what was found in them.

    upload ──▶ pending ──parsing──▶ parsed ──embedding──▶ embedded ──analyzing──▶ complete
                            └──────────────────┴─────────────────────┴──▶ retrying, or failed with the reason

These are the three functions that the playbook calls. All need the database itself: what they write there
counts together with the completion of their step, or not at all. What a finished stage has stored stays,
whatever becomes of a later one.
"""

from __future__ import annotations

from typing import Any

from holdfast.worker.context import Context

__all__ = ["analyze", "embed", "parse"]


def parse(ctx: Context) -> dict[str, Any]:
    """Read the file, and keep its text in chunks."""
    from holdfast.pipelines.documents.parsing import parse_document

    return parse_document(ctx)


def embed(ctx: Context) -> dict[str, Any]:
    """Give each chunk its vector."""
    from holdfast.pipelines.documents.embedding import embed_document

    return embed_document(ctx)


def analyze(ctx: Context) -> dict[str, Any]:
    """Find what the document says."""
    from holdfast.pipelines.documents.analyzing import analyze_document

    return analyze_document(ctx)
