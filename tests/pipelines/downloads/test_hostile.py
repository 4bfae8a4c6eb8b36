"""Portals that mean harm: files without end, names that lead elsewhere, answers that ask for credentials."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from downloads_scenario import Downloads, entries, fetches, item, rehearsed
from holdfast.pipelines.downloads.settings import DownloadSettings
from portal_scenario import Portal, break_at, content_of
from scripted_server import ScriptedServer

NORTH = content_of("north")
SIZE = len(NORTH)
HALF = break_at(SIZE)
SECRET = "s3cr3t-of-the-portal"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def other() -> Iterator[ScriptedServer]:
    """Another origin."""
    with ScriptedServer() as server:
        server.answer("/file", 200, b"hello")
        yield server


# Files without end


def test_a_file_that_is_announced_as_too_large_is_not_fetched(tmp_path: Path, portal: Portal) -> None:
    with rehearsed(tmp_path, HOLDFAST_DOWNLOAD_BYTES_MAX=str(SIZE - 1)) as downloads:
        run = downloads.one(item(portal))
        assert run.error is not None
        assert (run.error.error_type, run.error.category) == ("file_too_large", "permanent")
        assert f"announced a file of {SIZE:,} bytes; the limit is {SIZE - 1:,}" in run.error.message
        assert "raise HOLDFAST_DOWNLOAD_BYTES_MAX" in run.error.guidance
        assert (downloads.files, downloads.drafts) == ({}, [])


def test_a_file_of_just_the_limit_is_fetched(tmp_path: Path, portal: Portal) -> None:
    with rehearsed(tmp_path, HOLDFAST_DOWNLOAD_BYTES_MAX=str(SIZE)) as downloads:
        downloads.one(item(portal, download=["chunked"])).expect("completed")


def test_without_a_setting_ten_terabytes_are_too_large(downloads: Downloads, portal: Portal) -> None:
    assert downloads.one(item(portal, download=["huge"])).error_types == ["file_too_large"]


def test_a_file_that_does_not_end_is_cut_off_at_the_limit_and_thrown_away(
    tmp_path: Path, portal: Portal
) -> None:
    with rehearsed(tmp_path, HOLDFAST_DOWNLOAD_BYTES_MAX="100KB") as downloads:
        run = downloads.one(item(portal, download=["huge-chunked!"]))
        assert run.error is not None
        assert (run.error.error_type, run.attempts["download"]) == ("file_too_large", 1)
        assert "sent more than 102,400 bytes" in run.error.message
        assert (downloads.files, downloads.drafts) == ({}, [])


def test_a_rest_that_makes_a_file_too_large_is_not_fetched(
    tmp_path: Path, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsed(tmp_path) as downloads:
        downloads.submit(item(portal, download=["break", "503"]))
        downloads.rehearsal.drain(within=900)
        monkeypatch.setenv("HOLDFAST_DOWNLOAD_BYTES_MAX", str(SIZE - 1))
        [run] = downloads.rehearsal.drain()
        assert run.error_types == ["service_unavailable", "file_too_large"]
        assert [entry.range for entry in entries(portal, "download")] == [0, HALF, HALF]
        assert downloads.files == {}


def test_a_limit_that_is_none_is_told_with_its_name(tmp_path: Path, portal: Portal) -> None:
    with rehearsed(tmp_path, HOLDFAST_DOWNLOAD_BYTES_MAX="lots") as downloads:
        run = downloads.one(item(portal))
        assert run.error is not None
        assert run.error.category == "permanent"
        assert "HOLDFAST_DOWNLOAD_BYTES_MAX is 'lots'" in run.error.message


# Names


NAMES = {
    "../../etc/passwd": "passwd",
    "/etc/cron.d/x": "x",
    "..": "file",
    ".drafts": "drafts",
    "..\\..\\autoexec.bat": "autoexec.bat",
    "a\0b\r\nSet-Cookie: x.csv": "abSet-Cookie_ x.csv",
    "\u202egpj.exe": "gpj.exe",
    "nul": "file-nul",
    "n" * 900: "n" * 150,
    "ü" * 150 + ".csv": "ü" * 73 + ".csv",
}


def test_whatever_a_portal_calls_its_files_they_lie_below_their_numbers(downloads: Downloads) -> None:
    reports = {f"r{number}": name for number, name in enumerate(NAMES)}

    def plan(phase: str, report: str) -> list[str]:
        return [f"name:{reports[report]}"] if phase == "download" else []

    with Portal(plan=plan) as portal:
        runs = downloads.all(*[item(portal, report) for report in reports])
    assert [run.outputs["download"]["file"] for run in runs] == [
        f"downloads/{run.id}/{here}" for run, here in zip(runs, NAMES.values(), strict=True)
    ]
    assert sorted(downloads.files.values()) == sorted(content_of(report) for report in reports)


def test_an_item_says_what_its_file_is_called_whatever_the_portal_says(
    downloads: Downloads, portal: Portal
) -> None:
    downloads.one(item(portal, download=["name:other.csv"], file="june/north.csv"))
    assert list(downloads.files) == ["june/north.csv"]


def test_a_file_takes_the_place_of_the_one_before_it(downloads: Downloads, portal: Portal) -> None:
    for report in ("north", "south"):
        downloads.one(item(portal, report, file="latest.csv")).expect("completed")
        assert downloads.files == {"latest.csv": content_of(report)}


def test_a_name_that_a_folder_has_already_is_told_and_the_bytes_are_not_lost(
    downloads: Downloads, portal: Portal
) -> None:
    downloads.one(item(portal, file="june/north.csv")).expect("completed")
    run = downloads.one(item(portal, "south", file="june"))
    assert run.error is not None
    assert (run.error.error_type, run.error.category) == ("validation_error", "permanent")
    assert "is taken by something else" in run.error.guidance
    assert downloads.drafts == [content_of("south")]


# Credentials


def test_what_an_item_sends_goes_to_the_portal_it_names_and_not_where_the_answer_leads(
    downloads: Downloads, server: ScriptedServer, other: ScriptedServer
) -> None:
    server.answer("/reports", json={"download_url": f"{other.url}/file"})
    request = {"url": f"{server.url}/reports", "headers": {"X-Team": "north"}}
    downloads.one({"request": request, "download": {"headers": {"X-Team": "north"}}}).expect("completed")
    assert server.requests[0].headers["x-team"] == "north"
    assert "x-team" not in other.requests[0].headers


def test_an_item_that_names_the_other_portal_itself_may_send_it_something(
    downloads: Downloads, server: ScriptedServer, other: ScriptedServer
) -> None:
    server.answer("/reports", json={"ticket": "file"})
    download = {"url": f"{other.url}/{{ticket}}", "headers": {"X-Team": "north"}}
    downloads.one({"request": f"{server.url}/reports", "download": download}).expect("completed")
    assert other.requests[0].headers["x-team"] == "north"


def test_a_host_that_the_answer_chooses_is_sent_nothing_of_the_items(
    downloads: Downloads, server: ScriptedServer
) -> None:
    server.answer("/reports", json={"host": "127.0.0.1"})
    server.answer("/file", 200, b"hello")
    download = {"url": f"http://{{host}}:{server.port}/file", "headers": {"X-Team": "north"}}
    downloads.one({"request": f"{server.url}/reports", "download": download}).expect("completed")
    assert "x-team" not in server.requests[-1].headers


def test_a_redirect_to_another_origin_is_followed_without_what_was_meant_for_the_first(
    downloads: Downloads, server: ScriptedServer, other: ScriptedServer
) -> None:
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", 302, Location=f"{other.url}/file")
    item_ = {"request": f"{server.url}/reports", "download": {"headers": {"X-Team": "north"}}}
    downloads.one(item_).expect("completed")
    assert server.requests[-1].headers["x-team"] == "north"
    assert "x-team" not in other.requests[0].headers
    assert other.requests[0].headers["accept-encoding"] == "identity"


def settings_of(**auth: str) -> DownloadSettings:
    return DownloadSettings.from_environment({"HOLDFAST_DOWNLOAD_AUTH": auth["auth"]})


def test_the_secret_of_an_origin_is_shown_to_it_and_to_no_other(
    tmp_path: Path, server: ScriptedServer, other: ScriptedServer
) -> None:
    server.answer("/reports", json={"download_url": f"{other.url}/file"})
    server.answer("/own", json={"download_url": "/file"})
    server.answer("/moved", json={"download_url": "/away"})
    server.answer("/file", 200, b"hello")
    server.answer("/away", 307, Location=f"{other.url}/file")
    settings = settings_of(auth=f"{server.url}=PORTAL,{server.url}=X-Portal:PORTAL")
    with rehearsed(tmp_path, settings, HOLDFAST_SECRET_PORTAL=SECRET) as downloads:
        paths = ("/reports", "/own", "/moved")
        for run in downloads.all(*[{"request": server.url + path} for path in paths]):
            run.expect("completed")
    shown = {(request.headers["authorization"], request.headers["x-portal"]) for request in server.requests}
    assert shown == {(f"Bearer {SECRET}", SECRET)}
    assert len(other.requests) == 2
    assert all(SECRET not in repr(request) for request in other.requests)


def test_what_an_answer_leads_to_is_shown_the_secret_of_its_own_origin(
    tmp_path: Path, server: ScriptedServer, other: ScriptedServer
) -> None:
    server.answer("/reports", json={"download_url": f"{other.url}/file"})
    with rehearsed(
        tmp_path, settings_of(auth=f"{other.url}=FILES"), HOLDFAST_SECRET_FILES=SECRET
    ) as downloads:
        downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    assert "authorization" not in server.requests[0].headers
    assert other.requests[0].headers["authorization"] == f"Bearer {SECRET}"


def test_a_secret_is_nowhere_to_be_found_even_where_the_portal_repeats_it(
    tmp_path: Path, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.answer("/reports", 500, f"no luck with Bearer {SECRET}")
    server.answer("/reports", json={"download_url": "/file"})
    server.answer("/file", 503, json={"you": "sent", "token": SECRET})
    server.answer("/file", 200, b"hello", Content_Disposition="attachment; filename=north.csv")
    with rehearsed(
        tmp_path, settings_of(auth=f"{server.url}=PORTAL"), HOLDFAST_SECRET_PORTAL=SECRET
    ) as downloads:
        run = downloads.one({"request": f"{server.url}/reports"}).expect("completed")
        told = repr((run.events, run.outputs, run.workload, run.view))
        kept = downloads.rehearsal.path.read_bytes()
        noted = b"".join(path.read_bytes() for path in downloads.storage.rglob("*") if path.is_file())
    assert run.error_types == ["service_unavailable"] * 2
    assert SECRET not in told + caplog.text
    assert SECRET.encode() not in kept + noted
    assert "***" in json.dumps([event.data for event in run.events])


def test_an_answer_that_leads_to_an_address_with_the_secret_in_it_is_told(
    tmp_path: Path, server: ScriptedServer
) -> None:
    server.answer("/reports", json={"download_url": f"/file?token={SECRET}"})
    with rehearsed(
        tmp_path, settings_of(auth=f"{server.url}=PORTAL"), HOLDFAST_SECRET_PORTAL=SECRET
    ) as downloads:
        run = downloads.one({"request": f"{server.url}/reports"}).expect("failed")
    assert run.error.message == "The portal's answer leads to an address that has our credentials in it."
    assert {asked.path for asked in server.requests} == {"/reports"}


def test_a_secret_that_a_worker_does_not_have_is_told_by_its_name(
    tmp_path: Path, server: ScriptedServer
) -> None:
    with rehearsed(tmp_path, settings_of(auth=f"{server.url}=PORTAL")) as downloads:
        run = downloads.one({"request": f"{server.url}/reports"})
    assert run.error is not None
    assert (run.error.error_type, run.error.category) == ("secret_missing", "permanent")
    assert "PORTAL" in run.error.message
    assert server.requests == []


# Machines nearby


def test_where_private_addresses_are_forbidden_none_is_asked(tmp_path: Path, portal: Portal) -> None:
    with rehearsed(tmp_path, HOLDFAST_HTTP_PRIVATE="forbid") as downloads:
        run = downloads.one(item(portal))
        assert run.error is not None
        assert (run.error.error_type, run.error.category) == ("target_forbidden", "permanent")
    assert portal.log == ()


def test_where_they_are_forbidden_meanwhile_no_file_is_fetched_from_one(
    tmp_path: Path, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsed(tmp_path) as downloads:
        downloads.submit(item(portal))
        downloads.rehearsal.drain(within=60)
        monkeypatch.setenv("HOLDFAST_HTTP_PRIVATE", "forbid")
        [run] = downloads.rehearsal.drain()
        assert run.error_types == ["target_forbidden"]
    assert fetches(portal) == []


def test_half_of_a_broken_file_is_never_under_its_name(downloads: Downloads, portal: Portal) -> None:
    downloads.submit(item(portal, download=["break", "503"], file="north.csv"))
    downloads.rehearsal.drain(within=900)
    assert downloads.files == {}
    assert downloads.drafts == [NORTH[:HALF]]
    downloads.rehearsal.drain()
    assert downloads.files == {"north.csv": NORTH}
