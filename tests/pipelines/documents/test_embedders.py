"""From texts to vectors: the model that comes with Holdfast, and services that answer well or badly."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.core.errors import PermanentError, StaleLease, TransientError
from holdfast.pipelines.documents import local_embedder as local
from holdfast.pipelines.documents.embedders import RemoteEmbedder, open_embedder, stored_name
from holdfast.pipelines.documents.endpoint import Endpoint
from holdfast.pipelines.documents.endpoint_answers import Service, TooMuchAtOnce
from holdfast.pipelines.documents.local_embedder import local_embedder
from holdfast.pipelines.documents.patience import Gate, Patience, Time
from holdfast.pipelines.documents.settings import DocumentSettings, EndpointSettings
from model_server import (
    BUSY,
    CUT,
    RESET,
    UNAVAILABLE,
    WRONG_DIMENSIONS,
    Asked,
    Fault,
    ModelServer,
    first,
    seeded,
    vector_of,
)

ODD = ["", "   ", "\x00", "\ud800", "🙂", "\u202e", "a" * 20_000, "한국어 텍스트", "-"]


# Waits of a minute take three seconds.
FAST = Time(clock=lambda: 20 * time.monotonic(), sleep=lambda seconds: time.sleep(seconds / 20))


def nothing() -> None:
    return None


def embedder_for(
    url: str, *, batch_max: int = 4, patience: float = 0.0, timing: Time | None = None
) -> RemoteEmbedder:
    settings = EndpointSettings(
        url=url, model="test-model", api_key=None, timeout_seconds=5.0, batch_max=batch_max
    )
    endpoint = Endpoint(settings, Service.EMBEDDINGS, patience=Patience(patience), time=timing, gate=Gate())
    return RemoteEmbedder(settings, endpoint=endpoint)


def lengths(vectors: Any) -> list[float]:
    return [round(float(length), 4) for length in np.linalg.norm(vectors, axis=1)]


# The local model


def test_the_local_model_gives_rows_of_length_one() -> None:
    vectors = local_embedder().embed(["How to repair a pump", "Reparatur einer Pumpe"], beat=nothing)
    assert (vectors.shape, vectors.dtype) == ((2, 256), np.float32)
    assert lengths(vectors) == [1.0, 1.0]


def test_the_local_model_knows_what_is_alike() -> None:
    vectors = local_embedder().embed(
        ["The invoice must be paid within 30 days.", "when is an invoice to be paid", "penguins in the snow"],
        beat=nothing,
    )
    alike, other = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert alike > local.SIMILARITY_MIN > other


def test_odd_texts_have_finite_vectors() -> None:
    vectors = local_embedder().embed(ODD, beat=nothing)
    assert np.isfinite(vectors).all()
    assert lengths(vectors)[:2] == [0.0, 0.0]


def test_a_text_has_the_same_vector_in_any_batch() -> None:
    texts = [f"text {number} {'and more ' * number}" for number in range(100)]
    together = local_embedder().embed(texts, beat=nothing)
    alone = local_embedder().embed(texts[70:71], beat=nothing)
    assert np.allclose(together[70], alone[0], atol=1e-6)


def test_the_local_model_is_loaded_once_and_used_by_many_threads() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(
            threads.map(lambda _: local_embedder().embed(["one", "two words"], beat=nothing), range(32))
        )
    assert all(np.array_equal(found[0], vectors) for vectors in found)
    assert local_embedder() is local_embedder()


def test_the_local_model_can_be_interrupted() -> None:
    def lost() -> None:
        raise StaleLease("gone")

    with pytest.raises(StaleLease):
        local_embedder().embed(["text"], beat=lost)


def test_no_text_has_no_vector() -> None:
    assert local_embedder().embed([], beat=nothing).shape == (0, 256)


def test_loading_the_model_leaves_the_logging_of_the_program_alone() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    local._load()
    assert (root.handlers, root.level) == (handlers, level)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LOADED", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PermanentError) as caught:
        local_embedder()
    assert "pip install 'holdfast[documents]'" in caught.value.guidance


# A service


def test_texts_are_sent_in_batches_and_come_back_in_order() -> None:
    texts = [f"text {number}" for number in range(10)]
    with ModelServer() as server:
        vectors = embedder_for(server.url).embed(texts, beat=nothing)
        assert [len(asked.texts) for asked in server.requests] == [4, 4, 2]
        assert server.requests[0].body["model"] == "test-model"
    expected = np.array([vector_of(text) for text in texts], np.float32)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(vectors, expected, atol=1e-5)


def test_odd_texts_can_be_sent() -> None:
    with ModelServer() as server:
        vectors = embedder_for(server.url).embed(ODD, beat=nothing)
        assert all(text.strip() for asked in server.requests for text in asked.texts)
    assert np.isfinite(vectors).all()
    assert lengths(vectors)[:4] == [0.0, 0.0, 0.0, 0.0]


def test_no_text_asks_for_nothing() -> None:
    with ModelServer() as server:
        assert len(embedder_for(server.url).embed([], beat=nothing)) == 0
        assert server.requests == []


def refuses_more_than(texts: int) -> Callable[[Asked], Fault | None]:
    words = {"error": {"message": f"batch size > maximum allowed batch size {texts}"}}
    refusal = Fault("status", 413, body=words)
    return lambda asked: refusal if len(asked.texts) > texts else None


def test_a_batch_that_is_too_large_is_halved_and_stays_so() -> None:
    with ModelServer() as server:
        server.fails = refuses_more_than(3)
        embedder = embedder_for(server.url, batch_max=8)
        texts = [f"text {number}" for number in range(9)]
        assert len(embedder.embed(texts, beat=nothing)) == 9
        assert [len(asked.texts) for asked in server.requests] == [8, 4, 2, 2, 2, 2, 1]
        assert embedder.batch_max == 2
        assert max(server.answered_texts.values()) == 1


def test_a_text_that_is_too_long_is_cut() -> None:
    refusal = Fault("status", 400, body={"error": {"message": "maximum context length is 500 tokens"}})
    with ModelServer() as server:
        server.fails = lambda asked: refusal if max(map(len, asked.texts)) > 500 else None
        vectors = embedder_for(server.url).embed(["short", "word " * 400], beat=nothing)
        assert lengths(vectors) == [1.0, 1.0]
        assert 300 < len(server.requests[-1].texts[0]) <= 500


def test_a_service_that_finds_everything_too_long_is_believed_in_the_end() -> None:
    with ModelServer() as server:
        server.fails = refuses_more_than(0)
        with pytest.raises(TooMuchAtOnce):
            embedder_for(server.url).embed(["word " * 100], beat=nothing)
        assert len(server.requests) < 12


def test_an_answer_of_wrong_dimensions_is_asked_for_again() -> None:
    with ModelServer() as server:
        server.fails = first(1, WRONG_DIMENSIONS)
        assert embedder_for(server.url, patience=5.0, timing=FAST).embed(["a", "b"], beat=nothing).shape == (
            2,
            32,
        )
        assert len(server.requests) == 2


def test_the_dimensions_may_not_change_from_batch_to_batch() -> None:
    with ModelServer() as server:
        embedder = embedder_for(server.url)
        embedder.embed(["a"], beat=nothing)
        server.dimensions = 16
        with pytest.raises(TransientError, match="do not all have 32"):
            embedder.embed(["b"], beat=nothing)


def item(embedding: Any, index: Any = 0) -> dict[str, Any]:
    return {"index": index, "embedding": embedding}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        ["text"],
        [item([1.0], 1)],
        [item([1.0], "0")],
        [item("AAAA")],
        [item([])],
        [item([None, 1.0])],
        [item(["a"])],
        [item([1e300])],
        [item([1.0]), item([1.0])],
    ],
    ids=[
        *("none", "empty", "no object", "number", "number as text", "packed", "no numbers", "null"),
        *("letters", "too great", "twice"),
    ],
)
def test_what_are_no_vectors_may_heal(data: Any) -> None:
    with ModelServer() as server:
        server.fails = lambda _: Fault("body", 200, body={"data": data})
        texts = ["one"] * max(1, len(data or []))
        with pytest.raises(TransientError) as caught:
            embedder_for(server.url).embed(texts, beat=nothing)
    assert caught.value.error_type == "bad_answer"
    assert caught.value.user_message == "The embedding service gave an answer that cannot be read"


def test_a_service_that_leaves_out_numbers_is_taken_at_its_order() -> None:
    data = [{"embedding": [1.0, 0.0]}, {"embedding": [0.0, 1.0]}]
    with ModelServer() as server:
        server.fails = lambda _: Fault("body", 200, body={"data": data})
        vectors = embedder_for(server.url).embed(["one", "two"], beat=nothing)
    assert vectors.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_the_name_of_a_model_says_where_it_is() -> None:
    settings = EndpointSettings(
        url="https://Host.example:8443/v1", model="bge\x00-m3", api_key="secret-key", timeout_seconds=1.0
    )
    assert stored_name(settings) == "bge -m3 at host.example:8443"
    assert len(stored_name(replace(settings, model="m" * 1_000))) == 200


def test_the_settings_choose_the_embedder() -> None:
    settings = DocumentSettings.from_environment({})
    assert open_embedder(settings).model == local.MODEL
    remote = DocumentSettings.from_environment(
        {"HOLDFAST_EMBEDDINGS_URL": "http://host/v1", "HOLDFAST_EMBEDDINGS_MODEL": "m"}
    )
    embedder = open_embedder(remote, patience=Patience(1.0))
    assert (embedder.model, embedder.batch_max) == ("m at host", 64)


def test_many_documents_can_be_embedded_at_once_by_a_service_that_fails() -> None:
    done: list[int] = []
    lock = threading.Lock()

    def embed(document: int) -> None:
        texts: Sequence[str] = [f"document {document} text {number}" for number in range(6)]
        found = embedder_for(server.url, patience=30.0, timing=FAST).embed(texts, beat=nothing)
        with lock:
            done.append(len(found))

    with ModelServer() as server, ThreadPoolExecutor(8) as threads:
        server.fails = seeded(3, 0.15, (BUSY, UNAVAILABLE, RESET, CUT))
        list(threads.map(embed, range(16)))
    assert done == [6] * 16
    assert set(server.answered_texts.values()) == {1}
