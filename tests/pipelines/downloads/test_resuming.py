"""Downloads that break: the next request begins where the last one ended, or anew where nobody can tell."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from downloads_scenario import Downloads, entries, fetches, item, rehearsed, sha256
from holdfast.pipelines.downloads.fetching import RESUMES_MAX
from holdfast.storage import Draft
from portal_scenario import Portal, break_at, content_of
from scripted_server import ScriptedServer, raw

NORTH = content_of("north")
SIZE = len(NORTH)
HALF = break_at(SIZE)
LONG_AGO = formatdate(1_600_000_000, usegmt=True)
NOW = formatdate(1_700_000_000, usegmt=True)
BREAKS = ["break", "break-reset", "chunked-break"]


# Within an attempt


@pytest.mark.parametrize("trouble", BREAKS)
def test_what_broke_is_gone_on_with_at_once_from_where_it_broke(
    downloads: Downloads, portal: Portal, trouble: str
) -> None:
    run = downloads.one(item(portal, download=[trouble]))
    assert run.attempts["download"] == 1
    assert run.outputs["download"]["resumed"] == 1
    assert downloads.files == {"downloads/1/north.csv": NORTH}
    assert fetches(portal) == [(0, 200, HALF), (HALF, 206, SIZE - HALF)]
    assert downloads.drafts == []


def test_what_breaks_again_and_again_is_fetched_piece_by_piece(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, download=["break"] * 6))
    assert run.outputs["download"]["resumed"] == 6
    ends = [first + sent for first, _, sent in fetches(portal)]
    assert [first for first, _, _ in fetches(portal)] == [0, *ends[:-1]]
    assert ends[-1] == SIZE
    assert list(downloads.files.values()) == [NORTH]


def test_what_breaks_for_ever_is_given_up_and_no_byte_came_twice(
    downloads: Downloads, portal: Portal
) -> None:
    run = downloads.one(item(portal, download=["break!"]))
    assert run.error_types == ["connection_error"] * 4
    assert downloads.files == {}
    assert downloads.drafts == [NORTH[:-1]]  # half of one byte is none
    assert sum(sent for _, _, sent in fetches(portal)) == SIZE - 1


# From one attempt to the next


def test_what_breaks_all_the_time_is_left_to_the_next_attempt_after_a_while(
    downloads: Downloads, portal: Portal
) -> None:
    run = downloads.one(item(portal, download=["break"] * (RESUMES_MAX + 2))).expect("completed")
    assert run.error_types == ["connection_error"]
    assert sum(sent for _, _, sent in fetches(portal)) == SIZE


@pytest.mark.parametrize("trouble", BREAKS)
def test_the_next_attempt_goes_on_with_what_the_one_before_had(
    downloads: Downloads, portal: Portal, trouble: str
) -> None:
    run = downloads.one(item(portal, download=[trouble, "503", trouble, "reset"]))
    assert run.error_types == ["service_unavailable", "connection_error"]
    three_quarters = HALF + break_at(SIZE - HALF)
    whole = [(0, 200, HALF), (HALF, 206, three_quarters - HALF), (three_quarters, 206, SIZE - three_quarters)]
    assert [fetch for fetch in fetches(portal) if fetch[1] in (200, 206)] == whole
    assert list(downloads.files.values()) == [NORTH]
    assert run.outputs["download"]["resumed"] == 1  # in the attempt that ended it


def test_a_retry_by_hand_goes_on_with_it_too(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, download=["break", *["503"] * 4]))
    assert run.dead_reason == "exhausted"
    assert downloads.drafts == [NORTH[:HALF]]
    run = downloads.rehearsal.retry(run).expect("completed")
    assert fetches(portal)[-1] == (HALF, 206, SIZE - HALF)
    assert list(downloads.files.values()) == [NORTH]


def test_a_report_that_was_requested_anew_is_fetched_anew(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, download=["break", "410"]))
    downloads.rehearsal.retry(run, from_stage="request", force=True).expect("completed")
    assert portal.reports_made == 2
    assert fetches(portal)[-1] == (0, 200, SIZE)


def test_a_file_that_is_whole_is_not_fetched_again(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost_before(draft: Draft, name: str) -> Any:
        monkeypatch.undo()
        raise ConnectionResetError("the worker was lost")

    monkeypatch.setattr(Draft, "keep", lost_before)
    run = downloads.one(item(portal)).expect("completed")
    assert run.attempts["download"] == 2
    assert fetches(portal) == [(0, 200, SIZE)]


def test_a_file_that_is_in_its_place_is_not_fetched_again_where_nobody_heard_of_it(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Draft.keep

    async def lost_after(draft: Draft, name: str) -> Any:
        monkeypatch.setattr(Draft, "keep", keep)
        await keep(draft, name)
        raise ConnectionResetError("the worker was lost")

    monkeypatch.setattr(Draft, "keep", lost_after)
    run = downloads.one(item(portal)).expect("completed")
    assert run.attempts["download"] == 2
    assert downloads.files == {"downloads/1/north.csv": NORTH}
    assert fetches(portal) == [(0, 200, SIZE)]


# What cannot be gone on with


@pytest.mark.parametrize(
    ("trouble", "version", "asked_from"),
    [("no-range", 0, [0, HALF]), ("changed", 1, [0, HALF]), ("wrong-range", 0, [0, HALF, 0])],
)
def test_where_the_rest_does_not_fit_it_begins_anew(
    downloads: Downloads, silent_portal: Portal, trouble: str, version: int, asked_from: list[int]
) -> None:
    run = downloads.one(item(silent_portal, download=["break", trouble]))
    assert run.attempts["download"] == 1
    assert [entry.range for entry in entries(silent_portal, "download")] == asked_from
    assert list(downloads.files.values()) == [content_of("north", version=version)]
    assert run.outputs["download"]["resumed"] == 0


def test_a_file_that_does_not_fit_again_and_again_is_left_to_a_later_attempt(
    downloads: Downloads, silent_portal: Portal
) -> None:
    run = downloads.one(item(silent_portal, download=["break", "wrong-range"] * 3))
    assert run.error_types == ["file_changes"]
    assert list(downloads.files.values()) == [NORTH]


def test_a_file_that_never_fits_ends_in_plain_words(downloads: Downloads, silent_portal: Portal) -> None:
    run = downloads.one(item(silent_portal, download=["break", "wrong-range"] * 12))
    assert run.error is not None
    assert (run.error.error_type, run.error.category) == ("file_changes", "transient")
    assert run.error.user_message == "The file changes while it is fetched"
    assert "the portal sent another part than was asked for" in run.error.message
    assert downloads.files == {}


# A portal of the test's own, for what a portal may say


def answered(status: str, body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """This and the end of the connection, however much was announced."""
    # Said beforehand, or the next request might be sent on a connection that is about to end.
    told = {**headers, "Connection": "close"}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in told.items()]
    return raw("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1") + body)


class Story:
    """A portal whose file is at /file, and what it was asked there."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.item: dict[str, Any] = {"request": f"{server.url}/reports", "download": f"{server.url}/file"}
        server.answer("/reports", json={})

    def then(self, status: str, body: bytes, **headers: str) -> None:
        self.server.answer("/file", act=answered(status, body, **headers))

    @property
    def asked(self) -> list[tuple[str | None, str | None]]:
        """Range and If-Range of each download."""
        there = [request.headers for request in self.server.requests if request.path == "/file"]
        return [(headers.get("range"), headers.get("if-range")) for headers in there]


