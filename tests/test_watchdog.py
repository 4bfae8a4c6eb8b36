"""A test that hangs is named, and what it waited for with it."""

import subprocess
import sys
from pathlib import Path

import pytest

import watchdog

HANGS = """
import asyncio

async def wait_for_nobody():
    await asyncio.Event().wait()

async def stubborn():
    while True:
        try:
            await wait_for_nobody()
        except asyncio.CancelledError:
            pass

async def scenario():
    asyncio.create_task(stubborn())
    await asyncio.sleep(0)

def test_before(): ...

def test_never_ends():
    asyncio.run(scenario())
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_hangs_is_named_with_all_that_it_waited_for(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntest_seconds_max = 10\n")
    found_in = str(Path(watchdog.__file__).parent)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.append({found_in!r})\npytest_plugins = ['watchdog']\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", processes, "-p", "no:cacheprovider", "--maxfail=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == (watchdog.EXIT_CODE if processes == "0" else 1)
    assert "test_hangs.py::test_never_ends has not ended within 10 s." in ended.stderr
    assert "in stubborn" in ended.stderr and "in wait_for_nobody" in ended.stderr
    if processes == "2":
        assert "crashed while running 'test_hangs.py::test_never_ends'" in ended.stdout
