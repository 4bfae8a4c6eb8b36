"""`holdfast run`: a playbook to its end, what it prints, what it refuses, and how it is gone on with."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_scenario import LIMIT_SECONDS, Said, holdfast, on_a_terminal, told
from engine_scenario import Scenario, stage
from playbook_files import BROKEN, CHAIN, playbook, written
from scripted_server import ScriptedServer
from store_scenario import ENVIRONMENT

FETCH = """
  - step: fetch
    type: http
    url: "{{ workload.url }}/flaky"
    retry: {max_attempts: 3, delays: [0.01]}
    next:
      - step: store
        when: "{{ fetch.data.ok }}"
        with: {rows: "{{ fetch.data.rows }}"}
      - step: end
        when: "{{ not fetch.data.ok }}"
  - step: store
    type: python
    code: |
      def main(input_data):
          return {"stored": len(input_data["rows"])}
    next: end
  - step: end
"""


@pytest.fixture
def fetch(tmp_path: Path) -> str:
    return written(tmp_path, playbook(FETCH, workload="{url: 'http://127.0.0.1:1'}"))


def flaky(server: ScriptedServer, *statuses: int) -> None:
    for status in statuses:
        server.answer("/flaky", status, json={"ok": True, "rows": [1, 2, 3]} if status == 200 else None)


# what it prints


def test_a_run_is_told_line_by_line_and_ends_with_its_result(sqlite_url: str, fetch: str) -> None:
    with ScriptedServer() as server:
        flaky(server, 503, 503, 200)
        said = holdfast(sqlite_url, "run", fetch, "--set", f"url={server.url}")
    assert said.code == 0, said
    failed = re.findall(r"fetch +attempt (\d)/3 failed: Processing service unavailable .*503", said.out)
    assert failed == ["1", "2"] and said.out.count("Retrying in 0.01 s.") == 2
    assert re.search(r"fetch +done, healed at attempt 3/3\n", said.out)
    assert re.search(r"store +starts\n.*store +done\n", said.out)
    assert "Execution 1 of tests/flow completed in" in said.out
    assert said.out.endswith('Result\n{\n  "stored": 3\n}\n\n')
    assert "holdfast status 1 --db sqlite:///" in said.err
    shown = holdfast(sqlite_url, "status", 1, "--json").json
    assert (shown["status"], shown["result"], shown["lane"]) == ("completed", {"stored": 3}, "manual")
    assert holdfast(sqlite_url, "catalog", "show", "tests/flow").out == Path(fetch).read_text()


def test_a_run_ends_as_json_and_nothing_else(sqlite_url: str, fetch: str) -> None:
    with ScriptedServer() as server:
        flaky(server, 503, 200)
        said = holdfast(sqlite_url, "run", fetch, "--set", f"url={server.url}", "--json")
    record = said.json
    assert (said.code, record["id"], record["status"]) == (0, 1, "completed")
    assert (record["path"], record["version"], record["result"]) == ("tests/flow", 1, {"stored": 3})
    assert record["error"] is None
    assert [(item["step"], item["type"], item["status"], item["attempts"]) for item in record["steps"]] == [
        ("fetch", "http", "done", 2),
        ("store", "python", "done", 1),
        ("end", "control", "done", 0),
    ]


def test_a_failure_is_told_in_plain_words_with_what_to_type(sqlite_url: str, fetch: str) -> None:
    with ScriptedServer() as server:
        flaky(server, 503)
        said = holdfast(sqlite_url, "run", fetch, "--set", f"url={server.url}")
        assert said.code == 1, said
        assert "That was the last attempt." in said.out
        assert "Execution 1 of tests/flow failed at fetch after" in said.out
        assert re.search(r"^what +Processing service unavailable\.$", said.out, re.M)
        assert re.search(r"^do +.*Retry it later", said.out, re.M)
        # The file is named, because its functions are looked for beside it.
        assert f"holdfast run {fetch} --resume 1 --db {sqlite_url}" in said.err
        record = holdfast(sqlite_url, "run", fetch, "--set", f"url={server.url}", "--json")
    assert (record.code, record.json["status"], record.json["result"]) == (1, "failed", None)
    assert record.json["error"]["error_type"] == "service_unavailable"
    steps = {item["step"]: item for item in record.json["steps"]}
    assert steps["fetch"]["status"] == "failed" and steps["fetch"]["error"]["category"] == "transient"
    assert steps["store"]["status"] == "not_reached"


def test_a_permanent_error_says_that_it_must_be_forced(sqlite_url: str, fetch: str) -> None:
    with ScriptedServer() as server:
        said = holdfast(sqlite_url, "run", fetch, "--set", f"url={server.url}")
    assert said.code == 1 and "Not retried: permanent." in said.out
    assert "holdfast retry 1 --force" in said.err
    assert "A corrected playbook is run anew" in said.err
    again = holdfast(sqlite_url, "run", "--resume", 1)
    assert again.code == 2 and "will not help" in again.err


def test_mistakes_in_inline_code_are_told_with_their_line(sqlite_url: str, tmp_path: Path) -> None:
    steps = """
  - step: bad
    type: python
    code: |
      def main(input_data):
          print("so far")
          return {}["missing"]
