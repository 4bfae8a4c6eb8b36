"""`holdfast worker --app …`: a program that cannot be loaded is told with its own place, not with ours."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_scenario import Said, holdfast
from holdfast.cli.supervisor import Supervisor
from holdfast.cli.worker import load_app
from holdfast.core.errors import InvalidInput
from running import eventually, run
from store_scenario import ENVIRONMENT

LIMIT_SECONDS = 60


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    known, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def refused(app: str) -> Said:
    said = holdfast(None, "worker", "--app", app)
    assert said.code == 2 and "importlib" not in said.err and "cli/worker.py" not in said.err, said
    return said


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        ("x = 1\nif x\n    pass\n", "SyntaxError: expected ':'\n", 2),
        ("def f():\npass\n", "IndentationError: expected an indented block", 2),
        ("\n\nraise KeyError('missing')\n", "KeyError: 'missing'\n", 3),
        ("\nraise SystemExit(3)\n", "SystemExit: 3", 2),
        ("import json\njson.loads(1)\n", "TypeError: the JSON object must be", 2),
        ("\nimport nothing_like_it\n", "ModuleNotFoundError: No module named 'nothing_like_it'", 2),
        ("\nast = __import__('ast')\nast.literal_eval('1 +')\n", "SyntaxError: invalid syntax", 3),
    ],
)
def test_a_program_that_fails_at_its_import_is_told_with_its_line(
    folder: Path, code: str, words: str, line: int
) -> None:
    (folder / "broken_shop.py").write_text(code)
    said = refused("broken_shop:hf")
    assert f"broken_shop cannot be imported: {words}" in said.err
    assert f"See line {line} of {folder / 'broken_shop.py'}." in said.err


def test_a_mistake_in_a_module_that_it_imports_is_told_there(folder: Path) -> None:
    (folder / "shop_parts.py").write_text("\n\n1 / 0\n")
    (folder / "shop_main.py").write_text("import shop_parts\n")
    assert f"See line 3 of {folder / 'shop_parts.py'}." in refused("shop_main:hf").err


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("hf = Holdfast('mysql://db/shop')", "mysql"),
        ("hf = Holdfast()\nhf.pipeline('p', [])", "p"),
        ("hf = Holdfast()\nhf.step(retry=Retry(max_attempts=0))", "max_attempts"),
    ],
)
def test_what_holdfast_refuses_in_a_program_keeps_its_words_and_gets_a_place(
    folder: Path, mistake: str, words: str
) -> None:
    code = f"from holdfast import Holdfast, Retry\n{mistake}\n"
    (folder / "refused_shop.py").write_text(code)
    with pytest.raises(Exception, match=words) as own:
        exec(code, {})  # the same, without the command
    said = refused("refused_shop:hf")
    assert f"refused_shop cannot be imported: {own.value}" in said.err
    assert own.value.guidance in said.err  # type: ignore[attr-defined]
    assert f". See line {code.count(chr(10))} of {folder / 'refused_shop.py'}." in said.err
    assert "StoreUrlInvalid" not in said.err


def test_an_installed_program_is_told_with_its_line_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "installed_shop.py").write_text(
        "from holdfast import Holdfast\nhf = Holdfast('no address')\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    assert f"See line 2 of {installed / 'installed_shop.py'}." in refused("installed_shop:hf").err


@pytest.mark.parametrize(
    ("app", "advice"),
    [
        ("./jobs:hf", "Write --app jobs:hf."),
        ("jobs.py:app", "Write --app jobs:app."),
        ("jobs.py", "Write --app jobs:hf."),
        ("./shop/jobs.py:hf", "Write --app shop.jobs:hf."),
        (".jobs:hf", "Write --app jobs:hf."),
        ("../jobs.py:hf", "Start the worker in .. and write --app jobs:hf."),
        ("/srv/shop/jobs.py:hf", "Start the worker in /srv/shop and write --app jobs:hf."),
        (".:hf", "Write --app shop.jobs:hf."),
    ],
)
def test_a_file_is_answered_with_the_name_of_its_module(folder: Path, app: str, advice: str) -> None:
    (folder / "jobs.py").write_text("raise SystemExit('it must not be run')")
    assert (
        refused(app).err == f"holdfast: --app {app} names a file; it takes the module's name.\n  {advice}\n"
    )


def test_a_file_in_this_folder_by_its_whole_path_is_named_from_here(folder: Path) -> None:
    assert "Write --app shop.jobs:hf." in refused(f"{folder}/shop/jobs.py:hf").err


def test_ageing_reaches_the_worker_and_is_off_unless_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "aged_shop.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    used: list[object] = []
    monkeypatch.setattr(
        "holdfast.Holdfast.run_worker", lambda self, **options: used.append(options["ageing"])
    )
    for options in ([], ["--ageing", "10m"]):
        assert holdfast(None, "worker", "--app", "aged_shop:hf", *options).code == 0
    assert used == [None, 600.0]
    for wrong, words in (("0s", "ageing must be longer than 0 seconds"), ("soon", "ageing cannot be 'soon'")):
        said = holdfast(None, "worker", "--app", "aged_shop:hf", "--ageing", wrong)
        assert said.code == 2 and words in said.err, said


def test_the_database_is_the_options_then_the_programs_then_the_environments(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own_shop.py").write_text("from holdfast import Holdfast\nhf = Holdfast('sqlite:///own.db')\n")
    (folder / "any_shop.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    used: list[str] = []
    monkeypatch.setattr("holdfast.Holdfast.run_worker", lambda self, **_: used.append(self.url))
    told_elsewhere = {"HOLDFAST_DB": "sqlite:///environment.db"}
    for url, app in (
        ("sqlite:///option.db", "own_shop:hf"),
        (None, "own_shop:hf"),
        (None, "any_shop:hf"),
        ("sqlite:///option.db", "any_shop:hf"),
    ):
        for name in ("own_shop", "any_shop"):
            sys.modules.pop(name, None)
        assert holdfast(url, "worker", "--app", app, **told_elsewhere).code == 0
    assert used == [
        *("sqlite:///option.db", "sqlite:///own.db"),
        *("sqlite:///environment.db", "sqlite:///option.db"),
    ]
    assert "HOLDFAST_DB" in holdfast(None, "worker", "--help").out


def test_a_loaded_program_is_given_as_it_is(folder: Path) -> None:
    (folder / "good_shop.py").write_text("from holdfast import Holdfast\nclass Box:\n    hf = Holdfast()\n")
    assert load_app("good_shop:Box.hf") is sys.modules["good_shop"].Box.hf
    with pytest.raises(InvalidInput, match="is not a Holdfast object"):
        load_app("good_shop:Box")


def test_a_supervisor_says_that_its_workers_cannot_start(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "--app", "nowhere:hf", "--processes", "2"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 2
    reason, verdict = "There is no module nowhere.", "A worker cannot start: see above."
    assert 0 <= ended.stderr.index(reason) < ended.stderr.index(verdict), ended.stderr
    assert "1 worker processes" not in ended.stderr and "0 worker processes" not in ended.stderr


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (1, "Stopping 1 worker process. Another signal ends it at once."),
        (2, "Stopping 2 worker processes. Another signal ends them at once."),
    ],
)
def test_a_supervisor_counts_what_it_stops(
    processes: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.supervisor")
    endless = [sys.executable, "-c", "import threading; threading.Event().wait()"]

    async def main() -> int:
        reading, writing = os.pipe()
        try:
            supervisor = Supervisor(endless, processes, grace_seconds=LIMIT_SECONDS, lifeline=reading)
            supervising = asyncio.create_task(supervisor.run())
            await eventually(lambda: caplog.text.count("started.") == processes)
            os.close(writing)
            return await supervising
        finally:
            os.close(reading)

    assert run(main()) == 0
    assert words in caplog.messages
