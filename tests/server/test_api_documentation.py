"""docs/reference/http-api.md in step with the server: its routes, and the codes of its errors."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.core import errors
from holdfast.core.errors import HoldfastError, RetryRefused
from holdfast.core.model import AckCode
from holdfast.playbook.faults import PlaybookInvalid
from holdfast.server import app
from holdfast.server.problems import status_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "http-api.md").read_text()
SERVER = sorted((ROOT / "src" / "holdfast" / "server").glob("*.py"))

NAMED = re.compile(r"\{(\w+):\w+\}")
ROUTE = re.compile(r"`(?:GET|HEAD|POST|PUT|PATCH|DELETE) /[^`\s]*`")
# What a handler raises, or what only a client or a worker of its own meets.
NEVER_SENT = {"holdfast_error", "transient_error", "transaction_lost", "transaction_unavailable"}
NEVER_SENT |= {"retry_refused", "access_refused", "server_unavailable", "broker_unavailable"}


def routes() -> set[str]:
    return {"`" + NAMED.sub(r"{\1}", endpoint.name) + "`" for endpoint in app.all_endpoints()}


def documented_codes() -> dict[str, int]:
    """Each code with its status."""
    table = PAGE.split("\n## Errors\n", 1)[1]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    return {code: int(status) for codes, status in rows for code in re.findall(r"`(\w+)`", codes)}


def codes_of_the_server() -> Iterator[tuple[str, int | None]]:
    """What `Refused(status, code, …)`, `_refuse(status, code, …)` and `Problem(code=…)` say, with the status
    where it stands beside the code."""
    for file in SERVER:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [part.value if isinstance(part, ast.Constant) else None for part in node.args[:2]]
            if name in ("Refused", "_refuse") and len(given) == 2:
                [status, code] = given
                assert isinstance(code, str) and isinstance(status, int), f"{file.name}:{node.lineno}"
                yield code, status
            for keyword in node.keywords:
                if name == "Problem" and keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value), None


def kinds_of_errors(kind: type[HoldfastError] = HoldfastError) -> Iterator[type[HoldfastError]]:
    for inner in kind.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield inner
            yield from kinds_of_errors(inner)


def test_every_route_is_documented() -> None:
    assert sorted(route for route in routes() if f"| {route} |" not in PAGE) == []


def test_no_route_is_documented_that_does_not_exist() -> None:
    assert set(ROUTE.findall(PAGE)) - routes() == set()


def test_every_code_that_the_server_makes_is_documented_with_its_status() -> None:
    documented = documented_codes()
    made = list(codes_of_the_server())
    assert len(made) > 15
    wrong = [
        (code, status) for code, status in made if documented.get(code) != (status or documented.get(code, 0))
    ]
    assert wrong == []


def test_every_error_that_the_engine_raises_is_documented_with_its_status() -> None:
    every: list[type[HoldfastError]] = [*kinds_of_errors(), PlaybookInvalid]
    kinds = {kind.code: kind for kind in every}
    expected = {
        code: status_of(kind.__new__(kind))
        for code, kind in kinds.items()
        if kind is not RetryRefused and code not in NEVER_SENT and code not in errors.REFUSAL_CODES
    }
    for code in errors.REFUSAL_CODES:
        expected[code] = RetryRefused("no", code=code).http_status  # type: ignore[arg-type]
    documented = documented_codes()
    assert {code: documented.get(code) for code in expected} == expected


def test_no_code_is_documented_that_nobody_makes() -> None:
    known = {code for code, _ in codes_of_the_server()} | {kind.code for kind in kinds_of_errors()}
    known |= errors.REFUSAL_CODES | {PlaybookInvalid.code} | {code.value for code in AckCode}
    assert set(documented_codes()) - known == set()
