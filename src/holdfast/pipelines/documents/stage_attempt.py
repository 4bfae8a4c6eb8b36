"""What the attempts of all three stages have in common: they begin alike, and each is done together with its
step, or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from holdfast.core.errors import StaleLease
from holdfast.pipelines.documents.intake import DOCUMENT_UPLOADS
from holdfast.pipelines.documents.playbook import Stage
from holdfast.pipelines.documents.settings import DocumentSettings
from holdfast.pipelines.documents.writer import DocumentWriter
from holdfast.pipelines.held_row import Beat, task_id_of
from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import TableWriter, table_writer
from holdfast.worker.context import Context

ALREADY_COMPLETED = {"status": "already_completed"}


class StageAttempt:
    """`found` tells how far the document is for this stage: where it begins, or beyond it."""

    def __init__(self, ctx: Context, stage: Stage, tables: TableWriter) -> None:
        self.ctx = ctx
        self.tables = tables
        self.settings = DocumentSettings.from_environment()
        self.upload = DOCUMENT_UPLOADS.upload_of(ctx.workload)
        self._task_id = task_id_of(ctx.job.queue_id, ctx.job.fence)
        self.writer = DocumentWriter(tables, ctx.execution_id, self._task_id, time.time)
        self.beat = Beat(ctx, "Document", self.writer.sign_of_life)
        self.found = self.writer.begin(stage, self.upload)

    def complete(self, statement: str, *values: Any) -> None:
        """The stage is done, in the transaction that completes the step."""
        written = statement if self.ctx.database.startswith("sqlite") else in_schema(statement)
        with self.ctx.transaction() as tx:
            if not tx.execute(written, self.ctx.execution_id, self._task_id, time.time(), *values):
                raise StaleLease(f"Document {self.ctx.execution_id} is worked on by another attempt.")


@contextmanager
def stage_attempt(ctx: Context, stage: Stage) -> Iterator[StageAttempt]:
    with closing(table_writer(ctx.database)) as tables:
        yield StageAttempt(ctx, stage, tables)
