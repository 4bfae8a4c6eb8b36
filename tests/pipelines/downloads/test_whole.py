"""What is taken for a whole file: what its length, its size and its checksum prove, and nothing else."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from downloads_scenario import Downloads, fetches, item, rehearsed, sha256
from holdfast.testing.run import Run
from holdfast.worker.context import Context
from portal_scenario import HUGE_ANNOUNCED, Portal, break_at, content_of
from scripted_server import ScriptedServer, raw

NORTH = content_of("north")
SIZE = len(NORTH)
OTHER = sha256(b"another file")
DAMAGED = "The file is not the one that was meant, or was damaged on its way"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        server.answer("/reports", json={"download_url": "/file.csv"})
        yield server


def check_ended(run: Run, error_type: str, category: str) -> None:
    assert run.error is not None
    assert (run.error.error_type, run.error.category) == (error_type, category)
    assert "download" not in run.outputs


# Lengths


def test_a_body_that_only_its_connection_ends_is_refused_where_nothing_proves_it(
    downloads: Downloads, silent_portal: Portal
) -> None:
    run = downloads.one(item(silent_portal, download=["no-length!"]))
    check_ended(run, "length_unknown", "permanent")
    assert run.error.guidance == "Submit the item anew with the size or the sha256 of the file."
    assert run.attempts["download"] == 1
    assert (downloads.files, downloads.drafts) == ({}, [])


@pytest.mark.parametrize(
    ("proof", "error_type"),
    [({"sha256": sha256(NORTH)}, "checksum_mismatch"), ({"size": SIZE}, "size_mismatch")],
)
def test_half_of_such_a_body_is_found_out_by_what_proves_the_whole(
    downloads: Downloads, silent_portal: Portal, proof: dict[str, object], error_type: str
) -> None:
    run = downloads.one(item(silent_portal, download=["no-length"], **proof))
    assert run.error_types == [error_type]
    assert list(downloads.files.values()) == [NORTH]
    # What was thrown away was not gone on with.
    assert fetches(silent_portal) == [(0, 200, break_at(SIZE)), (0, 200, SIZE)]


@pytest.mark.parametrize("proof", [{"sha256": sha256(b"hello")}, {"size": 5}])
def test_all_of_such_a_body_is_whole_where_something_proves_it(
    downloads: Downloads, server: ScriptedServer, proof: dict[str, object]
) -> None:
    server.answer("/file.csv", act=raw(b"HTTP/1.0 200 OK\r\n\r\nhello"))
    downloads.one({"request": f"{server.url}/reports", **proof}).expect("completed")
    assert downloads.files == {"downloads/1/file.csv": b"hello"}


def test_an_empty_file_is_a_file(downloads: Downloads, server: ScriptedServer) -> None:
    server.answer("/file.csv", 200, b"")
    run = downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    assert run.outputs["download"] == {
        "file": "downloads/1/file.csv",
        "size": 0,
        "sha256": sha256(b""),
        "resumed": 0,
    }


# Sizes


def test_a_size_that_is_announced_otherwise_is_not_waited_for(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, size=SIZE - 1))
    check_ended(run, "size_mismatch", "transient")
    assert f"the file has {SIZE:,} bytes, and not {SIZE - 1:,}" in run.error.message
    assert run.error.user_message == DAMAGED
    assert run.attempts["download"] == 4
    assert downloads.drafts == []


def test_a_file_of_ten_terabytes_that_should_be_small_is_not_begun(tmp_path: Path, portal: Portal) -> None:
    with rehearsed(tmp_path, HOLDFAST_DOWNLOAD_BYTES_MAX=str(2 * HUGE_ANNOUNCED)) as downloads:
        run = downloads.one(item(portal, download=["huge!"], size=SIZE, sha256=OTHER))
        assert run.error_types == ["size_mismatch"] * 4
        assert downloads.drafts == []


def test_a_size_that_nobody_announced_is_counted(downloads: Downloads, silent_portal: Portal) -> None:
    run = downloads.one(item(silent_portal, download=["chunked!"], size=SIZE + 1))
    check_ended(run, "size_mismatch", "transient")
    assert (downloads.files, downloads.drafts) == ({}, [])


# Checksums


@pytest.mark.parametrize("trouble", ["corrupt", "html", "empty"])
def test_what_has_another_checksum_is_thrown_away_and_fetched_anew(
    downloads: Downloads, portal: Portal, trouble: str
) -> None:
    run = downloads.one(item(portal, download=[trouble]))
    assert run.error_types == ["checksum_mismatch"]
    assert list(downloads.files.values()) == [NORTH]
    assert fetches(portal)[-1] == (0, 200, SIZE)


def test_what_has_another_checksum_for_ever_leaves_nothing(downloads: Downloads, portal: Portal) -> None:
    run = downloads.one(item(portal, download=["corrupt!"]))
    check_ended(run, "checksum_mismatch", "transient")
    assert run.error.user_message == DAMAGED
    assert (downloads.files, downloads.drafts) == ({}, [])


def test_the_checksum_of_the_item_counts_before_that_of_the_portal(
    downloads: Downloads, portal: Portal
) -> None:
    run = downloads.one(item(portal, sha256=OTHER.upper()))
    check_ended(run, "checksum_mismatch", "transient")
    assert f"the SHA-256 {sha256(NORTH)}, and not {OTHER}" in run.error.message


def test_a_checksum_that_comes_with_the_file_is_checked(downloads: Downloads, silent_portal: Portal) -> None:
    run = downloads.one(item(silent_portal, download=["wrong-checksum"]))
    assert run.error_types == ["checksum_mismatch"]
    assert list(downloads.files.values()) == [NORTH]


def test_a_checksum_that_came_with_the_first_part_is_checked_for_the_whole(
    downloads: Downloads, server: ScriptedServer
) -> None:
    digest = "sha-256=:" + "A" * 43 + "=:"
    first = f'HTTP/1.1 200 OK\r\nContent-Length: 11\r\nETag: "v"\r\nRepr-Digest: {digest}\r\n\r\nhello'
    server.answer("/file.csv", act=raw(first.encode()))
    server.answer("/file.csv", 206, b" world", Content_Range="bytes 5-10/11", ETag='"v"')
    run = downloads.one({"request": f"{server.url}/reports"})
    assert run.error_types[0] == "checksum_mismatch"
    assert downloads.files == {}


def test_a_checksum_of_the_portal_that_is_none_is_left_out(
    downloads: Downloads, server: ScriptedServer
) -> None:
    server.answer("/odd", json={"download_url": "/file.csv", "sha256": "unknown"})
    server.answer("/file.csv", 200, b"hello")
    run = downloads.one({"request": f"{server.url}/odd"}).expect("completed")
    assert run.outputs["request"]["sha256"] is None


# Packed bodies


@pytest.mark.parametrize("checksum", ["told", "not told"])
def test_a_file_that_comes_packed_is_unpacked(
    downloads: Downloads, portal: Portal, silent_portal: Portal, checksum: str
) -> None:
    run = downloads.one(item(portal if checksum == "told" else silent_portal, download=["gzip"]))
    assert run.outputs["download"]["sha256"] == sha256(NORTH)
    assert run.attempts["download"] == 1


def test_a_packed_file_that_breaks_is_not_gone_on_with(downloads: Downloads, server: ScriptedServer) -> None:
    packed = gzip.compress(NORTH)
    head = f'HTTP/1.1 200 OK\r\nContent-Length: {len(packed)}\r\nContent-Encoding: gzip\r\nETag: "v"\r\n\r\n'
    server.answer("/file.csv", act=raw(head.encode(), packed[: len(packed) // 2]))
    server.answer("/file.csv", 200, packed, Content_Encoding="gzip", ETag='"v"')
    run = downloads.one({"request": f"{server.url}/reports", "sha256": sha256(NORTH)})
    assert run.error_types == ["connection_error"]
    assert [request.headers.get("range") for request in server.requests] == [None] * 3
    assert list(downloads.files.values()) == [NORTH]


def test_a_packed_file_that_ends_in_the_middle_is_not_whole(
    downloads: Downloads, server: ScriptedServer
) -> None:
    server.answer("/file.csv", 200, gzip.compress(NORTH)[:-20], Content_Encoding="gzip")
    server.answer("/file.csv", 200, NORTH)
    run = downloads.one({"request": f"{server.url}/reports"})
    assert run.error_types == ["connection_error"]
    assert list(downloads.files.values()) == [NORTH]


def test_a_file_that_is_packed_in_a_way_nobody_knows_is_refused(
    downloads: Downloads, server: ScriptedServer
) -> None:
    server.answer("/file.csv", 200, b"\x0b\x02\x80hello\x03", Content_Encoding="br")
    run = downloads.one({"request": f"{server.url}/reports"})
    check_ended(run, "answer_invalid", "unknown")
    assert "answered in the coding 'br', which nobody asked for" in run.error.message
    assert downloads.files == {}


def test_a_portal_is_asked_to_pack_nothing(downloads: Downloads, server: ScriptedServer) -> None:
    server.answer("/file.csv", 200, b"hello", Content_Encoding="identity")
    downloads.one({"request": f"{server.url}/reports"}).expect("completed")
    assert server.requests[-1].headers["accept-encoding"] == "identity"


# What is no file


@pytest.mark.parametrize("status", [300, 304])
def test_an_answer_that_is_neither_file_nor_error_is_refused(
    downloads: Downloads, server: ScriptedServer, status: int
) -> None:
    server.answer("/file.csv", status)
    run = downloads.one({"request": f"{server.url}/reports"})
    check_ended(run, "answer_invalid", "unknown")
    assert f"answered {status}, and not with a file" in run.error.message


def test_a_proxy_may_say_that_the_answer_is_not_the_portals_own(
    downloads: Downloads, server: ScriptedServer
) -> None:
    server.answer("/file.csv", 203, b"hello")
    downloads.one({"request": f"{server.url}/reports"}).expect("completed")


def test_the_progress_is_told(downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    def note(context: Context, fraction: float) -> None:
        if context.step == "download":
            told.append(fraction)

    monkeypatch.setattr(Context, "progress", note)
    downloads.one(item(portal, download=["break"]))
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_a_packed_file_of_several_parts_is_whole_wherever_its_chunks_end(
    downloads: Downloads, server: ScriptedServer
) -> None:
    parts = [gzip.compress(b"hello "), gzip.compress(b"world")]
    for place in (len(parts[0]), len(parts[0]) + 1, len(parts[0]) - 1):
        packed = b"".join(parts)
        chunks = [packed[:place], packed[place:]]
        body = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        server.answer(f"/{place}.csv", act=raw(head, body, b"0\r\n\r\n"))
        run = downloads.one({"request": f"{server.url}/reports", "download": f"{server.url}/{place}.csv"})
        assert run.expect("completed").outputs["download"]["size"] == 11
