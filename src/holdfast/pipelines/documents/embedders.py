"""From texts to vectors: by the model that comes with Holdfast, or by a service.

    open_embedder(settings) ──▶ LocalEmbedder     wordllama, whose weights are in its package
                            └─▶ RemoteEmbedder    POST {url}/embeddings, in batches

Either gives rows of float32 whose length is 1; a text that says nothing has a row of zeros. The name of a
model is stored with its vectors, and vectors are compared only with those of the same model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from holdfast.pipelines.documents.endpoint import Endpoint
from holdfast.pipelines.documents.endpoint_answers import Service, TooMuchAtOnce
from holdfast.pipelines.documents.patience import Patience
from holdfast.pipelines.documents.settings import DocumentSettings, EndpointSettings
from holdfast.pipelines.documents.vectors import normalised

if TYPE_CHECKING:
    from holdfast.pipelines.documents.vectors import Vectors

PATH = "/embeddings"
MODEL_CHARS_MAX = 200
CUT_TO = 2 / 3  # of a text that is too long for the model
TEXT_CHARS_MIN = 32  # if even that is too long, it is not for its length
NOTHING_SAID = "."  # services refuse an empty text
NUMBER_MAX = 1e30
DIMENSIONS_MAX = 16_000  # what pgvector keeps in a halfvec

_NOT_IN_JSON = re.compile("[\x00\ud800-\udfff]")
_NOT_IN_NAME = re.compile(r"[^\x20-\x7e\xa1-\ud7ff\ue000-\uffff]+")


class Embedder(Protocol):
    model: str
    """The name under which its vectors are stored."""
    batch_max: int
    """How many texts are best given at once; more are taken too."""
    similarity_min: float
    """Two texts whose vectors have a smaller product have nothing to do with each other."""

    def embed(self, texts: Sequence[str], *, beat: Callable[[], None]) -> Vectors:
        """A row for each text, of length 1, or 0. `beat` is called again and again, and may raise."""


def open_embedder(settings: DocumentSettings, *, patience: Patience | None = None) -> Embedder:
    """The one that the settings name, for one attempt."""
    if settings.embeddings is not None:
        return RemoteEmbedder(settings.embeddings, patience=patience)
    from holdfast.pipelines.documents.local_embedder import local_embedder

    return local_embedder()


class RemoteEmbedder:
    # What a product of two vectors means differs from model to model.
    similarity_min = 0.2

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        patience: Patience | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.model = stored_name(settings)
        self.batch_max = settings.batch_max
        self._asked_model = settings.model
        self._endpoint = endpoint or Endpoint(settings, Service.EMBEDDINGS, patience=patience)
        self._dimensions: int | None = None
        """Of the vectors that came before."""

    def embed(self, texts: Sequence[str], *, beat: Callable[[], None]) -> Vectors:
        import numpy as np

        clean = [_NOT_IN_JSON.sub(" ", text).strip() for text in texts]
        rows: list[Any] = []
        done = 0
        while done < len(clean):
            beat()
            batch = [text or NOTHING_SAID for text in clean[done : done + self.batch_max]]
            try:
                rows += self._asked(batch, beat)
            except TooMuchAtOnce:
                if len(batch) > 1:
                    # For the rest of the attempt as well: what is too much now will be too much again.
                    self.batch_max = (len(batch) + 1) // 2
                    continue
                shorter = batch[0][: int(len(batch[0]) * CUT_TO)].rstrip()
                if len(shorter) < TEXT_CHARS_MIN:
                    raise
                clean[done] = shorter
                continue
            done += len(batch)
        if not rows:
            return np.zeros((0, self._dimensions or 0), np.float32)
        vectors = normalised(np.array(rows, np.float32))
        vectors[[not text for text in clean]] = 0.0
        return vectors

    def _asked(self, batch: list[str], beat: Callable[[], None]) -> list[Any]:
        rows: list[Any] = []

        def check(answer: dict[str, Any]) -> None:
            rows[:] = self._rows_of(answer, len(batch))

        self._endpoint.post(PATH, {"model": self._asked_model, "input": batch}, beat=beat, check=check)
        return rows

    def _rows_of(self, answer: dict[str, Any], count: int) -> list[Any]:
        """The vectors in the order of the texts, as the service numbers them."""
        import numpy as np

        data = answer.get("data")
        if not isinstance(data, list) or len(data) != count:
            found = f"{len(data)} vectors" if isinstance(data, list) else "no list of vectors"
            raise self._bad(f"{found} for {count} texts")
        ordered: list[Any] = [None] * count
        for place, item in enumerate(data):
            index = item.get("index", place) if isinstance(item, dict) else None
            if not isinstance(index, int) or not 0 <= index < count or ordered[index] is not None:
                raise self._bad("vectors with numbers that are not those of the texts")
            ordered[index] = item.get("embedding")
        if not isinstance(ordered[0], list):
            raise self._bad("vectors that are no lists of numbers")
        dims = self._dimensions or len(ordered[0])
        if not 1 <= dims <= DIMENSIONS_MAX:
            raise self._bad(f"vectors of {dims:,} numbers")
        if any(not isinstance(row, list) or len(row) != dims for row in ordered):
            raise self._bad(f"vectors that do not all have {dims} numbers")
        try:
            rows = np.array(ordered, np.float64)
            is_finite = bool((np.abs(rows) < NUMBER_MAX).all())
        except (TypeError, ValueError, OverflowError):
            is_finite = False
        if not is_finite:
            raise self._bad("vectors with what is no number")
        self._dimensions = dims
        return ordered

    def _bad(self, what: str) -> Exception:
        return self._endpoint.reader(PATH).bad_answer(f"{what}.")


def stored_name(settings: EndpointSettings) -> str:
    """The same model at another place may be another model."""
    parts = urlsplit(settings.url)
    name = f"{settings.model} at {parts.netloc.lower()}"
    return _NOT_IN_NAME.sub(" ", name)[:MODEL_CHARS_MAX]
