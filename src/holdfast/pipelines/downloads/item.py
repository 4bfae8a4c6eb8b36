"""What an item is: how its report is requested, where its file is then, and what is known of the file.

    {"request": {"url": "https://portal.example/reports", "json": {"report": "north"}},
     "download": {"url": "https://portal.example/reports/{ticket}/file"},
     "file": "june/north.csv", "sha256": "…"}

An item is stored as it is given, and shown to whoever may look: nothing secret belongs in it.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.core.errors import HoldfastError, InvalidInput, PermanentError
from holdfast.core.payload import a_type
from holdfast.pipelines.downloads.settings import AUTH
from holdfast.steps.http import is_secret_header
from holdfast.steps.http_request import header_name, header_value, parsed_url, request_of
from holdfast.steps.interface import StepCall
from holdfast.storage import check_file_name

KEY_CHARS_MAX = 200
URL_CHARS_MAX = 4_000

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)\}")
_BODIES = ("json", "form", "body")
# The pipeline's own; and those that name another host than the address, to which credentials would go.
_NOT_THEIRS = frozenset(
    {"range", "if-range", "accept-encoding", "idempotency-key"}
    | {"host", "forwarded", "x-forwarded-host", "x-host", "x-original-host"}
)

Url = Annotated[str, Meta(min_length=1, max_length=URL_CHARS_MAX)]
Headers = dict[str, str]


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class RequestPart(_Part, frozen=True, kw_only=True):
    """How the portal is asked; at most one of `json`, `form` and `body`."""

    url: Url
    method: Literal["GET", "POST", "PUT", "PATCH"] = "POST"
    headers: Headers = {}
    params: dict[str, Any] = {}
    json: Any = None
    form: dict[str, Any] | None = None
    body: str | None = None


class DownloadPart(_Part, frozen=True, kw_only=True):
    """Where the file is, if the portal does not say. `{ticket}` stands for that field of the JSON that it
    answered the request with."""

    url: Url | None = None
    headers: Headers = {}


Request = RequestPart | Url
Download = DownloadPart | Url
File = Annotated[str, Meta(min_length=1, max_length=500)]
# $ alone would let a line break pass.
Sha256 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$", max_length=64)]
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Key = Annotated[str, Meta(min_length=1, max_length=KEY_CHARS_MAX)]


class Item(_Part, frozen=True, kw_only=True):
    """One report. `request` and `download` may be given as addresses alone. `file` is where it is kept in the
    storage; `sha256` and `size` are checked. `key` is sent as Idempotency-Key with a POST or PATCH. `note` is
    for people."""

    # In the order in which it is shown: what tells it from others comes first.
    file: File | None = None
    note: Any = None
    request: Request
    download: Download | None = None
    sha256: Sha256 | None = None
    size: Size | None = None
    key: Key | None = None

    @property
    def asked(self) -> RequestPart:
        return RequestPart(url=self.request) if isinstance(self.request, str) else self.request

    @property
    def fetched(self) -> DownloadPart:
        if self.download is None:
            return DownloadPart()
        return DownloadPart(url=self.download) if isinstance(self.download, str) else self.download


def item_of(workload: Any) -> Item:
    """The item, or InvalidInput that says what is wrong with it."""
    if not isinstance(workload, dict):
        raise InvalidInput(f"An item of downloads is an object, not {a_type(workload)}.", guidance=_FORM)
    try:
        item = msgspec.convert(workload, Item)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"The item does not fit: {error}.", guidance=_FORM) from None
    check_item(item)
    return item


def check_item(item: Item) -> None:
    """What its types do not say."""
    for field, check in _checks(item):
        try:
            check()
        except HoldfastError as error:
            raise InvalidInput(f"{field}: {error}", guidance=error.guidance or _FORM) from None


_FORM = (
    'For example {"request": {"url": "https://portal.example/reports", "json": {"report": "north"}}};'
    " see the how-to on downloads."
)


def _checks(item: Item) -> Iterator[tuple[str, Any]]:
    asked, fetched = item.asked, item.fetched
    yield "request.url", lambda: _check_url(asked.url)
    yield "request.headers", lambda: _check_headers(asked.headers)
    yield "request", lambda: _check_request(asked)
    yield "download.headers", lambda: _check_headers(fetched.headers)
    if fetched.url is not None:
        url = _PLACE.sub("x", fetched.url)
        yield "download.url", lambda: _check_places(url)
        yield "download.url", lambda: _check_url(url)
    if item.file is not None:
        yield "file", lambda: check_file_name(item.file)
    if item.key is not None:
        yield "key", lambda: _check_key(item.key or "")


def _check_url(text: str) -> None:
    if parsed_url(text).userinfo:
        raise InvalidInput("The address has a user name or a password in it.", guidance=_SECRETS)


def _check_places(url: str) -> None:
    if "{" in url or "}" in url:
        raise InvalidInput(
            "It has a brace that is no part of a {field} of the portal's answer.",
            guidance="Write {ticket}, or {report.id} for a field in another; a brace itself is %7B or %7D.",
        )


def _check_headers(headers: Headers) -> None:
    names: set[str] = set()
    for given, value in headers.items():
        name = header_name(given)
        if name in names:
            raise InvalidInput(f"The header {name} is there twice.", guidance="Keep one of them.")
        names.add(name)
        if is_secret_header(name):
            raise InvalidInput(f"The header {name} is a secret, and items are shown.", guidance=_SECRETS)
        if name in _NOT_THEIRS:
            raise InvalidInput(f"The header {name} is set by the pipeline itself.", guidance="Leave it out.")
        header_value(value, name)


_SECRETS = f"Let the operator name the portal's credentials in {AUTH}; the secret stays with the workers."


def _check_request(asked: RequestPart) -> None:
    """By making it, as it will be made."""
    try:
        request_of(StepCall(config=config_of(asked)))
    except PermanentError as error:
        raise InvalidInput(str(error).replace("The step has", "It has"), guidance=_FORM) from None


def config_of(asked: RequestPart) -> dict[str, Any]:
    """What an http step would have to say for it."""
    bodies = {name: value for name in _BODIES if (value := getattr(asked, name)) is not None}
    return {
        "url": asked.url,
        "method": asked.method,
        "headers": asked.headers,
        "params": asked.params,
        **bodies,
    }


def _check_key(key: str) -> None:
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput("It is sent as a header.", guidance="Use printable ASCII characters.")


class TakingIn:
    """Takes in the items of one batch, one after the other: each is checked, also beside those before it, and
    becomes what is stored."""

    def __init__(self, batch_key: str | None = None) -> None:
        self._batch_key = batch_key
        self._files: set[str] = set()
        self._keys: set[str] = set()

    def __call__(self, workload: Any, place: int = 0) -> Any:
        return self.take(item_of(workload), place)

    def take(self, item: Item, place: int) -> Any:
        """Of one that was checked by itself."""
        if item.file is not None and item.file in self._files:
            raise InvalidInput(
                f"An item before it is to be kept in the same file, {item.file!r}.",
                guidance="Give each its own: the second would replace the first.",
            )
        if item.key is not None and item.key in self._keys:
            raise InvalidInput(
                f"An item before it has the same key, {item.key!r}.",
                guidance="Give each its own, or none: the portal would take them for one.",
            )
        if item.file is not None:
            self._files.add(item.file)
        if item.key is None:
            item = msgspec.structs.replace(item, key=self._key_of(item, place))
        else:
            self._keys.add(item.key)
        return msgspec.to_builtins(item)

    def _key_of(self, item: Item, place: int) -> str:
        """What the portal is shown, the same whenever it is asked. Where the batch has a key, it follows from
        that and from what is asked for, so that what is submitted again is the same, and nothing else is."""
        if self._batch_key is None:
            return uuid.uuid4().hex
        named = msgspec.json.encode((self._batch_key, place, item.asked))
        return hashlib.sha256(named).hexdigest()[:32]


def places_in(url: str) -> list[str]:
    """The fields that an address takes from the portal's answer."""
    return _PLACE.findall(url)


def filled(url: str, values: dict[str, str]) -> str:
    return _PLACE.sub(lambda place: values[place[1]], url)
