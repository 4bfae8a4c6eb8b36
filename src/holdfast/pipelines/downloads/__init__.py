"""Reports that are requested from a portal first and downloaded later.

    item ──request──▶ the portal is asked; where the file will be
         ══barrier, delay══▶ nobody downloads before all have asked
         ──download──▶ fetched in a stream, resumed where it broke, checked, renamed into its place

These are the two functions that the playbook calls. What they need is loaded when the first one runs: a
worker that is never asked for a report pays nothing for it.
"""

from __future__ import annotations

from typing import Any

from holdfast.worker.context import Context

__all__ = ["download", "request"]


async def request(ctx: Context, auth: dict[str, str] | None = None) -> dict[str, Any]:
    """Ask the portal for the report of an item. `auth` has headers that may be sent to an origin, by
    `origin header-name`."""
    from holdfast.pipelines.downloads.asking import ask

    return await ask(ctx, auth or {})


async def download(
    ctx: Context, requested: dict[str, Any], auth: dict[str, str] | None = None
) -> dict[str, Any]:
    """Fetch the file of an item into the worker's storage. `requested` is what `request` returned."""
    from holdfast.pipelines.downloads.fetching import fetch

    return await fetch(ctx, requested, auth or {})
