"""The http step against a real server: what it sends, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.catalogue import Category
from holdfast.core.failures import Classification, Failure, classify
from holdfast.core.payload import encode_payload
from holdfast.steps import http
from holdfast.steps.http_body import PIECE_BYTES_MAX, pieces_of
from holdfast.steps.interface import StepCall, StepSettings
from http_asking import ask, closing, failed
from running import eventually, run
from scripted_server import ScriptedServer, raw


def judged(failure: Failure) -> Classification:
    return classify(failure)


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


def test_a_get_gives_status_headers_url_and_parsed_json(server: ScriptedServer) -> None:
    server.answer("/items", json={"rows": [1, 2]}, x_kind="list")
    output = ask(f"{server.url}/items?page=2#top")
    assert output["status_code"] == 200
    assert output["data"] == {"rows": [1, 2]}
    assert output["headers"]["x-kind"] == "list"
    assert output["url"] == f"{server.url}/items"
    assert server.requests[0].method == "GET"
    assert server.requests[0].query == "page=2"


def test_params_are_encoded_and_added_to_those_of_the_url(server: ScriptedServer) -> None:
    server.answer("/find")
    ask(f"{server.url}/find?a=1", params={"q": "a&b=c d", "tag": ["x", "y"], "no": None, "yes": True, "n": 3})
    assert server.requests[0].query == "a=1&q=a%26b%3Dc+d&tag=x&tag=y&yes=true&n=3"


@pytest.mark.parametrize(
    ("config", "content_type", "body"),
    [
        ({"json": {"a": [1, "é"]}}, "application/json", '{"a":[1,"é"]}'.encode()),
        ({"json": []}, "application/json", b"[]"),
        ({"form": {"a": "x&y", "b": [1, 2]}}, "application/x-www-form-urlencoded", b"a=x%26y&b=1&b=2"),
        ({"body": "grüße"}, "text/plain; charset=utf-8", "grüße".encode()),
        ({"body": "<a/>", "headers": {"Content-Type": "application/xml"}}, "application/xml", b"<a/>"),
    ],
)
def test_the_three_bodies(
    server: ScriptedServer, config: dict[str, Any], content_type: str, body: bytes
) -> None:
    server.answer("/post", 201)
    assert ask(f"{server.url}/post", method="post", **config)["status_code"] == 201
    (request,) = server.requests
    assert (request.method, request.headers["content-type"], request.body) == ("POST", content_type, body)


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ({"type": "bearer", "token": "t0ken"}, "authorization", "Bearer t0ken"),
        (
            {"type": "basic", "username": "ann", "password": "pä:ss"},
            "authorization",
            "Basic " + base64.b64encode("ann:pä:ss".encode()).decode(),
        ),
        ({"type": "header", "name": "X-Api-Key", "value": "k3y"}, "x-api-key", "k3y"),
    ],
)
def test_the_kinds_of_auth(server: ScriptedServer, auth: dict[str, Any], name: str, value: str) -> None:
    server.answer("/private")
    ask(f"{server.url}/private", auth=auth)
    assert server.requests[0].headers[name] == value


def test_credentials_in_the_url_are_sent_and_not_shown(server: ScriptedServer) -> None:
    server.answer("/private", 200)
    server.answer("/private", 500)
    url = f"http://ann:pass%20word@127.0.0.1:{server.port}/private"
    assert ask(url)["url"] == f"{server.url}/private"
    expected = base64.b64encode(b"ann:pass word").decode()
    assert server.requests[0].headers["authorization"] == f"Basic {expected}"
    failure = failed(url, params={"key": "s3cret"})
    assert "pass" not in failure.message and "s3cret" not in failure.message


def test_connections_are_used_again(server: ScriptedServer) -> None:
    server.answer("/a", json=1)
    server.answer("/b", 302, location="/a")
    calls = [StepCall(config={"url": f"{server.url}/{name}"}) for name in ("a", "a", "b")]
    run(closing(*calls))
    assert len(server.requests) == 4
    assert len({request.peer for request in server.requests}) == 1


def test_nothing_of_one_step_is_carried_to_the_next(server: ScriptedServer) -> None:
    server.answer("/login", 200, set_cookie="session=1; Path=/")
    server.answer("/next", 200)
    run(closing(*(StepCall(config={"url": f"{server.url}/{name}"}) for name in ("login", "next"))))
    assert "cookie" not in server.requests[1].headers


@pytest.mark.parametrize(
    ("method", "headers", "sent"),
    [
        ("POST", {}, "7-store-1"),
        ("PATCH", {}, "7-store-1"),
        ("PUT", {}, None),
        ("GET", {}, None),
        ("POST", {"Idempotency-Key": "mine"}, "mine"),
        ("POST", {"idempotency-key": None}, None),
    ],
)
def test_what_is_not_idempotent_carries_a_key(
    server: ScriptedServer, method: str, headers: dict[str, Any], sent: str | None
) -> None:
    server.answer("/effect")
    config = {"url": f"{server.url}/effect", "method": method, "headers": headers}
    run(closing(StepCall(config=config, idempotency_key="7-store-1")))
    assert server.requests[0].headers.get("idempotency-key") == sent


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "error_type", "category"),
    [
        (400, "validation_error", Category.PERMANENT),
        (401, "auth_error", Category.PERMANENT),
        (404, "not_found", Category.PERMANENT),
        (408, "timeout", Category.TRANSIENT),
        (429, "rate_limit", Category.TRANSIENT),
        (500, "service_unavailable", Category.TRANSIENT),
        (503, "service_unavailable", Category.TRANSIENT),
    ],
)
def test_a_status_from_400_on_is_an_error_with_that_status(
    server: ScriptedServer, status: int, error_type: str, category: Category
) -> None:
    server.answer("/no", status, "the\nreason is <b>this</b>", retry_after="7", x_secret="hidden")
    failure = failed(f"{server.url}/no?key=s3cret", headers={"X-Key": "k3y"})
    assert failure.status_code == status
    assert failure.retry_after == 7
    assert (judged(failure).error_type, judged(failure).category) == (error_type, category)
    assert f"GET {server.url}/no answered {status}" in failure.message
    assert "the reason is <b>this</b>" in failure.message
    for secret in ("s3cret", "k3y", "hidden"):
        assert secret not in failure.message
    assert "re-upload" not in judged(failure).guidance


@pytest.mark.parametrize(
    ("body", "content_type", "data"),
    [
        ('{"code": "busy", "n": 2}', "application/json", {"code": "busy", "n": 2}),
        ("not now", "text/plain", "not now"),
        ("{broken", "application/json", None),
        ("", "application/json", None),
        ("\x00\x01", "image/png", None),
        (f'"{"x" * 9_000}"', "application/json", None),
    ],
)
def test_an_error_has_the_data_that_came_with_it(
    server: ScriptedServer, body: str, content_type: str, data: Any
) -> None:
    server.answer("/no", 503, body, content_type=content_type)
    assert failed(f"{server.url}/no").data == data


def test_retry_after_may_be_a_date(server: ScriptedServer) -> None:
    server.answer("/busy", 503, retry_after="Thu, 01 Jan 1970 00:01:30 GMT")
    assert failed(f"{server.url}/busy").retry_after == 90


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7, 7", 7),
        ("3,12 , 5", 12),
        ("soon, 5", 5),
        ("Wed, 21 Oct 1998 07:28:00 GMT, 5", 5),
        ("Wed, 21 Oct 2199 07:28:00 GMT", 7251924480),
        ("5, Wed, 21 Oct 2199 07:28:00 GMT", 7251924480),
        ("soon, later", None),
        (", " * 20_000, None),
    ],
)
def test_of_several_retry_afters_the_longest_counts(
    server: ScriptedServer, value: str, seconds: float | None
) -> None:
    server.answer("/busy", 503, retry_after=value)
    assert failed(f"{server.url}/busy").retry_after == seconds


def test_retry_after_may_come_twice(server: ScriptedServer) -> None:
    answer = b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\nretry-after: 9\r\ncontent-length: 0\r\n\r\n"
    server.answer("/busy", act=raw(answer))
    assert failed(f"{server.url}/busy").retry_after == 9


def test_a_rule_of_the_playbook_may_judge_a_status_otherwise(server: ScriptedServer) -> None:
    from holdfast.core.error_rules import ErrorRule

    server.answer("/soon", 404)
    rule = ErrorRule(error_type="not_ready", status=404)
    assert classify(failed(f"{server.url}/soon"), [rule]).category is Category.TRANSIENT


def test_a_huge_error_page_is_shown_in_part(server: ScriptedServer) -> None:
    server.answer("/no", 500, gzip.compress(b"x" * 50_000_000), content_encoding="gzip")
    failure = failed(f"{server.url}/no")
    assert failure.status_code == 500
    assert 400 < len(failure.message) < 700


def test_nobody_listens(server: ScriptedServer) -> None:
    with ScriptedServer() as gone:
        url = gone.url
    failure = failed(f"{url}/?key=s3cret")
    assert judged(failure).error_type == "connection_error"
    assert failure.message.startswith(f"GET {url}/ failed: ")
    assert "s3cret" not in failure.message


def test_what_is_no_tls_may_heal(server: ScriptedServer) -> None:
    failure = failed(server.url.replace("http:", "https:"))
    assert judged(failure).error_type == "connection_error"


def test_an_unknown_host_may_be_known_later() -> None:
    assert judged(failed("http://no-such-host.invalid/")).error_type == "connection_error"


def test_a_silent_server_is_a_timeout(server: ScriptedServer) -> None:
    server.answer("/slow", act=server.hold)
    failure = failed(f"{server.url}/slow", timeout=0.2)
    assert judged(failure).error_type == "timeout"
    assert "within 0.2 s" in failure.message


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"hello" * 100)[:-20],
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "garbage", "cut", "cut chunk", "two lengths", "no gzip", "cut gzip", "endless header"],
)
def test_a_broken_answer_may_heal(server: ScriptedServer, answer: bytes) -> None:
    server.answer("/broken", act=raw(answer))
    failure = failed(f"{server.url}/broken")
    assert judged(failure).error_type == "connection_error", failure


def test_a_cancelled_attempt_ends_and_leaves_the_client_usable(server: ScriptedServer) -> None:
    server.answer("/slow", act=server.hold)
    server.answer("/quick", json=1)

    async def scenario() -> Any:
        task = asyncio.ensure_future(http.run(StepCall(config={"url": f"{server.url}/slow"})))
        await eventually(lambda: server.requests)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return await closing(StepCall(config={"url": f"{server.url}/quick"}))

    assert run(scenario())[0]["data"] == 1


# ── redirects ────────────────────────────────────────────────────────────────────────────────────


def test_redirects_are_followed_and_the_last_address_is_told(server: ScriptedServer) -> None:
    server.answer("/old", 301, location="/new?key=s3cret")
    server.answer("/new", json="here")
    output = ask(f"{server.url}/old", method="POST", body="x")
    assert (output["data"], output["url"]) == ("here", f"{server.url}/new")
    assert [(request.method, request.path) for request in server.requests] == [
        ("POST", "/old"),
        ("GET", "/new"),
    ]


def test_a_body_goes_along_where_the_server_asks_for_it(server: ScriptedServer) -> None:
    server.answer("/old", 307, location="/new")
    server.answer("/new")
    ask(f"{server.url}/old", method="POST", json={"a": 1})
    assert (server.requests[1].method, server.requests[1].body) == ("POST", b'{"a":1}')


def test_a_redirect_that_is_not_followed_is_an_answer(server: ScriptedServer) -> None:
    server.answer("/old", 302, location="/new")
    output = ask(f"{server.url}/old", follow_redirects=False)
    assert (output["status_code"], output["headers"]["location"]) == (302, "/new")


def test_a_circle_is_left_after_ten_redirects(server: ScriptedServer) -> None:
    server.answer("/round", 302, location="/round")
    failure = failed(f"{server.url}/round")
    assert judged(failure).category is Category.PERMANENT
    assert "more than 10 times" in failure.message
    assert len(server.requests) == 11


def test_credentials_do_not_go_to_another_host(server: ScriptedServer) -> None:
    with ScriptedServer() as other:
        server.answer("/here", 307, location="/still-here")
        server.answer("/still-here", 307, location=f"{other.url}/there")
        other.answer("/there")
        ask(
            f"{server.url}/here",
            method="POST",
            json=1,
            headers={"X-Whatever": "k3y", "Cookie": "a=b", "Accept": "text/plain"},
            auth={"type": "header", "name": "X-Api-Key", "value": "k3y"},
        )
        ask(f"{server.url}/still-here", auth={"type": "bearer", "token": "t0ken"})
    assert server.requests[1].headers["x-api-key"] == "k3y"
    for request in other.requests:
        assert set(request.headers) <= {
            "accept", "accept-encoding", "connection", "content-length", "content-type", "host", "user-agent",
        }  # fmt: skip
        assert request.headers["host"] == f"127.0.0.1:{other.port}"
    assert other.requests[0].headers["accept"] == "text/plain"


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://host/x", "gopher://host/", "javascript:1"])
def test_a_redirect_leads_to_no_other_scheme(server: ScriptedServer, target: str) -> None:
    server.answer("/old", 302, location=target)
    assert judged(failed(f"{server.url}/old")).category is Category.PERMANENT


@pytest.mark.parametrize("port", [0, 99999])
def test_a_redirect_to_a_port_that_there_is_not_is_told_with_both_addresses(
    server: ScriptedServer, port: int
) -> None:
    server.answer("/old", 302, location=f"http://127.0.0.1:{port}/new?key=s3cret")
    failure = failed(f"{server.url}/old?key=s3cret")
    assert (judged(failure).error_type, judged(failure).category) == ("validation_error", Category.PERMANENT)
    assert failure.message == (
        f"{server.url}/old redirects to http://127.0.0.1:{port}/new, which has the port {port},"
        " and ports go from 1 to 65535."
    )
    assert "follow_redirects" in judged(failure).guidance


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("application/json", b'{"a": 1}', {"a": 1}),
        ("application/problem+json; charset=utf-8", b"[true]", [True]),
        ("Application/JSON", b"  ", None),
        (
            "application/json",
            b"[NaN, 1e999, 12345678901234567890123]",
            ["NaN", "1e999", 12345678901234567890123],
        ),
        ("application/json", b'"\\u0000\\ud800"', "\ufffd\ufffd"),
        ("application/json", '\ufeff"é"'.encode(), "é"),
        ("application/json; charset=iso-8859-1", '"é"'.encode("latin-1"), "é"),
        ("application/json; charset=iso-8859-1", '"é"'.encode(), "é"),
        ("text/plain; charset=iso-8859-1", "é".encode("latin-1"), "é"),
        ("text/plain; charset=utf-8", "é".encode("latin-1"), "é"),
        ("text/plain; charset=no-such", "é".encode(), "é"),
        ("text/plain; charset=idna", "é".encode(), "é"),
        ("text/plain; charset=-punycode", b"a-tda", "a-tda"),
        ("text/plain; charset=utf-7-", b"+AOk-", "+AOk-"),
        ("text/plain; charset=base64", b"aGVsbG8=", "aGVsbG8="),
        ("text/html", b"a\x00b", "a\ufffdb"),
        ("application/xml", b"<a/>", "<a/>"),
        ("", "grüße".encode(), "grüße"),
        ("application/x-www-form-urlencoded", b"a=1", "a=1"),
    ],
)
def test_data_is_read_by_its_content_type(
    server: ScriptedServer, content_type: str, body: bytes, data: Any
) -> None:
    server.answer("/data", 200, body, **({"content_type": content_type} if content_type else {}))
    output = ask(f"{server.url}/data")
    assert output["data"] == data
    assert "encoding" not in output
    encode_payload(output, what="output")


@pytest.mark.parametrize(
    "content_type", ["application/octet-stream", "image/png", "", "nonsense", "/" * 60_000]
)
def test_other_bytes_are_base64(server: ScriptedServer, content_type: str) -> None:
    body = bytes(range(256))
    server.answer("/data", 200, body, **({"content_type": content_type} if content_type else {}))
    output = ask(f"{server.url}/data")
    assert output["encoding"] == "base64"
    assert base64.b64decode(output["data"]) == body


@pytest.mark.parametrize(
    "body", [b"<html>oops</html>", b'{"a":', b'"\xe9"', b"[" * 3000 + b"]" * 3000, b"{}{}"]
)
def test_json_that_is_none_is_an_error(server: ScriptedServer, body: bytes) -> None:
    server.answer("/data", 200, body, content_type="application/json")
    failure = failed(f"{server.url}/data")
    assert judged(failure).error_type == "validation_error"
    assert "re-upload" not in judged(failure).guidance
    assert "save_to" in judged(failure).guidance


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(b"hello")),
        ("x-gzip", gzip.compress(b"hel") + gzip.compress(b"lo")),
        ("gzip", gzip.compress(b"hello") + b"trailing garbage"),
        ("deflate", zlib.compress(b"hello")),
        ("deflate", zlib.compress(b"hello")[2:-4]),
        ("identity", b"hello"),
    ],
    ids=["gzip", "two gzips", "gzip and more", "deflate", "deflate without a header", "not packed"],
)
def test_packed_bodies_are_unpacked(server: ScriptedServer, coding: str, packed: bytes) -> None:
    server.answer("/data", 200, packed, content_encoding=coding, content_type="text/plain")
    assert ask(f"{server.url}/data")["data"] == "hello"


def test_a_body_packed_in_a_way_nobody_asked_for_stays_packed(server: ScriptedServer) -> None:
    server.answer("/data", 200, b"\x00\x01", content_encoding="br", content_type="application/json")
    output = ask(f"{server.url}/data")
    assert (output["data"], output["encoding"]) == ("AAE=", "base64")
    assert output["headers"]["content-encoding"] == "br"


def test_no_body_is_no_data(server: ScriptedServer) -> None:
    server.answer("/none", 204)
    server.answer("/head", 200, b"x" * 10_000_000, content_type="application/json")
    assert ask(f"{server.url}/none")["data"] is None
    assert ask(f"{server.url}/head", method="HEAD")["data"] is None


def test_a_body_over_the_limit_is_refused_with_a_way_out(server: ScriptedServer) -> None:
    server.answer("/big", 200, b"x" * 2_000_000, content_type="text/plain")
    failure = failed(f"{server.url}/big")
    assert (judged(failure).error_type, judged(failure).category) == (
        "response_too_large",
        Category.PERMANENT,
    )
    assert "save_to" in judged(failure).guidance


def test_a_limit_may_be_lower_or_higher_than_the_default(server: ScriptedServer) -> None:
    server.answer("/data", 200, b"x" * 11, content_type="text/plain")
    assert ask(f"{server.url}/data", response_bytes_max=11)["data"] == "x" * 11
    assert judged(failed(f"{server.url}/data", response_bytes_max=10)).error_type == "response_too_large"


def test_what_is_held_in_memory_has_a_bound_that_no_playbook_moves(server: ScriptedServer) -> None:
    server.answer("/data", 200, b" " * 5_000 + b"1", content_type="application/json")
    call = StepCall(
        config={"url": f"{server.url}/data", "response_bytes_max": 10**12},
        settings=StepSettings(payload_bytes_max=1_000),
    )
    with pytest.raises(Exception, match="more than 4,000 bytes"):
        run(closing(call))


def test_an_endless_body_without_a_length_is_bounded(server: ScriptedServer) -> None:
    def pour(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            handler.wfile.write(b"x" * 65536)

    server.answer("/endless", act=pour)
    assert judged(failed(f"{server.url}/endless")).error_type == "response_too_large"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_counted_by_what_comes_out(server: ScriptedServer, coding: str) -> None:
    compress = gzip.compress if coding == "gzip" else zlib.compress
    server.answer(
        "/bomb", 200, compress(b"\0" * 200_000_000), content_encoding=coding, content_type="text/plain"
    )
    assert judged(failed(f"{server.url}/bomb")).error_type == "response_too_large"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_no_piece_of_a_bomb_is_large(coding: str) -> None:
    packed = (gzip.compress if coding == "gzip" else zlib.compress)(b"\0" * 20_000_000)
    response = httpx.Response(200, headers={"content-encoding": coding}, stream=httpx.ByteStream(packed))

    async def sizes() -> list[int]:
        return [len(piece) async for piece in pieces_of(response)]

    found = run(sizes())
    assert sum(found) == 20_000_000
    assert max(found) <= PIECE_BYTES_MAX


def test_what_grows_when_it_is_stored_is_measured_as_it_is_stored(server: ScriptedServer) -> None:
    server.answer("/grows", 200, b"\x01" * 500_000, content_type="text/plain")
    failure = failed(f"{server.url}/grows")
    assert judged(failure).error_type == "response_too_large"


def test_headers_that_open_doors_are_masked(server: ScriptedServer) -> None:
    server.answer("/data", 200, set_cookie="a=b", x_auth_token="t", authorization="Basic x", etag='"1"')
    headers = ask(f"{server.url}/data")["headers"]
    assert [headers[name] for name in ("set-cookie", "x-auth-token", "authorization", "etag")] == [
        "***", "***", "***", '"1"',
    ]  # fmt: skip


# ── to storage ───────────────────────────────────────────────────────────────────────────────────


def test_save_to_streams_the_body_to_a_file(server: ScriptedServer, tmp_path: Path) -> None:
    body = os.urandom(3_000_000)
    server.answer("/file", 200, body, content_type="application/json")
    told: list[float] = []
    call = StepCall(
        config={"url": f"{server.url}/file", "save_to": "in/file.bin"},
        settings=StepSettings(storage=str(tmp_path)),
        progress=told.append,
    )
    (output,) = run(closing(call))
    assert "data" not in output
    assert output["saved_to"] == "in/file.bin"
    assert (output["size"], output["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert (tmp_path / "in" / "file.bin").read_bytes() == body
    assert told == sorted(told) and told[-1] == 1.0


@pytest.mark.parametrize("kind", ["error", "cut", "too large"])
def test_nothing_is_kept_of_a_failed_download(server: ScriptedServer, tmp_path: Path, kind: str) -> None:
    answers: dict[str, Any] = {
        "error": {"status": 500, "body": b"x"},
        "cut": {"act": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 500_000)},
        "too large": {"body": b"x" * 1000},
    }
    server.answer("/file", **answers[kind])
    call = StepCall(
        config={"url": f"{server.url}/file", "save_to": "file", "response_bytes_max": 999},
        settings=StepSettings(storage=str(tmp_path)),
    )
    if kind == "cut":
        call = StepCall(config={**call.config, "response_bytes_max": None}, settings=call.settings)
    with pytest.raises(Exception):  # noqa: B017 - which one is told elsewhere
        run(closing(call))
    assert list(tmp_path.iterdir()) == []
