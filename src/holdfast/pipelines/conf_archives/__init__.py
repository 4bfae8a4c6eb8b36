"""Configuration archives of Splunk-style deployments: uploaded, stored, parsed, ready to be looked at.

    upload ──▶ PENDING ──store──▶ STORED ──parse──▶ PARSING ──▶ COMPLETE
                                                       └──▶ FAILED, with the reason

These are the two functions that the playbook calls. Both need the database itself: what they write there
counts together with the completion of their step, or not at all.
"""

from __future__ import annotations

from typing import Any

from holdfast.worker.context import Context

__all__ = ["parse", "store"]


async def store(ctx: Context) -> dict[str, Any]:
    """See that the upload is in the storage."""
    from holdfast.pipelines.conf_archives.storing import store_upload

    return await store_upload(ctx)


def parse(ctx: Context) -> dict[str, Any]:
    """Read every .conf of it, and keep what they say."""
    from holdfast.pipelines.conf_archives.parsing import parse_upload

    return parse_upload(ctx)
