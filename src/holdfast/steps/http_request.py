"""From the config of an http step to the request it sends, checked before anything is sent.

Whatever could be read by the server as something else than what the playbook says (a line break in a header,
a second body, two ways to log in) is refused here, with the field's name and without its value, which may be
secret.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx

from holdfast.core.errors import InvalidInput
from holdfast.core.payload import a_type
from holdfast.steps.fields import count_field, flag_field, mapping_field, refused, seconds_field, text_field
from holdfast.steps.interface import StepCall
from holdfast.storage import check_file_name

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
NOT_IDEMPOTENT = frozenset({"POST", "PATCH"})
CONNECT_SECONDS_MAX = 30.0
# What an output holds besides the body: the headers above all.
OUTPUT_BYTES_BESIDES = 128 * 1024
HELD_OUTPUTS_MAX = 4
SAVED_BYTES_MAX_DEFAULT = 1024 * 1024 * 1024
SHOWN_URL_CHARS_MAX = 200

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# What frames the message is the client's affair: two answers to where it ends are two messages.
_FRAMING = frozenset(
    {"connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
_BODIES = ("json", "body", "form")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: httpx.URL
    headers: dict[str, str]
    """By lower-case names."""
    content: bytes | None
    timeout: httpx.Timeout
    follow_redirects: bool
    bytes_max: int
    save_to: str | None

    @property
    def shown(self) -> str:
        """For people: without a query, which may hold keys."""
        return f"{self.method} {shown_url(self.url)}"


def shown_url(url: httpx.URL) -> str:
    text = str(url.copy_with(userinfo=b"", query=None, fragment=None))
    return text if len(text) <= SHOWN_URL_CHARS_MAX else f"{text[: SHOWN_URL_CHARS_MAX - 1]}…"


def request_of(call: StepCall) -> Request:
    config = call.config
    method = text_field(config, "method", "GET").upper()
    if method not in METHODS:
        raise refused(f"{method[:40]!r} is no method of an http step.", f"Allowed are: {', '.join(METHODS)}.")
    url = _url(config)
    headers, left_out = _headers(config)
    _add_credentials(headers, config, url)
    content = _content(config, headers)
    if call.idempotency_key and method in NOT_IDEMPOTENT and "idempotency-key" not in left_out:
        headers.setdefault("idempotency-key", call.idempotency_key)
    given = (("user-agent", "holdfast"), ("accept", "*/*"), ("traceparent", call.traceparent))
    for name, value in given:
        if value and name not in left_out:
            headers.setdefault(name, value)
    # No others: a body that somebody packs in a few bytes must be unpacked within bounds.
    headers.setdefault("accept-encoding", "gzip, deflate")
    seconds = seconds_field(config, "timeout", call.timeout_seconds)
    save_to = _save_to(config)
    return Request(
        method=method,
        url=url.copy_with(userinfo=b"", fragment=None),
        headers=headers,
        content=content,
        timeout=httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS_MAX)),
        follow_redirects=flag_field(config, "follow_redirects", True),
        bytes_max=_bytes_max(call, is_saved=save_to is not None),
        save_to=save_to,
    )


def _bytes_max(call: StepCall, *, is_saved: bool) -> int:
    output_max = call.settings.payload_bytes_max
    if is_saved:
        return count_field(call.config, "response_bytes_max", SAVED_BYTES_MAX_DEFAULT)
    default = max(output_max - OUTPUT_BYTES_BESIDES, output_max // 2)
    # Whatever a playbook says: it is gathered in memory, and only spaces in JSON are lost on the way.
    return min(count_field(call.config, "response_bytes_max", default), HELD_OUTPUTS_MAX * output_max)


def _save_to(config: Mapping[str, Any]) -> str | None:
    name = config.get("save_to")
    if name is None:
        return None
    try:
        return check_file_name(name)
    except InvalidInput as error:
        raise refused(f"save_to: {error}", error.guidance) from None


# ── where to ─────────────────────────────────────────────────────────────────────────────────────


def _url(config: Mapping[str, Any]) -> httpx.URL:
    text = text_field(config, "url")
    url = parsed_url(text)
    pairs = list(_pairs(mapping_field(config, "params"), "params"))
    if not pairs:
        return url
    query = "&".join(part for part in (url.query.decode("ascii"), urlencode(pairs)) if part)
    return url.copy_with(query=query.encode("ascii"))


def parsed_url(text: str) -> httpx.URL:
    if any(character.isspace() or not character.isprintable() for character in text):
        raise refused(
            "The url has a space, a line break or a control character.",
            "Write a space as %20; let params: carry values that may hold anything.",
        )
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise refused(f"The url is not valid: {error}.", _FORMS) from None
    fault = fault_of(url)
    if fault is not None:
        raise refused(f"The url has {fault}.", _FORMS)
    return url


def fault_of(url: httpx.URL) -> str | None:
    """What an address has that nobody could be asked at."""
    if url.scheme not in ("http", "https"):
        return f"the scheme {url.scheme[:40]!r}, and not http or https"
    if not url.host:
        return "no host"
    if url.port is not None and not 0 < url.port < 65_536:
        return f"the port {url.port}, and ports go from 1 to 65535"
    return None


_FORMS = "Use an address such as https://example.com/items."


def _pairs(values: Mapping[str, Any], field: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is not None:
                yield name, _scalar(each, f"{field}.{name}")


def _scalar(value: object, field: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise refused(f"{field} has characters that cannot be written.") from None
        return text
    raise refused(f"{field} must be a text or a number, not {a_type(value)}.")


# ── headers ──────────────────────────────────────────────────────────────────────────────────────


def _headers(config: Mapping[str, Any]) -> tuple[dict[str, str], set[str]]:
    """The given ones, and the names of those that the author does not want to be sent: written as null."""
    headers: dict[str, str] = {}
    left_out: set[str] = set()
    for given, value in mapping_field(config, "headers").items():
        name = header_name(given)
        if name in headers or name in left_out:
            raise refused(f"headers has {name!r} twice.")
        if value is None:
            left_out.add(name)
        else:
            headers[name] = header_value(_scalar(value, f"headers.{name}"), f"headers.{name}")
    return headers, left_out


def header_name(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise refused(f"{text[:60]!r} cannot be the name of a header.")
    name = text.lower()
    if name in _FRAMING:
        raise refused(f"The header {name} is set by the client itself.", "Leave it out.")
    return name


def header_value(text: str, field: str) -> str:
    if _CONTROL.search(text):
        raise refused(f"{field} has a line break or a control character.", "A header is one line of text.")
    return text.strip(" \t")


def _add_credentials(headers: dict[str, str], config: Mapping[str, Any], url: httpx.URL) -> None:
    name, value = _credentials(mapping_field(config, "auth"))
    if url.userinfo:
        if name:
            raise refused(
                "Both auth and the url say who is asking.", "Keep auth, and take it out of the url."
            )
        name, value = "authorization", _basic(url.username, url.password)
    if not name:
        return
    if name in headers:
        raise refused(f"Both auth and headers set {name}.", "Keep one of them.")
    headers[name] = value


def _credentials(auth: Mapping[str, Any]) -> tuple[str, str]:
    if not auth:
        return "", ""
    kind = auth.get("type")
    if kind == "bearer":
        return "authorization", f"Bearer {_secret(auth, 'token')}"
    if kind == "basic":
        return "authorization", _basic(
            _secret(auth, "username"), _secret(auth, "password", may_be_empty=True)
        )
    if kind == "header":
        return header_name(text_field(auth, "name")), _secret(auth, "value")
    raise refused("auth has no type that is known.", "Allowed are: bearer, basic, header.")


def _secret(auth: Mapping[str, Any], name: str, *, may_be_empty: bool = False) -> str:
    value = auth.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise refused(f"auth.{name} must be a text that is not empty.", 'For example {{ secret("NAME") }}.')
    return header_value(value, f"auth.{name}")


def _basic(username: str, password: str) -> str:
    if ":" in username:
        raise refused("auth.username has a colon, which ends a user name in basic authentication.")
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


# ── the body ─────────────────────────────────────────────────────────────────────────────────────


def _content(config: Mapping[str, Any], headers: dict[str, str]) -> bytes | None:
    given = [name for name in _BODIES if config.get(name) is not None]
    if len(given) > 1:
        raise refused(f"The step has {' and '.join(given)}; a request has one body.", "Keep one of them.")
    if not given:
        return None
    if given == ["json"]:
        headers.setdefault("content-type", "application/json")
        return _json(config["json"])
    if given == ["form"]:
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
        return urlencode(list(_pairs(mapping_field(config, "form"), "form"))).encode("ascii")
    if not isinstance(config["body"], str):
        raise refused(f"body must be a text, not {a_type(config['body'])}.", "Use json for data.")
    headers.setdefault("content-type", "text/plain; charset=utf-8")
    return _utf8(config["body"], "body")


def _json(value: object) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(f"json cannot be written as JSON: {error}.") from None
    return _utf8(text, "json")


def _utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise refused(f"{field} has characters that cannot be written as UTF-8.") from None
