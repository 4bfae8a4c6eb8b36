"""Uploads over a real server: files are streamed to a handler, and whatever is wrong with them is told."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from zlib import crc32

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.requests import Request

from holdfast.core.access import Right
from holdfast.server import app, reading, uploads
from holdfast.server.endpoints import Ask, Endpoint
from holdfast.server.openapi import document
from holdfast.server.problems import Refused
from holdfast.server.uploads import Upload
from running import eventually, run
from serving import Answered, Served, on_a_server

PATH = "/api/test-uploads"
BYTES_MAX = 1_000_000
FILES_MAX = 3
MB = 1_000_000
SOON_SECONDS = 60  # of a test that fails; reached by none that does not
FORM = {"content-type": "multipart/form-data; boundary=B"}
FILE = b'--B\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n'
FIELD = b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
END = b"--B--\r\n"


class TakenFile(msgspec.Struct):
    name: str
    kind: str
    size: int
    checksum: int


class Taken(msgspec.Struct):
    """What a handler was given."""

    files: list[TakenFile]
    fields: dict[str, str]
    env: str


class Naming(msgspec.Struct, kw_only=True):
    env: str = "test"


async def take_all(ask: Ask, *, bytes_max: int = BYTES_MAX, whole: list[str] | None = None) -> Taken:
    assert ask.upload is not None
    files = []
    async for file in ask.upload.files(bytes_max=bytes_max, files_max=FILES_MAX):
        taken = TakenFile(file.filename, file.content_type, 0, 0)
        async for chunk in file.chunks:
            taken.size += len(chunk)
            taken.checksum = crc32(chunk, taken.checksum)
        files.append(taken)
        if whole is not None:
            whole.append(file.filename)
    return Taken(files, ask.upload.fields, ask.query.env)


class Uploads:
    """An address that only tests have, and what is done there."""

    def __init__(self) -> None:
        self.handle: Callable[[Ask], Awaitable[Any]] = take_all

        async def take_files(ask: Ask) -> Any:
            return await self.handle(ask)

        self.endpoint = Endpoint(
            method="POST",
            path=PATH,
            summary="Take files",
            tag="tests",
            needs=Right.ACT,
            handler=take_files,
            query=Naming,
            answers={200: Taken},
            upload=True,
        )


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Uploads:
    """Every server of the test has it."""
    found = Uploads()
    endpoints = [*app.all_endpoints(), found.endpoint]
    monkeypatch.setattr(app, "all_endpoints", lambda: endpoints)
    return found


async def sent(s: Served, body: bytes, **headers: str) -> Answered:
    return await s.post(PATH, content=body, headers={**FORM, **headers})


def names_of(answer: Answered) -> list[str]:
    assert answer.status == 200, answer
    return [file["name"] for file in answer.json["files"]]


async def filled(size: int, *, begin: bytes = b"", end: bytes = END) -> AsyncIterator[bytes]:
    """A form with one large file, in pieces."""
    yield begin + (FILE % (b"large.bin", b"")).removesuffix(b"\r\n")
    for _ in range(size // 50_000):
        yield b"\r\n--A\n" * 8_333 + b"\r\n"
    yield b"\r\n" + end


# what is taken


def test_files_of_a_http_client_come_as_they_are(sqlite_url: str, taking: Uploads) -> None:
    async def story(s: Served) -> None:
        content = bytes(range(256)) * 2_000
        response = await s.http.post(
            f"{PATH}?env=prod",
            data={"note": "Grüße"},
            files=[
                ("file", ("app.tgz", content, "application/gzip")),
                ("file", ("leer ü.txt", b"")),
            ],
        )
        assert response.json() == {
            "files": [
                {"name": "app.tgz", "kind": "application/gzip", "size": 512_000, "checksum": crc32(content)},
                {"name": "leer ü.txt", "kind": "text/plain", "size": 0, "checksum": 0},
            ],
            "fields": {"note": "Grüße"},
            "env": "prod",
        }

    on_a_server(sqlite_url, story)


CURL = (
    b"--------------------------d74496d66958873e\r\n"
    b'Content-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    b"--------------------------d74496d66958873e\r\n"
    b'Content-Disposition: form-data; name="file"; filename="my \\"app\\".tgz"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n\x1f\x8b\r\n\x00\r\n"
    b"--------------------------d74496d66958873e--\r\n"
)
BROWSER = (
    b"------WebKitFormBoundary7MA4YWxkTrZu0gW\r\n"
    b'Content-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    b"------WebKitFormBoundary7MA4YWxkTrZu0gW\r\n"
    b'Content-Disposition: form-data; name="file"; filename="my %22app%22.tgz"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n\x1f\x8b\r\n\x00\r\n"
    b"------WebKitFormBoundary7MA4YWxkTrZu0gW--\r\n"
)


@pytest.mark.parametrize("body", [CURL, BROWSER], ids=["curl", "browser"])
def test_files_of_curl_and_of_a_browser_come_however_they_are_cut(
    sqlite_url: str, taking: Uploads, body: bytes
) -> None:
    async def cut(size: int) -> AsyncIterator[bytes]:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    async def story(s: Served) -> None:
        boundary = body.partition(b"\r\n")[0][2:].decode()
        headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        for size in (1, 40, 10_000):
            answer = await s.post(PATH, content=cut(size), headers=headers)
            [file] = answer.json["files"]
            assert (file["name"], file["size"]) == ('my "app".tgz', 5)
            assert file["checksum"] == crc32(b"\x1f\x8b\r\n\x00")
            assert answer.json["fields"] == {"note": "hello"}

    on_a_server(sqlite_url, story)


def test_a_connection_is_kept_when_all_of_an_upload_was_read(sqlite_url: str, taking: Uploads) -> None:
    async def story(s: Served) -> None:
        for body, status in ((FILE % (b"a", b"x") + END, 200), (FILE % (b"a", b"x"), 400)):
            for _ in range(2):
                answer = await sent(s, body)
                assert answer.status == status and "connection" not in answer.headers

    on_a_server(sqlite_url, story)


def test_what_a_handler_leaves_of_a_file_is_skipped(sqlite_url: str, taking: Uploads) -> None:
    async def first_chunks(ask: Ask) -> Taken:
        assert ask.upload is not None
        files = []
        async for file in ask.upload.files(bytes_max=BYTES_MAX, files_max=FILES_MAX):
            files.append(TakenFile(file.filename, "", 0, 0))
            if len(files) == 1:
                async for _ in file.chunks:
                    break
        return Taken(files, ask.upload.fields, "")

    async def story(s: Served) -> None:
        taking.handle = first_chunks
        bodies = [FILE % (name, name * 300_000) for name in (b"a", b"b", b"c")]
        answer = await sent(s, b"".join(bodies) + FIELD % (b"last", b"1") + END)
        assert names_of(answer) == ["a", "b", "c"] and answer.json["fields"] == {"last": "1"}

    on_a_server(sqlite_url, story)


def test_a_handler_may_answer_before_all_has_come(sqlite_url: str, taking: Uploads) -> None:
    async def at_once(ask: Ask) -> Taken:
        return Taken([], {}, "at once")

    async def first_only(ask: Ask) -> Taken:
        assert ask.upload is not None
        async with aclosing(ask.upload.files(bytes_max=100 * MB, files_max=1)) as files:
            async for file in files:
                return Taken([TakenFile(file.filename, "", 0, 0)], {}, "")
        raise AssertionError("no file")

    async def story(s: Served) -> None:
        for taking.handle in (at_once, first_only):
            answer = await s.post(PATH, content=filled(20 * MB), headers=FORM)
            assert answer.status == 200 and answer.headers["connection"] == "close"
        assert await s.lives()

    on_a_server(sqlite_url, story)


# what is refused

REFUSED: list[tuple[str, bytes, int, str, str]] = [
    ("no boundary", b"", 400, "malformed_multipart", "not in the body"),
    ("no form", b"{}", 400, "malformed_multipart", "not in the body"),
    ("cut off", FILE % (b"a", b"x"), 400, "malformed_multipart", "broke off"),
    ("bad head", b"--B\r\nnonsense\r\n\r\nx\r\n" + END, 400, "malformed_multipart", "no header"),
    ("large head", b"--B\r\nx: " + b"x" * 9_000, 400, "malformed_multipart", "8,192"),
    ("preamble", b"x" * 9_000 + b"\r\n" + END, 400, "malformed_multipart", "before the first"),
    ("epilogue", FILE % (b"a", b"x") + END + b"x" * 9_000, 400, "malformed_multipart", "behind the"),
    ("nothing", END, 422, "invalid_request", "no file"),
    ("only fields", FIELD % (b"a", b"x") + END, 422, "invalid_request", "no file"),
    ("text", FIELD % (b"file", b"x") + END, 422, "invalid_request", "a text and no file"),
    ("no name", FILE % (b"", b"x") + END, 422, "invalid_request", "no name"),
    ("a folder", FILE % (b"a/..", b"x") + END, 422, "invalid_request", "no name"),
    (
        "other field",
        (FILE % (b"a", b"x")).replace(b'"file"', b'"image"') + END,
        422,
        "invalid_request",
        "no field 'image'",
    ),
    ("twice", FIELD % (b"a", b"x") * 2 + END, 422, "invalid_request", "'a' is given twice"),
    ("no text", FIELD % (b"a", b"\xff") + END, 422, "invalid_request", "'a' is not UTF-8"),
    ("long field", FIELD % (b"a", b"x" * 16_385) + END, 413, "request_too_large", "16,384"),
    (
        "fields",
        b"".join(FIELD % (b"%d" % n, b"") for n in range(21)) + END,
        413,
        "request_too_large",
        "20 text fields",
    ),
    ("large", FILE % (b"big.bin", b"x" * (BYTES_MAX + 1)) + END, 413, "file_too_large", "'big.bin'"),
    ("files", FILE % (b"a", b"x") * 4 + END, 413, "request_too_large", "the limit is 3"),
]


def test_what_cannot_be_taken_is_told_in_a_sentence(sqlite_url: str, taking: Uploads) -> None:
    async def story(s: Served) -> None:
        for about, body, status, code, message in REFUSED:
            answer = await sent(s, body)
            assert (answer.status, answer.code) == (status, code), (about, answer)
            assert message in answer.json["error"]["message"], (about, answer)
            assert answer.json["error"]["guidance"], about
        assert names_of(await sent(s, FILE % (b"a", b"x" * BYTES_MAX) + END)) == ["a"]

    on_a_server(sqlite_url, story)


HEADS: list[tuple[dict[str, str], int, str]] = [
    ({"content-type": "application/json"}, 415, "unsupported_media_type"),
    ({"content-type": "multipart/mixed; boundary=B"}, 415, "unsupported_media_type"),
    ({"content-encoding": "gzip"}, 415, "unsupported_encoding"),
    ({"content-type": "multipart/form-data"}, 400, "malformed_multipart"),
    ({"content-type": "multipart/form-data; boundary=" + "x" * 71}, 400, "malformed_multipart"),
]


def test_a_head_that_announces_no_upload_is_refused(sqlite_url: str, taking: Uploads) -> None:
    async def story(s: Served) -> None:
        for headers, status, code in HEADS:
            for size in (10, 5 * MB):
                answer = await s.post(PATH, content=filled(size), headers={**FORM, **headers})
                assert (answer.status, answer.code) == (status, code), headers
        bare = await s.post(PATH)
        assert (bare.status, bare.code) == (415, "unsupported_media_type")
        wrong = await s.post(f"{PATH}?envv=x", content=filled(5 * MB), headers=FORM)
        assert (wrong.status, wrong.code) == (422, "invalid_request")

    on_a_server(sqlite_url, story)


OWN = {"host": "127.0.0.1:8083", "origin": "http://127.0.0.1:8083", "sec-fetch-site": "same-origin"}
FOLLOWED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
PAGES: list[tuple[dict[str, str], int]] = [
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site"}, 403),
    (FOLLOWED, 403),
    ({**OWN, "origin": "http://127.0.0.1:8084"}, 403),
    (OWN, 200),
    ({}, 200),
]


@pytest.mark.parametrize("token", [None, "secret-of-the-tests"])
def test_a_page_of_another_site_cannot_upload(sqlite_url: str, taking: Uploads, token: str | None) -> None:
    """A browser sends forms across sites without asking, and what it knows of passwords with them."""

    async def story(s: Served) -> None:
        for headers, status in PAGES:
            answer = await sent(s, FILE % (b"a", b"x") + END, **headers)
            assert answer.status == status, headers
            assert status == 200 or answer.code == "foreign_page"

    on_a_server(sqlite_url, story, token=token)


def test_an_upload_needs_a_token_that_may_act(sqlite_url: str, taking: Uploads) -> None:
    async def story(s: Served) -> None:
        viewer = (await s.post("/api/tokens", {"name": "eve", "role": "viewer"})).json["text"]
        for shown, status in ((viewer, 403), ("wrong", 401)):
            headers = {**FORM, "authorization": f"Bearer {shown}"}
            answer = await s.post(PATH, content=filled(5 * MB), headers=headers)
            assert answer.status == status

    on_a_server(sqlite_url, story, token="secret-of-the-tests")


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
def test_a_file_that_is_too_large_is_refused_and_its_sender_hears_it(
    sqlite_url: str, taking: Uploads, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(reading, "DRAIN_SECONDS_MAX", 150.0)

    async def story(s: Served) -> None:
        size = sum([len(piece) async for piece in filled(50 * MB)])
        length = {"content-length": str(size)} if announced else {}
        answer = await s.post(PATH, content=filled(50 * MB), headers={**FORM, **length})
        assert answer.status == 413
        assert answer.code == ("request_too_large" if announced else "file_too_large")
        assert f"{BYTES_MAX:,}" in answer.json["error"]["message"]

    on_a_server(sqlite_url, story)


def test_a_length_that_is_too_large_is_refused_before_anything_is_sent(
    sqlite_url: str, taking: Uploads
) -> None:
    async def story(s: Served) -> None:
        reader, writer = await s.open_socket()
        writer.write(_head(10**12) + b"\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON_SECONDS)
        assert b" 413 " in head.split(b"\r\n")[0]
        writer.close()

    on_a_server(sqlite_url, story)


def _head(length: int) -> bytes:
    address = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\n" % PATH.encode()
    return address + b"content-type: multipart/form-data; boundary=B\r\ncontent-length: %d\r\n" % length


# who breaks off, and who is slow


def test_a_file_that_was_cut_off_is_never_taken_for_a_whole_one(sqlite_url: str, taking: Uploads) -> None:
    async def story(s: Served) -> None:
        whole: list[str] = []
        refused: list[Refused] = []

        async def handle(ask: Ask) -> Taken:
            assert ask.upload is not None
            try:
                return await take_all(ask, whole=whole)
            except Refused as refusal:
                refused.append(refusal)
                with pytest.raises(Refused):  # nor is it passed over
                    await take_all(ask, whole=whole)
                raise

        taking.handle = handle
        body = FILE % (b"first", b"x" * 100) + FILE % (b"second", b"y" * 100_000) + END
        for cut in (len(body) // 2, len(body) - len(END), len(body) - len(END) + 3):
            answer = await sent(s, body[:cut])
            assert (answer.status, answer.code) == (400, "malformed_multipart")
            _, writer = await s.open_socket()
            writer.write(_head(len(body)) + b"\r\n" + body[:cut])
            await writer.drain()
            writer.close()
            await eventually(lambda: len(refused) == 2)
            assert [refusal.code for refusal in refused] == ["malformed_multipart", "disconnected"]
            assert whole == ["first", "first"]
            whole.clear()
            refused.clear()

    on_a_server(sqlite_url, story)


def test_a_sender_who_falls_silent_is_told_so(
    sqlite_url: str, taking: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "IDLE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(reading, "DRAIN_SECONDS_MAX", 0.1)

    async def story(s: Served) -> None:
        for begun in (b"", b"--B", FILE % (b"a", b"x"), FILE % (b"a", b"x") + END):
            reader, writer = await s.open_socket()
            writer.write(_head(1_000) + b"\r\n" + begun)
            answer = await asyncio.wait_for(reader.read(), SOON_SECONDS)
            assert b" 408 " in answer.split(b"\r\n")[0]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_slow"
            writer.close()

    on_a_server(sqlite_url, story)


@pytest.mark.parametrize("silent_seconds", [20.0, 40.0])
def test_a_sender_who_is_slow_and_not_silent_is_waited_for(silent_seconds: float) -> None:
    """By a clock of the test's own: a machine that stops for a moment makes nobody silent."""
    body = FILE % (b"slow.txt", b"x" * 50) + END

    async def story() -> None:
        loop = asyncio.get_running_loop()
        clock, passed = loop.time, 0.0
        loop.time = lambda: clock() + passed  # type: ignore[method-assign]

        async def slowly() -> AsyncIterator[bytes]:
            nonlocal passed
            for at in range(0, len(body), 40):
                passed += silent_seconds
                await asyncio.sleep(0.001)  # so that what is due is done
                yield body[at : at + 40]

        try:
            upload = upload_of(slowly())
            async for file in upload.files(bytes_max=100, files_max=1):
                assert b"".join([chunk async for chunk in file.chunks]) == b"x" * 50
            assert upload.is_read and passed > uploads.IDLE_SECONDS_MAX > silent_seconds
        except Refused as refusal:
            assert refusal.code == "too_slow" and silent_seconds > uploads.IDLE_SECONDS_MAX
        finally:
            del loop.time

    run(story())


