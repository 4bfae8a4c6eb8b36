"""The step `request`: ask the portal for a report, and learn where its file will be.

    item ──▶ one HTTP request ──▶ {"download_url", "sha256", "status_code", "id"}

Where the file will be: the item's own `download.url`, whose `{fields}` are taken from the portal's answer;
else the answer's `download_url`; else its `Location`. The request carries the item's key as
`Idempotency-Key`: an attempt whose answer was lost is repeated, and a portal that honours the key makes no
second report of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from holdfast.core.errors import HoldfastError, InvalidInput, PermanentError
from holdfast.core.payload import a_type
from holdfast.pipelines.downloads.item import Item, config_of, filled, item_of, places_in
from holdfast.pipelines.downloads.settings import origin_of
from holdfast.steps import http
from holdfast.steps.http_request import fault_of
from holdfast.steps.interface import StepCall, StepSettings
from holdfast.worker.context import Context

# From the first byte that is sent to the last that comes back, the longest silence.
SILENCE_SECONDS_MAX = 60.0
ANSWER_BYTES_MAX = 64 * 1024
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class AnswerIncomplete(HoldfastError):
    """The portal has taken the request, and its answer lacks what is needed to go on."""

    code = "answer_incomplete"
    user_message = "The portal did not say where the file will be"


async def ask(ctx: Context, auth: Mapping[str, str]) -> dict[str, Any]:
    # A worker may begin a handler in one task and go on with it in another; timeouts belong to one.
    await asyncio.sleep(0)
    item = checked_item(ctx)
    asked = item.asked
    config: dict[str, Any] = {
        **config_of(asked),
        "headers": headers_for(asked.url, asked.headers, auth),
        "response_bytes_max": ANSWER_BYTES_MAX,
        "timeout": SILENCE_SECONDS_MAX,
    }
    answered = await _answered(call_of(ctx, config, idempotency_key=_key(ctx, item)))
    url = _download_url(item, answered)
    if any(value.removeprefix("Bearer ") in url for value in auth.values()):
        # It would be masked as it is stored, and nobody would be asked for.
        raise AnswerIncomplete(
            "The portal's answer leads to an address that has our credentials in it.",
            guidance="Ask the portal's owner; or give the item download: {url: …}.",
        )
    return {
        "download_url": url,
        "sha256": _checksum(answered),
        "status_code": answered["status_code"],
        # What comes of this request is told by it from all else, also from that of another database.
        "id": secrets.token_hex(8),
    }


def _key(ctx: Context, item: Item) -> str:
    """The same in all attempts. Who retries it by hand wants another report."""
    if not item.key or ctx.round == 1:
        return item.key or ""
    # No item can have a key with a line break in it: this one is nobody else's.
    return hashlib.sha256(f"{item.key}\n{ctx.round}".encode()).hexdigest()[:32]


def checked_item(ctx: Context) -> Item:
    try:
        return item_of(ctx.workload)
    except InvalidInput as error:
        raise PermanentError(
            str(error),
            error_type="validation_error",
            user_message="The item cannot be used",
            guidance=f"{error.guidance} Submit it anew as it should be.",
        ) from None


def call_of(ctx: Context, config: dict[str, Any], *, idempotency_key: str = "") -> StepCall:
    """What the http step would be given."""
    return StepCall(
        config=config,
        execution_id=ctx.execution_id,
        step=ctx.step,
        attempt=ctx.attempt,
        timeout_seconds=ctx.job.timeout_seconds,
        progress=ctx.progress,
        settings=StepSettings.from_environment(os.environ),
        idempotency_key=idempotency_key,
        traceparent=ctx.traceparent,
    )


async def _answered(call: StepCall) -> dict[str, Any]:
    try:
        return await http.run(call)
    except PermanentError as error:
        if error.error_type != "response_too_large":
            raise
        raise PermanentError(
            str(error),
            error_type=error.error_type,
            user_message="The portal answered the request with more than is read of it",
            guidance="Ask the portal's owner: the answer only says where the file will be.",
        ) from None


def headers_for(url: str, own: Mapping[str, str], auth: Mapping[str, str]) -> dict[str, str]:
    """The item's own, and over them the credentials that the operator has named for this origin. What a
    portal's answer leads to gets those of its own origin, and never another's."""
    origin = origin_of(as_sent(url))
    named = (key.rpartition(" ") for key in auth)
    credentials = {header: auth[f"{known} {header}"] for known, _, header in named if known == origin}
    return {**{name.lower(): value for name, value in own.items()}, **credentials}


def as_sent(url: str) -> str:
    """An address as its host is asked for: bücher.example is xn--bcher-kva.example."""
    return str(httpx.URL(url))


def _download_url(item: Item, answered: Mapping[str, Any]) -> str:
    data = answered.get("data")
    given = item.fetched.url
    if given is not None:
        given = filled(given, {place: _field(data, place) for place in places_in(given)})
    elif isinstance(data, dict) and isinstance(data.get("download_url"), str):
        given = data["download_url"]
    elif answered["status_code"] in (201, 202):
        given = answered["headers"].get("location")
    if not given:
        raise AnswerIncomplete(
            f"The portal answered {answered['status_code']} with {_media_type(answered)}, without a"
            " download_url in JSON and without a Location.",
            guidance="Give the item download: {url: …}; {ticket} in it stands for that field of the answer.",
        )
    try:
        url = httpx.URL(answered["url"]).join(given)
        fault = fault_of(url) or ("a password in it" if url.userinfo else None)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        fault = str(error)
    if fault is not None:
        raise AnswerIncomplete(
            f"The portal's answer leads to an address that cannot be used: it has {fault}.",
            guidance="Ask the portal's owner; or give the item download: {url: …}.",
        )
    return str(url.copy_with(fragment=None))


def _media_type(answered: Mapping[str, Any]) -> str:
    return answered["headers"].get("content-type", "").partition(";")[0].strip()[:60] or "nothing"


def _field(data: Any, place: str) -> str:
    found = data
    for name in place.split("."):
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int | float) or found == "":
        raise AnswerIncomplete(
            f"The portal's answer has no {place}, which download.url of the item takes from it"
            f"{'' if found is None else f', but {a_type(found)} there'}.",
            guidance="Look at what the portal answers, and correct download.url of the item.",
        )
    return quote(str(found), safe="")


def _checksum(answered: Mapping[str, Any]) -> str | None:
    data = answered.get("data")
    told = data.get("sha256") if isinstance(data, dict) else None
    return told.lower() if isinstance(told, str) and _SHA256.fullmatch(told) else None
