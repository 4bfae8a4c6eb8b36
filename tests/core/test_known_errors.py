"""What is known by SQLSTATE, exception type, HTTP status, and words, and what is not mistaken for it."""

import asyncio
import concurrent.futures
import gzip
import json
import socket
import sqlite3
import ssl
import subprocess
import tarfile
import urllib.error
import zipfile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.catalogue import CATALOGUE, Category
from holdfast.core.errors import (
    StoreUnavailable,
    UnknownStep,
)
from holdfast.core.failures import Classification, Failure, classify, failure_from_exception

T, P, U = Category.TRANSIENT, Category.PERMANENT, Category.UNKNOWN


def said(message: str, exception: str = "") -> Classification:
    return classify(Failure(message=message, exception=exception))


def of(exc: BaseException) -> Classification:
    return classify(failure_from_exception(exc))


# ── words ──


@pytest.mark.parametrize(
    ("error_type", "message"),
    [
        ("database_lock", "canceling statement due to lock timeout"),
        ("database_lock", "Lock wait timeout exceeded; try restarting transaction"),
        ("database_lock", "lock timed out"),
        ("database_lock", "Deadlock detected"),
        ("database_lock", "database is locked"),
        ("database_lock", "database table is locked"),
        ("timeout", "TimeoutError: 30 s exceeded"),
        ("timeout", "read timeout"),
        ("timeout", "the request TIMED OUT"),
        ("timeout", "time-out while waiting"),
        ("timeout", "connect ETIMEDOUT 10.0.0.1"),
        ("timeout", "connection timed out"),  # timeouts stand before connections in the list
        ("timeout", "the clock timeout"),  # a clock is no lock
        ("rate_limit", "Rate limit exceeded"),
        ("rate_limit", "rate-limited by upstream"),
        ("rate_limit", "too many requests"),
        ("rate_limit", "HTTP 429"),
        ("service_unavailable", "Service Unavailable"),
        ("service_unavailable", "the service is temporarily unavailable"),
        ("service_unavailable", "HTTP 503"),
        ("connection_error", "Connection refused"),
        ("connection_error", "connection reset by peer"),
        ("connection_error", "connection error"),
        ("connection_error", "the connection was closed"),
        ("connection_error", "Connection aborted."),
        ("invalid_file", "invalid file"),
        ("invalid_file", "file corrupt"),
        ("invalid_file", "file corrupted"),
        ("invalid_file", "corrupt file"),
        ("invalid_file", "corrupted zip file"),
        ("invalid_file", "the file report.pdf is corrupted"),
        ("invalid_file", "File appears to be corrupt"),
        ("unsupported_format", "unsupported format"),
        ("unsupported_format", "Unsupported file type: .exe"),
        ("unsupported_format", "this format is not supported"),
        ("auth_error", "Permission denied"),
        ("auth_error", "Unauthorized"),
        ("auth_error", "HTTP 401"),
        ("auth_error", "HTTP 403"),
        ("validation_error", "1 validation error for Model"),
        ("validation_error", "invalid data in row 3"),
        ("not_found", "key not found"),
        ("not_found", 'relation "x" does not exist'),
        ("not_found", "HTTP 404"),
        ("transient_error", "a temporary glitch"),
        ("transient_error", "transient fault"),
        ("transient_error", "temporarily out of order"),
    ],
)
def test_words_in_the_message_tell_the_error(error_type: str, message: str) -> None:
    found = said(message)
    assert (found.error_type, found.category) == (error_type, CATALOGUE[error_type].category)
    assert found.rule.startswith("words '")


@pytest.mark.parametrize(
    ("error_type", "exception"),
    [
        ("rate_limit", "RateLimitError"),
        ("rate_limit", "openai.RateLimitError"),
        ("database_lock", "DeadlockDetected"),
        ("connection_error", "ConnectionResetByPeer"),
        ("timeout", "ReadTimeout"),
        ("timeout", "HTTPTimeoutError"),
        ("not_found", "DocumentNotFound"),
        ("not_found", "Http404"),
        ("rate_limit", "Error429"),
        ("auth_error", "permission_denied"),
        ("validation_error", "ValidationError"),
        ("unsupported_format", "UnsupportedFormat"),
    ],
)
def test_words_in_the_exceptions_name_count_too(error_type: str, exception: str) -> None:
    assert said("oops", exception).error_type == error_type


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("database_lock", "timeout: deadlock"),
        ("timeout", "rate limit request timed out"),
        ("rate_limit", "service unavailable: rate limit"),
        ("service_unavailable", "connection error: service unavailable"),
        ("connection_error", "connection refused: invalid file"),
        ("invalid_file", "invalid file, unsupported format"),
        ("unsupported_format", "unsupported format: permission denied"),
        ("auth_error", "permission denied: invalid data"),
        ("validation_error", "not found: invalid data"),
        ("not_found", "temporary file not found"),
    ],
)
def test_the_more_specific_words_win(first: str, message: str) -> None:
    assert said(message).error_type == first


