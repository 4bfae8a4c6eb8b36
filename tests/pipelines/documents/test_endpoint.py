"""A service that fails as real ones do: what is waited out, what is told, and that nobody is overrun."""

from __future__ import annotations

import logging
import pickle
import threading
from dataclasses import replace
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import httpx
import pytest

from holdfast.core.errors import PermanentError, StaleLease, TransientError
from holdfast.pipelines.documents import endpoint_requests
from holdfast.pipelines.documents.endpoint import Endpoint
from holdfast.pipelines.documents.endpoint_answers import Answered, Reader, Service, TooMuchAtOnce
from holdfast.pipelines.documents.patience import Gate, Patience, Time, gate_of
from holdfast.pipelines.documents.settings import EndpointSettings
from model_server import API_KEY, BUSY, CUT, HANG, HTML, RESET, UNAVAILABLE, Asked, Fault, ModelServer, first
from scripted_server import ScriptedServer, raw

NOON = 1_800_000_000.0
PATH = "/embeddings"
ASKED = {"model": "m", "input": ["one"]}


class Clock:
    """A time that passes by sleeping, and by nothing else."""

    def __init__(self) -> None:
        self.at = 1_000.0
        self.slept: list[float] = []

    @property
    def time(self) -> Time:
        return Time(clock=lambda: self.at, sleep=self.sleep, now=lambda: NOON, draw=lambda: 1.0)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds

    @property
    def waited(self) -> float:
        return round(sum(self.slept), 3)


def settings_for(url: str, **more: Any) -> EndpointSettings:
    given = {"url": url, "model": "m", "api_key": API_KEY, "timeout_seconds": 5.0, "batch_max": 4, **more}
    return EndpointSettings(**given)


def endpoint_for(
    url: str, clock: Clock, patience: float = 30.0, *, gate: Gate | None = None, **more: Any
) -> Endpoint:
    return Endpoint(
        settings_for(url, **more),
        Service.EMBEDDINGS,
        patience=Patience(patience),
        time=clock.time,
        gate=gate or Gate(),
    )


def nothing() -> None:
    return None


def failure(endpoint: Endpoint) -> PermanentError | TransientError:
    with pytest.raises((PermanentError, TransientError)) as caught:
        endpoint.post(PATH, ASKED, beat=nothing)
    return caught.value


@pytest.fixture
def clock() -> Clock:
    return Clock()


# What is waited out


def test_an_answer_comes_back_as_it_is(clock: Clock) -> None:
    with ModelServer(api_key=API_KEY) as server:
        answer = endpoint_for(server.url, clock).post(PATH, ASKED, beat=nothing)
    assert len(answer["data"]) == 1
    assert clock.slept == []


@pytest.mark.parametrize("fault", [UNAVAILABLE, RESET, CUT, HTML], ids=lambda fault: fault.kind)
def test_a_short_outage_is_waited_out(clock: Clock, fault: Fault) -> None:
    with ModelServer() as server:
        server.fails = first(3, fault)
        endpoint_for(server.url, clock).post(PATH, ASKED, beat=nothing)
        assert len(server.requests) == 4
    assert clock.waited == 0.5 + 1 + 2


def test_the_service_says_how_long_it_wants_to_be_left_alone(clock: Clock) -> None:
    with ModelServer() as server:
        server.fails = first(1, replace(BUSY, retry_after="12"))
        endpoint_for(server.url, clock).post(PATH, ASKED, beat=nothing)
    assert clock.waited == 12


def test_the_service_may_name_a_date(clock: Clock) -> None:
    with ModelServer() as server:
        server.fails = first(1, replace(BUSY, retry_after=formatdate(NOON + 7, usegmt=True)))
        endpoint_for(server.url, clock).post(PATH, ASKED, beat=nothing)
    assert clock.waited == 7


def test_a_wait_that_is_too_long_is_left_to_the_engine(clock: Clock) -> None:
    with ModelServer() as server:
        server.fails = first(1, replace(BUSY, retry_after="120"))
        error = failure(endpoint_for(server.url, clock))
    assert (error.error_type, error.retry_after) == ("rate_limit", 120)
    assert error.user_message == "The embedding service is busy"
    assert clock.slept == []


