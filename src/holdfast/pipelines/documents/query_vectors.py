"""The vector of a query, by the model that documents are embedded with, within a short time or not at all.
What the local model takes to be loaded does not count: that is once.

A search never fails for want of it. That a service is away is remembered for a while, so that only the first
who searches waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.errors import PermanentError, TransientError
from holdfast.pipelines.documents.embedders import Embedder, open_embedder
from holdfast.pipelines.documents.patience import Patience
from holdfast.pipelines.documents.settings import DocumentSettings

if TYPE_CHECKING:
    from holdfast.pipelines.documents.vectors import Vectors

log = logging.getLogger("holdfast.documents")

SECONDS_MAX = 3.0
REMEMBERED_SECONDS, REMEMBERED_SECONDS_MAX = 30.0, 300.0
KEPT_MAX = 256
EMBEDDED_CHARS_MAX = 2_000


class QueryVector(NamedTuple):
    model: str
    similarity_min: float
    vector: Vectors
    """One row."""


class QueryVectors:
    """Of one process."""

    def __init__(
        self,
        settings: DocumentSettings,
        *,
        open_with: Callable[[DocumentSettings], Embedder] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        service = settings.embeddings
        if service is not None:
            service = replace(service, timeout_seconds=min(service.timeout_seconds, SECONDS_MAX))
        self._settings = replace(settings, embeddings=service)
        self._open = open_with or (lambda settings: open_embedder(settings, patience=Patience(0.0)))
        self._clock = clock
        self._kept: OrderedDict[str, QueryVector] = OrderedDict()
        self._one_opens = asyncio.Lock()
        self._away_until = float("-inf")
        self._reason = ""

    async def of(self, query: str) -> QueryVector | str:
        """The vector; or, in words for people, why there is none."""
        text = query[:EMBEDDED_CHARS_MAX]
        if text in self._kept:
            self._kept.move_to_end(text)
            return self._kept[text]
        if self._clock() < self._away_until:
            return self._reason
        try:
            embedder = await self._embedder()
            found = await asyncio.to_thread(self._embedded, embedder, text)
        except (TransientError, PermanentError) as error:
            self._reason = error.user_message or str(error)
            wait = max(REMEMBERED_SECONDS, error.retry_after or 0.0)
            self._away_until = self._clock() + min(wait, REMEMBERED_SECONDS_MAX)
            log.warning("Documents are searched by words alone for %.0f s: %s", wait, error)
            return self._reason
        self._kept[text] = found
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return found

    async def _embedder(self) -> Embedder:
        """To load the local model takes its time once, of one thread: all others wait here."""
        async with self._one_opens:
            return await asyncio.to_thread(self._open, self._settings)

    def _embedded(self, embedder: Embedder, text: str) -> QueryVector:
        deadline = self._clock() + SECONDS_MAX

        def beat() -> None:
            if self._clock() > deadline:
                raise TransientError(
                    f"The query's vector was not there after {SECONDS_MAX:g} s.",
                    error_type="timeout",
                    user_message="The model for the search takes too long"
                    if self._settings.embeddings is None
                    else "The embedding service does not answer in time",
                )

        return QueryVector(embedder.model, embedder.similarity_min, embedder.embed([text], beat=beat))
