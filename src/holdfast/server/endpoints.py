"""What an endpoint is: a method and a path, what it takes and answers as types, and the function behind it.

    request ──▶ query and body decoded by the endpoint's types ──▶ handler ──▶ answer encoded

The same types make the OpenAPI document, so it cannot say anything else than what is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request

from holdfast.server.services import Services


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
    query: Any = None
    body: Any = None

    @property
    def names(self) -> Mapping[str, Any]:
        """What stands in the place of the path's `{names}`."""
        return self.request.path_params

    @property
    def engine(self) -> Any:
        return self.services.engine


Handler = Callable[[Ask], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`body` is a type that is decoded from JSON, or `bytes` for another content type. `plain` are answers
    that are no JSON, by their media type. A `hot` one is a worker's: never compressed, read without a
    pause."""

    method: str
    path: str
    summary: str
    tag: str
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

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


class Family:
    """Endpoints that belong together: those of one file."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.endpoints: list[Endpoint] = []

    def __call__(
        self, method: str, path: str, summary: str, answers: Any = None, **more: Any
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
                    handler=handler,
                    answers=by_status,
                    **more,
                )
            )
            return handler

        return register
