"""The model that comes with Holdfast's extra `documents`: wordllama, whose weights are in its package.

It is loaded once in a process, and asks no hub. A text is the mean of its tokens, which takes a fraction of a
millisecond and no padding, so that a batch is never larger in memory than its longest text.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import PermanentError
from holdfast.pipelines.documents.vectors import normalised

if TYPE_CHECKING:
    from holdfast.pipelines.documents.vectors import Vectors

MODEL = "wordllama/l2_supercat_256"
TOKENIZER, WEIGHTS = "tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors"
BATCH_MAX = 256
BETWEEN_BEATS = 64
# Found by trying: what has nothing to do with a text stays below 0.275, and what has is seldom under 0.29.
SIMILARITY_MIN = 0.28


class LocalEmbedder:
    model = MODEL
    batch_max = BATCH_MAX
    similarity_min = SIMILARITY_MIN

    def __init__(self, tokenizer: Any, table: Vectors) -> None:
        self._tokenizer = tokenizer
        self._table = table

    def embed(self, texts: Sequence[str], *, beat: Callable[[], None]) -> Vectors:
        """Safe in several threads at once: nothing of it changes."""
        import numpy as np

        means = np.zeros((len(texts), self._table.shape[1]), np.float32)
        for start in range(0, len(texts), BETWEEN_BEATS):
            beat()
            clean = [
                text.strip().encode(errors="replace").decode()
                for text in texts[start : start + BETWEEN_BEATS]
            ]
            for place, encoded in enumerate(self._tokenizer.encode_batch(clean, add_special_tokens=False)):
                tokens = np.array(encoded.ids, np.int64)
                if clean[place] and len(tokens):
                    means[start + place] = self._table[tokens].mean(axis=0)
        return normalised(means)


_LOCK = threading.Lock()
_LOADED: LocalEmbedder | None = None


def local_embedder() -> LocalEmbedder:
    """The one of this process."""
    global _LOADED
    with _LOCK:
        if _LOADED is None:
            _LOADED = _load()
        return _LOADED


def _load() -> LocalEmbedder:
    """From the files of the package. It is not imported itself: that takes longer than all else here, and
    sets up the logging of the whole program."""
    # With threads of its own it would warn at every fork; a worker has threads enough.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import numpy as np
        from safetensors import safe_open
        from tokenizers import Tokenizer

        folder = _folder()
        with safe_open(folder / WEIGHTS, framework="np") as weights:
            table = np.ascontiguousarray(weights.get_tensor("embedding.weight").astype(np.float32))
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    except (ImportError, OSError) as error:
        raise PermanentError(
            f"The local model for the search of documents cannot be loaded: {error}",
            error_type="validation_error",
            user_message="The model for the search is not installed",
            guidance="Install it with pip install 'holdfast[documents]', or set HOLDFAST_EMBEDDINGS_URL to a"
            " service.",
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return LocalEmbedder(tokenizer, table)


def _folder() -> Path:
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise ImportError("No module named 'wordllama'")
    return Path(found.submodule_search_locations[0])
