"""Secrets do not stay in text that is kept."""

import pytest

from holdfast.core.masking import (
    MESSAGE_CHARS_MAX,
    TRACE_BYTES_MAX,
    clean_message,
    clean_trace,
    mask_secrets,
)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: ***"),
        ("authorization=abc def\nnext", "authorization=***\nnext"),
        ("{'Authorization': 'Basic abc', 'x': 1}", "{'Authorization': '***', 'x': 1}"),
        ('{"authorization":"Basic abc","x":1}', '{"authorization":"***","x":1}'),
        ("(b'Authorization', b'Basic abc')", "(b'Authorization', b'***')"),
        ('headers["Authorization"] = "Basic abc"', 'headers["Authorization"] = "***"'),
        ('Proxy-Authorization: Digest username="a", response="b"', "Proxy-Authorization: ***"),
        ("HTTP_AUTHORIZATION: Basic abc", "HTTP_AUTHORIZATION: ***"),
        ("sent Bearer abc.def-ghi_j== to it", "sent Bearer *** to it"),
        ("postgresql://user:pass@host/db", "postgresql://user:***@host/db"),
        ("redis://:pass@host", "redis://:***@host"),
        ("http://u:p@ss/w'o@rd@host/x and more", "http://u:***@host/x and more"),
        ("http://host:8080/path?to=a@b", "http://host:8080/path?to=a@b"),
        ("http://host/a:b@c", "http://host/a:b@c"),
        ("mail me@example.org", "mail me@example.org"),
        ("authorization is missing", "authorization is missing"),
    ],
)
def test_secrets_of_known_shapes_are_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked
    assert mask_secrets(masked) == masked


def test_given_secrets_are_masked_the_longest_first_and_short_ones_not_at_all() -> None:
    secrets = ["hunter2", "hunter2hunter2", "abc", ""]
    assert mask_secrets("hunter2hunter2 hunter2 abc", secrets) == "*** *** abc"


def test_masking_hostile_text_stays_quick() -> None:
    for hostile in ("a://:" * 20_000, "authorization" * 10_000, "bearer " * 10_000, "://" * 20_000):
        mask_secrets(hostile)


# ── text fit to be kept ──


def test_what_a_store_refuses_is_replaced() -> None:
    assert clean_message("a\x00b\ud800c\udfffd") == "a\ufffdb\ufffdc\ufffdd"
    assert clean_trace("a\x00b\ud800c") == "a\ufffdb\ufffdc"


def test_a_message_keeps_its_beginning_and_a_trace_its_end() -> None:
    fits = "x" * MESSAGE_CHARS_MAX
    assert clean_message(fits) == fits
    assert clean_message(fits + "y") == fits[:-1] + "…"
    fits = "x" * TRACE_BYTES_MAX
    assert clean_trace("y" + fits) == fits


def test_a_trace_is_bounded_in_bytes_and_cut_between_characters() -> None:
    assert clean_trace("é" * TRACE_BYTES_MAX) == "é" * (TRACE_BYTES_MAX // 2)
    assert clean_trace("é" * TRACE_BYTES_MAX + "x") == "é" * (TRACE_BYTES_MAX // 2 - 1) + "x"


def test_a_secret_at_the_cut_is_masked_before_it_is_cut() -> None:
    secret = " http://user:" + "hunter2" * 9 + "@host"
    assert "hunter2" not in clean_message("x" * (MESSAGE_CHARS_MAX - 20) + secret)
    assert "hunter2" not in clean_trace(secret + "x" * (TRACE_BYTES_MAX - 20))


def test_a_servers_token_is_masked_wherever_it_stands() -> None:
    text = f"sent holdfast_0123456789ab_{'aB-_9' * 8}xyz to them"
    assert mask_secrets(text) == "sent holdfast_0123456789ab_*** to them"
