"""The portal of examples/: what it promises, and each of its troubles as a real client meets it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal_scenario import (
    HUGE_ANNOUNCED,
    TROUBLES,
    Portal,
    ask,
    break_at,
    chance_plan,
    check_troubles,
    client_of,
    connected,
    content_of,
    say,
)
from running import eventually, run

PROGRAM = Path(__file__).parent.parent / "examples" / "portal.py"
NORTH = content_of("north")
SIZE = len(NORTH)


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal(obeys=True) as portal:
        yield portal


@pytest.fixture
def client(portal: Portal) -> Iterator[httpx.Client]:
    with client_of(portal) as client:
        yield client


def file_of(portal: Portal, *troubles: str) -> str:
    """The path of a file whose downloads meet these."""
    return ask(portal, troubles={"download": list(troubles)})["download_url"]  # type: ignore[no-any-return]


# Files


def test_a_file_is_always_the_same_and_no_other_is_like_it() -> None:
    content_of.cache_clear()
    assert content_of("north") == NORTH
    assert SIZE == 200_000
    assert len({NORTH, content_of("south"), content_of("north", version=1)}) == 3
    assert [len(content_of("north", size)) for size in (0, 1, 71, 72, 73, 1000)] == [0, 1, 71, 72, 73, 1000]
    assert len(gzip.compress(NORTH)) > SIZE / 2


# Requests


def test_a_request_gives_a_ticket(portal: Portal, client: httpx.Client) -> None:
    answer = client.post("/reports", json={"report": "north"})
    assert (answer.status_code, answer.headers["location"]) == (202, "/reports/T1/file")
    assert answer.json() == {
        "ticket": "T1",
        "report": "north",
        "status": "ready",
        "download_url": "/reports/T1/file",
        "sha256": hashlib.sha256(NORTH).hexdigest(),
        "size": SIZE,
    }
    assert ask(portal, "north", size=10)["size"] == 10


def test_checksums_can_be_kept_back() -> None:
    with Portal(tells_checksum=False) as portal, client_of(portal) as client:
        assert {"sha256", "size"}.isdisjoint(ask(portal))
        assert "repr-digest" not in client.get("/reports/T1/file").headers


def test_the_same_key_gives_the_same_ticket_and_another_body_with_it_is_refused(client: httpx.Client) -> None:
    def asked(report: str, key: str) -> httpx.Response:
        return client.post("/reports", json={"report": report}, headers={"Idempotency-Key": key})

    answers = [asked("north", "a"), asked("north", "a"), asked("north", "b"), asked("south", "a")]
    assert [answer.status_code for answer in answers] == [202, 200, 202, 422]
    assert [answer.json().get("ticket") for answer in answers] == ["T1", "T1", "T2", None]
    assert "T1" in answers[3].json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("[" * 100_000, 400),
        ("[]", 422),
        ("{}", 422),
        ('{"report": ""}', 422),
        ('{"report": "\\ud800"}', 422),
        ('{"report": "north", "size": -1}', 422),
        ('{"report": "north", "size": true}', 422),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_request_that_makes_no_sense_is_refused(client: httpx.Client, body: str, status: int) -> None:
    answer = client.post("/reports", content=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_what_is_not_there_is_not_found(portal: Portal, client: httpx.Client) -> None:
    for path in ("/reports/T1", "/reports/T1/file", "/nothing", "/T1"):
        assert client.get(path).status_code == 404
    assert client.delete("/reports").status_code == 405
    assert say(portal, "JUMP /reports HTTP/1.1").head.startswith("HTTP/1.1 501 ")
    for length in ("Content-Length: 99999999", "Content-Length: x", "Transfer-Encoding: chunked"):
        assert say(portal, "POST /reports HTTP/1.1", length).head.startswith("HTTP/1.1 413 ")
    assert say(portal, "nonsense").head.startswith("HTTP/1.1 400 ")


# Downloads


def test_a_file_is_not_found_until_it_is_ready() -> None:
    with Portal(ready_after=3600) as portal, client_of(portal) as client:
        assert ask(portal, note="kept")["status"] == "preparing"
        early = client.get("/reports/T1/file")
        assert (early.status_code, early.json()["status"]) == (404, "preparing")
        portal.ready_after = 0
        status = client.get("/reports/T1").json()
        assert (status["status"], status["asked"]) == ("ready", {"report": "north", "note": "kept"})
        assert client.get("/reports/T1/file").content == NORTH


def test_a_whole_file_says_all_there_is_to_say_about_it(portal: Portal, client: httpx.Client) -> None:
    answer = client.get(file_of(portal))
    assert (answer.status_code, answer.content) == (200, NORTH)
    headers = answer.headers
    assert headers["content-length"] == str(SIZE)
    assert headers["accept-ranges"] == "bytes"
    assert headers["etag"].startswith('"')
    assert headers["content-disposition"] == 'attachment; filename="north.csv"'
    digest = base64.b64encode(hashlib.sha256(NORTH).digest()).decode()
    assert headers["repr-digest"] == f"sha-256=:{digest}:"
    assert abs(parsedate_to_datetime(headers["last-modified"]).timestamp() - time.time()) < 60
    only_head = client.head("/reports/T1/file", headers={"Range": "bytes=5-"})
    assert (only_head.status_code, only_head.content) == (200, b"")
    assert {**only_head.headers, "date": ""} == {**headers, "date": ""}


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-9", 0, 9),
        ("bytes=150000-", 150_000, SIZE - 1),
        ("bytes=-50", SIZE - 50, SIZE - 1),
        ("bytes=-999999", 0, SIZE - 1),
        ("bytes=199999-999999", SIZE - 1, SIZE - 1),
    ],
)
def test_a_part_of_a_file(portal: Portal, client: httpx.Client, asked: str, first: int, last: int) -> None:
    answer = client.get(file_of(portal), headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, NORTH[first : last + 1])
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{SIZE}"
    assert answer.headers["content-length"] == str(last + 1 - first)
    assert (portal.log[-1].range, portal.log[-1].sent) == (first, last + 1 - first)


@pytest.mark.parametrize("asked", ["bytes=200000-", "bytes=-0", "bytes=999999-1000000"])
def test_a_part_beyond_the_end_is_refused(portal: Portal, client: httpx.Client, asked: str) -> None:
    answer = client.get(file_of(portal), headers={"Range": asked})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{SIZE}")


@pytest.mark.parametrize("asked", ["bytes=9-5", "bytes=-", "rows=1-2", "bytes=0-1,5-6", "bytes=x-"])
def test_a_part_that_is_not_understood_is_the_whole(portal: Portal, client: httpx.Client, asked: str) -> None:
    answer = client.get(file_of(portal), headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, NORTH)


def test_if_range_gives_the_part_of_the_same_file_only(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal)
    known = client.head(path).headers
    for given, status in ((known["etag"], 206), (known["last-modified"], 206), ('"another"', 200)):
        answer = client.get(path, headers={"Range": "bytes=7-", "If-Range": given})
        assert (answer.status_code, answer.content) == (status, NORTH[7:] if status == 206 else NORTH)


def test_an_empty_file_has_no_parts(portal: Portal, client: httpx.Client) -> None:
    path = ask(portal, size=0)["download_url"]
    assert client.get(path).content == b""
    assert client.get(path, headers={"Range": "bytes=0-"}).status_code == 416


def test_a_connection_is_kept(portal: Portal) -> None:
    file_of(portal)
    with connected(portal) as connection, connection.makefile("rb") as heard:
        for _ in range(3):
            connection.sendall(b"HEAD /reports/T1/file HTTP/1.1\r\nHost: portal\r\n\r\n")
            assert heard.readline() == b"HTTP/1.1 200 OK\r\n"
            while heard.readline() != b"\r\n":
                pass


def test_pace_slows_a_download() -> None:
    with Portal(pace=40_000, size=6_000) as portal, client_of(portal) as client:
        path = ask(portal)["download_url"]
        began = time.monotonic()
        assert client.get(path).content == content_of("north", 6_000)
        assert time.monotonic() - began >= 0.1


# The log


def test_the_log_has_every_request_but_those_for_itself(portal: Portal, client: httpx.Client) -> None:
    client.post("/reports", json={"report": "north"}, headers={"Idempotency-Key": "k"})
    client.get("/reports/T1/file", headers={"Range": "bytes=100-"})
    client.get("/reports/T1")
    assert client.get("/").text.startswith("A report portal")
    told = client.get("/log").json()
    assert told == {"at_once_max": 1, "requests": [asdict(entry) for entry in portal.log]}
    asked, downloaded, other = told["requests"]
    body = len(client.post("/reports", json={"report": "north"}, headers={"Idempotency-Key": "k"}).content)
    assert asked == {
        "number": 1,
        "at": asked["at"],
        "method": "POST",
        "path": "/reports",
        "phase": "request",
        "report": "north",
        "ticket": "T1",
        "key": "k",
        "range": 0,
        "status": 202,
        "sent": body,
        "trouble": None,
        "at_once": 1,
    }
    assert (downloaded["phase"], downloaded["range"], downloaded["status"]) == ("download", 100, 206)
    assert (downloaded["ticket"], downloaded["report"], downloaded["sent"]) == ("T1", "north", SIZE - 100)
    assert (other["phase"], other["at_once"], other["status"]) == ("other", 0, 200)


def hang(portal: Portal, connection: socket.socket) -> None:
    connection.sendall(b"GET /reports/T1/file HTTP/1.1\r\nHost: portal\r\n\r\n")


def test_requests_under_way_are_counted_and_have_no_status(portal: Portal) -> None:
    file_of(portal, "hang!")
    with connected(portal) as first, connected(portal) as second:
        hang(portal, first)
        run(eventually(lambda: len(portal.log) == 2))
        hang(portal, second)
        run(eventually(lambda: len(portal.log) == 3))
        assert [(entry.status, entry.at_once) for entry in portal.log] == [(202, 1), (None, 1), (None, 2)]
    run(eventually(lambda: portal.log[1].status == 0 and portal.log[2].status == 0))
    assert portal.at_once_max == 2


def test_requests_after_one_another_are_never_at_once(portal: Portal) -> None:
    """Each on a connection of its own, as soon as the one before has ended for its client."""
    path = file_of(portal, *["break", "chunked", "close", "reset", "503", "break-reset"] * 3)
    for _ in range(60):
        say(portal, f"GET {path} HTTP/1.1", "Connection: close")
    assert portal.at_once_max == 1
    assert len(portal.log) == 61


def test_a_client_that_left_is_no_longer_under_way(portal: Portal) -> None:
    file_of(portal, "hang!")
    for number in range(2, 12):
        with connected(portal) as connection:
            hang(portal, connection)
            run(eventually(lambda number=number: len(portal.log) == number))
    assert portal.at_once_max == 1


def test_hundreds_at_once_are_fine_and_stopping_releases_them() -> None:
    connections: list[socket.socket] = []
    with Portal(plan=lambda phase, report: ["hang!"] if phase == "download" else []) as portal:
        ask(portal)
        for _ in range(300):
            connections.append(socket.create_connection(("127.0.0.1", portal.port), timeout=30))
            hang(portal, connections[-1])
        run(eventually(lambda: portal.at_once_max == 300))
    for connection in connections:
        assert connection.recv(1) == b""
        connection.close()
    assert {entry.status for entry in portal.log[1:]} == {0}


def test_stopping_releases_a_download_that_nobody_reads() -> None:
    with ExitStack() as clients:
        with Portal(obeys=True) as portal:
            file_of(portal, "huge")
            connection = clients.enter_context(connected(portal))
            hang(portal, connection)
            assert connection.recv(1)
            began = time.monotonic()
        assert time.monotonic() - began < 5
        assert portal.log[1].status == 200


def test_a_client_that_leaves_is_no_reason_for_a_stack_trace(
    portal: Portal, capfd: pytest.CaptureFixture[str]
) -> None:
    path = file_of(portal, "huge", "huge-chunked", "slow")
    for _ in range(3):
        say(portal, f"GET {path} HTTP/1.1", bytes_max=1)
    with connected(portal) as connection:
        connection.sendall(b"POST /reports HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
    run(eventually(lambda: all(entry.status is not None for entry in portal.log) and len(portal.log) == 5))
    assert capfd.readouterr() == ("", "")


def test_a_rate_is_kept_with_retry_after_in_seconds_and_as_a_date_in_turn() -> None:
    with Portal(rate=(2, 3600)) as portal, client_of(portal) as client:
        path = ask(portal)["download_url"]
        assert client.get(path).status_code == 200
        first, second = client.get(path), client.post("/reports", json={"report": "north"})
        assert (first.status_code, second.status_code) == (429, 429)
        assert 3500 < int(first.headers["retry-after"]) <= 3600
        wait = parsedate_to_datetime(second.headers["retry-after"]).timestamp() - time.time()
        assert 3500 < wait <= 3602
        assert client.get("/reports/T1").status_code == 200
        assert [entry.trouble for entry in portal.log] == [None, None, "rate", "rate", None]
    with Portal(rate=(1, 0.001)) as portal, client_of(portal) as client:
        for _ in range(3):
            time.sleep(0.002)
            assert client.post("/reports", json={"report": "north"}).status_code == 202
    with pytest.raises(ValueError, match="at least 1"):
        Portal(rate=(0, 1))


# Where troubles come from


def statuses(client: httpx.Client, path: str, count: int) -> list[int]:
    return [client.get(path).status_code for _ in range(count)]


def test_troubles_are_met_in_order_and_the_one_that_stays_stays(portal: Portal, client: httpx.Client) -> None:
    assert statuses(client, file_of(portal, "503", "404", "202"), 4) == [503, 404, 202, 200]
    path = ask(portal, "south", troubles={"download": ["500", "410!"]})["download_url"]
    assert statuses(client, path, 4) == [500, 410, 410, 410]
    assert [entry.trouble for entry in portal.log[-3:]] == ["410", "410", "410"]


def test_a_plan_gives_troubles_by_phase_and_report() -> None:
    plan = {("request", "north"): ["503"], ("download", "north"): ["404"]}
    with (
        Portal(plan=lambda phase, report: plan.get((phase, report), [])) as portal,
        client_of(portal) as client,
    ):
        asked = [client.post("/reports", json={"report": name}) for name in ("north", "south", "north")]
        assert [answer.status_code for answer in asked] == [503, 202, 202]
        assert statuses(client, "/reports/T1/file", 1) + statuses(client, "/reports/T2/file", 2) == [
            200,
            404,
            200,
        ]


def test_a_request_that_is_sent_again_does_not_bring_its_troubles_back(client: httpx.Client) -> None:
    body = {"report": "north", "troubles": {"request": ["503", "500"]}}
    assert [client.post("/reports", json=body).status_code for _ in range(4)] == [503, 500, 202, 202]
    others = {"report": "north", "troubles": {"request": ["502"]}}
    assert [client.post("/reports", json=others).status_code for _ in range(2)] == [502, 202]


def test_a_download_before_its_time_uses_up_no_trouble() -> None:
    with Portal(obeys=True, ready_after=3600) as portal, client_of(portal) as client:
        path = file_of(portal, "503")
        assert statuses(client, path, 2) == [404, 404]
        portal.ready_after = 0
        assert statuses(client, path, 2) == [503, 200]


def test_who_does_not_obey_keeps_the_troubles_and_meets_none() -> None:
    with Portal() as portal, client_of(portal) as client:
        assert statuses(client, file_of(portal, "503"), 1) == [200]
        assert client.get("/reports/T1").json()["asked"]["troubles"] == {"download": ["503"]}


@pytest.mark.parametrize(
    "troubles",
    [
        {"download": ["explode"]},
        {"download": ["600"]},
        {"download": ["no-ticket"]},
        {"request": ["changed"]},
        {"request": "503"},
        {"upload": []},
        ["503"],
    ],
    ids=str,
)
def test_an_unknown_trouble_is_refused(client: httpx.Client, troubles: Any) -> None:
    answer = client.post("/reports", json={"report": "north", "troubles": troubles})
    assert (answer.status_code, client.get("/reports/T1").status_code) == (422, 404)


def test_the_refusal_lists_what_there_is() -> None:
    with pytest.raises(
        ValueError, match=r"no trouble 'explode!' for a request\. There are.*break.*no-ticket"
    ):
        check_troubles("request", ["503", "explode!"])
    assert check_troubles("download", ["name:a", "break!"]) == ["name:a", "break!"]
    with Portal(plan=lambda phase, report: ["explode"]) as portal, client_of(portal) as client:
        answer = client.post("/reports", json={"report": "north"})
        assert (answer.status_code, "The plan is wrong" in answer.text) == (500, True)


# Troubles in the place of an answer


@pytest.mark.parametrize(
    "trouble",
    ["401", "403", "404", "408", "410", "422", "425", "429", "499", "500", "502", "503", "504", "202"],
)
def test_a_status(portal: Portal, client: httpx.Client, trouble: str) -> None:
    body = {"report": "north", "troubles": {"request": [trouble], "download": [trouble]}}
    asked, again = [client.post("/reports", json=body) for _ in range(2)]
    downloaded = client.get(again.json()["download_url"])
    for answer in (asked, downloaded):
        assert answer.status_code == int(trouble)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers.get("retry-after") == ("1" if trouble in ("429", "503") else None)
    assert again.json()["ticket"] == "T1"  # nothing was made of the first one


def test_204(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "204")
    answer = client.get(path)
    assert (answer.status_code, answer.content, "content-length" in answer.headers) == (204, b"", False)
    assert client.get(path).content == NORTH


def test_hang(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "hang", "hang")
    with pytest.raises(httpx.ReadTimeout):
        client.get(path, timeout=httpx.Timeout(30, read=0.05))
    run(eventually(lambda: portal.log[-1].status == 0))
    portal.hang_seconds = 0.05
    heard = say(portal, f"GET {path} HTTP/1.1")
    assert (heard.came, heard.was_reset) == (b"", False)


@pytest.mark.parametrize(("trouble", "was_reset"), [("reset", True), ("close", False)])
def test_no_answer(portal: Portal, client: httpx.Client, trouble: str, was_reset: bool) -> None:
    heard = say(portal, f"GET {file_of(portal, trouble)} HTTP/1.1")
    assert (heard.came, heard.was_reset) == (b"", was_reset)
    assert (portal.log[-1].status, portal.log[-1].trouble) == (0, trouble)
    with pytest.raises(httpx.NetworkError if was_reset else httpx.RemoteProtocolError):
        client.post("/reports", json={"report": "south", "troubles": {"request": [trouble]}})


def test_garbage(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "garbage")
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(path)
    assert portal.log[-1].status == 0


def test_html_and_empty(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "html", "empty")
    page, nothing = client.get(path), client.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "Sign in" in page.text
    assert (nothing.status_code, nothing.headers["content-length"], nothing.content) == (200, "0", b"")


# Troubles that damage an answer


@pytest.mark.parametrize(("trouble", "was_reset"), [("break", False), ("break-reset", True)])
def test_break_sends_half_of_the_rest_and_the_next_one_goes_on(
    portal: Portal, client: httpx.Client, trouble: str, was_reset: bool
) -> None:
    path = file_of(portal, trouble, trouble)
    first = say(portal, f"GET {path} HTTP/1.1")
    half = break_at(SIZE)
    assert (first.body, first.was_reset) == (NORTH[:half], was_reset)
    assert f"Content-Length: {SIZE}" in first.head
    second = say(portal, f"GET {path} HTTP/1.1", f"Range: bytes={half}-")
    there = half + break_at(SIZE - half)
    assert (second.body, second.was_reset) == (NORTH[half:there], was_reset)
    assert client.get(path, headers={"Range": f"bytes={there}-"}).content == NORTH[there:]
    assert [(entry.range, entry.sent) for entry in portal.log[1:]] == [
        (0, half),
        (half, there - half),
        (there, SIZE - there),
    ]
    assert portal.files_sent == 1


def test_an_answer_that_breaks_is_about_a_report_that_was_made(client: httpx.Client) -> None:
    body = {"report": "north", "troubles": {"request": ["break"]}}
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/reports", json=body, headers={"Idempotency-Key": "k"})
    again = client.post("/reports", json=body, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["ticket"]) == (200, "T1")


def test_slow(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "slow")
    began = time.monotonic()
    assert client.get(path).content == NORTH
    assert time.monotonic() - began >= 0.5


def test_no_length_cannot_be_told_from_a_whole_one(portal: Portal, client: httpx.Client) -> None:
    answer = client.get(file_of(portal, "no-length"), headers={"Range": "bytes=5-"})
    assert (answer.status_code, answer.content) == (200, NORTH[: break_at(SIZE)])
    lost = {"content-length", "etag", "repr-digest", "accept-ranges", "transfer-encoding"}
    assert lost.isdisjoint(answer.headers)


def test_chunked(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "chunked", "chunked-break")
    whole = client.get(path)
    assert (whole.headers["transfer-encoding"], whole.content) == ("chunked", NORTH)
    assert "content-length" not in whole.headers
    with pytest.raises(httpx.RemoteProtocolError), client.stream("GET", path) as broken:
        got = b""
        for piece in broken.iter_bytes():
            got += piece
    assert got == NORTH[: break_at(SIZE)]
    assert [entry.sent for entry in portal.log[1:]] == [SIZE, break_at(SIZE)]


def test_corrupt(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "corrupt")
    answer, right = client.get(path), client.get(path)
    assert sum(a != b for a, b in zip(answer.content, NORTH, strict=True)) == 1
    assert {**answer.headers, "date": ""} == {**right.headers, "date": ""}
    assert portal.files_sent == 1


def test_gzip(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "gzip")
    heard = say(portal, f"GET {path} HTTP/1.1", "Accept-Encoding: identity", "Connection: close")
    assert "Content-Encoding: gzip" in heard.head
    assert gzip.decompress(heard.body) == NORTH


def test_huge(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "huge")
    with client.stream("GET", path) as answer:
        assert answer.headers["content-length"] == str(HUGE_ANNOUNCED) == str(10 * 1000**4)
        pieces = answer.iter_raw(1000)
        assert len(next(pieces)) == 1000
    run(eventually(lambda: portal.log[-1].status == 200))
    assert portal.log[-1].sent < 64 * 1024 * 1024


def test_huge_chunked_ends_at_64_mb(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "huge-chunked")
    got = 0
    with pytest.raises(httpx.RemoteProtocolError), client.stream("GET", path) as answer:
        for piece in answer.iter_raw():
            got += len(piece)
    assert (got, portal.log[-1].sent) == (64 * 1024 * 1024, 64 * 1024 * 1024)


# Troubles of requests


def test_not_json_and_no_ticket(client: httpx.Client) -> None:
    body = {"report": "north", "troubles": {"request": ["not-json", "no-ticket"]}}
    odd, bare = [client.post("/reports", json=body) for _ in range(2)]
    assert (odd.status_code, odd.headers["content-type"]) == (200, "application/json")
    with pytest.raises(json.JSONDecodeError):
        odd.json()
    assert (bare.status_code, {"ticket", "download_url"}.isdisjoint(bare.json())) == (202, True)
    assert "location" not in {**odd.headers, **bare.headers}


# Troubles of downloads


def test_no_range(portal: Portal, client: httpx.Client) -> None:
    answer = client.get(file_of(portal, "no-range"), headers={"Range": "bytes=5-"})
    assert (answer.status_code, answer.content) == (200, NORTH)
    assert {"accept-ranges", "etag"}.isdisjoint(answer.headers)
    assert portal.log[-1].range == 5


def test_changed_gives_another_file_from_now_on(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "break", "changed")
    old = say(portal, f"GET {path} HTTP/1.1").head.partition("ETag: ")[2].split("\r\n")[0]
    resumed = {"Range": "bytes=100000-", "If-Range": old}
    new = content_of("north", version=1)
    for answer in (client.get(path, headers=resumed), client.get(path)):
        assert (answer.status_code, answer.content) == (200, new)
        assert answer.headers["etag"] != old
    assert client.get("/reports/T1").json()["sha256"] == hashlib.sha256(new).hexdigest()


@pytest.mark.parametrize(("asked", "begins"), [("bytes=1000-", 500), (None, SIZE // 2)])
def test_wrong_range(portal: Portal, client: httpx.Client, asked: str | None, begins: int) -> None:
    path = file_of(portal, "wrong-range")
    answer = client.get(path, headers={"Range": asked} if asked else {})
    assert (answer.status_code, answer.content) == (206, NORTH[begins:])
    assert answer.headers["content-range"] == f"bytes {begins}-{SIZE - 1}/{SIZE}"


def test_wrong_checksum(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "wrong-checksum")
    wrong, right = client.get(path), client.get(path)
    assert wrong.content == NORTH
    assert wrong.headers["repr-digest"] != right.headers["repr-digest"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../../etc/passwd", "filename=\"../../etc/passwd\"; filename*=UTF-8''..%2F..%2Fetc%2Fpasswd"),
        ('a"\\b', 'filename="a\\"\\\\b"; filename*=UTF-8\'\'a%22%5Cb'),
        ("é\r\nX: y", "filename=\"___X: y\"; filename*=UTF-8''%C3%A9%0D%0AX%3A%20y"),
    ],
)
def test_a_hostile_name(portal: Portal, client: httpx.Client, name: str, said: str) -> None:
    answer = client.get(file_of(portal, f"name:{name}"))
    assert answer.headers["content-disposition"] == f"attachment; {said}"
    assert answer.content == NORTH


def test_redirect(portal: Portal, client: httpx.Client) -> None:
    path = file_of(portal, "redirect", "503")
    answer = client.get(path)
    assert (answer.status_code, answer.headers["location"]) == (302, "/moved/T1/file")
    assert statuses(client, "/moved/T1/file", 2) == [503, 200]  # a download like any other
    assert {entry.phase for entry in portal.log[1:]} == {"download"}


# As a program


def started(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_as_a_program_it_says_where_it_listens_what_happens_and_what_happened() -> None:
    options = ("--ready-after", "0", "--size", "1000", "--obey", "--verbose", "--requests-fail", "100")
    with started("--port", "0", *options) as program:
        assert program.stdout is not None
        said = program.stdout.readline()
        assert said.startswith("Listening on http://127.0.0.1:") and said.endswith(". Ctrl-C ends it.\n")
        with httpx.Client(base_url=said.split()[2].rstrip("."), trust_env=False, verify=False) as client:
            body = {"report": "north", "troubles": {"download": ["reset"]}}
            assert [client.post("/reports", json=body).status_code for _ in range(2)] == [503, 202]
            with pytest.raises(httpx.NetworkError):
                client.get("/reports/T1/file")
            assert client.get("/reports/T1/file", headers={"Range": "bytes=0-"}).status_code == 206
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    lines = out.splitlines()
    assert lines[0].startswith("1. request of north: answered 503, ")
    assert lines[0].endswith(" bytes, trouble: 503")
    assert lines[1].startswith("2. request of north (T1): answered 202, ")
    assert lines[2] == "3. download of north (T1): no answer, 0 bytes, trouble: reset"
    assert lines[3] == "4. download of north (T1): answered 206, 1,000 bytes"
    assert lines[4:] == ["", "1 reports requested, 1 files sent whole, 2 troubles, at most 1 at once."]
    assert (program.returncode, err) == (0, "")


def test_the_help_lists_every_trouble_and_a_port_that_is_taken_is_named() -> None:
    with started("--help") as program:
        out, _ = program.communicate(timeout=30)
    assert all(f"  {name} " in out for name in TROUBLES)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started("--port", str(port)) as program:
            _, err = program.communicate(timeout=30)
    assert (program.returncode, err.startswith(f"Port {port} cannot be used: ")) == (1, True)
    with started("--size", "-1") as program:
        _, err = program.communicate(timeout=30)
    assert (program.returncode, "A file has up to" in err) == (2, True)


def test_chance_hits_its_share_and_always_the_same_reports() -> None:
    plan = chance_plan("seed", 20, 10, 30)
    names = [f"report {number}" for number in range(2000)]
    asked = [list(plan("request", name)) for name in names]
    assert [list(chance_plan("seed", 20, 10, 30)("request", name)) for name in names] == asked
    assert [list(chance_plan("another", 20, 10, 30)("request", name)) for name in names] != asked
    assert asked.count(["503"]) == pytest.approx(400, rel=0.2)
    assert asked.count(["403!"]) == pytest.approx(200, rel=0.25)
    assert [list(plan("download", name)) for name in names].count(["break"]) == pytest.approx(600, rel=0.2)
    assert not any(chance_plan("", 0, 0, 0)(phase, "north") for phase in ("request", "download"))
