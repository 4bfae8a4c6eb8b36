"""What is left of documents that nobody will parse any more: half of their chunks.

An attempt clears what the one before it has left. Where none follows, as the document was cancelled, or its
last worker was killed, attempts at other documents remove it; a few at a time, as nobody waits for it. A
document that has nothing left belongs to no attempt again, for nobody to look into it once more.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.pipelines.documents.tables import CLEAR_CHUNKS, IS_OVER, engine_table
from holdfast.store.tables import TableTransaction, TableWriter

PARTS_MAX = 20


def clear_leftovers(writer: TableWriter, between: Callable[[], None]) -> None:
    """`between` may end it."""
    executions = engine_table(writer.dialect, "executions")
    of_one = f"FROM holdfast_documents d LEFT JOIN {executions} e ON e.id = d.id"
    find = (
        f"SELECT d.id {of_one} WHERE d.last_completed_stage IS NULL AND d.task_id IS NOT NULL"
        f" AND {IS_OVER} ORDER BY d.id LIMIT 1"
    )
    lock = "" if writer.dialect == "sqlite" else " FOR UPDATE OF d SKIP LOCKED"
    # Asked again under the lock: it may have been started again, and be at work, since the first look.
    check = f"SELECT d.id {of_one} WHERE d.id = $1 AND {IS_OVER}"

    def clear_some(tx: TableTransaction) -> bool:
        found = tx.fetch(find + lock)
        if not found or not tx.fetch(check, *found[0]):
            return False
        [(document_id,)] = found
        if not tx.execute(CLEAR_CHUNKS, document_id):
            tx.execute("UPDATE holdfast_documents SET task_id = NULL WHERE id = $1", document_id)
        return True

    for _ in range(PARTS_MAX):
        if not writer.write(clear_some):
            return
        between()
