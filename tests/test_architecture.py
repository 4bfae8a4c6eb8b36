"""Who may import whom. The rule is the architecture; a change of it is a change of this table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"

ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "tasks": set(),
    "request_log": set(),
    "logs": {"core"},
    "tracing": {"core", "holdfast"},
    "playbook": {"core"},
    "storage": {"core"},
    "steps": {"core", "storage", "request_log"},
    "store": {"core", "tasks"},
    "engine": {"core", "tasks", "logs", "playbook", "store"},
    "wire": {"core"},
    "addresses": {"core", "store"},
    "server": {"core", "tasks", "playbook", "store", "engine", "wire"},
    "client": {"core", "playbook", "store", "engine", "wire", "addresses", "request_log"},
    "worker": {"core", "tasks", "logs", "tracing", "steps", "playbook"},
    "fleet": {"core", "tasks", "worker"},
    "functions": {"core", "worker", "step_function"},
    "playbooks": {"core", "playbook", "engine", "functions", "client"},
    "step_function": {"core", "playbook", "worker"},
    "operating": {"core", "engine", "client"},
    "batch": {"core", "engine", "step_function", "client"},
    "waiting": {"core", "engine", "client"},
    "working": {
        *("core", "tasks", "tracing", "engine", "client", "worker", "fleet"),
        *("step_function", "functions", "waiting"),
    },
    "app": {
        "core",
        "tasks",
        "tracing",
        "playbook",
        "store",
        "engine",
        "client",
        "addresses",
        "worker",
        "step_function",
        "playbooks",
        "operating",
        "batch",
        "waiting",
        "working",
    },
    # Users of the public API, and of what it is made of: their playbooks, functions and routes.
    "pipelines": {
        *("core", "request_log", "playbook", "storage", "steps"),
        *("store", "worker", "engine", "server", "wire"),
    },
    # The second entry beside the command: what a Celery worker imports.
    "celery": {"core", "worker", "fleet", "app", "cli"},
    "testing": {"core", "store", "engine", "client", "worker", "steps", "step_function", "app"},
    "bench": {
        "core",
        "playbook",
        "store",
        "engine",
        "server",
        "client",
        "worker",
        "pipelines",
        "app",
        "holdfast",
    },
    "cli": {
        "core",
        "tasks",
        "logs",
        "tracing",
        "playbook",
        "steps",
        "store",
        "engine",
        "wire",
        "addresses",
        "server",
        "client",
        "worker",
        "functions",
        "pipelines",
        "app",
        "bench",
        "holdfast",
    },
}
EXCEPTIONS = {
    # The one door between a worker and the engine.
    "worker/connection.py": {"core", "engine", "store"},
    # Where a server is put together: beside its own routes it has those of the pipelines.
    "server/app.py": {*ALLOWED["server"], "pipelines"},
}
# The public names, and the command's entry: they belong to no part.
OUTSIDE = {"__init__.py", "__main__.py"}

CORE_STANDARD_LIBRARY_BANNED = {
    "asyncio", "os", "pathlib", "random", "secrets", "socket", "subprocess", "threading", "time",
}  # fmt: skip


def source_files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).as_posix() not in OUTSIDE)


def part_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found.add(node.module or "")
            if node.module == "holdfast":
                found.update(f"holdfast.{alias.name}" for alias in node.names)
    return found


def our_parts(imports: set[str]) -> set[str]:
    parts = set()
    for name in imports:
        head, *rest = name.split(".")
        if head == "holdfast":
            known = rest and rest[0] in ALLOWED
            parts.add(rest[0] if known else "holdfast")
    return parts


@pytest.mark.parametrize("path", source_files(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_imports_only_what_its_part_may(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"{part} is a new part: give it a row in the table"
    allowed = EXCEPTIONS.get(path.relative_to(SOURCE).as_posix(), ALLOWED[part])
    forbidden = our_parts(imports_of(path)) - allowed - {part}
    assert not forbidden, f"{path.name} may not import {', '.join(sorted(forbidden))}"


@pytest.mark.parametrize(
    "path", [path for path in source_files() if part_of(path) == "core"], ids=lambda path: path.name
)
def test_the_core_has_no_clock_no_randomness_and_no_io(path: Path) -> None:
    heads = {name.split(".")[0] for name in imports_of(path)}
    assert not heads & CORE_STANDARD_LIBRARY_BANNED


def test_no_file_is_named_for_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert not [path for path in source_files() if path.stem in vague]


@pytest.mark.parametrize("path", source_files(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_opens_with_its_story_and_ends_before_it_bores(path: Path) -> None:
    text = path.read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path.name} does not say what lives in it"
    assert len(text.splitlines()) <= 600, f"{path.name} is long: a second concept is hiding inside"
