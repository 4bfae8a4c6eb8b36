"""Commands that act: submit, retry, cancel, redrive."""

from pathlib import Path
from typing import Any

import pytest

from command_scenario import holdfast, holdfast_meanwhile, told
from engine_scenario import Scenario, stage
from holdfast import Context, Holdfast, PermanentError
from holdfast.cli.options import login_name
from running import run

ENDS_SOON = "30s"


async def known(s: Scenario) -> None:
    await s.define(
        stage("parse", attempts=1, path="mail"), stage("send", attempts=1, path="mail"), path="mail"
    )


async def failures(s: Scenario) -> None:
    """1 and 2 failed at send for a passing reason, 3 at parse for good, 4 runs."""
    await known(s)
    for _ in range(3):
        await s.submit(path="mail")
    one, two, three = await s.lease()
    for job in (one, two):
        await s.complete(job, '"kept"')
    await s.fail(three, "the file is corrupted")
    for job in await s.lease():
        await s.fail(job)
    await s.submit(path="mail")


def workload_of(url: str, execution_id: int) -> Any:
    return holdfast(url, "status", execution_id, "--json").json["workload"]


# submit


def test_work_is_submitted_without_the_programs_code(store_url: str) -> None:
    told(store_url, known)
    said = holdfast(store_url, "submit", "mail", "--workload", '{"to": "ann"}', "--lane", "manual")
    assert said.code == 0 and "Execution 1 of mail is submitted." in said.out
    assert "No living worker offers its first step" in said.err and "holdfast status 1" in said.err
    record = holdfast(store_url, "status", 1, "--json").json
    assert (record["status"], record["lane"], record["mode"], record["workload"]) == (
        *("running", "manual", "manual"),
        {"to": "ann"},
    )
    said = holdfast(
        store_url, "submit", "mail", "--mode", "auto", "--delay", "1h", "--deadline", "2h", "--json"
    )
    assert said.json == {"id": 2, "created": True, "path": "mail"} and said.err == ""
    record = holdfast(store_url, "status", 2, "--json").json
    assert (record["mode"], record["workload"]) == ("auto", None)
    assert record["deadline_at"] == pytest.approx(record["created_at"] + 7200, abs=5)
    assert record["jobs"][0]["available_at"] == pytest.approx(record["created_at"] + 3600, abs=5)


def test_the_input_comes_from_options_a_file_or_stdin(sqlite_url: str, tmp_path: Path) -> None:
    told(sqlite_url, known)
    file = tmp_path / "in.json"
    file.write_text('{"from": "a file", "deep": {"a": 1}}')
    settings = (
        "--set",
        "deep.b=2",
        "--set",
        "list=[1, 2]",
        "--set",
        "text=007",
        "--set",
        "e=",
        "--set",
        "x.y=a=b",
    )
    for options, stdin, expected in (
        (("--workload", f"@{file}"), None, {"from": "a file", "deep": {"a": 1}}),
        (("--workload", "-"), '["from stdin", "ü"]', ["from stdin", "ü"]),
        (("--workload", "null"), None, None),
        (("--workload", '"text"'), None, "text"),
        (
            ("--workload", f"@{file}", *settings),
            None,
            {
                "from": "a file",
                "deep": {"a": 1, "b": 2},
                "list": [1, 2],
                "text": "007",
                "e": "",
                "x": {"y": "a=b"},
            },
        ),
        (("--set", "n=7"), None, {"n": 7}),
    ):
        said = holdfast(sqlite_url, "submit", "mail", "--json", *options, stdin=stdin)
        assert said.code == 0, said
        assert workload_of(sqlite_url, said.json["id"]) == expected


def test_a_key_submits_once(sqlite_url: str) -> None:
    told(sqlite_url, known)
    first = holdfast(sqlite_url, "submit", "mail", "--key", "k", "--set", "a=1", "--json").json
    again = holdfast(sqlite_url, "submit", "mail", "--key", "k", "--set", "a=1")
    assert (first["id"], first["created"]) == (1, True)
    assert "was submitted before with this key" in again.out and again.code == 0
    other = holdfast(sqlite_url, "submit", "mail", "--key", "k", "--set", "a=2", "--json")
    assert (other.code, other.json["error"]["code"]) == (2, "idempotency_conflict")


