"""Commands that steer: limits, pause, resume; and what status and doctor say of them."""

import re
from typing import Any

import pytest

from command_scenario import holdfast, there, told
from engine_scenario import Scenario, stage
from holdfast.cli.options import login_name
from holdfast.core.model import Lane
from running import run
from store_scenario import raw


async def reports(s: Scenario) -> None:
    """One manual and one bulk download run, two bulk ones wait."""
    await s.define(stage("download", path="reports", limit="portal"), path="reports")
    for lane in (Lane.MANUAL, Lane.BULK):
        await s.submit(path="reports", lane=lane)
    await s.lease()
    for _ in range(2):
        await s.submit(path="reports")


@pytest.fixture
def url(store_url: str) -> str:
    told(store_url, reports)
    return store_url


def findings(url: str, check: str) -> list[dict[str, Any]]:
    found = holdfast(url, "doctor", "--json").json["findings"]
    return [finding for finding in found if finding["check"] == check]


# limits


def test_a_limit_is_set_listed_and_removed(url: str) -> None:
    said = holdfast(url, "limits", "list")
    assert said.code == 0
    assert re.search(r"portal +- +- +1 +1 +2 +not set +reports/download\n", said.out), said
    assert "not set, so nothing is limited.  holdfast limits set portal N" in said.err
    said = holdfast(url, "limits", "set", "portal", 3, "--by", "ann")
    assert (said.code, said.out) == (0, "Limit portal: at most 3 at once, 1 of them for manual work only.\n")
    assert said.err == ""
    said = holdfast(url, "limits", "list")
    assert re.search(r"portal +3 +1 +1 +1 +2 +free +reports/download +ann, [0-9.]+ s ago", said.out), said
    assert said.err == ""
    [item] = holdfast(url, "limits", "list", "--json").json["items"]
    assert (item["name"], item["max_concurrency"], item["manual_reserve"], item["set_by"]) == (
        *("portal", 3),
        *(1, "ann"),
    )
    assert (item["in_use"], item["waiting"]) == ({"manual": 1, "bulk": 1}, {"manual": 0, "bulk": 2})
    assert item["steps"] == ["reports/download"] and item["pause"] is None
    said = holdfast(url, "limits", "remove", "portal")
    assert (said.code, said.out) == (0, "Limit portal is removed.\n")
    said = holdfast(url, "limits", "remove", "portal")
    assert (said.code, said.out) == (1, "Limit portal was not set.\n")
    said = holdfast(url, "limits", "remove", "portal", "--json")
    assert (said.code, said.json) == (1, {"name": "portal", "removed": False})


def test_setting_a_limit_tells_what_it_will_mean(url: str) -> None:
    said = holdfast(url, "limits", "set", "portal", "--max-concurrency", 1)
    assert said.out == (
        "Limit portal: at most 1 at once, manual and bulk alike.\n"
        "2 run now; nothing new begins until that is less.\n"
    )
    said = holdfast(url, "limits", "set", "portal", 4, "--manual-reserve", 4)
    assert "bulk work under it will wait for ever" in said.err
    told = holdfast(url, "limits", "set", "prtal", 4).err
    assert "No step that is registered names it yet; steps do so by limit: prtal" in told
    assert holdfast(url, "limits", "set", "max_concurrency", 9).err == ""
    record = holdfast(url, "limits", "set", "portal", 7, "--manual-reserve", 0, "--json").json
    assert (record["max_concurrency"], record["manual_reserve"], record["set_by"]) == (7, 0, login_name())
    assert re.search(r"max_concurrency +9 +1 +1 +1 +2 +free +all", holdfast(url, "limits", "list").out)


def test_a_pause_of_everything_is_in_the_list_of_limits(url: str) -> None:
    holdfast(url, "pause", "limit", "max_concurrency")
    said = holdfast(url, "limits", "list")
    assert re.search(r"^max_concurrency +- +- +1 +1 +2 +paused +all", said.out, re.M), said
    assert "portal: not set, so nothing is limited.  holdfast limits set portal N" in said.err
    assert [finding["message"].split(",")[0] for finding in findings(url, "limits")] == [
        "Nobody has set the limit portal"
    ]


