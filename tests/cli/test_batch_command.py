"""`holdfast batch`: items from files and pipes, looking, closing and cancelling."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from batch_scenario import DELAY, define, lines, one_of_each
from command_scenario import holdfast, there, told
from engine_scenario import Scenario, on_both_stores
from holdfast import Holdfast
from holdfast.cli import batch_adding, batch_input
from holdfast.core.catalogue import Category
from holdfast.core.model import EventType
from holdfast.engine import Submission
from running import run


@pytest.fixture
def url(store_url: str) -> str:
    told(store_url, define)
    return store_url


def workloads_of(url: str, batch_id: int) -> list[Any]:
    page = holdfast(url, "batch", "items", batch_id, "--limit", 1000, "--json").json
    return [item["workload"] for item in page["items"]]


# submitting


def test_a_line_that_is_too_large_for_a_workload_is_refused(url: str, tmp_path: Path) -> None:
    said = holdfast(url, "batch", "submit", "reports", lines(tmp_path / "i", 1, "x" * 1_100_000))
    assert said.code == 2 and "The item in line 2 of" in said.err and "the limit is 1,048,576" in said.err
    assert holdfast(url, "batch", "list").out == "No batches.\n"


def test_a_file_is_submitted_and_tells_what_to_type_next(url: str, tmp_path: Path) -> None:
    file = lines(tmp_path / "items.jsonl", *range(1_203))
    said = holdfast(url, "batch", "submit", "reports", file)
    assert (said.code, said.out) == (0, "Batch 1 of reports is submitted, with 1,203 items.\n")
    assert "No living worker offers its first step" in said.err
    assert said.err.endswith(f"How it goes:  holdfast batch watch 1{there(url)}\n")
    view = holdfast(url, "batch", "status", 1, "--json").json
    assert (view["items"], view["status"], view["lane"]) == (1_203, "running", "bulk")
    page = holdfast(url, "batch", "items", 1, "--limit", 1000, "--json").json
    rest = holdfast(url, "batch", "items", 1, "--limit", 1000, "--cursor", page["next"], "--json").json
    assert [item["workload"] for item in page["items"] + rest["items"]] == list(range(1_203))


def test_an_array_and_a_pipe_are_submitted_as_well(url: str, tmp_path: Path) -> None:
    file = tmp_path / "items.json"
    file.write_text(json.dumps([{"id": 1}, {"id": 2}], indent=2))
    answer = holdfast(
        url, "batch", "submit", "reports", file, "--lane", "manual", "--mode", "auto", "--json"
    ).json
    assert answer == {"id": 1, "items": 2, "added": 2, "path": "reports", "created": True, "closed": True}
    view = holdfast(url, "batch", "status", 1, "--json").json
    assert (view["lane"], view["mode"]) == ("manual", "auto")
    for arguments in ((), ("-",)):
        said = holdfast(url, "batch", "submit", "reports", *arguments, stdin="7\n8\n")
        batch_id = int(said.out.split()[1])
        assert workloads_of(url, batch_id) == [7, 8]


def test_a_wrong_line_of_a_file_stores_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_input, "READ_BYTES", 64)
    file = lines(tmp_path / "items.jsonl", *range(900))
    file.write_text(file.read_text() + "{wrong\n")
    said = holdfast(url, "batch", "submit", "reports", file)
    assert (said.code, said.out) == (2, "") and "Line 901 of" in said.err
    assert holdfast(url, "batch", "list", "--json").json == {"items": [], "next": None}


def test_a_wrong_line_of_a_pipe_says_what_was_stored_and_what_to_type(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_input, "READ_BYTES", 8)
    stdin = "".join(f"{n}\n" for n in range(10)) + "{wrong\n11\n"
    said = holdfast(url, "batch", "submit", "reports", stdin=stdin)
    assert said.code == 2
    assert "Line 11 of stdin is not JSON" in said.err
    [batch] = holdfast(url, "batch", "list", "--json").json["items"]
    kept, id_ = batch["items"], batch["id"]
    assert 0 < kept <= 10 and batch["state"] == "open"
    assert f"{kept} items are in batch {id_}, those up to line {kept}; it is open." in said.err
    assert f"from line {kept + 1} on:  holdfast batch add {id_} FILE" in said.err
    assert workloads_of(url, id_) == list(range(kept))
    rest = "".join(f"{n}\n" for n in range(kept, 12))
    said = holdfast(url, "batch", "add", id_, "-", stdin=rest)
    assert (said.code, said.out) == (0, f"{12 - kept} items were added to batch {id_}.\n")
    assert said.err == f"When all are there:  holdfast batch close {id_}{there(url)}\n"
    said = holdfast(url, "batch", "close", id_)
    assert (said.code, said.out) == (0, f"Batch {id_} is closed.\n")
    assert workloads_of(url, id_) == list(range(12))
    said = holdfast(url, "batch", "add", id_, stdin="1\n")
    assert said.code == 2 and f"Batch {id_} is closed: nothing can be added to it." in said.err


def test_with_a_key_the_same_command_adds_the_rest(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_input, "READ_BYTES", 8)
    monkeypatch.setattr(sys, "argv", ["holdfast", "batch", "submit", "reports", "--key", "the june"])
    command = ("batch", "submit", "reports", "--key", "the june")
    whole = "".join(f"{n}\n" for n in range(20))
    said = holdfast(url, *command, stdin=whole[:24] + "{wrong")
    assert said.code == 2
    assert (
        "then repeat the command, and the rest is added:  holdfast batch submit reports --key 'the june'"
        in said.err
    )
    [batch] = holdfast(url, "batch", "list", "--json").json["items"]
    said = holdfast(url, *command, stdin=whole)
    rest = 20 - batch["items"]
    assert said.out == (
        f"Batch {batch['id']} of reports was begun before with this key: {rest} items were added,"
        f" {batch['items']} were there already.\n"
    )
    assert workloads_of(url, batch["id"]) == list(range(20))
    said = holdfast(url, *command, stdin=whole)
    assert "was submitted before with this key; nothing was added." in said.out
    said = holdfast(url, *command, stdin=whole + "20\n")
    assert said.code == 2 and f"Batch {batch['id']} is closed: nothing can be added to it." in said.err
    assert "it is open" not in said.err
    said = holdfast(url, *command, stdin="99\n")
    assert said.code == 2 and "Are the items in stdin still those" in said.err
    assert holdfast(url, "batch", "status", batch["id"], "--json").json["items"] == 20


def test_a_key_of_the_command_line_is_that_of_the_python_api(url: str) -> None:
    holdfast(url, "batch", "submit", "reports", "--key", "june", "--no-close", stdin="0\n1\n")

    async def again() -> int:
        async with Holdfast(url) as hf:
            batch = await hf.batch("reports", range(3), key="june")
            return (await batch.status()).items

    assert run(again()) == 3


def test_a_batch_may_be_left_open_and_items_of_a_key_added_twice(url: str, tmp_path: Path) -> None:
    file = lines(tmp_path / "more.jsonl", 2, 3)
    said = holdfast(url, "batch", "submit", "reports", "--no-close", stdin="1\n")
    add, close = f"holdfast batch add 1 FILE{there(url)}", f"holdfast batch close 1{there(url)}"
    assert f"It is open:  {add} , and at the end  {close}\n" in said.err
    assert holdfast(url, "batch", "add", 1, file, "--key", "more", "--json").json == {
        "id": 1,
        "items": 2,
        "added": 2,
    }
    said = holdfast(url, "batch", "add", 1, file, "--key", "more")
    assert said.out == "0 items were added to batch 1; 2 items were there already.\n"
    assert workloads_of(url, 1) == [1, 2, 3]
    assert holdfast(url, "batch", "close", 1, "--json").json == {"id": 1, "closed": True}
    assert holdfast(url, "batch", "close", 1).out == "Batch 1 was closed before.\n"


def test_a_database_that_goes_away_in_the_middle_is_told_with_what_is_there(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.core.errors import StoreUnavailable
    from holdfast.engine.batches import Batches

    told(sqlite_url, define)
    add, calls = Batches.add, []

    async def goes_away(self: Batches, batch_id: int, items: Any) -> Any:
        calls.append(len(items))
        if len(calls) > 1:
            raise StoreUnavailable("The disk is full.")
        return await add(self, batch_id, items)

    monkeypatch.setattr(Batches, "add", goes_away)
    monkeypatch.setattr(batch_adding, "ITEMS_PER_TRANSACTION", 4)
    said = holdfast(sqlite_url, "batch", "submit", "reports", lines(tmp_path / "i", *range(10)))
    assert said.code == 3
    assert "The disk is full. 4 items are in batch 1, those up to line 4; it is open." in said.err


@pytest.mark.parametrize(
    ("command", "stdin", "words"),
    [
        (("submit", "nothing"), "1\n", "There is no pipeline 'nothing'"),
        (("submit", "reports"), "", "There are no items in stdin."),
        (("submit", "reports", "absent.jsonl"), "", "No such file"),
        (("submit", "reports", "/"), "", "Is a directory"),
        (("submit", "reports", "--watch", "--no-close"), "1\n", "has no end to watch"),
        (("submit", "reports", "--key", " "), "1\n", "must be a non-empty string"),
        (("add", 7), "1\n", "There is no batch 7."),
        (("add", 2**70), "1\n", "There is no batch"),
        (("close", 7), "", "There is no batch 7."),
        (("cancel", 7, "--yes"), "", "There is no batch 7."),
        (("cancel", 7), "", "Add --yes to cancel a batch"),
        (("status", 7), "", "There is no batch 7."),
        (("watch", 7), "", "There is no batch 7."),
        (("items", 7), "", "There is no batch 7."),
        (("items", 7, "--cursor", "x"), "", "There is no batch 7."),
        (("list", "--limit", 0), "", "A page has 1 to"),
        (("status", "seven"), "", "not a valid integer"),
    ],
)
def test_what_cannot_be_done_is_refused_with_code_2(
    sqlite_url: str, command: tuple[object, ...], stdin: str, words: str
) -> None:
    told(sqlite_url, define)
    said = holdfast(sqlite_url, "batch", *command, stdin=stdin)
    assert (said.code, said.out) == (2, "") and words in said.err, said
    said = holdfast(sqlite_url, "batch", *command, "--json", stdin=stdin)
    assert said.code == 2 and set(said.json["error"]) == {"code", "message", "guidance"}
    assert holdfast(sqlite_url, "batch", "list").out == "No batches.\n"


def test_an_empty_file_makes_no_batch(url: str, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    for content in ("", "\n\n", "[]", "\ufeff"):
        file.write_text(content)
        said = holdfast(url, "batch", "submit", "reports", file)
        assert said.code == 2 and f"There are no items in {file}." in said.err
    assert holdfast(url, "batch", "list").out == "No batches.\n"


# looking


def test_status_tells_steps_gates_and_failures(store_url: str) -> None:
    ids = told(store_url, one_of_each)
    said = holdfast(store_url, "batch", "status", 1)
    assert said.code == 0
    assert said.out.startswith("Batch 1 of reports: 1 of 5 items ended\n"), said
    assert "items      4 running, 0 completed, 1 failed, 0 cancelled\n" in said.out
    assert re.search(r"^request +1 +1 +2 +1 +0$", said.out, re.M), said
    assert re.search(r"^download +4 +0 +0 +0 +1$", said.out, re.M), said
    barrier = "\nThe barrier before download opens when 2 more items have settled,"
    assert f"{barrier} and download begins 15 min later.\n" in said.out
    assert "  1 item failed at request: Document file not found (not_found, permanent).\n" in said.out
    assert rf"For example execution {ids[0]}: no such \x1b[31mreport" in said.out
    assert "Start them again:  holdfast redrive --batch 1 --force" in said.err
    assert "\x1b" not in said.out + said.err
    record = holdfast(store_url, "batch", "status", 1, "--json").json
    assert (record["barrier"]["waits_for"], record["executions"]["failed"]) == (2, 1)


def test_items_are_listed_with_their_steps(store_url: str) -> None:
    ids = told(store_url, one_of_each)
    said = holdfast(store_url, "batch", "items", 1)
    assert re.search(rf"^{ids[0]} +failed +0 +failed +skipped +not_found: no such \\x1b", said.out, re.M), (
        said
    )
    assert re.search(rf"^{ids[1]} +running +1 +pending +pending +connection_error: ", said.out, re.M), said
    assert re.search(rf"^{ids[2]} +running +2 +completed +pending$", said.out, re.M), said
    failed = holdfast(store_url, "batch", "items", 1, "--status", "failed", "--json").json
    assert [item["id"] for item in failed["items"]] == [ids[0]] and failed["next"] is None
    page = holdfast(store_url, "batch", "items", 1, "--limit", 2)
    assert page.err == f"More:  --cursor {ids[1]}\n"
    assert holdfast(store_url, "batch", "items", 1, "--status", "completed").out == "No items match.\n"


def test_batches_are_listed_newest_first(url: str) -> None:
    for key in ("may", "june"):
        holdfast(url, "batch", "submit", "reports", "--key", key, "--no-close", stdin="1\n2\n")
    holdfast(url, "batch", "close", 1)
    said = holdfast(url, "batch", "list")
    assert re.search(
        r"^2 +reports +2 +bulk +open +\S+ s ago +june\n1 +reports +2 +bulk +running ", said.out, re.M
    )
    page = holdfast(url, "batch", "list", "--limit", 1, "--json").json
    assert [item["id"] for item in page["items"]] == [2] and page["next"] == "2"
    assert set(page["items"][0]) == {
        *("id", "path", "version", "lane", "mode", "idempotency_key", "items", "state"),
        *("created_at", "closed_at", "cancelled_at", "cancelled_by"),
    }
    said = holdfast(url, "batch", "list", "--limit", 1, "--cursor", page["next"])
    assert "may" in said.out and "june" not in said.out


def test_an_item_tells_its_batch_and_what_it_waits_for(store_url: str) -> None:
    ids = told(store_url, one_of_each)
    said = holdfast(store_url, "status", ids[2])
    assert "Waiting for the barrier before download: 2 items of batch 1 are not settled\n" in said.out
    assert re.search(r"^batch +1$", said.out, re.M)
    assert re.search(r"^download +queued +0/3 +held by barrier$", said.out, re.M), said
    assert holdfast(store_url, "status", ids[2], "--json").json["batch_id"] == 1


@on_both_stores
async def test_the_sentence_of_an_item_follows_it_through_the_gates(s: Scenario) -> None:
    await define(s)
    await s.staff()
    batch_id, _ = await s.engine.batches.create("reports")
    added = await s.engine.batches.add(batch_id, [Submission(path="reports") for _ in range(3)])
    ids = [item.id for item in added]

    async def summary(place: int) -> str:
        return (await s.engine.view(ids[place])).summary

    first, second, third = await s.lease()
    await s.complete(first)
    await s.complete(second)
    assert await summary(0) == "Waiting for the barrier before download: 1 item of batch 1 is not settled"
    await s.complete(third)
    assert await summary(0) == "Waiting for the barrier before download: batch 1 is not closed"
    await s.engine.batches.close(batch_id)
    assert re.fullmatch(r"Waiting to run download, which is scheduled for \d\d:\d\d", await summary(0))
    s.tick(DELAY)
    assert await summary(0) == "Waiting to run download"
    first, second, third = await s.lease()
    await s.fail(first)
    assert await summary(0) == "Retrying (attempt 1/2); waiting for wave 1 of download: 2 jobs are at work"
    await s.complete(second)
    await s.complete(third)
    assert await summary(0) == "Retrying (attempt 1/2); waiting for wave 1 of download: it begins soon"
    await s.engine.batches.attend_all()
    assert await summary(0) == "Retrying (attempt 1/2)"
    await s.engine.controls.pause("step", "reports/download", by="ann")
    assert "; paused by ann since" in await summary(0)


# the filters of other commands


def test_executions_and_failures_are_filtered_by_batch(store_url: str) -> None:
    async def story(s: Scenario) -> tuple[list[int], int]:
        await define(s)
        alone = await s.submit(path="reports")
        await s.fail(await s.lease_one(), category=Category.PERMANENT)
        return await one_of_each(s), alone

    ids, alone = told(store_url, story)
    page = holdfast(store_url, "executions", "--batch", 1, "--json").json
    assert [item["id"] for item in page["items"]] == ids[::-1]
    assert alone in [item["id"] for item in holdfast(store_url, "executions", "--json").json["items"]]
    listed = holdfast(store_url, "dead", "--list", "--batch", 1, "--json").json["items"]
    assert [item["execution_id"] for item in listed] == ids[:1]
    groups = holdfast(store_url, "dead", "--batch", 1)
    assert "holdfast redrive --path reports --error-type not_found --batch 1 --force" in groups.err
    for far in (9, 0, 2**70):
        for command in (("dead",), ("dead", "--list"), ("executions",), ("redrive", "--yes")):
            said = holdfast(store_url, *command, "--batch", far)
            assert (said.code, said.out) == (2, "") and f"There is no batch {far}." in said.err, command
    redriven = holdfast(store_url, "redrive", "--batch", 1, "--force", "--yes", "--json").json
    assert [item["execution_id"] for item in redriven["items"]] == ids[:1] and redriven["redriven"] == 1
    assert holdfast(store_url, "status", alone, "--json").json["status"] == "failed"


# ending


def test_a_batch_is_cancelled_once(store_url: str) -> None:
    ids = told(store_url, one_of_each)
    said = holdfast(store_url, "batch", "cancel", 1, "--yes", "--by", "ann")
    assert (said.code, said.out) == (0, "Batch 1 is cancelled, with 4 items that had not ended.\n")
    said = holdfast(store_url, "batch", "status", 1)
    assert said.out.startswith("Batch 1 of reports: Cancelled by ann, 0 of 5 items completed\n")
    said = holdfast(store_url, "batch", "cancel", 1, "--yes")
    assert (said.code, said.out) == (1, "Batch 1 is cancelled already; nothing was changed.\n")
    answer = holdfast(store_url, "batch", "cancel", 1, "--yes", "--json")
    assert (answer.code, answer.json) == (1, {"id": 1, "cancelled": False, "items": 0})
    said = holdfast(store_url, "batch", "watch", 1)
    assert said.code == 1 and "What failed" in said.out
    history = holdfast(store_url, "events", ids[2], "--json").json["items"]
    assert history[-1]["type"] == EventType.EXECUTION_CANCELLED and history[-1]["by"] == "ann"
