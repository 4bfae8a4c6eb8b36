"""What the server of a bucket refuses, or leaves unanswered: whether it may heal, and what is said of it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.errors import PermanentError, TransientError
from holdfast.core.failures import classify, failure_from_exception
from holdfast.storage import Storage, s3
from ports import kept_port
from running import run
from s3_server import BUCKET, only_s3, started_s3
from scripted_server import ScriptedServer
from storage_scenario import chunks_of, content, write

Verb = Callable[[Storage], Coroutine[Any, Any, Any]]


async def read_all(storage: Storage) -> None:
    async for _ in storage.read("a"):
        pass


VERBS: dict[str, Verb] = {
    "write": lambda storage: storage.write_stream("a", chunks_of([b"x"])),
    "write in parts": lambda storage: storage.write_stream("a", chunks_of([bytes(1_000_000)] * 20)),
    "read": read_all,
    "exists": lambda storage: storage.exists("a"),
    "delete": lambda storage: storage.delete("a"),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())


@pytest.fixture
def scripted(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server that says what the test wants, in the place of the real one."""
    with ScriptedServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setattr(s3, "RETRIES_MAX", 1)
        yield server


def test_what_is_not_there(s3_url: str) -> None:
    with pytest.raises(PermanentError, match="no file 'a' in the storage s3://") as raised:
        content(Storage.open(s3_url), "a")
    judged = classify(failure_from_exception(raised.value))
    assert (judged.error_type, judged.category) == ("not_found", Category.PERMANENT)


@every_verb
@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_permanent(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, variable: str, verb: Verb
) -> None:
    monkeypatch.setenv(variable, "hunter2hunter2")
    with pytest.raises(PermanentError, match=f"s3://{BUCKET}") as raised:
        run(verb(Storage.open(s3_url)))
    assert raised.value.error_type == "auth_error"
    assert raised.value.guidance is not None
    assert BUCKET in raised.value.guidance and "AWS_ACCESS_KEY_ID" in raised.value.guidance
    assert "hunter2" not in str(raised.value)


@every_verb
def test_a_bucket_that_is_not_there_is_permanent(s3_url: str, verb: Verb) -> None:
    with pytest.raises(PermanentError, match="there is no such bucket") as raised:
        run(verb(Storage.open("s3://holdfast-no-such-bucket/x")))
    assert raised.value.error_type == "auth_error"
    assert raised.value.guidance is not None
    assert "holdfast-no-such-bucket" in raised.value.guidance


@every_verb
def test_a_server_that_is_not_there_is_transient(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    with kept_port() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        with pytest.raises(TransientError) as raised:
            run(verb(Storage.open(s3_url)))
    assert raised.value.error_type == "storage_unavailable"


@every_verb
def test_a_server_that_never_answers_is_given_up(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    monkeypatch.setattr(s3, "REQUEST_SECONDS_MAX", 0.2)
    monkeypatch.setattr(s3, "RETRY_SECONDS_MAX", 0.2)
    monkeypatch.setattr(s3, "STALL_SECONDS_MAX", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(TransientError) as raised:
            run(verb(Storage.open(s3_url)))
    assert raised.value.error_type == "storage_unavailable"


def test_the_time_of_a_step_is_bounded() -> None:
    assert s3.STALL_SECONDS_MAX <= 90


@pytest.mark.parametrize(
    ("status", "code", "error_type"),
    [
        (500, "InternalError", "storage_unavailable"),
        (503, "SlowDown", "storage_unavailable"),
        (429, "TooManyRequests", "storage_unavailable"),
        (400, "RequestTimeout", "storage_unavailable"),
        (502, "", "storage_unavailable"),
        (400, "ExpiredToken", "auth_error"),
        (401, "", "auth_error"),
        (403, "AccessDenied", "auth_error"),
        (400, "AuthorizationHeaderMalformed", "auth_error"),
        (400, "EntityTooLarge", "file_too_large"),
    ],
)
def test_what_a_server_says_is_told_in_our_words(
    scripted: ScriptedServer, s3_url: str, status: int, code: str, error_type: str
) -> None:
    body = f"<Error><Code>{code}</Code><Message>Said so.</Message></Error>" if code else "<html>proxy</html>"
    key = s3_url.removeprefix("s3:/") + "/a"
    scripted.answer(key, status, body)
    expected = TransientError if error_type == "storage_unavailable" else PermanentError
    for verb in (VERBS["write"], VERBS["read"]):
        with pytest.raises(expected, match=code or str(status)) as raised:
            run(verb(Storage.open(s3_url)))
        assert raised.value.error_type == error_type
        assert "Debug source" not in str(raised.value)


def test_a_server_without_room_is_transient_and_says_so(scripted: ScriptedServer, s3_url: str) -> None:
    scripted.answer(s3_url.removeprefix("s3:/") + "/a", 507, "<Error><Code>XMinioStorageFull</Code></Error>")
    with pytest.raises(TransientError) as raised:
        write(Storage.open(s3_url), "a", b"x")
    assert raised.value.user_message == "No space is left where files are kept"


def test_a_short_hiccup_is_not_noticed(scripted: ScriptedServer, s3_url: str) -> None:
    key = s3_url.removeprefix("s3:/") + "/a"
    scripted.answer(key, 503, "")
    scripted.answer(key, 200, "", ETag='"x"')
    assert write(Storage.open(s3_url), "a", b"x").size == 1
    assert [request.method for request in scripted.requests] == ["PUT", "PUT"]


def test_an_address_that_is_none_is_permanent(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "ftp://host")
    with pytest.raises(PermanentError) as raised:
        write(Storage.open(s3_url), "a", b"x")
    assert raised.value.error_type == "auth_error"


def test_without_any_credentials_it_says_so(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr(s3, "RETRIES_MAX", 0)
    with kept_port() as port:
        # Nobody is asked who we are but this machine.
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
        with pytest.raises(PermanentError, match="no credentials") as raised:
            write(Storage.open(s3_url), "a", b"x")
    assert raised.value.error_type == "auth_error"


def test_a_server_that_is_killed_in_the_middle_of_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started_s3() as server:
        only_s3(server, tmp_path, monkeypatch)
        storage = Storage.open(f"s3://{BUCKET}/{uuid4().hex}")
        write(storage, "a", b"whole")

        async def cut_off() -> AsyncIterator[bytes]:
            yield os.urandom(3 * s3.PART_BYTES)
            await asyncio.to_thread(server.kill)
            yield os.urandom(3 * s3.PART_BYTES)

        for name in ("a", "b"):
            began = time.monotonic()
            with pytest.raises(TransientError) as raised:
                run(storage.write_stream(name, cut_off()))
            assert raised.value.error_type == "storage_unavailable"
            assert time.monotonic() - began < 170
        server.start()
        assert content(storage, "a") == b"whole"
        assert not run(storage.exists("b"))


def test_a_server_that_is_killed_while_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started_s3() as server:
        only_s3(server, tmp_path, monkeypatch)
        storage = Storage.open(f"s3://{BUCKET}/{uuid4().hex}")
        write(storage, "a", *[os.urandom(1_000_000)] * 100)

        async def scenario() -> None:
            reader = storage.read("a")
            await anext(reader)
            await asyncio.to_thread(server.kill)
            with pytest.raises(TransientError) as raised:
                async for _ in reader:
                    pass
            assert raised.value.error_type == "storage_unavailable"

        run(scenario())
