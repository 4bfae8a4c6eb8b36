"""What a service has answered: an object of JSON, or an error, in words for people, that may heal or not.

Services with the same API differ in how they fail: a limit of size may be a 400, 413, 422 or 500, an error
may come with the status 200, and what stands in front of a service answers in HTML. What they say is shown
with an error, bounded, without the key.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from holdfast.core.errors import PermanentError, TransientError
from holdfast.core.masking import mask_secrets
from holdfast.core.retry import parse_retry_after
from holdfast.pipelines.documents.settings import EndpointSettings

WORDS_CHARS_MAX = 300
_WORDS_READ_MAX = 8_000


class Service(Enum):
    """What a service is asked for. Its settings begin with the name in capital letters."""

    EMBEDDINGS = "embeddings"
    ANALYSIS = "analysis"

    @property
    def noun(self) -> str:
        return "embedding service" if self is Service.EMBEDDINGS else "analysis service"

    @property
    def title(self) -> str:
        return f"The {self.noun}"

    def setting(self, name: str) -> str:
        return f"HOLDFAST_{self.name}_{name}"


class TooMuchAtOnce(PermanentError):
    """A request that is larger than what the service takes, or whose answer is. A smaller one may do."""

    code = "too_much_at_once"


class Answered(NamedTuple):
    status: int
    body: bytes
    """Its beginning, where it is an error's."""
    retry_after: str | None = None
    location: str | None = None
    is_html: bool = False
    is_too_large: bool = False


_TOO_MUCH = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum[ _](?:context|sequence|request[ _]size|input)"
    r"|max(?:imum)?[ _]tokens[ _]per|too (?:many|much) (?:input )?(?:tokens|inputs)|too large to process"
    r"|(?:input|prompt|request|payload|array|sequence|text)s?[`'\"]? ?(?:is |are )?too (?:long|large|big)"
    r"|must have less than \d+ tokens|(?:maximum|max)[ _](?:allowed )?(?:client )?batch[ _]size|token limit"
    r"|array too long|reduce (?:the length|your prompt|the size)|string too long"
    r"|exceeds? the (?:model|context)",
    re.IGNORECASE,
)
_NO_MONEY = re.compile(
    r"insufficient_quota|exceeded your current quota|billing|credit balance|payment", re.IGNORECASE
)
_NOT_SHOWN = re.compile(r"[\x00-\x20\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]+")

_BUSY = {425, 429}
_SLOW = {408, 504}
_REFUSED_SIZE = {400, 413, 422, 500}


