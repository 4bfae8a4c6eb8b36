"""The step `store`: the upload is in the storage, and the run says so."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import Any

from holdfast.pipelines.conf_archives.intake import CONF_UPLOADS
from holdfast.pipelines.conf_archives.tables import ADD_RUN, MARK_STORED, tables_for
from holdfast.pipelines.places import open_storage
from holdfast.pipelines.upload import ensure_stored
from holdfast.store.postgres_tables import in_schema
from holdfast.store.tables import table_writer
from holdfast.worker.context import Context


async def store_upload(ctx: Context) -> dict[str, Any]:
    # A worker may begin a handler in one task and go on with it in another; timeouts belong to one.
    await asyncio.sleep(0)
    upload = CONF_UPLOADS.upload_of(ctx.workload)
    await ensure_stored(open_storage(), upload)
    await asyncio.to_thread(_make_tables, ctx.database)
    written = (lambda sql: sql) if ctx.database.startswith("sqlite") else in_schema
    run = ctx.execution_id
    async with ctx.transaction() as tx:
        await tx.execute(written(ADD_RUN), run, upload.filename, upload.size, upload.sha256, time.time())
        await tx.execute(written(MARK_STORED), run)
    return {"file": upload.file, "size": upload.size, "sha256": upload.sha256}


def _make_tables(database: str) -> None:
    with closing(table_writer(database)) as writer:
        writer.make_tables(tables_for(writer.dialect))
