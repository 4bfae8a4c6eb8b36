"""What an endpoint is: a method and a path, what it takes and answers as types, and the function behind it.

    request ──▶ query and body decoded by the endpoint's types ──▶ handler ──▶ answer encoded

The same types make the OpenAPI document, so it cannot say anything else than what is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request

from holdfast.core.access import Right
from holdfast.server.access import Access
from holdfast.server.identity import Identity
from holdfast.server.services import Services
from holdfast.server.uploads import Upload


class Answer(NamedTuple):
    """What a handler gives where it is more than a value with status 200."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = {}


@dataclass(slots=True)
class Ask:
    """One request, decoded."""

    request: Request
    services: Services
    access: Access
    who: Identity
    query: Any = None
    body: Any = None
    upload: Upload | None = None

    @property
    def names(self) -> Mapping[str, Any]:
        """What stands in the place of the path's `{names}`."""
        return self.request.path_params

    @property
    def engine(self) -> Any:
        return self.services.engine

    async def check_still(self) -> None:
        """Refuse where who asked is let in no longer: for what took long."""
        await self.access.check_still(self.who)

    def by(self, claimed: str = "") -> str:
        """Who is to be named for what is done now, where the request says so of itself."""
        return self.who.acting_as(claimed)


Handler = Callable[[Ask], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`body` is a type that is decoded from JSON, or `bytes` for another content type. `plain` are answers
    that are no JSON, by their media type. A `hot` one is a worker's: never compressed, read without a
    pause. `needs` is the right that whoever asks must have: there is no endpoint without a rule."""

    method: str
    path: str
    summary: str
    tag: str
    needs: Right
    handler: Handler
    query: type | None = None
    body: Any = None
    body_optional: bool = False
    media_types: tuple[str, ...] = ("application/json",)
    answers: Mapping[int, Any] = field(default_factory=dict)
    plain: Mapping[int, str] = field(default_factory=dict)
    hot: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers that mean something here, with what they mean."""
    upload: bool = False
    """Files come as multipart/form-data, streamed: the handler reads `ask.upload`; nothing is read before."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


class Family:
    """Endpoints that belong together: those of one file."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.endpoints: list[Endpoint] = []

    def __call__(
        self, method: str, path: str, summary: str, answers: Any = None, *, needs: Right, **more: Any
    ) -> Callable[[Handler], Handler]:
        """`answers` is the type of status 200, or types by their statuses."""

        def register(handler: Handler) -> Handler:
            by_status = answers if isinstance(answers, dict) else {} if answers is None else {200: answers}
            self.endpoints.append(
                Endpoint(
                    method=method,
                    path=path,
                    summary=summary,
                    tag=self._tag,
                    needs=needs,
                    handler=handler,
                    answers=by_status,
                    **more,
                )
            )
            return handler

        return register
