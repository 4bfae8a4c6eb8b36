"""Who may speak with the server: whoever has its token; on loopback without one, whoever is on this machine
and is no web page of somebody else's.

A browser lets any page send requests to 127.0.0.1. It says whose page it is (Origin, Sec-Fetch-Site) and
which name was looked up (Host), so those are checked.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

from holdfast.core.errors import InvalidInput
from holdfast.server.problems import Refused
from holdfast.wire import TOKEN_VARIABLE

TOKEN_CHARS_MIN = 16
MAKE_TOKEN = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
# Asked by machines that watch: they tell nothing but whether the server lives.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """`host` is where the server listens."""

    def __init__(self, host: str, token: str | None) -> None:
        if token is not None and (
            len(token) < TOKEN_CHARS_MIN
            or not token.isascii()
            or not token.isprintable()
            or token != token.strip()  # a header has no blanks at its ends
        ):
            raise InvalidInput(
                f"The token in {TOKEN_VARIABLE} must have at least {TOKEN_CHARS_MIN} plain characters, and no"
                " blanks at its ends.",
                guidance=f"Make one: {MAKE_TOKEN}",
            )
        if token is None and not is_loopback(host):
            raise InvalidInput(
                f"Listening on {host} would let everybody in the network run and read work: no token is set.",
                guidance=f"Set {TOKEN_VARIABLE} to a secret text, here and where clients and workers run:"
                f" export {TOKEN_VARIABLE}=$({MAKE_TOKEN}). Or leave out --host: then it can be reached from"
                " this machine only.",
            )
        self._token = token
        self._is_local = is_loopback(host)

    def check(self, request: Request) -> None:
        self._check_page(request)
        # Not request.url: that is made of the Host header, too.
        if request.scope["path"] in OPEN_PATHS or self._token is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise Refused(
                401,
                "unauthorized",
                "The token is missing." if not given else "The token is not the server's.",
                f"Send it as Authorization: Bearer …; the commands take it from {TOKEN_VARIABLE}.",
                headers={"www-authenticate": 'Bearer realm="holdfast"'},
            )

    def _check_page(self, request: Request) -> None:
        host = request.headers.get("host", "")
        name = _name_of(host)
        # Behind a proxy it may go by any name; what lets in then is the token.
        if (
            self._is_local
            and self._token is None
            and name
            and name not in _LOCAL_NAMES
            and not is_loopback(name)
        ):
            raise Refused(
                403,
                "wrong_host",
                f"This server is for this machine only, and was asked for as {host!r}.",
                "Use http://127.0.0.1, or let it listen elsewhere with --host and a token.",
            )
        site, origin = request.headers.get("sec-fetch-site", ""), request.headers.get("origin")
        is_foreign = site in ("cross-site", "same-site") and not _is_followed_link(request)
        if origin is not None and not is_foreign:
            page = origin.partition("://")[2].lower()
            is_foreign = not page or page != host.lower()
        if is_foreign:
            raise Refused(
                403,
                "foreign_page",
                "The request comes from a page of another site.",
                "Open Holdfast's own address in the browser.",
            )


def _is_followed_link(request: Request) -> bool:
    """A person who follows a link to one of our pages; the page it stands in sees nothing of the answer."""
    told = (request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest"))
    return request.method in ("GET", "HEAD") and told == ("navigate", "document")


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return host.lower()