def test_a_long_outage_is_left_to_the_engine(clock: Clock) -> None:
    with ModelServer() as server:
        server.fails = lambda _: UNAVAILABLE
        error = failure(endpoint_for(server.url, clock, patience=10.0))
    assert isinstance(error, TransientError)
    assert error.error_type == "service_unavailable"
    assert clock.waited == 0.5 + 1 + 2 + 4


def test_a_success_renews_the_patience(clock: Clock) -> None:
    with ModelServer() as server:
        server.fails = lambda asked: UNAVAILABLE if asked.number % 3 else None
        endpoint = endpoint_for(server.url, clock, patience=2.0)
        for _ in range(4):
            endpoint.post(PATH, ASKED, beat=nothing)
    assert clock.waited == 4 * 1.5


def test_without_patience_it_fails_at_once(clock: Clock) -> None:
    with ModelServer() as server:
        server.fails = lambda _: UNAVAILABLE
        failure(endpoint_for(server.url, clock, patience=0.0))
        assert len(server.requests) == 1


def test_a_request_that_hangs_is_asked_once_more_however_long_it_took() -> None:
    patience = Patience(30.0)
    patience.failed(60.0)
    assert patience.allows(patience.pause(1.0))
    patience.failed(60.0)
    assert not patience.allows(patience.pause(1.0))


def test_while_it_waits_it_gives_a_sign_twice_a_second(clock: Clock) -> None:
    signs: list[float] = []
    with ModelServer() as server:
        server.fails = first(1, replace(BUSY, retry_after="10"))
        endpoint_for(server.url, clock).post(PATH, ASKED, beat=lambda: signs.append(clock.at))
    assert max(after - before for before, after in pairwise(signs)) <= 0.5
    assert signs[-1] - signs[0] >= 9.5


def test_an_attempt_that_is_in_vain_ends_while_it_waits(clock: Clock) -> None:
    def lost() -> None:
        raise StaleLease("gone")

    with ModelServer() as server:
        server.fails = lambda _: UNAVAILABLE
        with pytest.raises(StaleLease):
            endpoint_for(server.url, clock).post(PATH, ASKED, beat=lost)
        assert len(server.requests) == 1


def test_an_attempt_that_is_in_vain_gives_up_its_request() -> None:
    def lost() -> None:
        raise StaleLease("gone")

    with ModelServer() as server:
        server.fails = lambda _: HANG
        with pytest.raises(StaleLease):
            endpoint_for(server.url, Clock(), timeout_seconds=60.0).post(PATH, ASKED, beat=lost)


def test_a_service_that_does_not_answer_has_its_time(clock: Clock) -> None:
    with ModelServer() as server:
        server.fails = lambda _: HANG
        error = failure(endpoint_for(server.url, clock, patience=0.0, timeout_seconds=0.2))
    assert error.error_type == "timeout"
    assert "within 0.2 s" in str(error)
    assert error.user_message == "The embedding service does not answer in time"