def test_without_limits_the_list_says_what_that_means(store_url: str) -> None:
    told(store_url, lambda s: s.define(stage("a")))
    said = holdfast(store_url, "limits", "list")
    assert (said.code, said.out) == (0, "No limits: everything runs as soon as a worker is free.\n")
    assert holdfast(store_url, "limits", "list", "--json").json == {"items": [], "next": None}


def test_wrong_limits_and_pauses_are_refused_with_code_2(sqlite_url: str) -> None:
    told(sqlite_url, reports)
    for command, words in (
        (("limits", "set", "portal"), "How many may run at once? For example:  holdfast limits set portal 5"),
        (("limits", "set", "portal", -1), "A limit is a whole number from 1 on, not -1."),
        (("limits", "set", "portal", "--max-concurrency", -1), "whole number from 1 to"),
        (("limits", "set", "portal", "--odd"), "No such option"),
        (("limits", "set", "portal", 3, "--max-concurrency", 3), "Give the number once"),
        (("limits", "set", "portal", 0), "To stop all work under it, pause the limit."),
        (("limits", "set", "portal", "many"), "not a valid integer"),
        (("limits", "set", "a b", 1), "Use letters, digits"),
        (("limits", "set", "portal", 3, "--manual-reserve", 4), "whole number from 0 to 3"),
        (("limits", "set", "portal", 3, "--by", "a\nb"), "cannot be printed"),
        (("limits", "odd"), "No such command"),
        (("pause", "worker", "w"), "is not one of"),
        (("pause", "all", "x"), "To pause everything:  holdfast pause limit max_concurrency"),
        (("pause", "step", "download"), "Did you mean reports/download? With --force"),
        (("pause", "lane"), "Missing argument"),
        (("pause", "lane", "fast"), "Allowed are: manual, bulk."),
        (("pause", "step", "reports/downlod"), "Known are: reports/download. With --force"),
        (("pause", "lane", "bulk", "--reason", "a\nb"), "Leave out line breaks"),
        (("resume", "lane", "fast"), "Allowed are: manual, bulk."),
    ):
        said = holdfast(sqlite_url, *command)
        assert (said.code, said.out) == (2, ""), (command, said)
        assert words in said.err, (command, said)
        said = holdfast(sqlite_url, *command, "--json")
        assert said.code == 2 and set(said.json["error"]) == {"code", "message", "guidance"}, command
    assert holdfast(sqlite_url, "status", "--json").json["pauses"] == []


# pause and resume


def test_a_pause_is_made_told_and_ended(url: str) -> None:
    said = holdfast(url, "pause", "step", "reports/download", "--by", "ann", "--reason", "portal maintenance")
    assert (said.code, said.out) == (
        0,
        "Step reports/download is paused. Nothing new begins there; what runs goes on.\n",
    )
    assert said.err == f"Go on with it:  holdfast resume step reports/download{there(url)}\n"
    again = holdfast(url, "pause", "step", "reports/download", "--by", "bob")
    assert again.code == 0
    assert "Step reports/download is paused by ann since" in again.out
    assert again.out.endswith("portal maintenance. It was paused already and stays so.\n")
    record = holdfast(url, "pause", "step", "reports/download", "--json").json
    assert (record["kind"], record["name"], record["by"], record["already"]) == (
        *("step", "reports/download"),
        *("ann", True),
    )
    waiting = holdfast(url, "status", 3)
    assert re.search(r"Waiting to run download; paused by ann since \d\d:\d\d: portal main", waiting.out)
    assert "Running download" in holdfast(url, "status", 1).out
    holdfast(url, "pause", "lane", "bulk")
    other = holdfast(url, "resume", "lane", "manual")
    assert (other.code, other.out) == (
        1,
        "Lane manual was not paused.\nPaused are: step reports/download, the bulk lane.\n",
    )
    assert holdfast(url, "resume", "lane", "manual", "--json").json == {"resumed": None}
    said = holdfast(url, "resume", "lane", "bulk")
    assert said.code == 0
    assert said.out.startswith(f"The bulk lane goes on. It was paused by {login_name()} for ")
    ended = holdfast(url, "resume", "step", "reports/download", "--json").json["resumed"]
    assert (ended["by"], ended["reason"]) == ("ann", "portal maintenance")
    assert holdfast(url, "status", 3).out.startswith(
        "Execution 3 of reports: Waiting to run download: no living worker offers it\n"
    )


