"""The step `request`: what a portal is asked, and where its answer says that the file will be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from downloads_scenario import Downloads, entries, item
from holdfast.pipelines.downloads.asking import headers_for
from holdfast.testing.run import Run
from portal_scenario import Portal, content_of
from scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


def refused(run: Run) -> str:
    """Of an answer that leads to no file."""
    assert run.error is not None
    assert run.error.stage == "request"
    assert run.error.user_message == "The portal did not say where the file will be"
    assert run.attempts == {"request": 4}
    return run.error.message


# What is sent


def test_a_request_is_sent_as_the_item_says(downloads: Downloads, server: ScriptedServer) -> None:
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", 200, b"hello")
    request = {
        "url": f"{server.url}/reports?lang=en",
        "method": "PATCH",
        "headers": {"X-Team": "north"},
        "params": {"page": 2, "tag": ["a b", "c"]},
        "json": {"report": "nörd"},
    }
    downloads.one({"request": request, "key": "june-1"}).expect("completed")
    asked = server.requests[0]
    assert (asked.method, asked.query) == ("PATCH", "lang=en&page=2&tag=a+b&tag=c")
    assert (asked.headers["x-team"], asked.headers["idempotency-key"]) == ("north", "june-1")
    assert json.loads(asked.body) == {"report": "nörd"}


@pytest.mark.parametrize(
    ("body", "sent"),
    [({"form": {"a": "1 2", "b": 3}}, b"a=1+2&b=3"), ({"body": "as it is"}, b"as it is"), ({}, b"")],
)
def test_a_request_has_the_body_of_the_item(
    downloads: Downloads, server: ScriptedServer, body: dict[str, Any], sent: bytes
) -> None:
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", 200, b"hello")
    downloads.one({"request": {"url": f"{server.url}/reports", **body}}).expect("completed")
    assert (server.requests[0].method, server.requests[0].body) == ("POST", sent)


def test_an_item_that_cannot_be_used_is_dead_at_once(downloads: Downloads) -> None:
    # As it may be submitted past all checks, by a program.
    wrong = {"request": {"url": "https://portal.example", "headers": {"Cookie": "x"}}}
    downloads.rehearsal.do(downloads.hf.batch("downloads", [wrong]))
    [run] = downloads.rehearsal.drain()
    assert run.error is not None
    assert (run.error.error_type, run.error.category) == ("validation_error", "permanent")
    assert run.error.user_message == "The item cannot be used"
    assert run.error.guidance.endswith("Submit it anew as it should be.")
    assert run.attempts == {"request": 1}


@pytest.mark.parametrize("field", ["params", "form"])
def test_what_no_request_can_carry_is_dead_at_once_where_nobody_has_checked_it(
    downloads: Downloads, field: str
) -> None:
    workload = {"request": {"url": "https://portal.example", field: {"a": {"b": 1}}}}
    downloads.rehearsal.do(downloads.hf.batch("downloads", [workload]))
    [run] = downloads.rehearsal.drain()
    assert run.error is not None
    assert run.error.category == "permanent"
    assert run.error.message == f"request: {field}.a must be a text or a number, not a dict."
    assert run.attempts == {"request": 1}


# Once only


def test_a_request_whose_answer_was_lost_is_repeated_with_its_key_and_makes_no_second_report(
    downloads: Downloads, portal: Portal
) -> None:
    run = downloads.one(item(portal, request=["break", "close", "break-reset"]))
    assert run.attempts["request"] == 4
    keys = {entry.key for entry in entries(portal, "request")}
    assert keys == {run.workload["key"]}
    assert portal.reports_made == 1
    assert [entry.status for entry in entries(portal, "request")] == [202, 0, 200, 200]


def test_a_request_that_is_retried_by_hand_has_another_key_which_is_no_other_items(
    downloads: Downloads, portal: Portal
) -> None:
    run = downloads.one(item(portal, download=["410"], key="june"))
    downloads.rehearsal.retry(run, from_stage="request", force=True).expect("completed")
    first, second = [entry.key for entry in entries(portal, "request")]
    assert first == "june"
    assert second not in ("june", "june-2", "june 2", None)
    assert portal.reports_made == 2


def test_an_item_without_a_key_is_sent_without_one(downloads: Downloads, portal: Portal) -> None:
    # As a program may submit it.
    run = downloads.rehearsal.run("downloads", item(portal, download=["410"]))
    downloads.rehearsal.retry(run, from_stage="request", force=True)
    assert [entry.key for entry in entries(portal, "request")] == [None, None]


def test_each_item_has_a_key_of_its_own(downloads: Downloads, portal: Portal) -> None:
    downloads.all(item(portal), item(portal))
    assert len({entry.key for entry in entries(portal, "request")}) == 2
    assert portal.reports_made == 2


# Where the file will be


def test_the_portal_says_where_relative_to_what_was_asked(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal)).expect("completed")
    assert run.outputs["request"]["download_url"] == f"{portal.url}/reports/T1/file"


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"download_url": "/a/file"}, "/a/file"),
        ({"download_url": "file?part=1#end"}, "/deep/file?part=1"),
        ({"download_url": "../file"}, "/file"),
        ({"download_url": "//{host}/file"}, "/file"),
        ({"download_url": "{url}/a b.csv"}, "/a%20b.csv"),
    ],
)
def test_an_address_in_the_answer_is_completed(
    downloads: Downloads, server: ScriptedServer, told: dict[str, str], path: str
) -> None:
    host = server.url.removeprefix("http://")
    address = told["download_url"].replace("{host}", host).replace("{url}", server.url)
    server.answer("/deep/reports", json={"download_url": address})
    run = downloads.one({"request": f"{server.url}/deep/reports?secret=1"})
    assert run.outputs["request"]["download_url"] == server.url + path


@pytest.mark.parametrize("status", [201, 202])
def test_without_an_address_in_it_the_location_of_the_answer_counts(
    downloads: Downloads, server: ScriptedServer, status: int
) -> None:
    server.answer("/reports", status, json={"download_url": 5}, Location="/reports/T1")
    server.answer("/reports/T1", 200, b"hello")
    downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    assert server.requests[-1].path == "/reports/T1"


def test_a_portal_may_lead_on_to_its_answer(downloads: Downloads, server: ScriptedServer) -> None:
    server.answer("/reports", 303, Location="/reports/T1")
    server.answer("/reports/T1", json={"download_url": "T1/file"})
    server.answer("/reports/T1/file", 200, b"hello")
    downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    asked = [(request.method, request.path) for request in server.requests]
    assert asked == [("POST", "/reports"), ("GET", "/reports/T1"), ("GET", "/reports/T1/file")]


def test_the_address_of_the_item_counts_before_that_of_the_portal(
    downloads: Downloads, portal: Portal
) -> None:
    south = item(portal, download=["redirect"])
    south["download"] = f"{portal.url}/moved/{{ticket}}/file"
    downloads.one(south).expect("completed")
    assert entries(portal, "download")[0].path == "/moved/T1/file"


@pytest.mark.parametrize(
    ("answer", "url", "path"),
    [
        ({"ticket": "T1"}, "/{ticket}/file", "/T1/file"),
        ({"ticket": 17}, "/{ticket}?t={ticket}", "/17?t=17"),
        ({"data": {"file": {"id": 1.5}}}, "/{data.file.id}", "/1.5"),
        ({"files": [{"id": "T1"}, {"id": "T2"}]}, "/{files.1.id}", "/T2"),
        ({"ticket": "a/../b?c#d e"}, "/{ticket}", "/a%2F..%2Fb%3Fc%23d%20e"),
        ({"ticket": "{other}", "other": "x"}, "/{ticket}", "/%7Bother%7D"),
    ],
)
def test_places_are_filled_from_the_answer_and_stay_what_they_are(
    downloads: Downloads, server: ScriptedServer, answer: Any, url: str, path: str
) -> None:
    server.answer("/reports", json=answer)
    run = downloads.one({"request": f"{server.url}/reports", "download": server.url + url})
    assert run.outputs["request"]["download_url"] == server.url + path


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({}, "has no data.id, which download.url of the item takes from it."),
        ({"data": {}}, "has no data.id,"),
        ({"data": "T1"}, "has no data.id,"),
        (
            {"data": {"id": ""}},
            "has no data.id, which download.url of the item takes from it, but a str there.",
        ),
        ({"data": {"id": True}}, "has no data.id,"),
        ({"data": {"id": ["T1"]}}, "has no data.id,"),
        ({"data": ["T1"]}, "has no data.id,"),
        ([], "has no data.id,"),
        ("T1", "has no data.id,"),
    ],
)
def test_a_place_that_the_answer_does_not_fill_is_told(
    downloads: Downloads, server: ScriptedServer, answer: Any, told: str
) -> None:
    server.answer("/reports", json=answer)
    run = downloads.one({"request": f"{server.url}/reports", "download": f"{server.url}/{{data.id}}"})
    assert told in refused(run)


@pytest.mark.parametrize(
    "address",
    [
        *("ftp://portal.example/file", "file:///etc/passwd", "javascript:alert(1)", "http://a:99999/"),
        *("http://ann:hunter2@portal.example/", "http://[::1", "http://a\n/", "http://\udfff"),
    ],
)
def test_an_answer_that_leads_to_no_usable_address_is_told(
    downloads: Downloads, server: ScriptedServer, address: str
) -> None:
    server.answer("/reports", json={"download_url": address})
    run = downloads.one({"request": f"{server.url}/reports"})
    assert "leads to an address that cannot be used" in refused(run)
    assert "hunter2" not in repr(run.events)
    assert run.error.guidance.startswith("Ask the portal's owner")


@pytest.mark.parametrize(
    ("status", "headers"), [(200, {"Location": "/elsewhere"}), (201, {}), (204, {"Location": "/elsewhere"})]
)
def test_an_answer_that_leads_nowhere_is_told(
    downloads: Downloads, server: ScriptedServer, status: int, headers: dict[str, str]
) -> None:
    server.answer("/reports", status, **headers)
    run = downloads.one({"request": f"{server.url}/reports"})
    assert refused(run).startswith(f"The portal answered {status} with nothing, without a download_url")
    assert run.error.guidance.startswith("Give the item download: {url: …}")


def test_an_answer_that_says_more_in_time_heals(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, request=["no-ticket", "html", "empty"])).expect("completed")
    assert run.error_types == ["answer_incomplete"] * 3
    assert list(downloads.files.values()) == [content_of("north")]


# Waiting as long as a portal asks for


def test_a_download_that_is_not_found_is_waited_for_and_a_request_is_not(
    downloads: Downloads, portal: Portal
) -> None:
    early, unknown = downloads.all(
        item(portal, "early", download=["404"]), item(portal, "unknown", request=["404"])
    )
    assert (early.status, early.error_types) == ("completed", ["not_ready"])
    assert (unknown.status, unknown.error_types) == ("failed", ["not_found"])
    assert unknown.attempts == {"request": 1}


@pytest.mark.parametrize("status", [202, 204, 404, 429, 503])
def test_a_download_waits_for_as_many_seconds_as_the_portal_says(
    downloads: Downloads, server: ScriptedServer, status: int
) -> None:
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", status, Retry_After="600")
    server.answer("/file", 200, b"hello")
    run = downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    assert run.delays == {"download": [600]}


@pytest.mark.parametrize("status", [202, 204, 429, 503])
def test_a_download_waits_until_the_date_that_the_portal_says(
    downloads: Downloads, server: ScriptedServer, status: int
) -> None:
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", status, Retry_After=formatdate(time.time() + 2_000, usegmt=True))
    server.answer("/file", 200, b"hello")
    run = downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    [delay] = run.delays["download"]
    assert 1_000 < delay <= 2_000


def test_a_request_waits_as_well(downloads: Downloads, server: ScriptedServer) -> None:
    server.answer("/reports", 429, Retry_After="600")
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", 200, b"hello")
    run = downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    assert run.delays == {"request": [600]}


@pytest.mark.parametrize("after", ["soon", "-5", "", "9" * 400])
def test_a_wish_that_makes_no_sense_changes_little(
    downloads: Downloads, server: ScriptedServer, after: str
) -> None:
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", 202, Retry_After=after)
    server.answer("/file", 200, b"hello")
    run = downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    assert 60 <= run.delays["download"][0] <= 3_600


# Whose credentials


def test_credentials_are_for_their_origin_alone() -> None:
    auth = {
        "https://portal.example:443 authorization": "Bearer one",
        "https://portal.example:443 x-key": "two",
        "https://portal.example:8443 x-key": "three",
        "http://portal.example:80 x-key": "four",
    }
    assert headers_for("https://Portal.Example./x", {}, auth) == {
        "authorization": "Bearer one",
        "x-key": "two",
    }
    for other in ("https://portal.example.evil/", "https://evil/portal.example", "https://a.portal.example"):
        assert headers_for(other, {}, auth) == {}


def test_a_host_is_the_same_in_both_of_its_spellings() -> None:
    auth = {"https://xn--bcher-kva.example:443 x-key": "one"}
    assert headers_for("https://bücher.example/", {}, auth) == {"x-key": "one"}


def test_the_operators_header_counts_before_that_of_an_item() -> None:
    auth = {"https://portal.example:443 x-team": "south"}
    assert headers_for("https://portal.example", {"X-Team": "north"}, auth) == {"x-team": "south"}
