"""Commands at a distance: which address counts, servers that are away or want a token, what differs there."""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from batch_scenario import batch_of, lines
from command_scenario import LIMIT_SECONDS, Said, holdfast, holdfast_meanwhile, process, told
from engine_scenario import Scenario, stage
from holdfast import __version__
from holdfast.cli.going_on import at
from holdfast.engine import Engine
from holdfast.store.queries import load_migrations
from playbook_files import playbook, written
from ports import kept_port
from running import eventually, run
from scripted_server import ScriptedServer
from served_stores import served
from store_scenario import ENVIRONMENT

TOKEN = "a-token-of-the-tests-of-servers"
EVERY_KIND = (
    ("status",),
    ("status", 1),
    ("status", 1, "--wait"),
    ("executions",),
    ("events", 1),
    ("queue",),
    ("dead",),
    ("cancel", 1),
    ("submit", "mail"),
    ("retry", 1),
    ("redrive", 1),
    ("limits", "list"),
    ("pause", "lane", "bulk"),
    ("resume", "lane", "bulk"),
    ("batch", "list"),
    ("batch", "status", 1),
    ("catalog", "list"),
    ("run", "--resume", 1),
    ("migrate",),
)


async def one_execution(s: Scenario) -> None:
    await s.define(stage("send", path="mail"), path="mail")
    await s.submit({"to": "ann"}, path="mail")


@pytest.fixture
def database(sqlite_url: str) -> str:
    told(sqlite_url, one_execution)
    return sqlite_url


@pytest.fixture
def server(database: str) -> Iterator[str]:
    with served(database) as address:
        yield address


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """The address of a server that is not there: the port is kept, and nobody listens on it."""
    with kept_port() as port:
        yield f"http://127.0.0.1:{port}"


def listed(said: Said) -> list[str]:
    """The pipelines of `executions --json`."""
    assert said.code == 0, said
    return [item["path"] for item in said.json["items"]]


async def working(url: str) -> bool:
    return bool((await holdfast_meanwhile(url, "status", "--json")).json["workers"])


async def nobody_works(url: str) -> bool:
    """All have said goodbye; one whose word got lost is forgotten after a while."""
    return not await working(url)


# which address counts


def test_the_server_is_named_by_its_option_or_by_the_environment(server: str) -> None:
    look = ("executions", "--json")
    assert listed(holdfast(None, *look, "--server", server)) == ["mail"]
    assert listed(holdfast(None, *look, "--server", f"{server}/")) == ["mail"]
    assert listed(holdfast(None, *look, HOLDFAST_SERVER=server)) == ["mail"]


def test_an_address_of_a_server_is_taken_where_a_database_could_be_named(server: str) -> None:
    look = ("executions", "--json")
    assert listed(holdfast(None, *look, "--db", server)) == ["mail"]
    assert listed(holdfast(None, *look, HOLDFAST_DB=server)) == ["mail"]


def test_what_is_typed_counts_before_the_environment(server: str, nobody: str, tmp_path: Path) -> None:
    look = ("executions", "--json")
    missing = f"sqlite:///{tmp_path / 'none.db'}"
    assert listed(holdfast(None, *look, "--server", server, HOLDFAST_DB=missing)) == ["mail"]
    assert listed(holdfast(None, *look, "--server", server, HOLDFAST_SERVER=nobody)) == ["mail"]
    said = holdfast(None, *look, "--db", missing, HOLDFAST_SERVER=server)
    assert said.code == 3 and "There is no database" in said.json["error"]["message"]


def test_in_the_environment_the_server_counts_before_the_database(server: str, tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path / 'none.db'}"
    said = holdfast(None, "executions", "--json", HOLDFAST_SERVER=server, HOLDFAST_DB=missing)
    assert listed(said) == ["mail"]
    said = holdfast(None, "executions", "--json", HOLDFAST_SERVER="", HOLDFAST_DB=missing)
    assert said.code == 3


def test_two_addresses_are_refused(server: str, database: str) -> None:
    for command in (("executions",), ("run", "--resume", 1), ("worker",), ("batch", "list"), ("doctor",)):
        said = holdfast(None, *command, "--server", server, "--db", database)
        assert said.code == 2 and "--db and --server name two places" in said.err, said


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        "sqlite:///a.db",
        "127.0.0.1:8083",
        "ftp://host",
        "http://",
        "http://host:x",
        "http://h?a=b",
    ],
)
def test_what_is_no_address_of_a_server_is_refused(wrong: str) -> None:
    for command in (("status",), ("worker",), ("doctor",), ("migrate",)):
        said = holdfast(None, *command, "--server", wrong)
        assert said.code == 2 and "is not the address of a server" in said.err, said
        assert "http://127.0.0.1:8083" in said.err