def test_what_is_yet_to_come_is_paused_by_force(sqlite_url: str) -> None:
    told(sqlite_url, reports)
    assert holdfast(sqlite_url, "pause", "playbook", "to come", "--force").code == 0
    assert "holdfast resume playbook 'to come'" in holdfast(sqlite_url, "status").out


# status and doctor


def test_the_overview_tells_pauses_and_full_limits(url: str) -> None:
    before = holdfast(url, "status").out
    assert "Paused" not in before and "Limits" not in before
    assert "2 jobs wait for reports/download (bulk lane), which no living worker offers" in before
    holdfast(url, "limits", "set", "portal", 2)
    assert "Limits that are full\n  portal is full (2 of 2): 2 bulk wait.\n" in holdfast(url, "status").out
    holdfast(url, "limits", "set", "portal", 3, "--manual-reserve", 2)
    assert (
        "portal is full for bulk work (2 of 3, 2 kept for manual work): 2 bulk wait."
        in holdfast(url, "status").out
    )
    holdfast(url, "pause", "lane", "bulk", "--by", "ann", "--reason", "month end")
    said = holdfast(url, "status").out
    assert "; 2 of them paused\n" in said
    assert "Paused: nothing new begins there, what runs goes on\n  bulk lane paused by ann since " in said
    assert f"): month end. 2 jobs wait for it.\n    holdfast resume lane bulk{there(url)}\n" in said
    assert "no living worker offers" not in said
    record = holdfast(url, "status", "--json").json
    assert record["paused"] == 2 and record["unoffered"] == []
    assert (record["pauses"][0]["jobs"], record["pauses"][0]["pause"]["by"]) == (2, "ann")
    assert record["limits"][0]["name"] == "portal"
    holdfast(url, "resume", "lane", "bulk")
    holdfast(url, "pause", "limit", "portal")
    said = holdfast(url, "status").out
    assert "limit portal paused by" in said and "Limits that are full" not in said
    assert re.search(r"portal +3 +2 +1 +1 +2 +paused", holdfast(url, "limits", "list").out)


def test_the_doctor_warns_of_forgotten_pauses_and_of_limits_that_nobody_has_set(store_url: str) -> None:
    async def long_ago(s: Scenario) -> None:
        await reports(s)
        await s.engine.controls.pause("lane", "manual", by="ann", reason="then")

    told(store_url, long_ago)
    holdfast(store_url, "pause", "lane", "bulk", "--by", "bob")
    forgotten, fresh = findings(store_url, "paused")
    assert forgotten["level"] == "warn"
    assert forgotten["message"].startswith("For over a day: manual lane paused by ann since 1970-01-")
    remedy = f"holdfast resume lane manual{there(store_url)}"
    assert forgotten["action"] == f"Where it was forgotten:  {remedy}"
    assert fresh["level"] == "ok" and fresh["message"].startswith("bulk lane paused by bob since")
    [waiting] = findings(store_url, "waiting")
    assert waiting["message"] == "2 jobs are ready, 2 of them paused; workers offer the others."
    [unset] = findings(store_url, "limits")
    assert unset["level"] == "warn"
    assert unset["message"].startswith("Nobody has set the limit portal, which is named by reports/download:")
    assert unset["action"] == f"Set it:  holdfast limits set portal N{there(store_url)}"
    holdfast(store_url, "limits", "set", "portal", 3, "--manual-reserve", 3)
    [starving] = findings(store_url, "limits")
    assert starving["level"] == "warn" and "bulk work waits for ever" in starving["message"]
    holdfast(store_url, "limits", "set", "portal", 3)
    assert findings(store_url, "limits") == []


def test_who_paused_and_why_cannot_take_over_the_terminal(sqlite_url: str) -> None:
    """Whoever writes past the engine may put anything there."""
    told(sqlite_url, reports)
    row = "('lane', 'bulk', 'a' || char(27) || '[31m', 'b' || char(7), 0)"
    run(raw(sqlite_url, f"INSERT INTO pauses (kind, name, paused_by, reason, paused_at) VALUES {row}"))
    for command in (("status",), ("status", 3), ("doctor",), ("pause", "lane", "bulk")):
        said = holdfast(sqlite_url, *command)
        assert "\x1b" not in said.out + said.err and "\x07" not in said.out + said.err
        assert r"a\x1b[31m" in said.out, command