@pytest.fixture
def story() -> Any:
    with ScriptedServer() as server:
        yield Story(server)


def test_a_strong_etag_is_sent_back_to_get_the_rest_of_the_same_file_only(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"hello", Content_Length="11", ETag='"v1"', Last_Modified=LONG_AGO)
    story.then("206 Partial", b" world", Content_Length="6", Content_Range="bytes 5-10/11", ETag='"v1"')
    downloads.one(story.item).expect("completed")
    assert story.asked == [(None, None), ("bytes=5-", '"v1"')]
    assert list(downloads.files.values()) == [b"hello world"]


def test_without_an_etag_the_date_of_its_change_is_sent_back(downloads: Downloads, story: Story) -> None:
    dates = {"Last_Modified": LONG_AGO, "Date": formatdate(usegmt=True)}
    story.then("200 OK", b"hello", Content_Length="11", **dates)
    story.then("206 Partial", b" world", Content_Length="6", Content_Range="bytes 5-10/11", **dates)
    downloads.one(story.item).expect("completed")
    assert story.asked == [(None, None), ("bytes=5-", LONG_AGO)]


@pytest.mark.parametrize(
    "headers",
    [{}, {"ETag": 'W/"v1"'}, {"Last_Modified": LONG_AGO, "Date": LONG_AGO}],
    ids=["none", "weak", "now"],
)
def test_without_anything_to_know_the_file_by_it_begins_anew_in_the_next_attempt(
    downloads: Downloads, story: Story, headers: dict[str, str]
) -> None:
    story.then("200 OK", b"hello", Content_Length="11", **headers)
    story.then("200 OK", b"hello world", Content_Length="11", **headers)
    run = downloads.one(story.item).expect("completed")
    assert run.attempts["download"] == 2
    assert story.asked == [(None, None), (None, None)]


