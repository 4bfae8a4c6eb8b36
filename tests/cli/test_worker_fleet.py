"""`holdfast worker --executor celery`: what is refused, with what to do, before anything is leased."""

import subprocess
import sys

import pytest

from command_scenario import holdfast
from holdfast import celery as fleet_side
from holdfast.core.errors import InvalidInput
from store_scenario import ENVIRONMENT

BROKER = "redis://127.0.0.1:1/0"
FLEET = ("worker", "--executor", "celery")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (FLEET, "--executor celery needs the fleet's broker"),
        (("worker", "--broker", BROKER), "--broker belongs to a Celery fleet: add --executor celery."),
        (("worker", "--queue", "shop"), "--queue belongs to a Celery fleet: add --executor celery."),
        (("worker", "--resend", "5s"), "--resend belongs to a Celery fleet: add --executor celery."),
        ((*FLEET, "--broker", BROKER, "--processes", "2"), "--processes does not go with --executor celery"),
        ((*FLEET, "--broker", BROKER, "--queue", "a b"), "'a b' cannot begin the name of a queue."),
        ((*FLEET, "--broker", "carrier://pigeon"), "does not name a broker that Celery can use here"),
    ],
)
def test_a_command_that_cannot_work_is_refused(sqlite_url: str, options: tuple[str, ...], words: str) -> None:
    said = holdfast(sqlite_url, *options, HOLDFAST_BROKER=None)
    assert said.code == 2 and words in said.err, said


def test_without_celery_it_says_what_to_install(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celery", None)
    said = holdfast(sqlite_url, *FLEET, HOLDFAST_BROKER=BROKER)
    assert said.code == 2 and "pip install 'holdfast[celery]'" in said.err, said


def test_the_password_of_a_broker_is_never_shown(sqlite_url: str) -> None:
    for address in (
        "carrier://ann:hunter2@pigeon/0",
        "carrier://:hunter2@pigeon",
        "carrier://p?password=hunter2",
    ):
        said = holdfast(sqlite_url, *FLEET, "--broker", address)
        assert said.code == 2 and "hunter2" not in said.err + said.out and "***" in said.err, said


def test_holdfast_is_there_without_celery() -> None:
    """It is neither imported nor needed by anything else."""
    code = (
        "import sys; sys.modules['celery'] = sys.modules['kombu'] = None;"
        " import holdfast, holdfast.cli.worker, holdfast.working, holdfast.fleet.runner"
    )
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True, timeout=60)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "HOLDFAST_BROKER does not name a broker"),
        ({"HOLDFAST_BROKER": BROKER, "HOLDFAST_QUEUE": "a b"}, "cannot begin the name of a queue"),
        ({"HOLDFAST_BROKER": BROKER, "HOLDFAST_ALLOW": "code,everything"}, "cannot allow everything"),
        ({"HOLDFAST_BROKER": BROKER, "HOLDFAST_APP": "no_such_shop:hf"}, "There is no module no_such_shop"),
    ],
)
def test_an_environment_that_makes_no_app_is_refused(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_BROKER", "HOLDFAST_QUEUE", "HOLDFAST_ALLOW", "HOLDFAST_APP", "HOLDFAST_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=words):
        _ = fleet_side.app


def test_install_takes_a_celery_app_and_a_holdfast() -> None:
    with pytest.raises(InvalidInput, match="Holdfast object"):
        fleet_side.install(fleet_side.Celery("shop"), "hf")  # type: ignore[arg-type]