def test_what_cannot_be_submitted_is_refused_and_adds_nothing(sqlite_url: str, tmp_path: Path) -> None:
    told(sqlite_url, known)
    (tmp_path / "bad.json").write_bytes(b"\xff\x00")
    for options, words in (
        (("other",), "Known are: conf_archives, documents, downloads, mail."),
        (("mail", "--workload", "{to: ann}"), "is not JSON"),
        (("mail", "--workload", "[" * 5000), "is not JSON"),
        (("mail", "--workload", f"@{tmp_path / 'none.json'}"), "cannot be read from"),
        (("mail", "--workload", f"@{tmp_path}"), "cannot be read from"),
        (("mail", "--workload", f"@{tmp_path / 'bad.json'}"), "is not JSON"),
        (("mail", "--set", "novalue"), "is not KEY=VALUE"),
        (("mail", "--set", "a..b=1"), "is not KEY=VALUE"),
        (("mail", "--workload", "[1]", "--set", "a=1"), "has no place"),
        (("mail", "--set", "a=1", "--set", "a.b=1"), "has no place"),
        (("mail", "--workload", '{"a": "\\u0000"}'), "NUL"),
        (("mail", "--delay", "soon"), "delay"),
        (("mail", "--deadline", "0"), "deadline"),
        (("mail", "--lane", "fast"), "lane"),
        (("mail", "--key", " "), "idempotency key"),
        ((), "PIPELINE"),
    ):
        said = holdfast(sqlite_url, "submit", *options)
        assert said.code == 2 and words in said.err, said
    assert holdfast(sqlite_url, "executions", "--json").json["items"] == []


def test_waiting_tells_how_it_ended_by_its_exit_code(store_url: str) -> None:
    hf = Holdfast(store_url)

    async def handle(ctx: Context) -> str:
        if ctx.workload == "bad":
            raise PermanentError("no such address")
        return "sent"

    hf.pipeline("mail", [handle])

    async def main() -> None:
        async with hf:
            waiting = await holdfast_meanwhile(store_url, "submit", "mail", "--within", "0.1")
            assert waiting.code == 1 and "has not ended: Waiting to run handle" in waiting.err
            async with hf.working():
                done = await holdfast_meanwhile(store_url, "submit", "mail", "--wait", "--within", ENDS_SOON)
                assert done.code == 0 and 'handle  "sent"' in done.out, done
                assert (await holdfast_meanwhile(store_url, "status", 1, "--wait")).code == 0
                bad = ("submit", "mail", "--workload", '"bad"', "--wait", "--json")
                failed = await holdfast_meanwhile(store_url, *bad)
                assert (failed.code, failed.json["status"], failed.err) == (1, "failed", "")
                id_ = failed.json["id"]
                assert (await holdfast_meanwhile(store_url, "status", id_, "--wait")).code == 1
                assert (await holdfast_meanwhile(store_url, "status", id_)).code == 0
                submitted = await hf.submit("mail")
                events = await holdfast_meanwhile(store_url, "events", submitted.id, "--follow", "--json")
                assert events.out.count("\n") == 6 and "execution_completed" in events.out.splitlines()[-1]

    run(main())


# retry


def test_a_retry_goes_on_where_it_failed_in_the_name_of_who_asks(store_url: str) -> None:
    told(store_url, failures)
    said = holdfast(store_url, "retry", 1, "--by", "ann")
    assert said.code == 0 and "Execution 1 runs again from send (round 2)." in said.out
    [event] = [
        e for e in holdfast(store_url, "events", 1, "--json").json["items"] if e["type"] == "manual_retry"
    ]
    assert (event["by"], event["from_stage"]) == ("ann", "send")
    assert holdfast(store_url, "retry", 2, "--from", "parse", "--json").json == {
        "id": 2,
        "round": 2,
        "from_stage": "parse",
    }
    events = holdfast(store_url, "events", 2, "--json").json["items"]
    assert login_name() in {event.get("by") for event in events}