def test_with_a_checksum_it_goes_on_without_anything_to_know_the_file_by(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"hello", Content_Length="11")
    story.then("206 Partial", b" world", Content_Length="6", Content_Range="bytes 5-10/11")
    downloads.one({**story.item, "sha256": sha256(b"hello world").upper()}).expect("completed")
    assert story.asked == [(None, None), ("bytes=5-", None)]


def test_parts_of_two_files_are_found_out_by_the_checksum_and_thrown_away(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"hello", Content_Length="11")
    story.then("206 Partial", b" thing", Content_Length="6", Content_Range="bytes 5-10/11")
    story.then("200 OK", b"hello world", Content_Length="11")
    run = downloads.one({**story.item, "sha256": sha256(b"hello world")}).expect("completed")
    assert run.error_types == ["checksum_mismatch"]
    assert story.asked[2] == (None, None)


def test_a_file_of_unknown_length_that_is_all_there_is_whole_where_its_checksum_proves_it(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"b\r\nhello world\r\n", Transfer_Encoding="chunked", ETag='"v1"')
    story.then("416 No", b"", Content_Length="0", Content_Range="bytes */11")
    run = downloads.one({**story.item, "sha256": sha256(b"hello world")}).expect("completed")
    assert run.attempts["download"] == 1
    assert story.asked[1] == ("bytes=11-", '"v1"')
    assert list(downloads.files.values()) == [b"hello world"]


def test_without_a_proof_another_file_may_end_where_this_one_broke(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"5\r\nhello\r\n", Transfer_Encoding="chunked", ETag='"v1"')
    story.then("416 No", b"", Content_Length="0", Content_Range="bytes */5", ETag='"v2"')
    story.then("200 OK", b"other", Content_Length="5", ETag='"v2"')
    downloads.one(story.item).expect("completed")
    assert list(downloads.files.values()) == [b"other"]


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ({"ETag": '"v1"'}, {"ETag": 'W/"v2"'}),
        ({"ETag": '"v1"'}, {}),
        ({"Last_Modified": LONG_AGO}, {"Last_Modified": NOW, "Date": NOW}),
        ({"Last_Modified": LONG_AGO}, {"Last_Modified": NOW}),
        ({"Last_Modified": LONG_AGO}, {"ETag": '"v2"'}),
    ],
)
def test_a_part_that_does_not_say_that_it_is_of_the_same_file_is_not_taken(
    downloads: Downloads, story: Story, first: dict[str, str], rest: dict[str, str]
) -> None:
    told = {"Date": NOW, **first}
    story.then("200 OK", b"hello", Content_Length="11", **told)
    story.then("206 Partial", b" thing", Content_Length="6", Content_Range="bytes 5-10/11", **rest)
    story.then("200 OK", b"other thing", Content_Length="11", **rest)
    downloads.one(story.item).expect("completed")
    assert list(downloads.files.values()) == [b"other thing"]


def test_a_part_that_is_longer_than_it_says_is_not_taken(downloads: Downloads, story: Story) -> None:
    story.then("200 OK", b"hello", Content_Length="11", ETag='"v1"')
    story.then("206 Partial", b" thing", Content_Length="6", Content_Range="bytes 5-7/11", ETag='"v1"')
    story.then("200 OK", b"hello world", Content_Length="11", ETag='"v1"')
    downloads.one(story.item).expect("completed")
    assert list(downloads.files.values()) == [b"hello world"]


def test_a_portal_that_has_less_than_what_is_there_has_another_file(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"b\r\nhello world\r\n", Transfer_Encoding="chunked", ETag='"v1"')
    story.then("416 No", b"", Content_Length="0", Content_Range="bytes */5")
    story.then("200 OK", b"short", Content_Length="5", ETag='"v2"')
    downloads.one(story.item).expect("completed")
    assert list(downloads.files.values()) == [b"short"]


def test_a_portal_that_ends_where_the_first_half_ended_has_another_file(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"hello", Content_Length="11", ETag='"v1"')
    story.then("416 No", b"", Content_Length="0", Content_Range="bytes */5")
    story.then("200 OK", b"short", Content_Length="5", ETag='"v2"')
    downloads.one(story.item).expect("completed")
    assert list(downloads.files.values()) == [b"short"]