@pytest.mark.parametrize(
    "message",
    [
        "corrupt at byte 4290",  # neither a rate limit nor, with no word about a file, an invalid file
        "404 rows written",
        "wrote 404 rows",
        "returned 404 rows",
        "got 429 items",
        "got 404 of 900",
        "rows written: 404",
        "errors: 404",
        "took 503 ms",
        "took 503ms",
        "page 404 of 900",
        "row 401: bad",
        "line 403",
        "line 403: unexpected token",
        "items[404]",
        "f(404)",
        "KeyError: 404",
        "exit code 401",
        "exit status 403",
        "port 127.0.0.1:503",
        "http://host:503/x",
        "/pages/404",
        "ticket #404",
        "version 4.404",
        "404.5 seconds",
        "403% more",
        "401-403 rows",
        "1,404 files",
        "4040",
        "404 client errors",
        "[404, 405]",
        "unsupported operand type(s) for +: 'int' and 'str'",
        "this time out of memory",
        "blockade",
        "something odd",
        "",
    ],
)
def test_numbers_and_words_that_mean_something_else_match_nothing(message: str) -> None:
    found = said(message)
    assert (found.error_type, found.category, found.rule) == ("unknown", U, "no rule matched")
    assert found.should_retry


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "404"),
        (404, "404."),
        (503, "503: upstream is away"),
        (503, "503 - upstream is away"),
        (404, "(404)"),
        (404, "fetch failed (404)"),
        (404, "[404] /x"),
        (429, "429 Too Many Requests"),
        (401, "401 Unauthorized"),
        (403, "403 Forbidden"),
        (404, "404 Client Error for url: /x"),
        (503, "503 Server Error for url: /x"),
        (503, "HTTP 503 for /x"),
        (503, "HTTP/1.1 503"),
        (404, "HTTP Error 404: gone"),
        (404, "HTTPError: 404"),
        (404, "status 404"),
        (503, "status code: 503"),
        (503, "status_code=503"),
        (503, '{"statusCode": 503, "x": 1}'),
        (404, "{'status': '404'}"),
        (404, "response_status: 404"),
        (401, "Error code: 401"),
        (401, "the response code was 401"),
        (429, "error 429"),
        (429, "got a 429 from the portal"),
        (503, "got 503"),
        (404, "returned 404"),
        (404, "the portal answered with 404, twice"),
        (403, "code=403"),
        (503, "RuntimeError: 503"),
    ],
)
def test_a_number_is_a_status_where_the_text_says_so(status: int, message: str) -> None:
    expected = {401: "auth_error", 403: "auth_error", 404: "not_found", 429: "rate_limit"}
    assert said(message).error_type == expected.get(status, "service_unavailable")


def test_the_rule_quotes_the_words_that_fired() -> None:
    assert said("hit the Rate-Limit").rule == "words 'rate limit'"
    assert said("got 404").rule == "words '404'"


# ── HTTP status ──


@pytest.mark.parametrize(
    ("error_type", "statuses"),
    [
        ("auth_error", [401, 403]),
        ("not_found", [404, 410]),
        ("timeout", [408, 504]),
        ("rate_limit", [425, 429]),
        ("service_unavailable", [500, 501, 502, 503, 505, 507, 599]),
        ("validation_error", [400, 402, 405, 409, 413, 415, 422, 499]),
        ("unknown", [100, 200, 204, 301, 304, 399, 600, -1, 10**30]),
    ],
)
def test_an_http_status_tells_the_error(error_type: str, statuses: list[int]) -> None:
    for status in statuses:
        found = classify(Failure(message="?", status_code=status))
        assert found.error_type == error_type
        assert found.rule == ("no rule matched" if error_type == "unknown" else f"http status {status}")


def test_the_status_outweighs_the_words() -> None:
    assert classify(Failure(message="not found", status_code=503)).error_type == "service_unavailable"
    assert classify(Failure(message="timed out", status_code=302)).error_type == "timeout"


# ── known types ──