"""
    said = holdfast(sqlite_url, "run", written(tmp_path, playbook(steps)))
    assert said.code == 1
    assert "KeyError: 'missing'" in said.out and "<code of step bad>:3 in main" in said.out
    assert "holdfast/steps" not in said.out and "so far" in said.out


def test_loops_fans_and_handlers_are_told(sqlite_url: str, tmp_path: Path) -> None:
    steps = """
  - step: fan
    type: python
    for_each: {items: [1, 2, 3, 4]}
    on_error: alarm
    retry: {max_attempts: 2, delays: [0.01]}
    code: |
      def main(input_data):
          if input_data["n"] == 2 and input_data["attempt"] == 1:
              raise TimeoutError("slow")
          if input_data["n"] == 4:
              raise ValueError("four is too many")
    with: {n: "{{ item }}", attempt: "{{ attempt }}"}
    next: never
  - step: never
  - step: alarm
    type: python
    max_visits: 3
    code: |
      def main(input_data):
          return input_data.get("n", 0) + 1
    next: [{step: alarm, when: "{{ result < 3 }}", with: {n: "{{ result }}"}}]
"""
    said = holdfast(sqlite_url, "run", written(tmp_path, playbook(steps)))
    assert said.code == 0, said
    assert re.search(r"fan +4 to do\n", said.out)
    assert re.search(r"fan\[1\] +attempt 1/2 failed: Processing timed out", said.out)
    assert re.search(r"fan\[1\] +healed at attempt 2/2\n", said.out)
    assert re.search(r"fan\[3\] .*four is too many.* Not retried: permanent", said.out)
    assert re.search(r"alarm +visit 3\n", said.out)
    assert said.out.endswith("Result\n3\n\n")
    record = holdfast(sqlite_url, "run", written(tmp_path, playbook(steps)), "--json").json
    fan, never, alarm = record["steps"]
    assert (fan["status"], fan["elements"]) == ("failed", {"total": 4, "done": 3, "failed": 1})
    assert (never["status"], alarm["status"], alarm["visits"]) == ("skipped", "done", 3)
    stages = holdfast(sqlite_url, "status", 1).out
    assert re.search(r"^fan\[3\] +dead, permanent", stages, re.M) and re.search(
        r"^alarm \(3\) +done", stages, re.M
    )
    events = holdfast(sqlite_url, "events", 1).out
    assert "fan[1] " in events and "alarm (2) " in events
    assert re.search(r" fan\[0\] +done", holdfast(sqlite_url, "queue").out)


def test_a_thousand_elements_are_counted_and_not_listed(sqlite_url: str, tmp_path: Path) -> None:
    steps = """
  - step: fan
    type: http
    url: "{{ workload.url }}/x"
    for_each: "{{ workload.items }}"
