"""The demo's pipeline: what a user of Holdfast would write. locate, fetch, publish.

`holdfast worker --app holdfast.cli.demo_pipeline:hf` runs it. Two pipelines of a single step make the table
that publish writes to, and count its rows.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import urllib.request
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from holdfast import Context, Holdfast, PermanentError, Retry, TransientError

APP = "holdfast.cli.demo_pipeline:hf"
PIPELINE = "demo/regional_reports"
STAGES = ("locate", "fetch", "publish")
TABLE_PIPELINE = "demo/make_table"
COUNT_PIPELINE = "demo/count_rows"
TABLE = "demo_totals"
MAX_ATTEMPTS = 4
PIECE_BYTES = 65_536

# The service is on this machine: a proxy that the environment names has no part in it.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

hf = Holdfast()
again = Retry(max_attempts=MAX_ATTEMPTS, initial_delay=1.0)


@hf.step(retry=again, timeout="4s")
def locate(ctx: Context) -> dict[str, Any]:
    """Ask the catalogue for the checksum. Whatever urllib raises is classified without our help."""
    with _get(ctx, "catalogue") as response:
        answer = response.read().decode()
    if not answer.startswith("{"):
        raise RuntimeError(f"the catalogue said {answer!r}")
    found: dict[str, Any] = json.loads(answer)
    return found


@hf.step(retry=again, timeout="1m")
def fetch(ctx: Context) -> dict[str, Any]:
    """Get the file in pieces, check it, add it up."""
    body = b""
    with _get(ctx, "files") as response:
        size = int(response.headers["Content-Length"])
        while piece := response.read1(PIECE_BYTES):
            body += piece
            ctx.progress(len(body) / size)
    if len(body) < size:
        raise ConnectionError(f"the connection ended after {len(body)} of {size} bytes")
    name = ctx.workload["name"]
    if hashlib.sha256(body).hexdigest() != ctx.outputs["locate"]["sha256"]:
        raise PermanentError(
            f"the checksum of {name} does not match",
            error_type="invalid_file",
            guidance=f"Put a complete copy of {name} at the service, then retry it with force.",
        )
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    return {"rows": len(rows), "sales": sum(int(row["sales"]) for row in rows)}


@hf.step(retry=again, timeout="10s")
async def publish(ctx: Context) -> None:
    """Send the sum back, and keep it in a table. A handler may be a coroutine, and may say itself what can
    heal. Sending may happen twice; the row commits together with the completion of the step."""
    name, found = ctx.workload["name"], ctx.outputs["fetch"]
    status, wait = await _put(ctx.workload["service"], f"/summaries/{name}", found)
    if status == 429:
        raise TransientError(
            "the service asks for fewer requests", error_type="rate_limit", retry_after=float(wait)
        )
    if status != 200:
        raise RuntimeError(f"the service answered {status}")
    async with ctx.transaction() as tx:
        await tx.execute(
            f"INSERT INTO {TABLE} (execution_id, name, sales) VALUES ($1, $2, $3)",
            ctx.execution_id,
            name,
            found["sales"],
        )


hf.pipeline(PIPELINE, [locate, fetch, publish])


# On PostgreSQL, two that make it at the same moment fall over each other, whatever IF NOT EXISTS says.
made_twice = {
    "error_type": "database_lock",
    "category": "transient",
    "exception": "UniqueViolationError",
}


@hf.step(retry=again, errors=[made_twice])
async def make_table(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (execution_id bigint, name text, sales bigint)")


@hf.step(retry=again)
async def count_rows(ctx: Context) -> dict[str, int]:
    """How many rows each of the executions in the workload has written."""
    async with ctx.transaction() as tx:
        return {
            str(id_): await tx.fetchval(f"SELECT count(*) FROM {TABLE} WHERE execution_id = $1", id_)
            for id_ in ctx.workload
        }


hf.pipeline(TABLE_PIPELINE, [make_table])
hf.pipeline(COUNT_PIPELINE, [count_rows])


def _get(ctx: Context, kind: str) -> HTTPResponse:
    response: HTTPResponse = _direct.open(f"{ctx.workload['service']}/{kind}/{ctx.workload['name']}")
    return response


async def _put(service: str, path: str, value: Any) -> tuple[int, str]:
    """The status of the answer, and its Retry-After."""
    address, body = urlsplit(service), json.dumps(value).encode()
    head = f"PUT {path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(head.encode() + body)
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    after = answer.lower().partition("retry-after:")[2].split()
    return int(answer.split()[1]), after[0] if after else "0"
