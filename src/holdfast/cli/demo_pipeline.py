"""The demo's pipeline: what a user of Holdfast would write. locate, fetch, publish."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from holdfast import Context, Holdfast, PermanentError, Retry, TransientError
from holdfast.playbook.definition import Definition

PIPELINE = "demo/regional_reports"
STAGES = ("locate", "fetch", "publish")
FETCH_TIMEOUT_SECONDS = 2.0

# The service is on this machine: a proxy that the environment names has no part in it.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def define(hf: Holdfast) -> Definition:
    again = Retry(max_attempts=4, initial_delay=1.0)
    steps = [
        hf.step(retry=again, timeout=10)(locate),
        hf.step(retry=again, timeout=FETCH_TIMEOUT_SECONDS)(fetch),
        hf.step(retry=again, timeout=10)(publish),
    ]
    return hf.pipeline(PIPELINE, steps)


def locate(ctx: Context) -> dict[str, Any]:
    """Ask the catalogue for the checksum. Whatever urllib raises is classified without our help."""
    answer = _get(ctx, "catalogue").decode()
    if not answer.startswith("{"):
        raise RuntimeError(f"the catalogue said {answer!r}")
    found: dict[str, Any] = json.loads(answer)
    return found


def fetch(ctx: Context) -> dict[str, Any]:
    """Get the file, check it, add it up."""
    name, body = ctx.workload["name"], _get(ctx, "files")
    if hashlib.sha256(body).hexdigest() != ctx.outputs["locate"]["sha256"]:
        raise PermanentError(
            f"the checksum of {name} does not match",
            error_type="invalid_file",
            guidance=f"Put a complete copy of {name} at the service, then retry it with force.",
        )
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    return {"rows": len(rows), "sales": sum(int(row["sales"]) for row in rows)}


async def publish(ctx: Context) -> None:
    """Send the sum back. A handler may be a coroutine, and may say itself what can heal."""
    address = urlsplit(ctx.workload["service"])
    body = json.dumps(ctx.outputs["fetch"]).encode()
    head = f"PUT /summaries/{ctx.workload['name']} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(head.encode() + body)
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    status = int(answer.split()[1])
    if status == 429:
        wait = answer.lower().partition("retry-after:")[2].split()[0]
        raise TransientError(
            "the service asks for fewer requests", error_type="rate_limit", retry_after=float(wait)
        )
    if status != 200:
        raise RuntimeError(f"the service answered {status}")


def _get(ctx: Context, kind: str) -> bytes:
    with _direct.open(f"{ctx.workload['service']}/{kind}/{ctx.workload['name']}") as response:
        body: bytes = response.read()
    return body
