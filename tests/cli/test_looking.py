"""Commands that look: status, executions, events, queue, dead."""

import json
import re
from typing import Any

import pytest

from command_scenario import holdfast, told
from engine_scenario import Scenario, stage
from holdfast import Context, Holdfast, Retry
from holdfast.cli.code_places import places_in_trace
from holdfast.core.model import Lane
from running import run

WITHIN = 60.0


async def history(s: Scenario) -> None:
    """1 failed for good at its second stage, 2 is complete, 3 failed at once, 4 waits."""
    await s.define(
        stage("parse", attempts=1, path="mail"), stage("send", attempts=2, path="mail"), path="mail"
    )
    for lane in (Lane.MANUAL, Lane.BULK, Lane.BULK):
        await s.submit({"to": "ann"}, path="mail", lane=lane)
    one, two, three = await s.lease()
    await s.complete(one, '{"pages":3}')
    await s.complete(two, '"ok"')
    await s.fail(three, "the file is corrupted \x1b[31mred")
    for job in await s.lease():
        if job.execution_id == 2:
            await s.complete(job, "7")
        else:
            await s.fail(job, "connection refused\nby mail:25")
            s.tick(2)
            await s.fail(await s.lease_one(), "connection refused")
    await s.submit({"to": "bob"}, path="mail", idempotency_key="k", delay_seconds=10)


@pytest.fixture
def url(store_url: str) -> str:
    told(store_url, history)
    return store_url


def test_a_failed_execution_is_told_in_plain_words_with_what_to_do(url: str) -> None:
    said = holdfast(url, "status", 1)
    assert said.code == 0, said
    assert "Execution 1 of mail: Failed at send: Network connection error." in said.out
    assert "Check the network, then retry it." in said.out
    assert re.search(r"send +dead, exhausted +2/2", said.out) and re.search(r"parse +done +1/1", said.out)
    assert 'parse  {"pages": 3}' in said.out
    assert re.search(r"send +1 +connection_error +connection refused by mail:25", said.out)
    assert "holdfast retry 1" in said.err
    assert "--force" in holdfast(url, "status", 3).err  # permanent


def test_passwords_in_addresses_of_a_workload_are_not_shown(store_url: str) -> None:
    async def story(s: Scenario) -> None:
        await s.define(stage("parse"))
        await s.submit({"source": "https://ann:hunter22@files.example/a", "to": "bob@example.org"})
        await s.complete(await s.lease_one(), '{"url": "postgresql://ann:hunter22@db/x"}')

    told(store_url, story)
    said = holdfast(store_url, "status", 1)
    assert "hunter22" not in said.out + said.err
    assert '{"source": "https://ann:***@files.example/a", "to": "bob@example.org"}' in said.out


def test_a_poisoned_stage_says_so(store_url: str) -> None:
    async def story(s: Scenario) -> None:
        await s.define(stage("parse", attempts=6))
        await s.submit()
        await s.lease()
        while await s.lose():
            s.tick(60)
            await s.lease(alone=True)

    told(store_url, story)
    assert re.search(r"parse +dead, poisoned +4/6", holdfast(store_url, "status", 1).out)


async def broken(ctx: Context) -> str:
    if ctx.attempt == 1:
        json.loads("{")
    return {"known": "value"}["missing"]