# what is held


def upload_of(pieces: AsyncIterator[bytes], **headers: str) -> Upload:
    """One without a server, of a sender that waits until it is asked for more."""

    async def receive() -> Any:
        await asyncio.sleep(0)
        try:
            return {"type": "http.request", "body": await anext(pieces), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    given = [(name.encode(), value.encode()) for name, value in {**FORM, **headers}.items()]
    return Upload(Request({"type": "http", "method": "POST", "headers": given}, receive))


def test_no_more_is_asked_for_than_the_handler_has_taken() -> None:
    async def story() -> None:
        made = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal made
            async for piece in filled(10 * MB):
                made += len(piece)
                yield piece

        taken = 0
        async for file in upload_of(counted()).files(bytes_max=100 * MB, files_max=1):
            async for chunk in file.chunks:
                taken += len(chunk)
                assert made - taken < 60_000
        assert taken > 9 * MB

    run(story())


def test_an_upload_of_200_mb_takes_no_memory_to_speak_of() -> None:
    async def story() -> None:
        piece = b"x" * 65_536

        async def large() -> AsyncIterator[bytes]:
            yield (FILE % (b"large.bin", b"")).removesuffix(b"\r\n")
            for _ in range(200 * MB // len(piece)):
                yield piece[:-1] + b"\r"  # each may be the first of a delimiter, so that it is put together
            yield b"\r\n" + END

        upload, taken = upload_of(large()), 0
        tracemalloc.start()
        try:
            async for file in upload.files(bytes_max=1000 * MB, files_max=1):
                async for chunk in file.chunks:
                    taken += len(chunk)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert taken == 200 * MB // len(piece) * len(piece) and peak < 500_000

    run(story())


def test_a_server_reads_no_faster_than_its_handler(sqlite_url: str, taking: Uploads) -> None:
    async def story(s: Served) -> None:
        may_go_on = asyncio.Event()
        made: list[int] = []
        largest = 0

        async def slow(ask: Ask) -> Taken:
            nonlocal largest
            assert ask.upload is not None
            size = 0
            async for file in ask.upload.files(bytes_max=1000 * MB, files_max=1):
                async for chunk in file.chunks:
                    size += len(chunk)
                    largest = max(largest, len(chunk))
                    await may_go_on.wait()
            return Taken([TakenFile("", "", size, 0)], {}, "")

        async def counted() -> AsyncIterator[bytes]:
            async for piece in filled(200 * MB):
                made.append(len(piece))
                yield piece

        taking.handle = slow
        sending = asyncio.create_task(s.post(PATH, content=counted(), headers=FORM))
        before = -1
        while len(made) != before:  # until nothing moves any more
            before = len(made)
            await asyncio.sleep(0.3)
        assert sum(made) < 30 * MB  # which is in the sockets of both
        may_go_on.set()
        answer = await sending
        assert answer.json["files"][0]["size"] == 200 * MB and largest < 500_000

    on_a_server(sqlite_url, story)


def test_a_file_cannot_be_read_any_more_when_the_next_one_is_there() -> None:
    async def story() -> None:
        async def two() -> AsyncIterator[bytes]:
            yield FILE % (b"a", b"x") + FILE % (b"b", b"y") + END

        files = upload_of(two()).files(bytes_max=10, files_max=2)
        first, second = await anext(files), await anext(files)
        with pytest.raises(RuntimeError, match="before the next file"):
            await anext(first.chunks)
        assert [chunk async for chunk in second.chunks] == [b"y"]

    run(story())


def test_what_is_skipped_has_its_limit_too() -> None:
    async def story() -> None:
        files = upload_of(filled(MB)).files(bytes_max=1_000, files_max=2)
        await anext(files)
        with pytest.raises(Refused, match=r"'large\.bin' is too large") as refused:
            await anext(files)
        assert refused.value.status == 413

    run(story())


def test_uploads_are_no_part_of_what_bodies_hold_together(
    sqlite_url: str, taking: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BODIES_BYTES_MAX", 10_000)

    async def story(s: Served) -> None:
        assert names_of(await sent(s, FILE % (b"a", b"x" * 100_000) + END)) == ["a"]
        assert (await sent(s, FILE % (b"a", b"x" * 100_000))).status == 400
        assert (await s.lease(types=["p/a" + "x" * 400] * 15)).status == 200

    on_a_server(sqlite_url, story)


# how it is described


def test_the_document_tells_of_files_and_of_parameters(taking: Uploads) -> None:
    told = document([taking.endpoint], "1")["paths"][PATH]["post"]
    schema = told["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert told["requestBody"]["required"] and schema["required"] == ["file"]
    assert schema["properties"]["file"]["items"] == {"type": "string", "format": "binary"}
    assert [parameter["name"] for parameter in told["parameters"]] == ["env"]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_whatever_is_uploaded_the_answer_is_one_that_the_document_allows(
    sqlite_url: str, taking: Uploads, mode: GenerationMode
) -> None:
    checks = [
        not_a_server_error,
        status_code_conformance,
        response_schema_conformance,
        negative_data_rejection,
    ]
    statuses: set[int] = set()

    def ask_all(url: str) -> None:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")

        @settings(
            max_examples=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=schema[PATH]["POST"].as_strategy(generation_mode=mode))
        def holds(case: Any) -> None:
            response = case.call(timeout=60)
            case.validate_response(response, checks=checks)
            statuses.add(response.status_code)

        holds()

    async def story(s: Served) -> None:
        assert "multipart/form-data" in (await s.get("/docs")).content.decode()
        await asyncio.to_thread(ask_all, s.url)

    on_a_server(sqlite_url, story)
    assert statuses