class Reader:
    """Of the answers of one service, to requests to one address."""

    def __init__(self, settings: EndpointSettings, service: Service, url: str) -> None:
        self._settings = settings
        self._service = service
        self._url = url

    def answer_of(self, answered: Answered, now: float) -> dict[str, Any]:
        """The object that it holds; TransientError or PermanentError where it holds none."""
        status = answered.status
        if not 200 <= status < 300:
            raise self._refused(status, answered, now)
        if answered.is_too_large:
            raise TooMuchAtOnce(
                f"{self._url} answered more than {len(answered.body):,} bytes.",
                error_type="validation_error",
                user_message=f"{self._service.title} answers more than can be taken",
                guidance=f"Set {self._service.setting('BATCH')} to a smaller number.",
            )
        try:
            answer = msgspec.json.decode(answered.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            what = "HTML" if answered.is_html else "no JSON, or JSON that is cut off"
            raise self.bad_answer(f"{what}: {self._words(answered.body)}") from None
        if not isinstance(answer, dict):
            raise self.bad_answer(f"JSON that is no object: {self._words(answered.body)}")
        error = answer.get("error")
        if error and not answer.get("data") and not answer.get("choices"):
            code = error.get("code") if isinstance(error, dict) else None
            if isinstance(code, int) and 400 <= code < 600:
                raise self._refused(code, answered, now)
            if _TOO_MUCH.search(self._words(answered.body)):
                raise self._refused(400, answered, now)
            raise self.bad_answer(f"an error without a status: {self._words(answered.body)}")
        return answer

    def bad_answer(self, what: str) -> TransientError:
        """It answered, but not what was asked for. Often that comes from what stands in front of it."""
        return TransientError(
            f"{self._url} answered {what}",
            error_type="bad_answer",
            user_message=f"{self._service.title} gave an answer that cannot be read",
            guidance=f"If it stays so, check that {self._service.setting('URL')} is the address of a service"
            " with an OpenAI-compatible API.",
        )

    def unanswered(self, error_type: str, what: str) -> TransientError:
        """No answer came: `what` is why."""
        words = "does not answer in time" if error_type == "timeout" else "cannot be reached"
        return TransientError(
            f"{self._url}: {what}",
            error_type=error_type,
            user_message=f"{self._service.title} {words}",
            guidance=f"If it stays so, check that the service runs, and {self._service.setting('URL')}.",
        )

    def left_alone(self, seconds: float) -> TransientError:
        """It told another request of this process to wait for longer than this one can."""
        return TransientError(
            f"{self._url} wants no requests for another {seconds:.0f} s.",
            error_type="rate_limit",
            user_message=f"{self._service.title} is busy",
            retry_after=seconds,
        )

    def unusable(self, what: str) -> PermanentError:
        """The settings make no request."""
        return PermanentError(
            f"{self._url} cannot be asked: {what}",
            error_type="validation_error",
            user_message=f"{self._service.title} is set up wrongly",
            guidance=f"Correct {self._service.setting('URL')} and the proxies of the environment.",
        )

    def key_unusable(self) -> PermanentError:
        setting = self._service.setting("API_KEY")
        return PermanentError(
            f"{setting} holds characters that no key can have.",
            error_type="auth_error",
            user_message=f"The key of the {self._service.noun} is not valid",
            guidance=f"Set {setting} to the key as the service gave it.",
        )

    def _refused(self, status: int, answered: Answered, now: float) -> TransientError | PermanentError:
        service, words = self._service, self._words(answered.body)
        message = f"{self._url} answered {status}{f': {words}' if words else ''}"
        if status in _REFUSED_SIZE and (status == 413 or _TOO_MUCH.search(words)):
            return TooMuchAtOnce(
                message,
                error_type="validation_error",
                user_message=f"The text is too long for the {service.noun}",
                guidance=f"Set {service.setting('BATCH')} to a smaller number, or use a model that takes"
                " longer texts.",
            )
        if status == 402 or (status == 429 and _NO_MONEY.search(words)):
            return PermanentError(
                message,
                error_type="permanent_error",
                user_message=f"What the {service.noun} may be used for is used up",
                guidance="Check the account at the service and its billing, then retry it.",
            )
        retry_after = parse_retry_after(answered.retry_after, now)
        if status in _BUSY or status in _SLOW or status >= 500:
            return self._busy(status, message, retry_after)
        if status in (401, 403):
            # What it says of a key may be part of the key.
            said = message if status == 403 else f"{self._url} answered 401."
            return PermanentError(
                said,
                error_type="auth_error",
                user_message=f"{service.title} refuses access",
                guidance=f"Check {service.setting('API_KEY')}, and that its owner may use the model"
                f" {self._settings.model!r}.",
            )
        if status in (404, 410):
            return PermanentError(
                f"{message} (model {self._settings.model!r})",
                error_type="not_found",
                user_message=f"{service.title} does not know the model or the address",
                guidance=f"Check {service.setting('MODEL')}, which is {self._settings.model!r}, and"
                f" {service.setting('URL')}, which makes the address {self._url}.",
            )
        if 300 <= status < 400:
            return self._redirected(status, answered)
        return PermanentError(
            message,
            error_type="validation_error",
            user_message=f"{service.title} does not accept the request",
            guidance=f"Check {service.setting('MODEL')}, which is {self._settings.model!r}, and"
            f" {service.setting('URL')}; the error's message has what the service says.",
        )

    def _busy(self, status: int, message: str, retry_after: float | None) -> TransientError:
        if status in _BUSY:
            error_type, words = "rate_limit", "is busy"
        elif status in _SLOW:
            error_type, words = "timeout", "does not answer in time"
        else:
            error_type, words = "service_unavailable", "is unavailable"
        return TransientError(
            message,
            error_type=error_type,
            user_message=f"{self._service.title} {words}",
            retry_after=retry_after,
        )

    def _redirected(self, status: int, answered: Answered) -> PermanentError:
        setting = self._service.setting("URL")
        place = _without_secrets(answered.location)
        return PermanentError(
            f"{self._url} answered {status}, and points to {place}.",
            error_type="validation_error",
            user_message=f"{self._service.title} is at another address",
            guidance=f"Set {setting} to the address that the service has itself: no redirect is followed.",
        )

    def _words(self, body: bytes) -> str:
        """What it says, in one line, as far as that may be shown."""
        text = body[:_WORDS_READ_MAX].decode(errors="replace")
        try:
            told = msgspec.json.decode(body[:_WORDS_READ_MAX])
        except (msgspec.DecodeError, UnicodeDecodeError):
            told = None
        if isinstance(told, dict):
            error = told.get("error")
            if isinstance(error, dict):
                told = error
            said = [told.get(name) for name in ("code", "type", "error", "message", "detail")]
            text = " ".join(part for part in said if isinstance(part, str)) or text
        key = self._settings.api_key
        if key:
            text = text.replace(key, "***")
        text = mask_secrets(_NOT_SHOWN.sub(" ", text)).strip()
        return text if len(text) <= WORDS_CHARS_MAX else f"{text[: WORDS_CHARS_MAX - 1]}…"


def _without_secrets(location: str | None) -> str:
    """Where it points to, without what may open a door."""
    try:
        parts = urlsplit(location or "")
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that is none"
    if not location:
        return "nowhere"
    shown = f"{parts.scheme}://{host}{port}{parts.path}" if host else parts.path
    return _NOT_SHOWN.sub(" ", shown)[:WORDS_CHARS_MAX]
