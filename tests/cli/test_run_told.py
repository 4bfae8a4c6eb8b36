"""What `holdfast run` says to whoever reads along: pure JSON, children and elements counted right, leases of
lost processes, and advice that works."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_scenario import LIMIT_SECONDS, Said, holdfast, on_a_terminal, told
from engine_scenario import Scenario, on_both_stores, ref, stage
from holdfast.cli.run_leases import LOOK_SECONDS, Leases
from holdfast.cli.run_story import Story
from playbook_files import CHAIN, playbook, written
from store_scenario import ENVIRONMENT

TALKING = """
import atexit, os, subprocess, sys
print("at import", flush=True)
atexit.register(print, "at exit")
kept = sys.stdout

def talk():
    print("printed")
    kept.write("written")
    os.write(1, b"raw\\n")
    subprocess.run(["echo", "from a child"], check=True)
    return 7
"""


def command(*args: object, **options: Any) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, args)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **options},
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


# JSON


@pytest.fixture
def talking(tmp_path: Path) -> str:
    (tmp_path / "talking_of_run_test.py").write_text(TALKING)
    steps = "  - step: talk\n    type: python\n    call: talking_of_run_test:talk\n"
    return written(tmp_path, playbook(steps))


def test_json_is_all_there_is_on_stdout_whatever_functions_print(sqlite_url: str, talking: str) -> None:
    said = command("run", talking, "--json", "--db", sqlite_url)
    assert (said.code, said.json["result"]) == (0, 7), said
    for words in ("at import", "printed", "written", "raw", "from a child", "at exit"):
        assert words in said.err
    plain = command("run", talking, "--db", sqlite_url)
    assert "from a child" in plain.out and "at import" in plain.out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("option", ["", "--json"])
def test_a_stream_that_is_closed_is_no_place_for_a_database(
    sqlite_url: str, talking: str, closed: str, option: str
) -> None:
    words = [
        sys.executable,
        "-m",
        "holdfast",
        "run",
        talking,
        "--db",
        sqlite_url,
        *([option] if option else []),
    ]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *words],
        capture_output=True,
        env=ENVIRONMENT,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert holdfast(sqlite_url, "status", "1", "--json").json["status"] == "completed"
    assert holdfast(sqlite_url, "doctor").code == 0


def test_json_of_a_refusal_is_all_there_is_on_stdout(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "broken_of_run_test.py").write_text("print('at import')\nraise ValueError('no')\n")
    steps = "  - step: a\n    type: python\n    call: broken_of_run_test:f\n"
    said = command("run", written(tmp_path, playbook(steps)), "--json", "--db", sqlite_url)
    assert said.code == 2 and "cannot be imported" in said.json["error"]["message"]
    assert "at import" in said.err


def test_json_needs_no_stderr(sqlite_url: str, talking: str) -> None:
    quiet = f'exec "{sys.executable}" -m holdfast run "{talking}" --json --db "{sqlite_url}" 2>&-'
    done = subprocess.run(
        ["sh", "-c", quiet],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0 and json.loads(done.stdout)["result"] == 7


def test_a_result_is_json_on_a_narrow_terminal_too(sqlite_url: str, tmp_path: Path) -> None:
    steps = (
        "  - step: a\n    type: python\n    code: |\n      def main():\n          return 'many words ' * 40\n"
    )
    code, shown = on_a_terminal(sqlite_url, "run", written(tmp_path, playbook(steps)))
    assert code == 0 and f'"{"many words " * 40}"' in shown


# children


def test_each_attempt_of_a_step_shows_its_own_child(sqlite_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = f"""
  - step: inner
    type: shell
    shell: true
    command: "echo >> '{log}'; test $(wc -l < '{log}') -gt 2 || {{ echo connection refused >&2; exit 1; }}"
"""
    parent = """
  - step: outer
    type: playbook
    path: tests/child
    retry: {max_attempts: 3, delays: [0.01]}
"""
    holdfast(
        sqlite_url, "catalog", "add", written(tmp_path, playbook(child, path="tests/child"), "child.yaml")
    )
    file = written(tmp_path, playbook(parent))
    said = holdfast(sqlite_url, "run", file)
    assert said.code == 0, said
    assert len(re.findall(r"outer/inner +starts\n", said.out)) == 3
    assert len(re.findall(r"outer/inner +failed: ", said.out)) == 2
    assert len(re.findall(r"outer/inner +done\n", said.out)) == 1
    log.unlink()
    code, shown = on_a_terminal(sqlite_url, "run", file)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    last = last[last.rindex("✔ outer") :]
    assert code == 0 and re.match(r"✔ outer +healed at attempt 3/3\r\n✔ +┊ inner\r\n", last), last


# elements


FAN = """
  - step: fan
    type: python
    call: fan_of_run_test:work
    for_each: {items: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], concurrency: 1, fail_fast: true}
    with: {n: "{{ item }}", sign: "{{ workload.sign }}"}