def test_a_refused_retry_says_why_and_which_option_would_help(store_url: str) -> None:
    told(store_url, failures)
    said = holdfast(store_url, "retry", 3)
    assert said.code == 2 and "Retrying will not help" in said.err and "Retry it with --force" in said.err
    said = holdfast(store_url, "retry", 1, "--full")
    assert said.code == 2 and "discards the results up to parse" in said.err and "--confirm" in said.err
    said = holdfast(store_url, "retry", 4, "--json")
    assert (said.code, said.json["error"]["code"]) == (2, "not_failed")
    assert holdfast(store_url, "retry", 1, "--from", "nothing").code == 2
    assert holdfast(store_url, "retry", 3, "--force").code == 0
    assert holdfast(store_url, "retry", 1, "--full", "--confirm").code == 0
    assert [j["step"] for j in holdfast(store_url, "status", 1, "--json").json["jobs"]][-1] == "parse"


def test_guidance_without_a_full_stop_gets_one_before_the_option(sqlite_url: str) -> None:
    async def story(s: Scenario) -> None:
        await known(s)
        await s.submit(path="mail")
        await s.fail(await s.lease_one(), guidance="Send it as PDF", category="permanent")

    told(sqlite_url, story)
    assert "Send it as PDF. Retry it with --force, once" in holdfast(sqlite_url, "retry", 1).err


# cancel


def test_cancelling_tells_of_each_and_its_exit_code_of_all(store_url: str) -> None:
    told(store_url, failures)
    said = holdfast(store_url, "cancel", 4, 1)
    assert said.code == 0
    assert said.out == "Execution 4 is cancelled.\nExecution 1 is failed already; nothing was changed.\n"
    said = holdfast(store_url, "cancel", 4, "--json")
    assert said.code == 1 and [item["code"] for item in said.json["items"]] == ["not_running"]
    assert holdfast(store_url, "cancel", 99, 4).code == 2
    assert holdfast(store_url, "cancel").code == 2


# redrive


def test_many_are_redriven_by_filter(store_url: str) -> None:
    told(store_url, failures)
    tried = holdfast(store_url, "redrive", "--path", "mail", "--dry-run")
    assert tried.code == 0 and "2 executions would be started again." in tried.out
    assert "1 refused: 1 permanent_error." in tried.out and "--force" in tried.out
    assert holdfast(store_url, "executions", "--status", "failed", "--json").json["items"]
    assert holdfast(store_url, "redrive", "--all").code == 2  # nobody there to be asked
    said = holdfast(store_url, "redrive", "--step", "send", "--yes", "--json")
    assert said.code == 0
    assert (said.json["redriven"], said.json["refused"], said.json["dry_run"]) == (2, 0, False)
    assert [item["execution_id"] for item in said.json["items"]] == [1, 2]
    assert holdfast(store_url, "redrive", "--step", "send", "--yes").code == 1  # nothing is left there
    assert "permanent_error" in holdfast(store_url, "redrive", "--all", "--yes").out
    said = holdfast(store_url, "redrive", "--all", "--force", "--yes")
    assert (said.code, said.out) == (0, "1 execution was started again.\n")


def test_named_ones_are_redriven_without_being_asked(store_url: str) -> None:
    told(store_url, failures)
    said = holdfast(store_url, "redrive", 1, 4, 99)
    assert said.code == 0 and "1 execution was started again." in said.out
    assert "2 refused: 1 not_failed, 1 unknown_execution." in said.out
    assert holdfast(store_url, "redrive", 4).code == 1
    for wrong in ((), (1, "--all"), ("--all", "--path", "mail"), (1, "--step", "send")):
        assert holdfast(store_url, "redrive", *wrong).code == 2