"""
    file = written(tmp_path, playbook(steps, workload=f"{{url: '', items: {json.dumps(list(range(50)))}}}"))
    with ScriptedServer() as server:
        server.answer("/x", 200, "y")
        said = holdfast(sqlite_url, "run", file, "--set", f"url={server.url}")
    assert said.code == 0 and re.search(r"fan +done: 50 of 50\n", said.out)
    assert len(re.findall(r"^ +[0-9.]+s  ", said.out, re.M)) < 10
    stages = holdfast(sqlite_url, "status", 1).out
    assert re.search(r"^fan\[…\] +50 done$", stages, re.M) and "fan[7]" not in stages


def test_a_child_is_told_below_its_step(sqlite_url: str, tmp_path: Path) -> None:
    parent = playbook("  - step: call\n    type: playbook\n    path: tests/child\n    with: {who: bob}\n")
    child = CHAIN.replace("tests/flow", "tests/child")
    missing = holdfast(sqlite_url, "run", written(tmp_path, parent))
    assert (
        missing.code == 2
        and "starts tests/child, which" in missing.err
        and "holdfast catalog add" in missing.err
    )
    holdfast(sqlite_url, "catalog", "add", written(tmp_path, child, "child.yaml"))
    said = holdfast(sqlite_url, "run", written(tmp_path, parent))
    assert said.code == 0, said
    assert re.search(r"call/count +done\n", said.out) and '"chars": 9' in said.out


# what is given to it


def test_fields_are_set_over_the_playbooks_own(sqlite_url: str, tmp_path: Path) -> None:
    file = written(tmp_path, CHAIN)
    said = holdfast(sqlite_url, "run", file, "--set", "who=bobby", "--set", "deep.left=[1, true]", "--json")
    assert said.json["result"] == {"chars": 11, "deep": {"left": [1, True], "right": 2}}
    said = holdfast(
        sqlite_url, "run", file, "--workload", '{"who": "x", "more": 1}', "--set", "more=2", "--json"
    )
    assert said.json["result"]["chars"] == 7
    workload = holdfast(sqlite_url, "status", 2, "--json").json["workload"]
    assert (workload["more"], workload["times"]) == (2, 2)
    said = holdfast(sqlite_url, "run", file, "--workload", '{"deep": {"left": 5}}', "--json")
    assert said.json["result"]["deep"] == {"left": 5, "right": 2}


def test_a_field_that_the_playbook_does_not_have_is_a_slip(sqlite_url: str, tmp_path: Path) -> None:
    said = holdfast(sqlite_url, "run", written(tmp_path, CHAIN), "--set", "woh=bob")
    assert said.code == 2 and "Did you mean 'who'?" in said.err and "--workload" in said.err
    free = CHAIN.replace("workload: {who: ann, times: 2, deep: {left: 1, right: 2}}\n", "").replace(
        "{{ workload.deep }}", "1"
    )
    said = holdfast(sqlite_url, "run", written(tmp_path, free), "--set", "who=x", "--json")
    assert said.json["result"]["chars"] == 7


def test_functions_come_from_the_folder_of_the_file(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "steps_of_run_test.py").write_text("def double(n):\n    return {'twice': 2 * n}\n")
    steps = "  - step: double\n    type: python\n    call: steps_of_run_test:double\n    with: {n: 21}\n"
    done = command("run", written(tmp_path, playbook(steps)), "--db", sqlite_url, "--json")
    assert done.code == 0 and done.json["result"] == {"twice": 42}


# what it refuses


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.yaml"], "There is no such file"),
        (["broken.yaml"], "broken.yaml:6: "),
        (["good.yaml", "--set", "who"], "is not KEY=VALUE"),
        (["good.yaml", "--workload", "{"], "is not JSON"),
        (["good.yaml", "--workload", "[1]"], "is an object"),
        (["call.yaml"], "There is no module not_there_at_all"),
        ([], "Name the file"),
        (["good.yaml", "--resume", "1", "--dry-run"], "--resume"),
        (["good.yaml", "--db", "nonsense"], "nonsense"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, CHAIN, "good.yaml")
    written(tmp_path, BROKEN, "broken.yaml")
    call = "  - step: a\n    type: python\n    call: not_there_at_all:f\n"
    written(tmp_path, playbook(call), "call.yaml")
    said = holdfast(None, "run", *arguments)
    assert said.code == 2 and said.out == "" and words in said.err, said
    if Path("holdfast.db").exists():  # made to look for playbooks that this one starts
        assert holdfast(None, "catalog", "list").out == "The catalog is empty.\n"
    as_json = holdfast(None, "run", *arguments, "--json")
    assert as_json.code == 2 and words in as_json.json["error"]["message"]


def test_code_of_a_file_of_ones_own_runs_also_where_others_work(postgres_url: str, tmp_path: Path) -> None:
    assert holdfast(postgres_url, "run", written(tmp_path, CHAIN), "--json").json["status"] == "completed"
    shell = written(tmp_path, playbook("  - step: a\n    type: shell\n    command: [echo, hello]\n"))
    assert holdfast(postgres_url, "run", shell, "--json").json["result"]["data"] == "hello"


@pytest.mark.parametrize(
    ("step", "what", "flag"),
    [
        ("type: shell\n    command: [echo, hello]", "shell commands", "--allow-shell"),
        ("type: python\n    code: 'def main(): return 1'", "inline code", "--allow-code"),
    ],
)
def test_code_of_children_must_be_allowed_by_name_where_others_work(
    postgres_url: str, tmp_path: Path, step: str, what: str, flag: str
) -> None:
    child = playbook(f"  - step: a\n    {step}\n", path="tests/child")
    holdfast(postgres_url, "catalog", "add", written(tmp_path, child, "child.yaml"))
    parent = playbook("  - step: p\n    type: playbook\n    path: tests/child\n", path="tests/parent")
    file = written(tmp_path, parent, "parent.yaml")
    said = holdfast(postgres_url, "run", file)
    assert said.code == 2 and what in said.err and flag in said.err
    assert holdfast(postgres_url, "run", file, flag, "--json").json["status"] == "completed"


def test_functions_that_only_the_database_names_must_be_allowed_where_others_work(
    postgres_url: str, tmp_path: Path
) -> None:
    called = "  - step: a\n    type: python\n    call: subprocess:getoutput\n    with: {cmd: echo hello}\n"
    child = written(tmp_path, playbook(called, path="tests/child"), "child.yaml")
    holdfast(postgres_url, "catalog", "add", child)
    parent = playbook("  - step: p\n    type: playbook\n    path: tests/child\n", path="tests/parent")
    file = written(tmp_path, parent, "parent.yaml")
    said = holdfast(postgres_url, "run", file)
    assert said.code == 2 and "calls subprocess:getoutput, as this database has it" in said.err, said
    # What the file itself names is the caller's own wish.
    own = holdfast(postgres_url, "run", child, "--json").json
    assert own["result"] == "hello"
    allowed = holdfast(postgres_url, "run", file, "--allow-code", "--json").json
    assert allowed["result"]["data"] == "hello"


def test_json_on_a_terminal_moves_no_cursor(sqlite_url: str, tmp_path: Path) -> None:
    steps = "  - step: a\n    type: sleep\n    seconds: 0\n"
    file = written(tmp_path, playbook(steps, workload='{x: "\\u009b31m \\u202e é"}'))
    assert holdfast(sqlite_url, "run", file).code == 0
    said = holdfast(sqlite_url, "status", "1", "--json")
    assert "\x9b" not in said.out and "\u202e" not in said.out
    assert said.json["workload"] == {"x": "\x9b31m \u202e é"}


def test_a_run_leaves_other_executions_alone(store_url: str, tmp_path: Path) -> None:
    napping = "  - step: nap\n    type: sleep\n    seconds: 0\n"
    file = written(tmp_path, playbook(napping))
    holdfast(store_url, "catalog", "add", file)
    holdfast(store_url, "submit", "tests/flow", "--lane", "manual")
    assert holdfast(store_url, "run", file).code == 0
    [left] = holdfast(store_url, "queue", "--status", "queued", "--json").json["items"]
    assert (left["execution_id"], left["attempts"]) == (1, 0)


# without running


def test_a_dry_run_shows_the_plan_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = """
  - step: a
    type: python
    call: not_there_at_all:f
    retry: {delays: [60, 180]}
    next: b
  - step: b
