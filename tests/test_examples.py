"""The playbooks of examples/ do what their heads say: each is run as a newcomer would, in its own folder.

Those that call functions beside them are run in a process of their own, which is what finds these; the others
here, to save the time of a start for each.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_scenario import holdfast

EXAMPLES = Path(__file__).parent.parent / "examples"
PLAYBOOKS = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
LIMIT_SECONDS = 120
Command = Callable[..., tuple[int, Any]]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONDONTWRITEBYTECODE": "1",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a newcomer stands: the database and the files that are written are there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_a_process(*args: str) -> tuple[int, Any]:
    """The exit code, and what it said as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *args, "--json"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def here(*args: str) -> tuple[int, Any]:
    said = holdfast(None, *args, "--json")
    assert said.out, said
    return said.code, said.json


def run_example(name: str, *args: str, how: Command = here) -> dict[str, Any]:
    """An example that completes."""
    code, told = how("run", str(EXAMPLES / name), *args)
    assert (code, told["status"]) == (0, "completed"), told
    return told  # type: ignore[no-any-return]


def steps_of(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in told["steps"]}


@pytest.fixture
def service() -> Iterator[str]:
    """The flaky service on a free port, and how the examples are told of it."""
    command = [sys.executable, "-u", str(EXAMPLES / "flaky_service.py"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2].rstrip(".")
        yield f"base_url={address}"
    finally:
        process.kill()
        process.communicate()


def test_hello() -> None:
    assert run_example("hello.yaml", how=in_a_process)["result"] == "Hello, world!"
    assert run_example("hello.yaml", "--set", "name=Ada")["result"] == "Hello, Ada!"


def test_fetch_and_store_heals_at_the_third_attempt(service: str) -> None:
    told = run_example("fetch_and_store.yaml", "--set", service, how=in_a_process)
    assert told["result"] == {"file": "fruit.json", "rows": 3, "total": 14}
    assert steps_of(told)["fetch"]["attempts"] == 3
    assert [row["name"] for row in json.loads(Path("fruit.json").read_text())] == [
        "apples",
        "pears",
        "plums",
    ]


def test_fetch_and_store_fails_for_good_where_the_service_stays_down(service: str) -> None:
    path = str(EXAMPLES / "fetch_and_store.yaml")
    code, told = in_a_process("run", path, "--set", service, "--set", "page=down")
    assert (code, told["status"]) == (1, "failed")
    assert told["error"]["error_type"] == "service_unavailable"
    assert steps_of(told)["fetch"]["attempts"] == 3
    assert not Path("fruit.json").exists()


def test_branches_meet_again_without_the_one_that_was_not_taken() -> None:
    told = run_example("branches_and_joins.yaml")
    assert told["result"] == {"shipped": True, "invoice": "Ada owes 40", "paper": "red", "premium": 0}
    assert steps_of(told)["insure"]["status"] == "skipped"
    told = run_example("branches_and_joins.yaml", "--set", "price=900")
    assert told["result"]["premium"] == 18
    assert steps_of(told)["insure"]["status"] == "done"


def test_for_each_retries_elements_on_their_own(service: str) -> None:
    told = run_example("for_each.yaml", "--set", service)
    assert told["result"] == {"stations": 4, "warmest": "Porto"}
    assert steps_of(told)["weather"]["elements"] == {"total": 4, "done": 4}
    _, history = here("events", str(told["id"]))
    retried = [event["element"] for event in history["items"] if event["type"] == "step_retry"]
    assert sorted(retried) == [1, 3]


@pytest.mark.parametrize(
    ("card", "attempts", "result"),
    [
        ("declined", 1, {"sent": "The bank declined the card", "because_of": "card_declined"}),
        ("expired", 2, {"sent": "An unexpected error occurred", "because_of": "unknown"}),
        ("good", 1, {"sent": "a receipt"}),
    ],
)
def test_on_error(card: str, attempts: int, result: object) -> None:
    told = run_example("on_error.yaml", "--set", f"card={card}")
    assert told["result"] == result
    assert steps_of(told)["charge"]["attempts"] == attempts


def test_polling_asks_until_the_report_is_ready(service: str) -> None:
    told = run_example("polling.yaml", "--set", service, "--set", "pause=0.01")
    assert told["result"] == "The report has 12 pages."
    assert steps_of(told)["ask"]["visits"] == 3


def test_a_playbook_starts_another_one() -> None:
    code, added = here("catalog", "add", str(EXAMPLES / "invite_one.yaml"))
    assert (code, added["items"][0]["path"]) == (0, "examples/invite_one")
    told = run_example("invite_all.yaml")
    guests = ("Ada", "Grace", "Linus")
    assert told["result"] == {"letters": [f"Dear {guest}, come to the release party!" for guest in guests]}


def test_a_child_playbook_runs_alone_as_well() -> None:
    told = run_example("invite_one.yaml", "--set", "guest=Ada")
    assert told["result"] == "Dear Ada, come to a party!"


def test_sql_gives_the_same_when_it_is_run_again() -> None:
    for _ in range(2):
        told = run_example("sql.yaml")
        assert told["result"]["data"] == [{"rows": 2, "total": 11, "dearest": 7}]
    assert Path("example_sales.db").exists()


def test_shell_takes_values_as_they_are() -> None:
    assert run_example("shell.yaml")["result"]["data"] == "6 words: A STITCH IN TIME SAVES NINE"
    told = run_example("shell.yaml", "--set", "text=one two; echo three")
    assert told["result"]["data"] == "4 words: ONE TWO; ECHO THREE"


def test_a_playbook_of_noetl_v1_runs_as_it_is(service: str) -> None:
    told = run_example("noetl_v1.yaml", "--set", service)
    assert told["result"]["data"] == [{"prices": 3, "total": 161.0}]
    assert steps_of(told)["fetch_prices"]["attempts"] == 3


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_every_example_says_how_it_is_run_and_has_a_test(name: str) -> None:
    head = (EXAMPLES / name).read_text().split("\napiVersion", 1)[0]
    assert all(line.startswith("#") for line in head.splitlines() if line)
    assert f"holdfast run examples/{name}" in head
    assert f'"{name}"' in Path(__file__).read_text()
    assert f"({name})" in (EXAMPLES / "README.md").read_text()