"""


def test_a_fan_counts_what_was_not_run_and_what_was_done_before(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "fan_of_run_test.py").write_text(
        "import os\n\ndef work(n, sign):\n"
        "    if n == 2 and not os.path.exists(sign):\n        raise ConnectionError('no')\n    return n\n"
    )
    sign = tmp_path / "sign"
    file = written(tmp_path, playbook(FAN, workload=f"{{sign: '{sign}'}}"))
    said = command("run", file, "--json", "--db", sqlite_url)
    assert said.code == 1
    [fan] = said.json["steps"]
    assert fan["elements"] == {"total": 12, "done": 2, "failed": 1, "not_run": 9}
    shown = holdfast(sqlite_url, "status", 1)
    assert re.search(r"^fan +made the list: 12 +1/1", shown.out, re.M) and "skipped" not in shown.out
    sign.touch()
    said = command("run", file, "--resume", 1, "--json", "--db", sqlite_url)
    [fan] = said.json["steps"]
    assert (said.code, fan["attempts"], fan["elements"]) == (0, 1, {"total": 12, "done": 12})
    failed = holdfast(sqlite_url, "status", 1).out.partition("Failed attempts")[2]
    assert re.search(r" fan\[2\] +1 +connection_error", failed)


# what another process holds


ASLEEP = {"type": "sleep", "handler": "type/sleep", "config": {"seconds": 0}}


@on_both_stores
async def test_the_lease_of_another_process_is_told_until_it_is_renewed(s: Scenario) -> None:
    await s.define(stage("a", attempts=2, **ASLEEP))
    execution_id = await s.submit()
    job = await s.lease_one(worker="gone")
    story = Story(execution_id, s._defined[0])
    for event in await s.events(execution_id):
        story.tell(event)
    assert await Leases(s.engine, "gone").look(story, s.now + LOOK_SECONDS) == []  # ours
    leases = Leases(s.engine, "own")
    assert await leases.look(story, s.now) == []  # it has only just begun
    s.tick(LOOK_SECONDS)
    [line] = await leases.look(story, s.now)
    assert line.step == "a" and "is held by another process, gone, which may be lost." in line.text
    assert line.text.endswith("it is tried again by itself.")
    work = story.steps["a"].work
    assert work.lease is not None and not work.lease.is_renewed
    s.tick(LOOK_SECONDS)
    await s.engine.heartbeat([ref(job)])
    assert await leases.look(story, s.now) == [] and work.lease.is_renewed


def test_a_resumed_run_says_that_another_process_holds_its_step(sqlite_url: str) -> None:
    async def lost(s: Scenario) -> None:
        await s.define(stage("a", attempts=1, **ASLEEP))
        await s.submit()
        await s.lease_one(worker="gone")

    told(sqlite_url, lost)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "holdfast", "run", "--resume", "1", "--db", sqlite_url],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "held by another process" in line)
        assert "gone, which may be lost" in line and "resume it once more" in line
    finally:
        process.kill()
        process.communicate()


# advice


LOOP = """
  - step: poll
    type: shell
    command: [echo, waiting]
    max_visits: 2
    next: [{step: poll, when: "{{ poll.data != 'ready' }}"}]
"""
TEMPLATE = """
  - step: first
    type: shell
    command: [echo, "{}"]
    next: second
  - step: second
    type: shell
    command: [echo, "{{ first.data.missing }}"]
"""
CONDITION = """
  - step: first
    type: shell
    command: [echo, "{}"]
    next: [{step: second, when: "{{ first.data.missing.more == 1 }}"}]
  - step: second