def test_an_answer_that_drips_has_the_same_time(clock: Clock) -> None:
    released = threading.Event()

    def drip(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while not released.wait(0.05):
            handler.wfile.write(b" ")

    with ScriptedServer() as server:
        server.answer("/v1/embeddings", act=drip)
        error = failure(endpoint_for(f"{server.url}/v1", clock, patience=0.0, timeout_seconds=0.5))
        released.set()
    assert error.error_type == "timeout"


def test_a_service_that_is_not_there(clock: Clock) -> None:
    with ModelServer() as server:
        url = server.url
    error = failure(endpoint_for(url, clock, patience=0.0))
    assert error.error_type == "connection_error"
    assert error.user_message == "The embedding service cannot be reached"


def test_each_wait_is_told_in_the_log(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with ModelServer() as server, caplog.at_level(logging.INFO):
        server.fails = first(1, UNAVAILABLE)
        endpoint_for(server.url, clock).post(PATH, ASKED, beat=nothing)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "The embedding service is unavailable" in record.getMessage()
    assert "asked again in 0.5 s" in record.getMessage()
    assert API_KEY not in record.getMessage()


def test_what_the_caller_finds_wrong_is_asked_again(clock: Clock) -> None:
    with ModelServer() as server:
        endpoint = endpoint_for(server.url, clock)
        bad = [endpoint.reader(PATH).bad_answer("nonsense.")]

        def check(_: dict[str, Any]) -> None:
            if bad:
                raise bad.pop()

        endpoint.post(PATH, ASKED, beat=nothing, check=check)
        assert len(server.requests) == 2


# The gate


def test_when_one_is_told_to_wait_the_others_do_not_ask(clock: Clock) -> None:
    gate = Gate()
    with ModelServer() as server:
        server.fails = first(1, replace(BUSY, retry_after="20"))
        failure(endpoint_for(server.url, clock, patience=5.0, gate=gate))
        error = failure(endpoint_for(server.url, clock, patience=5.0, gate=gate))
        assert len(server.requests) == 1
        assert error.error_type == "rate_limit"
        assert error.retry_after == pytest.approx(20, abs=0.1)
        endpoint_for(server.url, clock, patience=30.0, gate=gate).post(PATH, ASKED, beat=nothing)
    assert clock.waited == pytest.approx(20, abs=0.2)


def test_those_who_waited_come_one_after_the_other() -> None:
    gate = Gate()
    gate.close(10.0)
    turns = [gate.turn(1.0, 1.0) for _ in range(4)]
    assert turns == pytest.approx([10.0, 10.05, 10.1, 10.15])
    assert gate.turn(10.1, 1.0) == pytest.approx(10.2)
    assert gate.turn(11.0, 1.0) == 11.0


def test_a_gate_that_is_closed_again_is_waited_for_again(clock: Clock) -> None:
    gate = Gate()
    gate.close(clock.at + 2)
    closed_again = [False]

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.waited > 1.5 and not closed_again[0]:
            closed_again[0] = True
            gate.close(clock.at + 5)

    with ModelServer() as server:
        endpoint = Endpoint(
            settings_for(server.url), time=replace(clock.time, sleep=sleep), gate=gate, patience=Patience()
        )
        endpoint.post(PATH, ASKED, beat=nothing)
    assert clock.waited > 6


def test_a_failure_tells_the_wait_that_another_was_told(clock: Clock) -> None:
    gate = Gate()

    def fails(_: Asked) -> Fault:
        gate.close(clock.at + 90)
        return UNAVAILABLE

    with ModelServer() as server:
        server.fails = fails
        error = failure(endpoint_for(server.url, clock, gate=gate))
    assert (error.error_type, error.retry_after) == ("service_unavailable", 90)


def test_a_service_has_one_gate_in_a_process() -> None:
    assert gate_of("http://one/v1") is gate_of("http://one/v1")
    assert gate_of("http://one/v1") is not gate_of("http://two/v1")


# What is told


def answered(status: int, words: str = "", **more: Any) -> PermanentError | TransientError:
    reader = Reader(settings_for("http://host/v1"), Service.EMBEDDINGS, "http://host/v1/embeddings")
    with pytest.raises((PermanentError, TransientError)) as caught:
        reader.answer_of(Answered(status, words.encode(), **more), NOON)
    return caught.value


@pytest.mark.parametrize(
    ("status", "error_type", "kind"),
    [
        (401, "auth_error", PermanentError),
        (403, "auth_error", PermanentError),
        (402, "permanent_error", PermanentError),
        (404, "not_found", PermanentError),
        (400, "validation_error", PermanentError),
        (422, "validation_error", PermanentError),
        (307, "validation_error", PermanentError),
        (408, "timeout", TransientError),
        (425, "rate_limit", TransientError),
        (429, "rate_limit", TransientError),
        (500, "service_unavailable", TransientError),
        (503, "service_unavailable", TransientError),
        (504, "timeout", TransientError),
        (529, "service_unavailable", TransientError),
    ],
)
def test_each_status_says_whether_it_heals(status: int, error_type: str, kind: type[Exception]) -> None:
    error = answered(status)
    assert (type(error), error.error_type) == (kind, error_type)
    assert "embedding service" in (error.user_message or "")


def test_a_refused_key_names_the_setting() -> None:
    assert "HOLDFAST_EMBEDDINGS_API_KEY" in answered(401).guidance


def test_a_model_that_is_not_there_is_named_with_the_address() -> None:
    error = answered(404, '{"error": {"message": "model not found"}}')
    assert "'m'" in str(error) and "http://host/v1/embeddings" in str(error)
    assert "HOLDFAST_EMBEDDINGS_MODEL" in error.guidance


def test_the_service_speaks_for_itself_within_bounds() -> None:
    error = answered(422, '{"detail": "bad field\\u202e' + "x" * 5_000 + '"}')
    assert "bad field" in str(error)
    assert len(str(error)) < 400
    assert "\u202e" not in str(error)


def test_a_redirect_names_the_place_without_what_opens_doors() -> None:
    error = answered(301, location="https://user:pw@elsewhere:8443/v1?token=secret")
    assert "https://elsewhere:8443/v1" in str(error)
    assert "pw" not in str(error) and "secret" not in str(error)
    assert "none" in str(answered(302, location="http://[broken"))
    assert "nowhere" in str(answered(302))
    assert "/other" in str(answered(302, location="/other"))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, '{"error": {"message": "This model\'s maximum context length is 8192 tokens"}}'),
        (400, '{"error": {"code": "context_length_exceeded", "message": "too long"}}'),
        (413, "<html>Request Entity Too Large</html>"),
        (413, '{"error": "batch size 64 > maximum allowed batch size 32"}'),
        (422, '{"error": "`inputs` must have less than 512 tokens. Given: 702"}'),
        (
            500,
            '{"error": {"message": "input (702 tokens) is too large to process. increase the batch"}}',
        ),
        (200, '{"error": {"code": 400, "message": "input is too long"}}'),
        (200, '{"error": {"message": "the input length exceeds the context length"}}'),
    ],
    ids=["openai", "code", "proxy", "tei batch", "tei tokens", "llama.cpp", "router", "ollama"],
)
def test_what_is_too_much_at_once_is_known_in_the_words_of_many(status: int, words: str) -> None:
    assert isinstance(answered(status, words), TooMuchAtOnce)