@pytest.mark.parametrize(
    "rest",
    [
        {"Content_Range": "bytes 5-10/12", "ETag": '"v1"'},
        {"Content_Range": "bytes 5-10/11", "ETag": '"v2"'},
        {"Content_Range": "bytes 4-10/11", "ETag": '"v1"'},
        {"Content_Range": "nonsense", "ETag": '"v1"'},
        {"ETag": '"v1"'},
        {"Content_Range": "bytes 5-10/11", "ETag": '"v1"', "Content_Encoding": "br"},
        {"Content_Range": "bytes 5-10/11", "ETag": '"v1"', "Content_Encoding": "gzip"},
    ],
    ids=["length", "etag", "place", "nonsense", "nothing", "br", "gzip"],
)
def test_a_part_that_is_not_the_rest_of_this_file_is_never_appended(
    downloads: Downloads, story: Story, rest: dict[str, str]
) -> None:
    story.then("200 OK", b"hello", Content_Length="11", ETag='"v1"')
    story.then("206 Partial", b"-XXXX-", Content_Length="6", **rest)
    story.then("200 OK", b"hello world", Content_Length="11", ETag='"v1"')
    downloads.one(story.item).expect("completed")
    assert list(downloads.files.values()) == [b"hello world"]


def test_a_portal_that_sends_the_rest_in_parts_is_asked_for_each(downloads: Downloads, story: Story) -> None:
    story.then("200 OK", b"hello", Content_Length="11", ETag='"v1"')
    story.then("206 Partial", b" wo", Content_Length="3", Content_Range="bytes 5-7/11", ETag='"v1"')
    story.then("206 Partial", b"rld", Content_Length="3", Content_Range="bytes 8-10/*", ETag='"v1"')
    run = downloads.one(story.item).expect("completed")
    assert [asked for asked, _ in story.asked] == [None, "bytes=5-", "bytes=8-"]
    assert run.outputs["download"]["resumed"] == 2


def test_a_part_that_does_not_say_whether_more_comes_is_not_taken_for_the_end(
    downloads: Downloads, story: Story
) -> None:
    story.then("200 OK", b"5\r\nhello\r\n", Transfer_Encoding="chunked", ETag='"v1"')
    story.then("206 Partial", b" wo", Content_Length="3", Content_Range="bytes 5-7/*", ETag='"v1"')
    story.then("200 OK", b"b\r\nhello world\r\n0\r\n\r\n", Transfer_Encoding="chunked", ETag='"v1"')
    downloads.one(story.item).expect("completed")
    assert list(downloads.files.values()) == [b"hello world"]


def test_with_a_known_size_such_a_part_may_be_the_end(downloads: Downloads, story: Story) -> None:
    story.then("200 OK", b"5\r\nhello\r\n", Transfer_Encoding="chunked", ETag='"v1"')
    story.then("206 Partial", b" world", Content_Length="6", Content_Range="bytes 5-10/*", ETag='"v1"')
    downloads.one({**story.item, "size": 11}).expect("completed")
    assert len(story.asked) == 2


def test_a_part_that_nobody_asked_for_is_no_file(downloads: Downloads, story: Story) -> None:
    story.then("206 Partial", b"hello", Content_Length="5", Content_Range="bytes 0-4/11")
    run = downloads.one(story.item)
    assert run.error is not None
    assert run.error.message == f"GET {story.server.url}/file answered 206, and not with a file."
    assert downloads.files == {}


def test_a_redirect_is_asked_for_the_same_part(downloads: Downloads, portal: Portal) -> None:
    downloads.one(item(portal, download=["break", "redirect"])).expect("completed")
    assert fetches(portal) == [(0, 200, HALF), (HALF, 302, 0), (HALF, 206, SIZE - HALF)]


# Notes of other versions


def test_a_draft_of_another_version_of_holdfast_is_begun_anew(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, download=["break", *["503"] * 4]))
    [note] = (downloads.storage / ".drafts").glob("*.note")
    note.write_text(note.read_text().replace('"validator"', '"other"').replace('"url"', '"address"'))
    downloads.rehearsal.retry(run).expect("completed")
    assert fetches(portal)[-1] == (0, 200, SIZE)


def test_drafts_that_somebody_removed_are_begun_anew(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, download=["break", *["503"] * 4]))
    shutil.rmtree(downloads.storage)
    downloads.rehearsal.retry(run).expect("completed")
    assert list(downloads.files.values()) == [NORTH]


def test_two_items_of_the_same_file_do_not_share_a_draft(downloads: Downloads, story: Story) -> None:
    story.server.answer("/file", body=b"hello world", ETag='"v1"')
    runs = downloads.all(story.item, story.item)
    assert [run.outputs["download"]["file"] for run in runs] == ["downloads/1/file", "downloads/2/file"]


def test_a_new_database_takes_nothing_over_from_the_one_before(tmp_path: Path, story: Story) -> None:
    story.server.answer("/file", body=b"as it was", ETag='"v1"')
    story.server.answer("/file", body=b"as it is!", ETag='"v2"')
    for content in (b"as it was", b"as it is!"):
        with rehearsed(tmp_path) as downloads:
            downloads.one(story.item)
            assert downloads.files == {"downloads/1/file": content}