def test_a_mistake_in_the_code_is_told_with_its_place(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.pipeline(
        "mail",
        [hf.step(broken, name="broken", retry=Retry(max_attempts=2, delays=[0], retry_when="{{ true }}"))],
    )

    async def main() -> None:
        async with hf, hf.working():
            await (await hf.submit("mail")).wait(WITHIN)

    run(main())
    said = holdfast(sqlite_url, "status", 1).out
    first, last = [said.index(part) for part in ("What went wrong", "Failed attempts")]
    told_lines = said[first:last].splitlines()
    names = [line.split()[0] for line in told_lines[1:6]]
    assert names == ["message", "error", "do", "stage", "when"]
    line = broken.__code__.co_firstlineno + 3
    assert told_lines[6:8] == ["  KeyError: 'missing'", f"  {__file__}:{line} in broken"]


def test_the_place_in_a_trace() -> None:
    own = '  File "/srv/jobs.py", line 7, in handle\n    send()\n'
    library = '  File "/venv/lib/python3.11/site-packages/mail.py", line 9, in send\n    raise Refused(x)\n'
    assert places_in_trace(own + "KeyError: 'x'\n") == ["KeyError: 'x'", "/srv/jobs.py:7 in handle"]
    assert places_in_trace(own + library + "mail.Refused: no\nsecond line\n") == [
        "mail.Refused: no",
        "/srv/jobs.py:7 in handle",
        "/venv/lib/python3.11/site-packages/mail.py:9 in send",
    ]
    crashed = (
        "Fatal Python error: Segmentation fault\nCurrent thread 0x00 (most recent call first):\n"
        '  File "/srv/native.py", line 3 in crash\n  File "/srv/jobs.py", line 7 in handle\n'
    )
    assert places_in_trace(crashed) == [
        "Fatal Python error: Segmentation fault",
        "/srv/native.py:3 in crash",
    ]
    for nothing in ("", "words", "…ne 7, in handle\nKeyError: 'x'", 'File "'):
        assert places_in_trace(nothing) == []
    assert places_in_trace(own) == ["/srv/jobs.py:7 in handle"]  # the rest was cut off


def test_a_status_as_json_is_the_whole_record_and_nothing_else(url: str) -> None:
    said = holdfast(url, "status", 1, "--json")
    assert (said.code, said.err) == (0, "")
    record = said.json
    assert (record["id"], record["status"], record["path"], record["outputs"]) == (
        *(1, "failed", "mail"),
        {"parse": {"pages": 3}},
    )
    assert record["error"]["error_type"] == "connection_error"
    assert [job["status"] for job in record["jobs"]] == ["done", "dead"]
    assert len(record["retry_history"]) == 2 and isinstance(record["created_at"], float)


def test_an_unknown_execution_is_refused_with_code_2(url: str) -> None:
    for command in (("status", 99), ("events", 99), ("retry", 99), ("status", 99, "--wait")):
        said = holdfast(url, *command)
        assert (said.code, said.out) == (2, ""), said
        assert said.err.startswith("holdfast: There is no execution 99.\n  Check the number")
    said = holdfast(url, "status", 99, "--json")
    assert said.json["error"]["code"] == "unknown_execution" and said.err == ""


def test_the_overview_counts_and_names_what_needs_attention(url: str) -> None:
    said = holdfast(url, "status")
    assert said.code == 0
    assert "1 running, 1 completed, 2 failed, 0 cancelled" in said.out
    assert "2 executions failed.\n    See why:  holdfast dead" in said.out
    assert "1 job waits for mail/parse (bulk lane), which no living worker offers" in said.out
    assert "Start the program that defines mail:  holdfast worker --app" in said.out
    record = holdfast(url, "status", "--json").json
    assert record["executions"]["failed"] == 2 and record["ready"] == 1
    assert record["unoffered"][0]["handler"] == "mail/parse"


def test_an_empty_database_needs_no_attention(store_url: str) -> None:
    told(store_url, lambda s: s.define(stage("a")))
    assert "Nothing needs attention." in holdfast(store_url, "status").out
    for command, words in (
        (("executions",), "No executions."),
        (("queue",), "No jobs."),
        (("queue", "--due"), "No jobs match."),
        (("dead",), "Nothing has failed."),
        (("dead", "--step", "a"), "Nothing that failed matches."),
    ):
        said = holdfast(store_url, *command)
        assert (said.code, said.out) == (0, words + "\n")
    assert holdfast(store_url, "executions", "--json").json == {"items": [], "next": None}


def test_executions_are_listed_by_pages_and_filters(url: str) -> None:
    def ids(*options: Any) -> list[int]:
        return [item["id"] for item in holdfast(url, "executions", "--json", *options).json["items"]]

    assert ids() == [4, 3, 2, 1]
    assert ids("--status", "failed") == [3, 1]
    assert ids("--path", "other") == []
    first = holdfast(url, "executions", "--limit", 3, "--json").json
    assert ids("--cursor", first["next"]) == [1]
    plain = holdfast(url, "executions", "--limit", 3)
    assert plain.out.splitlines()[2].split()[:3] == ["3", "mail", "failed"]
    assert "invalid_file at parse" in plain.out and "--cursor 2" in plain.err


def test_events_are_shown_in_their_order(url: str) -> None:
    said = holdfast(url, "events", 1)
    lines = [line.split()[2] for line in said.out.splitlines()]
    assert lines[0] == "execution_started" and lines[-1] == "execution_failed"
    assert "attempt 1: connection_error (transient): connection refused by mail:25" in said.out
    assert re.search(r"attempt 1 failed, the next 1970-01-1\d \d\d:\d\d:\d\d \(in 1 s\)", said.out), said
    items = holdfast(url, "events", 1, "--json").json["items"]
    assert [item["type"] for item in items] == lines
    followed = holdfast(url, "events", 1, "--follow")  # it has ended, so there is nothing to wait for
    assert followed.out == said.out


def test_the_queue_is_filtered_as_asked(url: str) -> None:
    def jobs(*options: Any) -> list[int]:
        return [item["queue_id"] for item in holdfast(url, "queue", "--json", *options).json["items"]]

    assert jobs() == [1, 2, 3, 4, 5, 6]
    assert jobs("--status", "dead") == [3, 4] and jobs("--reason", "permanent") == [3]
    assert jobs("--lane", "manual") == [1, 4]
    assert jobs("--due") == [6]
    assert jobs("--limit", 2, "--cursor", 2) == [3, 4]
    assert re.search(r"mail +parse +dead, permanent +1/1", holdfast(url, "queue").out)


def test_what_failed_is_shown_in_groups_and_one_by_one(url: str) -> None:
    said = holdfast(url, "dead")
    assert said.code == 0
    assert re.search(r"1 +mail +parse +invalid_file +permanent", said.out)
    assert re.search(r"1 +mail +send +connection_error +exhausted", said.out)
    assert "holdfast redrive --path mail" in said.err
    groups = holdfast(url, "dead", "--json").json["items"]
    assert {group["example"] for group in groups} == {1, 3}
    rows = holdfast(url, "dead", "--list", "--json").json
    assert [row["execution_id"] for row in rows["items"]] == [1, 3] and rows["next"] is None
    assert re.search(r"3 +mail +parse +invalid_file", holdfast(url, "dead", "--list", "--step", "parse").out)
    assert "mail" not in holdfast(url, "dead", "--reason", "deadline").out


def test_control_characters_of_a_message_are_shown_and_not_obeyed(url: str) -> None:
    for command in (("status", 3), ("events", 3), ("dead",), ("dead", "--list"), ("retry", 3)):
        said = holdfast(url, *command)
        assert "\x1b" not in said.out + said.err
        assert r"\x1b[31mred" in said.out + said.err, command


def test_wrong_options_are_refused_with_code_2(url: str) -> None:
    wrong = [
        *[("queue", "--status", "odd"), ("queue", "--limit", 0), ("queue", "--cursor", "x")],
        *[
            ("dead", "--cursor", "1"),
            ("status", "--wait"),
            ("status", "x"),
            ("executions", "--limit", "many"),
        ],
        *[("dead", "--reason", "odd"), ("nothing",), ("status", 1, "--within", "soon")],
    ]
    for command in wrong:
        said = holdfast(None, *command, HOLDFAST_DB=url)
        assert said.code == 2 and said.out == "" and said.err, command
        said = holdfast(None, *command, "--json", HOLDFAST_DB=url)
        assert said.code == 2 and set(said.json["error"]) == {"code", "message", "guidance"}, command
