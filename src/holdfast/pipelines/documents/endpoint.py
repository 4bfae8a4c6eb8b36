"""A service with an OpenAI-compatible API, asked by a handler that runs in a thread.

    post ──▶ turn at the service's gate ──▶ request ──▶ answer, or an error in words for people
                     ▲                                                     │
                     └──── waits, as long as there is patience ◀── heals ──┘

A short outage is waited out in place; a long one goes to the engine, whose retries take their time. While it
waits, for its turn or for an answer, `beat` is called twice a second and more: it raises when the attempt is
in vain. The key of the service is in the headers of requests, and nowhere else.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.errors import TransientError
from holdfast.pipelines.documents.endpoint_answers import Answered, Reader, Service
from holdfast.pipelines.documents.patience import Gate, Patience, Time, gate_of
from holdfast.pipelines.documents.settings import EndpointSettings

__all__ = ["Endpoint", "Patience", "Service"]

log = logging.getLogger("holdfast.documents")

BEAT_SECONDS = 0.4


class Endpoint:
    """For one attempt, whose patience it has; used by one thread at a time."""

    def __init__(
        self,
        settings: EndpointSettings,
        service: Service = Service.ANALYSIS,
        *,
        patience: Patience | None = None,
        time: Time | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._settings = settings
        self._service = service
        self._patience = patience or Patience()
        self._time = time or Time()
        self._gate = gate or gate_of(settings.url)

    def __repr__(self) -> str:
        return f"Endpoint({self._settings.url!r}, {self._service})"

    def reader(self, path: str) -> Reader:
        """For what is wrong with an answer that only the one who asked can see."""
        return Reader(self._settings, self._service, self._url(path))

    def _url(self, path: str) -> str:
        return f"{self._settings.url}/{path.lstrip('/')}"

    def post(
        self,
        path: str,
        body: dict[str, Any],
        *,
        beat: Callable[[], None],
        check: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> dict[str, Any]:
        """The object that the service answers. Where `check` raises a TransientError, the answer counts for
        nothing, and it is asked again as after any other fault that heals."""
        content = msgspec.json.encode(body)
        failure: TransientError | None = None
        while True:
            self._await_turn(path, failure, beat)
            started = self._time.clock()
            try:
                answer = self._asked(path, content, beat)
                check(answer)
            except TransientError as error:
                failure = error
                self._patience.failed(self._time.clock() - started)
                if error.retry_after is not None:
                    self._gate.close(self._time.clock() + error.retry_after)
            else:
                self._patience.renew()
                return answer

    def _await_turn(self, path: str, failure: TransientError | None, beat: Callable[[], None]) -> None:
        """Until it may be asked; `failure` is what to raise when that takes longer than there is patience."""
        time, patience = self._time, self._patience
        ready = time.clock() + patience.pause(time.draw()) if failure else time.clock()
        turn = max(ready, self._gate.turn(time.clock(), time.draw()))
        while (wait := turn - time.clock()) > 0:
            if not patience.allows(wait):
                if failure is None:
                    raise self.reader(path).left_alone(wait)
                closed = self._gate.opens_in(time.clock())
                if closed > (failure.retry_after or 0.0):
                    failure.retry_after = closed
                raise failure
            told = failure or self.reader(path).left_alone(wait)
            log.warning(
                "%s: %s. It is asked again in %.1f s.", told.user_message, str(told).rstrip("."), wait
            )
            self._sleep(wait, beat)
            patience.waited(wait)
            if self._gate.is_closed(time.clock()):  # another one was told to wait meanwhile
                turn = self._gate.turn(time.clock(), time.draw())

    def _sleep(self, seconds: float, beat: Callable[[], None]) -> None:
        until = self._time.clock() + seconds
        while (left := until - self._time.clock()) > 0:
            beat()
            self._time.sleep(min(left, BEAT_SECONDS))
        beat()

    def _asked(self, path: str, content: bytes, beat: Callable[[], None]) -> dict[str, Any]:
        return self.reader(path).answer_of(self._sent(path, content, beat), self._time.now())

    def _sent(self, path: str, content: bytes, beat: Callable[[], None]) -> Answered:
        import httpx

        from holdfast.pipelines.documents.endpoint_requests import requests

        reader, seconds = self.reader(path), self._settings.timeout_seconds
        headers = {"accept": "application/json", "content-type": "application/json"}
        key = self._settings.api_key
        if key is not None:
            if not (key.isascii() and key.isprintable()):
                raise reader.key_unusable()
            headers["authorization"] = f"Bearer {key}"
        try:
            return requests().post(self._url(path), headers, content, seconds=seconds, beat=beat)
        except (TimeoutError, httpx.TimeoutException) as error:
            what = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no answer"
            raise reader.unanswered("timeout", f"{what} within {seconds:g} s") from error
        except httpx.TransportError as error:
            if isinstance(error, httpx.UnsupportedProtocol | httpx.ProxyError):
                raise reader.unusable(str(error)) from error
            raise reader.unanswered("connection_error", _cause_of(error)) from error
        except httpx.DecodingError as error:
            raise reader.bad_answer(f"what cannot be unpacked: {error}") from error
        except (httpx.InvalidURL, ImportError, ValueError) as error:
            raise reader.unusable(str(error)) from error


def _cause_of(error: Exception) -> str:
    words = str(error) or type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return words