"""


@pytest.mark.parametrize("steps", [LOOP, TEMPLATE, CONDITION])
def test_no_retry_is_advised_that_can_only_fail_again(sqlite_url: str, tmp_path: Path, steps: str) -> None:
    said = holdfast(sqlite_url, "run", written(tmp_path, playbook(steps)))
    assert said.code == 1 and "A retry would end in the same way" in said.err
    resumed = holdfast(sqlite_url, "run", "--resume", 1)
    assert resumed.code == 2 and "A retry would end in the same way" in resumed.err
    shown, retried = holdfast(sqlite_url, "status", 1), holdfast(sqlite_url, "retry", 1)
    assert not any("--force" in err for err in (said.err, resumed.err, shown.err, retried.err))
    again = holdfast(sqlite_url, "retry", 1, "--force")
    assert again.code == 0 and holdfast(sqlite_url, "run", "--resume", 1).code == 1  # as it was said


def test_the_mistake_of_a_child_is_retried_with_its_corrected_playbook(
    sqlite_url: str, tmp_path: Path
) -> None:
    def add(source: str) -> None:
        holdfast(
            sqlite_url, "catalog", "add", written(tmp_path, playbook(source, path="tests/child"), "c.yaml")
        )

    add(TEMPLATE)
    parent = playbook("  - step: call\n    type: playbook\n    path: tests/child\n")
    said = holdfast(sqlite_url, "run", written(tmp_path, parent))
    assert said.code == 1 and "holdfast retry 1 --force" in said.err
    add(TEMPLATE.replace("first.data.missing", "first.stdout"))
    assert holdfast(sqlite_url, "retry", 1, "--force").code == 0
    assert holdfast(sqlite_url, "run", "--resume", 1).code == 0


def test_a_refused_resume_says_what_to_type_and_when(sqlite_url: str, tmp_path: Path) -> None:
    steps = (
        "  - step: a\n    type: python\n    code: |\n      def main():\n          raise ValueError('no')\n"
    )
    assert holdfast(sqlite_url, "run", written(tmp_path, playbook(steps))).code == 1
    resume = f"holdfast run --resume 1 --db {sqlite_url}"
    said = holdfast(sqlite_url, "run", "--resume", 1)
    assert said.code == 2 and "will not help" in said.err
    assert said.err.endswith(f":\n  holdfast retry 1 --force --db {sqlite_url} && {resume}\n")
    assert holdfast(sqlite_url, "retry", 1, "--force").code == 0
    assert holdfast(sqlite_url, "run", "--resume", 1).code == 1
    early = holdfast(sqlite_url, "retry", 1, "--force", "--json").json["error"]
    typed = re.escape(f"holdfast retry 1 --force --db {sqlite_url}")
    assert early["code"] == "cooldown"
    assert re.fullmatch(rf"In \d+ seconds, at [-0-9 :]+, type:\n  {typed}", early["guidance"])


def test_a_resume_that_comes_too_early_says_when_to_type_it_again(sqlite_url: str, tmp_path: Path) -> None:
    steps = "  - {step: a, type: shell, command: [sh, -c, 'echo connection refused >&2; exit 1']}\n"
    assert holdfast(sqlite_url, "run", written(tmp_path, playbook(steps))).code == 1
    assert holdfast(sqlite_url, "run", "--resume", 1).code == 1
    said = holdfast(sqlite_url, "run", "--resume", 1)
    typed = re.escape(f"holdfast run --resume 1 --db {sqlite_url}")
    assert said.code == 2 and re.search(rf"In \d+ seconds, at [-0-9 :]+, type:\n  {typed}\n$", said.err), said


def test_a_retry_from_a_stage_of_a_graph_says_that_stage(sqlite_url: str, tmp_path: Path) -> None:
    steps = """
  - {step: a, type: shell, command: [echo, a], next: [b, c]}
  - {step: b, type: shell, command: [echo, b], next: d}
  - {step: c, type: shell, command: [sh, -c, 'echo connection refused >&2; exit 1'], next: d}
  - {step: d, type: shell, command: [echo, d]}
"""
    file = written(tmp_path, playbook(steps))
    for _ in range(2):
        assert holdfast(sqlite_url, "run", file).code == 1
    said = holdfast(sqlite_url, "retry", 1, "--from", "b", "--json")
    assert (said.code, said.json["from_stage"]) == (0, "b")
    assert "runs again from c " in holdfast(sqlite_url, "retry", 2).out


def test_a_field_that_a_playbook_does_not_have_is_not_submitted(store_url: str, tmp_path: Path) -> None:
    file = written(tmp_path, CHAIN)
    holdfast(store_url, "catalog", "add", file)
    said = holdfast(store_url, "submit", "tests/flow", "--set", "woh=bob")
    assert said.code == 2 and "Did you mean 'who'?" in said.err and "--workload" in said.err
    assert holdfast(store_url, "submit", "tests/flow", "--set", "who=bob").code == 0
    more = ("--workload", '{"more": 1}', "--set", "more=2", "--set", "deep.left=3")
    assert holdfast(store_url, "submit", "tests/flow", *more).code == 0
    workload = holdfast(store_url, "status", 2, "--json").json["workload"]
    assert workload == {"who": "ann", "times": 2, "deep": {"left": 3, "right": 2}, "more": 2}
    assert holdfast(store_url, "submit", "tests/nothing", "--set", "a=1").code == 2
