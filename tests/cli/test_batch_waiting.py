"""Why a batch does not move, and when it may be over: what its view and the commands say of that."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from batch_scenario import DELAY, batch_of, define, lines
from command_scenario import LIMIT_SECONDS, holdfast, process, there, told
from engine_scenario import START, Scenario, on_both_stores, stage
from holdfast.bench.postgres import TemporaryPostgres
from holdfast.cli import batch_input
from holdfast.core.catalogue import Category
from holdfast.core.model import Lane
from holdfast.engine import Submission
from holdfast.engine.batch_view import BatchView


async def view(s: Scenario) -> BatchView:
    return await s.engine.batches.view(1)


async def told_hindrances(s: Scenario) -> list[tuple[str, list[str], str, str]]:
    return [(item.kind, list(item.steps), item.message, item.action) for item in (await view(s)).hindrances]


async def under_way(s: Scenario, items: int = 6) -> list[Any]:
    """Two requests have ended in ten seconds, the others wait; somebody works."""
    await batch_of(s, items)
    await s.staff()
    jobs = await s.lease(2)
    s.tick(10)
    for job in jobs:
        await s.complete(job)
    s.tick(1)
    return jobs


# what is in the way


@on_both_stores
async def test_a_batch_that_moves_has_an_estimate_and_nothing_in_its_way(s: Scenario) -> None:
    await under_way(s)
    found = await view(s)
    assert found.hindrances == () and found.ends_at is not None


@pytest.mark.parametrize(
    ("kind", "name", "steps"),
    [
        ("lane", "bulk", ["request", "download"]),
        ("playbook", "reports", ["request", "download"]),
        ("limit", "max_concurrency", ["request", "download"]),
        ("step", "reports/request", ["request"]),
        ("step", "reports/download", ["download"]),
    ],
)
@on_both_stores
async def test_a_pause_is_told_and_no_end_is_promised(
    s: Scenario, kind: str, name: str, steps: list[str]
) -> None:
    await under_way(s)
    await s.engine.controls.pause(kind, name, by="ann", reason="portal maintenance")
    [(hindrance, at, message, action)] = await told_hindrances(s)
    assert (hindrance, at, action) == ("paused", steps, f"holdfast resume {kind} {name}")
    begin = f"Nothing new begins at {' and '.join(steps)}: "
    assert message.startswith(begin)
    assert re.search(r" is paused by ann since \d\d:\d\d: portal maintenance$", message), message
    assert (await view(s)).ends_at is None
    await s.engine.controls.resume(kind, name)
    assert await told_hindrances(s) == [] and (await view(s)).ends_at is not None


@on_both_stores
async def test_a_pause_elsewhere_is_not_told(s: Scenario) -> None:
    await under_way(s)
    await s.define(stage("send", path="mail", limit="smtp"), path="mail")
    for kind, name in (("lane", "manual"), ("step", "mail/send"), ("limit", "smtp")):
        await s.engine.controls.pause(kind, name)
    assert await told_hindrances(s) == []


@on_both_stores
async def test_a_full_limit_is_told_for_what_is_ready_and_the_estimate_stays(s: Scenario) -> None:
    await s.define(stage("fetch", limit="portal"))
    await s.engine.batches.create("p")
    await s.engine.batches.add(1, [Submission(path="p") for _ in range(5)])
    await s.engine.batches.close(1)
    await s.staff()
    await s.engine.controls.set_limit("portal", 3)
    [job, _] = await s.lease()
    await s.complete(job)
    assert await told_hindrances(s) == []
    await s.lease()
    full = ": limit portal is full for bulk work (2 of 3, 1 kept for manual work)"
    assert await told_hindrances(s) == [
        ("full", ["fetch"], f"2 jobs wait at fetch{full}", "holdfast limits list")
    ]
    assert (await view(s)).ends_at is not None


@on_both_stores
async def test_a_batch_for_which_nobody_works_says_so(s: Scenario) -> None:
    await under_way(s)
    nobody = [
        (
            *("unoffered", ["request"]),
            "4 jobs wait at request: no living worker offers it in the bulk lane",
            "holdfast worker --app your_module:hf",
        )
    ]
    for handlers, lanes in ((("reports/download",), tuple(Lane)), ((), (Lane.MANUAL,))):
        await s.staff(*handlers, lanes=lanes)
        assert await told_hindrances(s) == nobody
        assert (await view(s)).ends_at is None
    await s.staff("reports/request", lanes=[Lane.BULK])  # nothing is ready at the other step
    assert await told_hindrances(s) == []
    for job in await s.lease():
        await s.complete(job)
    await s.engine.batches.attend_all()
    assert await told_hindrances(s) == []  # whoever is to download has time to come until then
    s.tick(DELAY)
    [(_, steps, message, _)] = await told_hindrances(s)
    assert steps == ["download"] and message.startswith("6 jobs wait at download: no living worker")


def test_the_commands_tell_what_is_in_the_way_and_what_to_type(store_url: str) -> None:
    async def story(s: Scenario) -> None:
        await under_way(s)
        await s.engine.controls.pause("step", "reports/request", by="ann", reason="maintenance")

    told(store_url, story)
    said = holdfast(store_url, "batch", "status", 1)
    assert re.search(
        r"\n  Nothing new begins at request: it is paused by ann since .*: maintenance\.\n"
        rf"    holdfast resume step reports/request{re.escape(there(store_url))}\n",
        said.out,
    ), said
    assert not re.search("^ends ", said.out, re.M)
    [hindrance] = holdfast(store_url, "batch", "status", 1, "--json").json["hindrances"]
    assert (hindrance["kind"], hindrance["steps"]) == ("paused", ["request"])
    holdfast(store_url, "resume", "step", "reports/request")
    assert "What it waits for" not in holdfast(store_url, "batch", "status", 1).out


# when it may be over


@on_both_stores
async def test_an_estimate_is_never_before_a_wave_or_an_item_may_begin(s: Scenario) -> None:
    await batch_of(s, 3)
    await s.staff()
    for job in await s.lease():
        await s.complete(job)
    await s.engine.batches.attend_all()
    s.tick(DELAY)
    jobs = await s.lease()
    for job in jobs[:2]:
        await s.complete(job)
    await s.fail(jobs[2])
    await s.engine.batches.attend_all()
    found = await view(s)
    [wave] = found.waves
    assert wave.available_at == s.now + 60
    assert found.ends_at is not None and found.ends_at >= wave.available_at
    s.tick(60)
    jobs = await s.lease()
    await s.fail(jobs[0])
    found = await view(s)  # the next wave is about to start, with the next delay
    assert found.ends_at is not None and found.ends_at >= s.now + 180


@on_both_stores
async def test_an_item_that_was_retried_by_hand_is_told_with_its_own_time(s: Scenario) -> None:
    await batch_of(s, 3)
    await s.staff()
    jobs = await s.lease()
    await s.fail(jobs[0], category=Category.PERMANENT)
    for job in jobs[1:]:
        await s.complete(job)
    await s.engine.batches.attend_all()
    s.tick(DELAY)
    for job in await s.lease():
        await s.complete(job)
    assert (await view(s)).barriers[0].own_times == 0
    await s.retry(jobs[0].execution_id, force=True)
    s.tick(5)
    await s.complete(await s.lease_one())
    found = await view(s)
    assert (found.barriers[0].own_times, found.barriers[0].own_at) == (1, s.now + DELAY)
    assert found.ends_at is not None and found.ends_at >= s.now + DELAY
    from holdfast.cli.batch_screen import told_barrier

    words = told_barrier(found.barriers[0], found)
    assert "1 item that was retried by hand waits for a time of its own, " in words
    assert words.endswith("(in 15 min).")
    s.tick(DELAY)
    assert (await view(s)).barriers[0].own_times == 0


@on_both_stores
async def test_a_step_has_begun_when_one_item_has_had_an_attempt(s: Scenario) -> None:
    await batch_of(s, 2)
    for job in await s.lease():
        await s.complete(job)
    await s.engine.batches.attend_all()
    s.tick(DELAY + 1)
    assert (await view(s)).barriers[0].has_begun is False
    await s.lease_one()
    assert (await view(s)).barriers[0].has_begun is True


# everything at a glance


async def held(s: Scenario) -> None:
    """Three items wait at the barrier of a batch that nobody has closed."""
    await define(s)
    await s.engine.batches.create("reports", idempotency_key="june")
    await s.engine.batches.add(1, [Submission(path="reports", idempotency_key=f"i{n}") for n in range(3)])
    for job in await s.lease():
        await s.complete(job)


@on_both_stores
async def test_held_jobs_and_open_batches_are_in_the_overview(s: Scenario) -> None:
    await define(s)
    await s.engine.batches.create("reports")
    await s.engine.batches.add(1, [Submission(path="reports") for _ in range(3)])
    overview = await s.engine.overview()
    assert "held" not in overview.jobs
    [batch] = overview.open_batches
    assert (batch.id, batch.items, batch.created_at, batch.is_waited_for) == (1, 3, START, False)
    for job in await s.lease():
        await s.complete(job)
    overview = await s.engine.overview()
    assert overview.jobs == {"held": {"manual": 0, "bulk": 3}}
    assert overview.open_batches[0].is_waited_for
    await s.engine.batches.close(1)
    overview = await s.engine.overview()
    assert overview.jobs == {"queued": {"manual": 0, "bulk": 3}} and overview.open_batches == ()


def test_status_and_doctor_tell_of_a_batch_that_waits_for_its_closing(store_url: str) -> None:
    told(store_url, held)
    close = f"holdfast batch close 1{there(store_url)}"
    said = holdfast(store_url, "status")
    assert "jobs        0 ready; 3 held by a barrier or wave\n" in said.out, said
    assert re.search(r"^held +0 +3$", said.out, re.M), said
    assert re.search(
        r"Batch 1 of reports, begun .* ago, is not closed; its 3 items wait at a barrier only for that\.\n"
        rf" +When all items are there:  {re.escape(close)}\n",
        said.out,
    ), said
    findings = holdfast(store_url, "doctor", "--json").json["findings"]
    [finding] = [finding for finding in findings if finding["check"] == "batches"]
    assert finding["level"] == "warn" and "holdfast batch close 1" in finding["action"]
    item = holdfast(store_url, "status", 1)
    assert re.search(r"^batch +1, key june\nkey +i0$", item.out, re.M), item
    assert item.err == f"Batch 1 is open. When all its items are there:  {close}\n"
    barrier = "The barrier before download opens when the batch is closed, and download begins 15 min later."
    assert f"{barrier} When all items are there:  {close}\n" in (
        holdfast(store_url, "batch", "status", 1).out
    )


def test_a_new_batch_that_is_open_is_no_warning(store_url: str) -> None:
    told(store_url, define)
    holdfast(store_url, "batch", "submit", "reports", "--no-close", stdin="1\n2\n")
    findings = holdfast(store_url, "doctor", "--json").json["findings"]
    assert "batches" not in [finding["check"] for finding in findings]
    said = holdfast(store_url, "batch", "status", 1)
    assert "opens when 2 more items have settled and the batch is closed" in said.out
    assert "holdfast batch close 1" in said.out


def test_the_list_of_batches_has_the_states_of_their_status(store_url: str) -> None:
    async def story(s: Scenario) -> None:
        await s.define(stage("a"))
        for _ in range(4):
            batch_id, _ = await s.engine.batches.create("p")
            await s.engine.batches.add(batch_id, [Submission(path="p")])
        await s.complete(await s.lease_one())
        for batch_id in (1, 3):
            await s.engine.batches.close(batch_id)
        await s.engine.batches.cancel(2)

    told(store_url, story)
    listed = holdfast(store_url, "batch", "list", "--json").json["items"]
    states = {item["id"]: item["state"] for item in listed}
    assert states == {1: "finished", 2: "cancelled", 3: "running", 4: "open"}
    for id_, state in states.items():
        assert holdfast(store_url, "batch", "status", id_, "--json").json["status"] == state


def test_the_history_tells_times_as_a_clock_shows_them(store_url: str) -> None:
    async def story(s: Scenario) -> int:
        await batch_of(s, 1)
        await s.complete(await s.lease_one())
        await s.engine.batches.attend_all()
        s.tick(DELAY)
        job = await s.lease_one()
        await s.fail(job)
        await s.engine.batches.attend_all()
        return job.execution_id

    said = holdfast(store_url, "events", told(store_url, story))
    when = r"1970-01-1\d \d\d:\d\d:\d\d\n"
    assert re.search(rf"barrier_opened +download +scheduled for {when}", said.out), said
    assert re.search(r"step_retry +download +attempt 1 failed, the next with wave 1\n", said.out), said
    assert re.search(rf"wave_started +download +wave 1 begins {when}", said.out), said


# submitting


def test_the_key_of_a_cancelled_batch_says_that_it_is_cancelled(store_url: str, tmp_path: Path) -> None:
    told(store_url, define)
    command = ("batch", "submit", "reports", lines(tmp_path / "items", 1, 2), "--key", "june")
    assert "No living worker offers its first step: it waits" in holdfast(store_url, *command).err
    holdfast(store_url, "batch", "cancel", 1, "--yes", "--by", "ann")
    said = holdfast(store_url, *command)
    assert said.out == (
        "Batch 1 of reports was submitted before with this key and is cancelled by ann; nothing was added.\n"
    )
    assert "No living worker" not in said.err


@pytest.mark.parametrize(
    "command", [("batch", "submit", "reports"), ("submit", "reports", "--workload", "-")]
)
def test_a_worker_of_another_lane_does_not_count(store_url: str, command: tuple[str, ...]) -> None:
    async def story(s: Scenario) -> None:
        await define(s)
        await s.staff(lanes=[Lane.BULK])

    told(store_url, story)
    said = holdfast(store_url, *command, "--lane", "manual", stdin="1\n")
    assert "No living worker offers its first step in the manual lane: it waits" in said.err, said
    assert "No living worker" not in holdfast(store_url, *command, stdin="1\n").err


def test_a_wrong_line_is_to_be_corrected_and_what_was_stored_is_told(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(sqlite_url, define)
    monkeypatch.setattr(batch_input, "READ_BYTES", 8)
    wrong = "".join(f"{n}\n" for n in range(8)) + "{wrong\n"
    said = holdfast(sqlite_url, "batch", "submit", "reports", "--key", "june", stdin=wrong)
    assert said.code == 2 and "Correct line 9, then repeat the command" in said.err, said
    said = holdfast(sqlite_url, "batch", "submit", "reports", stdin=wrong)
    assert "Correct line 9, then add the rest, from line" in said.err, said
    file = tmp_path / "items"
    file.write_text(wrong)
    for said in (
        holdfast(sqlite_url, "batch", "submit", "reports", file),
        holdfast(sqlite_url, "batch", "submit", "reports", stdin="{wrong\n"),
    ):
        assert said.code == 2 and "Nothing was stored." in said.err, said


# an outage


def test_watchers_outlive_an_outage_of_the_database() -> None:
    with contextlib.ExitStack() as parts:
        server = parts.enter_context(TemporaryPostgres(durable=False))
        url = server.url()
        told(url, lambda s: batch_of(s, 2))
        watcher = parts.enter_context(process("batch", "watch", 1, "--db", url))
        follower = parts.enter_context(process("events", 1, "--follow", "--db", url))
        assert watcher.stdout is not None and watcher.stderr is not None
        assert follower.stdout is not None and follower.stderr is not None
        assert "0 of 2 items ended" in watcher.stdout.readline()
        assert "execution_started" in follower.stdout.readline()
        server.halt("immediate")
        for one in (watcher.stderr, follower.stderr):
            away = one.readline()
            assert away.endswith("The watching goes on when it is back.\n"), away
        server.start()
        for one in (watcher.stderr, follower.stderr):
            assert one.readline() == "The database is back.\n"
        assert holdfast(url, "batch", "cancel", 1, "--yes").code == 0
        out, err = watcher.communicate(timeout=LIMIT_SECONDS)
        assert (watcher.returncode, err) == (1, ""), err
        assert "Batch 1 of reports: Cancelled" in out
        out, err = follower.communicate(timeout=LIMIT_SECONDS)
        assert (follower.returncode, err) == (0, ""), err
        assert "execution_cancelled" in out
