"""`--log-format json` in real processes: the worker, those it supervises, isolated handlers, the server."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from command_scenario import LIMIT_SECONDS, holdfast, process
from one_order import worked

SHOP = """
import logging, os
from holdfast import Context, Holdfast, Retry, TransientError

hf = Holdfast()
log = logging.getLogger("shop")

@hf.step(retry=Retry(delays=[0.01]))
async def charge(ctx: Context):
    log.info("charging %s", ctx.workload)
    if ctx.attempt == 1:
        raise TransientError("the card portal is closed")

@hf.step
def notify(ctx: Context):
    log.info("notifying %s\\nin two lines", ctx.workload)

@hf.step(isolation="process")
def crunch(ctx: Context):
    log.info("crunching %s", ctx.workload)
    return os.getpid()

@hf.step(isolation="process")
async def crunch_async(ctx: Context):
    log.info("crunching on a loop %s", ctx.workload)

hf.pipeline("order", [charge, notify, crunch, crunch_async])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "logged_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def logged(url: str, *options: str, **env: str) -> list[str]:
    ended = worked("logged_shop:hf", url, *options, **env)
    assert ended.code == 0, ended
    return ended.err.splitlines()


def ids_of(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("execution_id", "path", "step", "attempt"))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_every_line_of_a_worker_is_an_object_with_the_ids_of_its_attempt(
    sqlite_url: str, processes: str
) -> None:
    lines = [
        json.loads(line) for line in logged(sqlite_url, "--log-format", "json", "--processes", processes)
    ]
    assert all(set(line) >= {"time", "level", "logger", "process", "message"} for line in lines)
    shop = [line for line in lines if line["logger"] == "shop"]
    assert [(line["message"], *ids_of(line)) for line in shop] == [
        ("charging <7>", 1, "order", "charge", 1),
        ("charging <7>", 1, "order", "charge", 2),
        ("notifying <7>\nin two lines", 1, "order", "notify", 1),
        ("crunching <7>", 1, "order", "crunch", 1),
        ("crunching on a loop <7>", 1, "order", "crunch_async", 1),
    ]
    workers = {line["worker_id"] for line in shop}
    assert all(workers) and len(workers) <= int(processes)
    [failed] = [line for line in lines if "the card portal is closed" in line["message"]]
    assert ids_of(failed) == (1, "order", "charge", 1)
    assert {line["logger"] for line in lines} >= {"holdfast", "holdfast.engine", "shop"}
    assert ("holdfast.supervisor" in {line["logger"] for line in lines}) == (processes == "2")


def test_the_environment_says_it_too_and_text_is_the_default(sqlite_url: str, tmp_path: Path) -> None:
    in_json = logged(sqlite_url, HOLDFAST_LOG_FORMAT="json")
    assert all(json.loads(line)["time"] for line in in_json)
    as_text = logged(f"sqlite:///{tmp_path / 'other.db'}")
    assert any(
        line.endswith(" shop: crunching <7> [execution 1, step crunch, attempt 1]") for line in as_text
    ), as_text


def test_a_server_logs_as_json_to_its_last_word(sqlite_url: str) -> None:
    command = ("serve", "--db", sqlite_url, "--port", "0", "--log-format", "json", "--log-level", "info")
    with process(*command, HOLDFAST_TOKEN="") as server:
        assert server.stdout is not None and "Holdfast serves" in server.stdout.readline()
        assert "Whoever is on this machine may use it." in server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=LIMIT_SECONDS)
    assert server.returncode == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line for line in lines if "SIGTERM: stopping." in line["message"]], err


def test_a_format_that_is_not_known_is_refused(sqlite_url: str) -> None:
    said = holdfast(sqlite_url, "worker", HOLDFAST_LOG_FORMAT="xml")
    assert said.code == 2 and "'xml' is not one of 'text', 'json'" in said.err