@pytest.mark.parametrize(
    ("error_type", "exc"),
    [
        ("timeout", TimeoutError()),
        ("timeout", asyncio.TimeoutError()),  # noqa: UP041 (the aliases are the point)
        ("timeout", concurrent.futures.TimeoutError()),
        ("timeout", socket.timeout()),  # noqa: UP041
        ("timeout", subprocess.TimeoutExpired("ls", 3)),
        ("connection_error", ConnectionError("x")),
        ("connection_error", ConnectionRefusedError("x")),
        ("connection_error", BrokenPipeError("x")),
        ("connection_error", socket.gaierror(-2, "Name or service not known")),
        ("connection_error", ssl.SSLCertVerificationError("x")),
        ("connection_error", urllib.error.URLError("x")),
        ("connection_error", OSError(101, "Network is unreachable")),
        ("storage_unavailable", OSError(28, "No space left on device")),
        ("memory_limit", OSError(12, "Cannot allocate memory")),
        ("memory_limit", MemoryError()),
        ("process_exited", SystemExit(3)),
        ("storage_unavailable", StoreUnavailable("x")),
        ("storage_unavailable", sqlite3.OperationalError("disk I/O error")),
        ("database_lock", sqlite3.OperationalError("database is locked")),
        ("transient_error", BlockingIOError()),
        ("transient_error", InterruptedError()),
        ("auth_error", PermissionError("x")),
        ("not_found", FileNotFoundError("x")),
        ("invalid_file", zipfile.BadZipFile("x")),
        ("invalid_file", tarfile.ReadError("x")),
        ("invalid_file", gzip.BadGzipFile("x")),
        ("validation_error", ValueError("x")),
        ("validation_error", UnicodeError("x")),
        ("validation_error", json.JSONDecodeError("x", "", 0)),
        ("validation_error", msgspec.ValidationError("x")),
        ("validation_error", TypeError("x")),
        ("validation_error", KeyError("x")),
        ("validation_error", IndexError("x")),
        ("validation_error", ZeroDivisionError("x")),
        ("validation_error", AssertionError("x")),
        ("validation_error", NotImplementedError("x")),
        ("validation_error", sqlite3.IntegrityError("x")),
        ("validation_error", UnknownStep("x")),
        ("unknown", sqlite3.OperationalError("no such table: t")),
        ("unknown", OSError("x")),
        ("unknown", AttributeError("x")),
        ("unknown", RuntimeError("x")),
        ("unknown", Exception("x")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_a_known_type_tells_the_error(error_type: str, exc: BaseException) -> None:
    found = of(exc)
    assert (found.error_type, found.category) == (error_type, CATALOGUE[error_type].category)
    assert found.rule.startswith("exception type ") or error_type == "unknown"


@pytest.mark.parametrize(
    ("error_type", "mro"),
    [
        ("timeout", ["httpx.ConnectTimeout", "httpx.TimeoutException", "httpx.TransportError"]),
        ("connection_error", ["httpx.ConnectError", "httpx.NetworkError", "httpx.TransportError"]),
        ("timeout", ["requests.exceptions.ConnectTimeout", "requests.exceptions.ConnectionError"]),
        ("connection_error", ["requests.exceptions.SSLError", "requests.exceptions.ConnectionError"]),
        ("unknown", ["requests.exceptions.HTTPError", "requests.exceptions.RequestException"]),
        ("timeout", ["aiohttp.client_exceptions.ServerTimeoutError", "builtins.TimeoutError"]),
        ("connection_error", ["urllib3.exceptions.NewConnectionError", "urllib3.exceptions.TimeoutError"]),
        ("connection_error", ["botocore.exceptions.ProxyError", "botocore.exceptions.ConnectionError"]),
        ("connection_error", ["redis.exceptions.BusyLoadingError", "redis.exceptions.ConnectionError"]),
        ("auth_error", ["redis.exceptions.AuthenticationError", "redis.exceptions.ConnectionError"]),
        ("database_lock", ["apsw.BusyError", "apsw.Error"]),
        ("storage_unavailable", ["psycopg.OperationalError", "psycopg.DatabaseError"]),
        ("encrypted_file", ["pypdf.errors.FileNotDecryptedError", "pypdf.errors.PdfReadError"]),
        ("validation_error", ["pydantic_core._pydantic_core.ValidationError", "builtins.ValueError"]),
    ],
)
def test_libraries_are_known_by_name_without_being_installed(error_type: str, mro: list[str]) -> None:
    assert classify(Failure(message="?", exception="X", exception_types=tuple(mro))).error_type == error_type


def test_the_type_outweighs_status_and_words() -> None:
    assert of(ValueError("connection refused")).error_type == "validation_error"
    types = ("builtins.ConnectionRefusedError", "builtins.ConnectionError")
    found = classify(Failure(message="404", exception_types=types, status_code=404))
    assert found.error_type == "connection_error"


def test_a_worker_that_knows_only_the_name_is_understood() -> None:
    assert said("'x'", "KeyError").error_type == "validation_error"
    assert said("x", "print").error_type == "unknown"
    found = said("bad", "ValueError")
    assert (found.error_type, found.rule) == ("validation_error", "exception type ValueError")
    assert said("x", "httpx.TimeoutException").error_type == "timeout"


@pytest.mark.parametrize(
    ("error_type", "sqlstates"),
    [
        ("database_lock", ["40001", "40P01", "40p01", "55P03", "55006"]),
        ("storage_unavailable", ["08000", "08006", "57P01", "57P03", "53100", "53300", "58030", "25006"]),
        ("timeout", ["57014"]),
        ("auth_error", ["28P01", "42501"]),
        ("validation_error", ["22001", "23505", "42P01", "0A000", "40002"]),
        ("unknown", ["P0001", "XX000", "25P02", "", "?"]),
    ],
)
def test_a_sqlstate_tells_the_error(error_type: str, sqlstates: list[str]) -> None:
    for sqlstate in sqlstates:
        found = classify(Failure(message="x", sqlstate=sqlstate))
        assert found.error_type == error_type
        told = f"sqlstate {sqlstate.upper()}"
        assert found.rule == ("no rule matched" if error_type == "unknown" else told)


@given(st.text(), st.sampled_from(["timeout", "HTTP 503", "connection refused", "temporary"]))
def test_case_does_not_matter(padding: str, words: str) -> None:
    assert said(f"{words.upper()} {padding}").category is not U