"""
    file = written(tmp_path, playbook(call, workload="{day: today}"))
    said = holdfast(None, "run", file, "--dry-run", "--set", "day=monday")
    assert said.code == 0 and "tests/flow: 2 steps\n" in said.out
    assert 'day: "monday"' in said.out
    assert "\na  python not_there_at_all:f\n    ● ─1m─ ● ─3m─ ●  3 attempts: 4m of waiting" in said.out
    record = holdfast(None, "run", file, "--dry-run", "--json").json
    assert record["workload"] == {"day": "today"} and len(record["hash"]) == 64
    assert [item["name"] for item in record["definition"]["steps"]] == ["a", "b"] and "●" in record["plan"]
    assert os.listdir(tmp_path) == ["flow.yaml"]


def test_a_plan_fits_a_narrow_terminal(sqlite_url: str, tmp_path: Path) -> None:
    steps = "  - step: a\n    type: http\n    url: http://example.com/{}\n    retry: 3\n".format("x" * 90)
    code, shown = on_a_terminal(sqlite_url, "run", written(tmp_path, playbook(steps)), "--dry-run")
    assert code == 0 and "●" in shown and max(map(len, plain(shown).splitlines())) <= 100


# on a terminal


def test_a_terminal_gets_a_live_tree(sqlite_url: str, fetch: str) -> None:
    with ScriptedServer() as server:
        flaky(server, 503, 200)
        code, shown = on_a_terminal(sqlite_url, "run", fetch, "--set", f"url={server.url}")
    text = plain(shown)
    assert code == 0, shown
    assert re.search(r"[↻▶] fetch +attempt 2/3", text)
    last = text[text.rindex("✔ fetch") :]
    assert re.match(r"✔ fetch +healed at attempt 2/3\r\n   ├─ when fetch.data.ok, with rows", last), last
    assert "✔ end" in last and "completed in" in last and '"stored": 3' in last


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


# interrupted, and gone on with


ASKING = """
  - step: first
    type: python
    code: |
      def main(input_data):
          return {"n": 1}
    next: ask
  - step: ask
    type: http
    url: "{{ workload.url }}/x"
    next: last
  - step: last
    type: python
    code: |
      def main(input_data):
          return {"n": input_data["n"] + 1}
    with: {n: "{{ first.n }}"}
