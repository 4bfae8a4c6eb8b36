"""Who may speak with the server: whoever shows a token that counts; on loopback without one, whoever is on
this machine and is no web page of somebody else's.

    Authorization: Bearer holdfast_…        programs
    Authorization: Basic (any name, token)  browsers, which ask for it and send it with streams too

A browser lets any page send requests to 127.0.0.1. It says whose page it is (Origin, Sec-Fetch-Site) and
which name was looked up (Host), so those are checked.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import logging
import math
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from holdfast.core.access import Role, TokenRow, parse_token
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.engine.tokens import OWN_NAME, Tokens
from holdfast.server.failed_logins import FailedLogins
from holdfast.server.identity import LOCAL, Identity
from holdfast.server.problems import Refused
from holdfast.wire import TOKEN_VARIABLE

log = logging.getLogger("holdfast.server")

TOKEN_CHARS_MIN = 16
NOTED_SECONDS = 60.0
PATIENCE_SECONDS = 0.25
RECENT_SECONDS = 5.0
RECENT_MAX = 10_000
MAKE_SECRET = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """`host` is where the server listens. `secret` is an admin's token that its environment gives it; what
    `holdfast token create` has made is no such secret, whatever variable it stands in: its role counts."""

    def __init__(
        self, host: str, tokens: Tokens, *, secret: str | None = None, required: bool = False
    ) -> None:
        self._host = host
        self._tokens = tokens
        self._secret = None if secret is None or parse_token(secret) is not None else _checked(secret)
        self._is_told = secret is not None
        self.is_required = required or secret is not None or not is_loopback(host)
        self._failed_logins = FailedLogins()
        self._recent: dict[bytes, tuple[TokenRow, float]] = {}
        self._asking: set[asyncio.Future[tuple[TokenRow, str] | None]] = set()
        self._noting: set[asyncio.Task[None]] = set()
        self._noted_at: dict[str, float] = {}  # by the ids of tokens

    async def check_start(self) -> None:
        """Refuse to listen where nobody could be let in, or everybody would have to be."""
        if self.is_required and self._secret is None and not await self._tokens.any_counts():
            raise nobody_could_come(self._host, by_variable=self._is_told)

    def check_page(self, request: Request) -> None:
        host = request.headers.get("host", "")
        name = _name_of(host)
        # Behind a proxy it may go by any name; what lets in then is the token.
        if not self.is_required and name and name not in _LOCAL_NAMES and not is_loopback(name):
            raise Refused(
                403,
                "wrong_host",
                f"This server is for this machine only, and was asked for as {host!r}.",
                "Use http://127.0.0.1, or let it listen elsewhere with --host and tokens.",
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

    async def identify(self, request: Request) -> Identity:
        shown = _shown_token(request.headers.getlist("authorization"))
        if shown is None:
            if not self.is_required:
                return LOCAL
            raise _unauthorized(request, "The token is missing.")
        address = request.client.host if request.client else ""
        self._failed_logins.check(address, shown)
        if self._secret is not None and hmac.compare_digest(shown.encode(), self._secret.encode()):
            self._failed_logins.let_in(shown)
            return Identity(OWN_NAME, Role.ADMIN)
        # What has no token's form is known to be wrong before anything is waited for: however many guess at
        # once, each is counted before the next is looked at.
        found = None if parse_token(shown) is None else await self._recognised(shown)
        if found is None or found[1]:
            if found is None:  # guessed; one that has ended is nobody's guess
                self._failed_logins.failed(address)
            why = _why_wrong(found)
            log.warning("A request from %s was refused: %s", address, why)
            raise _unauthorized(request, why)
        token = found[0]
        self._failed_logins.let_in(shown)
        self._note_use(token)
        return Identity(token.name, token.role, token.id)

    async def _recognised(self, shown: str) -> tuple[TokenRow, str] | None:
        """Asked of the database each time, so that a revoked token counts no longer at once. Where that takes
        long, because the database is busy with something else, what it said a moment ago will do: heartbeats
        must not wait for the counts of somebody else."""
        digest = hashlib.sha256(shown.encode()).digest()
        asking = asyncio.ensure_future(self._tokens.recognised(shown))
        before = self._recent.get(digest)
        if before is not None and time.monotonic() - before[1] < RECENT_SECONDS:
            self._asking.add(asking)
            asking.add_done_callback(self._asked)
            await asyncio.wait([asking], timeout=PATIENCE_SECONDS)
            if not asking.done():
                return before[0], ""
        found = await asking
        if found is None or found[1]:
            self._recent.pop(digest, None)
        else:
            self._recent[digest] = (found[0], time.monotonic())
            while len(self._recent) > RECENT_MAX:
                self._recent.pop(next(iter(self._recent)))
        return found

    def _asked(self, asking: asyncio.Future[tuple[TokenRow, str] | None]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # looked at, so that nobody warns

    async def check_still(self, who: Identity) -> None:
        """For what takes long: a token may be revoked meanwhile, or its time be over."""
        if who.token_id is not None and (why := await self._tokens.why_not(who.token_id)):
            raise Refused(401, "unauthorized", f"The token {who.name} is {why}.", _SEND)

    def _note_use(self, token: TokenRow) -> None:
        """Beside the request, which does not wait for it."""

        async def note() -> None:
            try:
                await self._tokens.used(token)
            except HoldfastError as error:
                log.debug("The use of a token was not noted: %s", error)

        now = time.monotonic()
        if not self._noting and now - self._noted_at.get(token.id, -math.inf) > NOTED_SECONDS:
            self._noted_at[token.id] = now
            noting = asyncio.ensure_future(note())
            self._noting.add(noting)
            noting.add_done_callback(self._noting.discard)

    async def close(self) -> None:
        under_way: list[asyncio.Future[Any]] = [*self._noting, *self._asking]
        if under_way:
            await asyncio.wait(under_way)


def nobody_could_come(host: str, *, by_variable: bool = False) -> InvalidInput:
    where = "A server that asks for tokens" if is_loopback(host) else f"Listening on {host}"
    if by_variable:
        return InvalidInput(
            f"{TOKEN_VARIABLE} is a token for a server, and this database does not have it: nobody could be"
            " let in.",
            guidance="Make one for whoever is to manage this server:  holdfast token create NAME --role admin"
            f" . Or unset {TOKEN_VARIABLE}: without --host the server is for this machine only then.",
        )
    return InvalidInput(
        f"{where} needs a token, and this database has none: nobody could be let in.",
        guidance="Make one for whoever is to manage the server:  holdfast token create NAME --role admin"
        f" , or set {TOKEN_VARIABLE} here to a secret of its own. Or leave out --host and --require-token:"
        " then it is for this machine only.",
    )


_SEND = f"Send it in the header Authorization, as a bearer token; the commands take it from {TOKEN_VARIABLE}."


def _checked(secret: str) -> str:
    if (
        len(secret) < TOKEN_CHARS_MIN
        or not secret.isascii()
        or not secret.isprintable()
        or secret != secret.strip()  # a header has no blanks at its ends
    ):
        raise InvalidInput(
            f"The token in {TOKEN_VARIABLE} must have at least {TOKEN_CHARS_MIN} plain characters, and no"
            " blanks at its ends.",
            guidance=f"Make one: {MAKE_SECRET}",
        )
    return secret


def _shown_token(authorizations: list[str]) -> str | None:
    """None where there is none; what is no token at all is the empty one, which is nobody's."""
    given = [text for text in authorizations if text.strip()]
    if not given:
        return None
    kind, *rest = given[0].split(None, 1)
    if len(given) > 1 or not rest:
        return ""
    [shown] = rest
    if kind.lower() == "basic":
        try:
            return base64.b64decode(shown.strip(), validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, or no text in it
            return ""
    return shown.strip() if kind.lower() == "bearer" else ""


def _why_wrong(found: tuple[TokenRow, str] | None) -> str:
    """Whoever has the secret may know what became of it."""
    return (
        "The token is not one of this server's."
        if found is None
        else f"The token {found[0].name} is {found[1]}."
    )


def _unauthorized(request: Request, why: str) -> Refused:
    # A browser that shows a page asks for a name and a password then; programs are not to be asked.
    is_page = "text/html" in request.headers.get("accept", "")
    kind = (
        'Basic realm="holdfast: the token is the password", charset="UTF-8"'
        if is_page
        else 'Bearer realm="holdfast"'
    )
    return Refused(401, "unauthorized", why, _SEND, headers={"www-authenticate": kind})


def _is_followed_link(request: Request) -> bool:
    """A person who follows a link to one of our pages; the page it stands in sees nothing of the answer."""
    told = (request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest"))
    return request.method in ("GET", "HEAD") and told == ("navigate", "document")


def _name_of(host: str) -> str:
    """Without its port. What is more than a name and a port is left as it is: no browser sends that."""
    if set(host) & set("@/?#"):
        return host
    try:
        return (urlsplit(f"//{host}").hostname or "").lower().removesuffix(".")
    except ValueError:
        return host.lower()