def test_advice_repeats_the_address_where_it_must_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DB", raising=False)
    monkeypatch.delenv("HOLDFAST_SERVER", raising=False)
    assert at("http://jobs:8083") == " --server http://jobs:8083"
    assert at("sqlite:///holdfast.db") == "" and at("sqlite:///other.db") == " --db sqlite:///other.db"
    assert "hunter22" not in at("http://ann:hunter22@jobs:8083")
    monkeypatch.setenv("HOLDFAST_SERVER", "http://jobs:8083/")
    assert at("http://jobs:8083") == ""
    assert at("sqlite:///holdfast.db") == " --db sqlite:///holdfast.db"


# a server that is away, or is none


def test_a_server_that_does_not_answer_is_told_by_every_command(nobody: str) -> None:
    for command in EVERY_KIND:
        said = holdfast(None, *command, "--server", nobody)
        assert (said.code, said.out) == (3, ""), (command, said)
        assert f"The server at {nobody} does not answer" in said.err and "holdfast serve" in said.err


def test_a_server_that_does_not_answer_is_told_to_programs(nobody: str) -> None:
    error = holdfast(nobody, "queue", "--json").json["error"]
    assert error["code"] == "server_unavailable" and error["guidance"]


def test_something_else_that_answers_is_not_taken_for_a_server() -> None:
    with ScriptedServer() as other:
        other.answer("/api/info", 200, "<html>Welcome</html>", content_type="text/html")
        said = holdfast(other.url, "status")
        assert said.code == 3 and other.url in said.err, said
    with ScriptedServer() as other:  # which knows no such page
        assert holdfast(other.url, "status").code == 3


def test_a_watcher_outlives_a_restart_of_the_server(sqlite_url: str) -> None:
    told(sqlite_url, lambda s: batch_of(s, 2))
    with kept_port() as port, contextlib.ExitStack() as processes:
        with served(sqlite_url, port=port) as address:
            watcher = processes.enter_context(process("batch", "watch", 1, "--server", address))
            assert watcher.stdout is not None and watcher.stderr is not None
            assert "0 of 2 items ended" in watcher.stdout.readline()
        away = watcher.stderr.readline()
        assert address in away and away.endswith("The watching goes on when it is back.\n"), away
        with served(sqlite_url, port=port):
            assert watcher.stderr.readline() == "The server is back.\n"
            assert holdfast(address, "batch", "cancel", 1, "--yes").code == 0
            out, err = watcher.communicate(timeout=LIMIT_SECONDS)
    assert (watcher.returncode, err) == (1, ""), err
    assert "Batch 1 of reports: Cancelled" in out