"""


def command(*args: object) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, args)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def running(url: str, file: str) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "holdfast", "run", file, "--db", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def paused(sqlite_url: str, tmp_path: Path) -> str:
    """A playbook of which nothing is begun."""
    file = written(tmp_path, CHAIN)
    holdfast(sqlite_url, "catalog", "add", file)
    holdfast(sqlite_url, "pause", "playbook", "tests/flow", "--by", "ann", "--reason", "lunch")
    return file


def test_what_is_paused_says_so_instead_of_standing_still(sqlite_url: str, paused: str) -> None:
    with running(sqlite_url, paused) as process:
        line = next(line for line in process.stdout if "paused" in line)
        assert "ann" in line
        holdfast(sqlite_url, "resume", "playbook", "tests/flow")
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0 and "completed in" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_kept_and_can_be_gone_on_with(
    sqlite_url: str, paused: str, number: signal.Signals
) -> None:
    with running(sqlite_url, paused) as process:
        assert next(line for line in process.stdout if "paused" in line)
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 130, (out, err)
    assert "Interrupted. Execution 1 of tests/flow is kept: " in out
    assert f"holdfast run {paused} --resume 1" in err and "holdfast cancel 1" in err
    assert holdfast(sqlite_url, "status", 1, "--json").json["status"] == "running"
    holdfast(sqlite_url, "resume", "playbook", "tests/flow")
    said = holdfast(sqlite_url, "run", "--resume", 1)
    assert said.code == 0 and '"chars": 9' in said.out


def test_a_second_interrupt_ends_at_once_and_says_what_that_means(sqlite_url: str, tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.answer("/x", act=server.hold)
        file = written(tmp_path, playbook(ASKING, workload=f"{{url: '{server.url}'}}"))
        with running(sqlite_url, file) as process:
            assert next(line for line in process.stdout if "ask" in line)
            process.send_signal(signal.SIGINT)
            assert next(line for line in process.stdout if "Stopping" in line)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == 130
            assert "Cut off. Execution 1 is kept" in err and "Traceback" not in err
    assert holdfast(sqlite_url, "status", 1, "--json").json["status"] == "running"


def test_a_function_that_does_not_end_keeps_no_interrupted_run_alive(sqlite_url: str, tmp_path: Path) -> None:
    endless = "import threading\n\n\ndef work():\n    threading.Event().wait()\n"
    (tmp_path / "endless_of_run_test.py").write_text(endless)
    steps = "  - step: work\n    type: python\n    call: endless_of_run_test:work\n"
    with running(sqlite_url, written(tmp_path, playbook(steps))) as process:
        assert next(line for line in process.stdout if "work" in line)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 130 and "is kept" in out and "--resume 1" in err, (out, err)
    [job] = holdfast(sqlite_url, "queue", "--json").json["items"]
    assert (job["status"], job["attempts"]) == ("queued", 0)  # its attempt was given back


def test_a_cancelled_execution_is_not_gone_on_with(sqlite_url: str, paused: str) -> None:
    holdfast(sqlite_url, "submit", "tests/flow")
    holdfast(sqlite_url, "cancel", 1)
    said = holdfast(sqlite_url, "run", "--resume", 1)
    assert said.code == 2 and "was cancelled" in said.err
    assert holdfast(sqlite_url, "run", "--resume", 2).code == 2


def test_a_failed_run_goes_on_at_the_step_that_failed(sqlite_url: str, tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.answer("/x", 503)
        server.answer("/x", 200, "fine")
        file = written(tmp_path, playbook(ASKING, workload=f"{{url: '{server.url}'}}"))
        assert holdfast(sqlite_url, "run", file).code == 1
        said = holdfast(sqlite_url, "run", "--resume", 1)
    assert said.code == 0, said
    assert re.search(r"first +kept, it was completed before\n", said.out)
    assert re.search(r"last +done\n", said.out) and '"n": 2' in said.out
    assert not re.search(r"first +starts", said.out)
    record = holdfast(sqlite_url, "run", "--resume", 1, "--json")
    assert (record.code, record.json["result"]) == (0, {"n": 2})


def test_what_a_program_defines_is_not_gone_on_with_here(sqlite_url: str) -> None:
    async def program(s: Scenario) -> None:
        await s.define(stage("parse", path="mail"), path="mail")
        await s.submit(path="mail")

    told(sqlite_url, program)
    said = holdfast(sqlite_url, "run", "--resume", 1)
    assert said.code == 2 and "holdfast worker --app" in said.err