def test_an_answer_without_end_is_too_much_at_once() -> None:
    assert isinstance(answered(200, "[", is_too_large=True), TooMuchAtOnce)


def test_an_account_that_is_used_up_does_not_heal() -> None:
    error = answered(429, '{"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}')
    assert isinstance(error, PermanentError)
    assert "billing" in error.guidance


@pytest.mark.parametrize(
    "words",
    ["<html>hello</html>", '{"data": [', "[1, 2]", '{"error": "something"}', '{"error": {"message": "odd"}}'],
    ids=["html", "cut", "list", "error", "error object"],
)
def test_what_is_no_answer_may_heal(words: str) -> None:
    error = answered(200, words, is_html=words.startswith("<"))
    assert (type(error), error.error_type) == (TransientError, "bad_answer")


def test_an_error_with_a_status_of_its_own_is_that() -> None:
    assert answered(200, '{"error": {"code": 429, "message": "slow down"}}').error_type == "rate_limit"


def test_the_key_is_told_nowhere(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with ModelServer(api_key="another-key") as server, caplog.at_level(logging.DEBUG):
        endpoint = endpoint_for(server.url, clock)
        error = failure(endpoint)
    told = [str(error), repr(error), error.guidance, repr(endpoint), str(pickle.dumps(error)), caplog.text]
    assert not [text for text in told if API_KEY in text]
    assert API_KEY not in str(answered(403, f'{{"error": "key {API_KEY} is blocked"}}'))


@pytest.mark.parametrize("key", ["sk-ä", "sk-one\nx: two"], ids=["letters", "lines"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_told(clock: Clock, key: str) -> None:
    error = failure(endpoint_for("http://127.0.0.1:1/v1", clock, api_key=key))
    assert (type(error), error.error_type) == (PermanentError, "auth_error")
    assert key not in f"{error} {error.guidance} {error.user_message}"


def test_a_service_without_a_key_is_sent_none(clock: Clock) -> None:
    with ModelServer() as server:
        endpoint_for(server.url, clock, api_key=None).post(PATH, ASKED, beat=nothing)
        assert "authorization" not in server.requests[0].headers


def test_a_redirect_is_not_followed(clock: Clock) -> None:
    with ScriptedServer() as server:
        server.answer("/v1/embeddings", 307, location="/elsewhere")
        error = failure(endpoint_for(f"{server.url}/v1", clock))
        assert [request.path for request in server.requests] == ["/v1/embeddings"]
    assert isinstance(error, PermanentError)


def test_an_answer_that_is_packed_wrongly_may_heal(clock: Clock) -> None:
    with ScriptedServer() as server:
        server.answer("/v1/embeddings", 200, b"no gzip", content_encoding="gzip")
        error = failure(endpoint_for(f"{server.url}/v1", clock, patience=0.0))
    assert error.error_type == "bad_answer"


def test_an_error_whose_words_are_cut_off_keeps_its_status(clock: Clock) -> None:
    with ScriptedServer() as server:
        cut_off = raw(b"HTTP/1.1 404 Not Found\r\ncontent-length: 500\r\n\r\nno such mod")
        server.answer("/v1/embeddings", act=cut_off)
        error = failure(endpoint_for(f"{server.url}/v1", clock))
    assert error.error_type == "not_found"


def test_an_answer_is_read_up_to_a_bound(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_requests, "ANSWER_BYTES_MAX", 100)
    with ScriptedServer() as server:
        server.answer("/v1/embeddings", 200, b" " * 10_000)
        assert isinstance(failure(endpoint_for(f"{server.url}/v1", clock)), TooMuchAtOnce)


def test_an_address_that_is_none_is_told_as_a_setting(clock: Clock) -> None:
    error = failure(endpoint_for("http://\x7f/v1", clock))
    assert isinstance(error, PermanentError)
    assert "HOLDFAST_EMBEDDINGS_URL" in error.guidance


def test_a_proxy_that_cannot_be_used_is_told_as_a_setting(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_requests, "_REQUESTS", None)
    monkeypatch.setenv("HTTP_PROXY", "nonsense://proxy")
    error = failure(endpoint_for("http://service.invalid/v1", clock, patience=0.0))
    assert isinstance(error, PermanentError)
    assert "proxies" in error.guidance


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "models.localhost"])
def test_a_service_on_this_machine_is_asked_without_a_proxy(host: str) -> None:
    assert endpoint_requests._is_loopback(httpx.URL(f"http://{host}/v1").host)


def test_a_service_elsewhere_may_be_behind_a_proxy() -> None:
    assert not endpoint_requests._is_loopback("api.example.com")
    assert not endpoint_requests._is_loopback("192.0.2.1")


def test_a_certificate_that_is_not_trusted_is_told_as_that() -> None:
    import ssl

    from holdfast.pipelines.documents.endpoint import _cause_of

    cause = ssl.SSLCertVerificationError(1, "failed")
    cause.verify_message = "self-signed certificate"
    error = httpx.ConnectError("")
    assert _cause_of(error) == "ConnectError"
    error.__cause__ = cause
    assert _cause_of(error) == "its certificate is not trusted: self-signed certificate"


def test_a_process_that_was_forked_asks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    before = endpoint_requests.requests()
    assert endpoint_requests.requests() is before
    # Put back in the end: its connections are still open.
    monkeypatch.setattr(endpoint_requests, "_REQUESTS", before)
    monkeypatch.setattr(before, "process", -1)
    assert endpoint_requests.requests() is not before
