"""The OpenAPI document is true: what it does not allow is refused, and every answer is as it says. The
requests are made by schemathesis."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engine_scenario import stage
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.server.app import all_endpoints
from holdfast.wire import WAIT_SECONDS_MAX
from serving import Served, serving

EXAMPLES = 20
# A stream does not end.
ENDLESS = "/api/events/stream"
NAMES = [f"{one.method} {re.sub(r':[a-z]+}', '}', one.path)}" for one in all_endpoints()]
# That all it allows is accepted cannot be asked: a path that is not there, a name with control characters are
# refused by rules that no schema can tell.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def api_url(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: TemporaryPostgres,
) -> Iterator[str]:
    """A server with some of everything, in a thread of its own."""
    url = f"sqlite:///{tmp_path_factory.mktemp('api') / 'holdfast.db'}"
    if request.param == "postgresql":
        name = f"api_{uuid4().hex}"
        postgres_server.create_database(name)
        url = postgres_server.url(name)
    ready: threading.Event = threading.Event()
    loop_of: dict[str, Any] = {}

    async def serve() -> None:
        async with serving(url) as s:
            await _fill(s)
            loop_of.update(url=s.url, loop=asyncio.get_running_loop(), over=asyncio.Event())
            ready.set()
            await loop_of["over"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60), "the server did not start"
    yield loop_of["url"]
    loop_of["loop"].call_soon_threadsafe(loop_of["over"].set)
    thread.join(60)
    if request.param == "postgresql":
        postgres_server.drop_database(name)


async def _fill(s: Served) -> None:
    await s.define(stage("a"), stage("b"))
    for number in range(5):
        await s.start({"n": number})
    await s.complete(await s.lease_one(), {"x": 1})
    await s.fail(await s.lease_one(), "broken", category="permanent")
    await s.lease_one()
    await s.post("/api/batches", {"path": "p", "items": [1, 2]})
    await s.send("PUT", "/api/limits/portal", {"max_concurrency": 3})
    await s.post("/api/pauses", {"kind": "lane", "name": "bulk", "reason": "lunch"})


def _is_long(wait: object) -> bool:
    """Of those that are allowed: nobody waits for nothing here."""
    return isinstance(wait, int | float) and 0 < wait <= WAIT_SECONDS_MAX


@pytest.fixture(scope="module")
def api_schema(api_url: str) -> Any:
    return schemathesis.openapi.from_url(f"{api_url}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(ENDLESS)])
def test_whatever_is_sent_the_answer_is_one_that_the_document_allows(
    api_schema: Any, name: str, mode: GenerationMode
) -> None:
    method, _, path = name.partition(" ")
    operation = api_schema[path][method]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case: Any) -> None:
        for part in (case.query, case.body):
            if isinstance(part, dict) and _is_long(part.get("wait")):
                part["wait"] = 0
        response = case.call(timeout=60)
        assert response.status_code < 500, (response.status_code, response.text)
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            assert response.json()["error"]["message"]

    with contextlib.suppress(Unsatisfiable):  # there is nothing to get wrong
        holds()


def test_the_document_names_every_endpoint_and_the_page_needs_nothing_from_elsewhere(api_url: str) -> None:
    document = httpx.get(f"{api_url}/openapi.json").json()
    told = {
        f"{method.upper()} {path}" for path, operations in document["paths"].items() for method in operations
    }
    assert len(told) == len(all_endpoints())
    page = httpx.get(f"{api_url}/docs")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text and "http://" not in page.text and "https://" not in page.text
    assert page.text.count("<details") == len(told)


def test_the_document_is_valid_openapi(api_url: str) -> None:
    ids = [
        operation["operationId"]
        for operations in httpx.get(f"{api_url}/openapi.json").json()["paths"].values()
        for operation in operations.values()
    ]
    assert len(ids) == len(set(ids))