@pytest.mark.parametrize(
    "command",
    [("status", 1, "--wait"), ("submit", "p", "--key", "the first", "--wait"), ("events", 1, "--follow")],
)
def test_who_waits_for_an_execution_outlives_a_restart_of_the_server(
    sqlite_url: str, command: tuple[str | int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_waited_for, wait_for_work = threading.Event(), Engine.wait_for_work

    async def noted(engine: Engine, ticket: int, seconds: float) -> None:
        is_waited_for.set()
        await wait_for_work(engine, ticket, seconds)

    monkeypatch.setattr(Engine, "wait_for_work", noted)

    async def story(s: Scenario) -> None:
        await s.define(stage("a"))
        await s.submit(idempotency_key="the first")

    told(sqlite_url, story)
    with kept_port() as port, contextlib.ExitStack() as processes:
        with served(sqlite_url, port=port) as address:
            waiting = processes.enter_context(process(*command, "--server", address, "--json"))
            assert waiting.stderr is not None
            assert is_waited_for.wait(LIMIT_SECONDS)
        away = waiting.stderr.readline()
        assert address in away and away.endswith("The watching goes on when it is back.\n"), away
        with served(sqlite_url, port=port):
            assert waiting.stderr.readline() == "The server is back.\n"
            assert holdfast(address, "cancel", 1).code == 0
            out, err = waiting.communicate(timeout=LIMIT_SECONDS)
    assert err == "" and "cancelled" in out


# tokens


def test_a_server_that_wants_a_token_lets_in_whoever_has_it(database: str) -> None:
    with served(database, token=TOKEN) as address:
        for command in EVERY_KIND:
            said = holdfast(address, *command)
            assert (said.code, said.out) == (2, ""), (command, said)
            assert "The token is missing." in said.err and "HOLDFAST_TOKEN" in said.err
        said = holdfast(address, "executions", HOLDFAST_TOKEN="another-one-that-is-long-enough")
        assert said.code == 2 and "The token is not one of this server's." in said.err
        assert "another-one" not in said.err
        assert listed(holdfast(address, "executions", "--json", HOLDFAST_TOKEN=TOKEN)) == ["mail"]
        assert holdfast(address, "queue", "--json").json["error"]["code"] == "access_refused"


def test_workers_without_the_token_are_not_started_again_and_again(database: str) -> None:
    with served(database, token=TOKEN) as address:
        said = holdfast(None, "worker", "--server", address)
        assert said.code == 2 and "The token is missing." in said.err, said
        with process("worker", "--processes", 2, "--server", address) as supervisor:
            _, err = supervisor.communicate(timeout=LIMIT_SECONDS)
        assert supervisor.returncode == 2 and "The token is missing." in err, err
        assert "None is started again." in err


def test_a_worker_waits_for_a_server_that_is_not_there_yet(sqlite_url: str) -> None:
    with contextlib.ExitStack() as parts:
        port = parts.enter_context(kept_port())
        address = f"http://127.0.0.1:{port}"
        worker = parts.enter_context(process("worker", "--server", address, "--grace", 0))
        assert worker.stderr is not None
        assert "waits for its server" in worker.stderr.readline()
        with served(sqlite_url, port=port):
            run(eventually(lambda: working(address)))


# what does not differ

NO_NUMBER = 10**30
SAID_ALIKE: tuple[tuple[object, ...], ...] = (
    *(("status", number) for number in (0, 777, NO_NUMBER)),
    *(("events", number) for number in (0, 1, 777, NO_NUMBER)),
    ("events", 1, "--json"),
    *(("queue", option, value) for option, value in (("--limit", 0), ("--limit", 5000), ("--cursor", "x"))),
    ("queue", "--due"),
    ("executions", "--json"),
    ("executions", "--limit", 1001),
    *(("executions", "--path", path) for path in ("", "a" * 300, "mäil", "a b?c=d&e#f%2f", "\x00")),
    *(("executions", "--batch", number) for number in (0, -3, NO_NUMBER)),
    *(("dead", "--path", path) for path in ("", "x" * 201)),
    ("dead", "--list", "--cursor", "q"),
    ("dead", "--batch", NO_NUMBER),
    *(("cancel", number) for number in (777, NO_NUMBER)),
    *(("cancel", 1, "--by", by) for by in ("x" * 201, "a\nb")),
    *(("retry", number) for number in (1, 777, NO_NUMBER)),
    ("redrive", 777, NO_NUMBER),
    ("redrive", 1, "--by", "x" * 201),
    ("redrive", "--path", "", "--yes"),
    ("redrive", "--all", "--dry-run"),
    *(("limits", "set", name, 3) for name in ("a/b", "", ".", "..", "x" * 201, "ü b")),
    *(("limits", "set", "a", number) for number in (0, NO_NUMBER)),
    *(("limits", "remove", name) for name in ("a/b", "", "..", "nobody", "a?b=c#d%2f")),
    ("pause", "step", "nope/nope"),
    ("pause", "lane", "wrong"),
    ("resume", "playbook", "mail"),
    ("submit", "nothing"),
    *(("submit", "mail", "--key", key) for key in ("", "x" * 201, "a\x00")),
    *(
        ("submit", "mail", "--workload", workload)
        for workload in ('"\\u0000"', '{"a":1e400}', "[" * 300 + "]" * 300)
    ),
    ("submit", "mail", "--workload", f'"{"x" * 1_100_000}"'),
    ("submit", "mail", "--deadline", "0"),
    *(("batch", "status", number) for number in (0, 777, NO_NUMBER)),
    ("batch", "items", 777),
    ("batch", "list", "--limit", 0),
    ("batch", "close", NO_NUMBER),
    ("batch", "cancel", 777, "--yes"),
    *(
        ("catalog", "show", path)
        for path in ("", "..", "../mail", "/mail", "mail/", "a?b#c%", "x" * 5000, "a\nb")
    ),
    *(("catalog", "show", "mail", "--version", number) for number in (0, 9, -1, NO_NUMBER)),
    ("catalog", "show", "mail"),
    ("catalog", "list", "--limit", 0),
    *(("catalog", "list", path) for path in ("", "none", "mail", "x" * 300)),
    ("catalog", "diff", "mail"),
    ("catalog", "diff", "mail", 1, 9),
    *(("run", "--resume", number) for number in (777, NO_NUMBER)),
)


def test_near_and_far_the_same_is_said(server: str, database: str) -> None:
    """Of what changes nothing, and so can be asked both ways of one database."""
    for command in SAID_ALIKE:
        near, far = holdfast(database, *command), holdfast(server, *command)
        assert (far.code, far.out, far.err) == (near.code, near.out, near.err), command


def test_a_large_number_and_a_fraction_arrive_as_they_were_written(server: str) -> None:
    workload = {"big": 10**29, "small": 0.1, "text": "ü\u2028"}
    said = holdfast(server, "submit", "mail", "--workload", json.dumps(workload), "--json")
    assert said.code == 0, said
    assert holdfast(server, "status", said.json["id"], "--json").json["workload"] == workload


def test_items_that_are_too_large_for_one_request_are_sent_in_several(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.parts.PART_BYTES_MAX", 100)
    file = lines(tmp_path / "items.jsonl", *({"n": n, "text": "x" * 60} for n in range(7)))
    said = holdfast(server, "batch", "submit", "mail", file, "--json")
    assert (said.code, said.json["items"], said.json["added"]) == (0, 7, 7), said
    items = holdfast(server, "executions", "--batch", 1, "--json").json["items"]
    assert sorted(item["workload"]["n"] for item in items) == list(range(7))


# what differs at a distance

FLAKY = """
  - step: fetch
    type: http
    url: "{{ workload.url }}/flaky"
    retry: {max_attempts: 2, delays: [0.01]}
    next: store
  - step: store
    type: python
    code: |
      def main(input_data):
          return {"stored": len(input_data["rows"])}
    with: {rows: "{{ fetch.data.rows }}"}
"""


@pytest.fixture
def flaky(tmp_path: Path) -> str:
    return written(tmp_path, playbook(FLAKY, workload="{url: 'http://127.0.0.1:1'}"))


@pytest.fixture
def served_url(sqlite_url: str) -> Iterator[str]:
    """The address of a server on an empty database."""
    with served(sqlite_url) as address:
        yield address


def test_a_run_through_a_server_heals_and_ends_with_its_result(
    served_url: str, flaky: str, sqlite_url: str
) -> None:
    with ScriptedServer() as service:
        service.answer("/flaky", 503)
        service.answer("/flaky", 200, json={"rows": [1, 2, 3]})
        said = holdfast(served_url, "run", flaky, "--set", f"url={service.url}")
    assert said.code == 0, said
    assert re.search(r"fetch +attempt 1/2 failed: Processing service unavailable", said.out)
    assert re.search(r"fetch +done, healed at attempt 2/2\n", said.out)
    assert said.out.endswith('Result\n{\n  "stored": 3\n}\n\n')
    assert f"holdfast status 1 --server {served_url}" in said.err
    kept = holdfast(sqlite_url, "status", 1, "--json").json
    assert (kept["status"], kept["result"], kept["lane"]) == ("completed", {"stored": 3}, "manual")
    assert holdfast(sqlite_url, "catalog", "show", "tests/flow").out == Path(flaky).read_text()


def test_a_run_that_failed_is_resumed_through_the_server(served_url: str, flaky: str) -> None:
    with ScriptedServer() as service:
        service.answer("/flaky", 503)
        said = holdfast(served_url, "run", flaky, "--set", f"url={service.url}", "--json")
        assert (said.code, said.json["status"]) == (1, "failed"), said
        for _ in range(2):
            service.answer("/flaky", 200, json={"rows": []})
        holdfast(served_url, "retry", 1, "--force")  # the cooldown is for whoever retries again
        said = holdfast(served_url, "run", flaky, "--resume", 1, "--json")
    assert (said.code, said.json["status"], said.json["result"]) == (0, "completed", {"stored": 0}), said
    again = holdfast(served_url, "run", "--resume", 1, "--json")
    assert (again.code, again.json["result"]) == (0, {"stored": 0})


def test_code_that_came_from_the_server_needs_leave(served_url: str, flaky: str, tmp_path: Path) -> None:
    assert holdfast(served_url, "catalog", "add", flaky).code == 0
    holdfast(served_url, "submit", "tests/flow")
    said = holdfast(served_url, "run", "--resume", 1)
    assert said.code == 2 and "has inline code, as this server has it" in said.err, said
    assert "--allow-code" in said.err


CHILD = """
  - step: double
    type: python
    code: |
      def main(input_data):
          return 2 * input_data["n"]
    with: {n: "{{ workload.n }}"}
"""
PARENT = """
  - step: ask
    type: playbook
    path: tests/child
    with: {n: 21}
"""


def test_a_run_works_on_the_children_that_it_starts(served_url: str, tmp_path: Path) -> None:
    child = written(tmp_path, playbook(CHILD, path="tests/child", workload="{n: 1}"), "child.yaml")
    assert holdfast(served_url, "catalog", "add", child).code == 0
    said = holdfast(served_url, "run", written(tmp_path, playbook(PARENT)), "--allow-code")
    assert said.code == 0, said
    assert re.search(r"ask/double +done", said.out) and "42" in said.out


def test_a_run_that_is_interrupted_gives_back_what_it_had(served_url: str, tmp_path: Path) -> None:
    steps = """
  - step: wait
    type: shell
    command: ["sleep", "600"]
"""
    file = written(tmp_path, playbook(steps))
    with process("run", file, "--server", served_url) as running:
        assert running.stdout is not None
        assert "wait" in running.stdout.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=LIMIT_SECONDS)
    assert running.returncode == 130, (out, err)
    assert f"--resume 1 --server {served_url}" in err
    [job] = holdfast(served_url, "queue", "--json").json["items"]
    assert (job["status"], job["attempts"], job["lease_until"]) == ("queued", 0, None)
    run(eventually(lambda: nobody_works(served_url)))


def test_a_worker_lives_behind_a_server(served_url: str, tmp_path: Path) -> None:
    (tmp_path / "afar_steps.py").write_text("def double(n):\n    return 2 * n\n")
    steps = """
  - step: double
    type: python
    call: afar_steps:double
    with: {n: "{{ workload.n }}"}
"""
    holdfast(served_url, "catalog", "add", written(tmp_path, playbook(steps, workload="{n: 1}")))
    path = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    options = ("--functions", "afar_steps", "--grace", 0)
    for address in (("--server", served_url), ()):
        env = {
            "PYTHONPATH": path,
            **({} if address else {"HOLDFAST_SERVER": served_url, "HOLDFAST_DB": "sqlite:///no.db"}),
        }
        with process("worker", *options, *address, **env) as worker:
            said = holdfast(served_url, "submit", "tests/flow", "--set", "n=21", "--within", "60s", "--json")
            assert (said.code, said.json["result"]) == (0, 42), said
            [living] = holdfast(served_url, "status", "--json").json["workers"]
            assert living["pid"] == worker.pid and "python/afar_steps:double" in living["handlers"]
            worker.terminate()
            worker.communicate(timeout=LIMIT_SECONDS)
            assert worker.returncode == 0
        run(eventually(lambda: nobody_works(served_url)))


def test_a_worker_of_a_program_works_for_the_server_that_is_typed(served_url: str, tmp_path: Path) -> None:
    (tmp_path / "afar_app.py").write_text(
        "from holdfast import Holdfast\n"
        f"hf = Holdfast('sqlite:///{tmp_path / 'other.db'}')\n\n\n"
        "@hf.step\ndef shout(ctx):\n    return ctx.workload['text'].upper()\n\n\n"
        "hf.pipeline('shouts', [shout])\n"
    )
    path = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    with process("worker", "--app", "afar_app:hf", "--server", served_url, "--grace", 0, PYTHONPATH=path):
        run(eventually(lambda: working(served_url)))
        said = holdfast(served_url, "submit", "shouts", "--set", "text=hello", "--within", "60s", "--json")
        assert (said.code, said.json["result"]) == (0, "HELLO"), said
    assert not (tmp_path / "other.db").exists()


def test_a_worker_does_not_tell_each_of_its_requests(served_url: str) -> None:
    with process("worker", "--server", served_url, "--grace", 0) as worker:
        run(eventually(lambda: working(served_url)))
        worker.terminate()
        _, log = worker.communicate(timeout=LIMIT_SECONDS)
    assert f"works on playbooks in {served_url}" in log
    assert "HTTP Request" not in log


def test_what_is_advised_to_type_next_reaches_the_same_server(server: str) -> None:
    worker = f"holdfast worker --app your_module:hf --server {server}\n"
    for asked, advice in (
        (("submit", "mail"), f"holdfast status 2 --server {server}\n"),
        (("status",), worker),
        (("doctor",), worker),
        (("pause", "lane", "bulk"), f"holdfast resume lane bulk --server {server}\n"),
    ):
        said = holdfast(server, *asked)
        assert advice in said.out + said.err, said


def test_where_the_environment_names_the_server_only_programs_need_to_be_told(server: str) -> None:
    said = holdfast(None, "submit", "mail", HOLDFAST_SERVER=server)
    assert "holdfast status 2\n" in said.err
    said = holdfast(None, "status", HOLDFAST_SERVER=server)
    assert f"holdfast worker --app your_module:hf --server {server}\n" in said.out


def test_events_are_followed_through_a_server(database: str, server: str) -> None:
    with process("events", 1, "--follow", "--json", "--server", server) as following:
        assert following.stdout is not None
        assert '"execution_started"' in following.stdout.readline()
        assert holdfast(server, "cancel", 1).code == 0
        out, err = following.communicate(timeout=LIMIT_SECONDS)
    assert (following.returncode, err) == (0, "") and '"execution_cancelled"' in out


# doctor and migrate


def findings(url: str, **env: str) -> list[tuple[str, str, str]]:
    said = holdfast(url, "doctor", "--json", **env)
    return [(item["check"], item["level"], item["message"]) for item in said.json["findings"]]


def test_the_doctor_looks_at_the_server_then_at_its_database_then_at_the_work(server: str) -> None:
    found = findings(server)
    assert found[0] == ("server", "ok", f"It can be reached; Holdfast {__version__}, as here.")
    assert found[1] == ("database", "ok", "It can be reached and written.")
    by_check = {check: message for check, _, message in found}
    assert by_check["schema"].endswith("as the server needs.")
    assert by_check["clock"] == "It is the server's machine's."
    assert ("workers", "warn", "No worker lives.") in found
    assert by_check["waiting"].startswith("1 job waits for mail/send")


def test_the_doctor_finds_a_server_that_is_away_or_does_not_let_it_in(nobody: str, database: str) -> None:
    [(check, level, message)] = findings(nobody)
    assert (check, level) == ("server", "bad") and "does not answer" in message
    assert holdfast(nobody, "doctor").code == 1
    with served(database, token=TOKEN) as address:
        assert findings(address) == [("server", "bad", "The token is missing.")]
        assert findings(address, HOLDFAST_TOKEN=TOKEN)[0][:2] == ("server", "ok")


def test_the_doctor_warns_of_another_version(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.__version__", "99.0")
    check, level, message = findings(server)[0]
    assert (check, level) == ("server", "warn")
    assert __version__ in message and "here is 99.0" in message
    assert holdfast(server, "doctor", "--json").json["findings"][0]["action"]


def test_the_doctor_finds_a_database_that_the_server_cannot_use(server: str, sqlite_url: str) -> None:
    with contextlib.closing(apsw.Connection(sqlite_url.removeprefix("sqlite:///"))) as other:
        other.execute("INSERT INTO holdfast_schema (version, applied_at) VALUES (999, 0)")
    found = findings(server)
    assert [(check, level) for check, level, _ in found][-3:][0] == ("schema", "bad"), found
    assert found[-1] == ("work", "warn", "Workers and work were not looked at.")


def test_migrate_has_nothing_to_do_for_a_server(server: str) -> None:
    known = len(load_migrations("sqlite"))
    for options in ((), ("--check",)):
        said = holdfast(server, "migrate", *options)
        assert said.code == 0 and f"schema version {known}" in said.out and "nothing to do" in said.out, said
    said = holdfast(server, "migrate", "--check", "--json")
    assert said.json == {"from": known, "to": known, "known": known, "check": True}
