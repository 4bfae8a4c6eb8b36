"""The log as JSON: one valid object a line, whatever is logged."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.logs import (
    CURRENT,
    JsonFormatter,
    LogSettings,
    TextFormatter,
    about,
    log_to_stderr,
    settings_in_use,
)
from holdfast.worker.context import Context
from typed_attempt import leased


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """One of its own, which nobody else hears."""
    logger = logging.Logger("some.library")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.handlers[0].setFormatter(JsonFormatter())
    yield logger


def lines_of(logger: logging.Logger) -> list[dict[str, Any]]:
    handler = logger.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    text = handler.stream.getvalue()
    assert text.isascii() and text.endswith("\n")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def test_a_line_tells_when_who_and_what(logger: logging.Logger) -> None:
    record = logger.makeRecord("shop", logging.WARNING, "f.py", 1, "paid %d of %s", (3, "7 €"), None)
    record.created = 1_700_000_000.25
    logger.handle(record)
    [line] = lines_of(logger)
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "shop",
        "process": record.process,
        "message": "paid 3 of 7 €",
    }


@pytest.mark.parametrize(
    ("message", "arguments", "shown"),
    [
        (
            "two\nlines\r\n and \x1b[31m a \x85 \u2028 colour \x07",
            (),
            "two\nlines\r\n and \x1b[31m a \x85 \u2028",
        ),
        ("a lone \ud800 and a \x00", (), "a lone \ufffd and a \ufffd"),
        ("%d of %d", ("x",), "%d of %d [not formatted: TypeError: "),
        ("%(name)s", (1,), "%(name)s [not formatted: TypeError: "),
        ("%s", (Unprintable(),), "%s [not formatted: RuntimeError: no words]"),
        (Unprintable(), (), "a Unprintable that cannot be shown [not formatted: RuntimeError: no words]"),
        ({"a": object}, (), "{'a': <class 'object'>}"),
        (b"bytes", (), "b'bytes'"),
        (None, (), "None"),
        ("", (), ""),
        ("%s" * 3, ("x" * 5_000, "y", "z"), "x" * 3_999 + "…"),
    ],
)
def test_a_hostile_message_is_still_one_line(
    logger: logging.Logger, message: Any, arguments: tuple[Any, ...], shown: str
) -> None:
    logger.warning(message, *arguments)
    logger.warning("after it")
    told, after = lines_of(logger)
    assert told["message"].startswith(shown) and after["message"] == "after it"


def test_an_exception_is_a_bounded_text_that_ends_with_the_error(logger: logging.Logger) -> None:
    def deep(left: int) -> None:
        if left == 0:
            raise ValueError("the reason\nin two lines \udfff " + "x" * 50)
        deep(left - 1)

    for depth in (0, 300):
        try:
            deep(depth)
        except ValueError:
            logger.exception("it failed")
    logger.warning("here", stack_info=True)
    short, long, here = lines_of(logger)
    assert short["exception"].startswith("Traceback (most recent call last):")
    assert len(long["exception"]) <= 16 * 1024
    for line in (short, long):
        assert line["exception"].endswith("in two lines \ufffd " + "x" * 50)
    assert here["exception"].startswith("Stack (most recent call last):")


def test_an_exception_that_cannot_be_shown_costs_no_line(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("no trace")

    monkeypatch.setattr(JsonFormatter, "formatException", broken)
    try:
        raise ValueError
    except ValueError:
        logger.exception("it failed")
    [line] = lines_of(logger)
    assert line["exception"] == "an exception that cannot be shown (RuntimeError)"


def test_passwords_and_tokens_are_masked(logger: logging.Logger) -> None:
    try:
        raise OSError("cannot reach postgresql://shop:hunter22@db/shop")
    except OSError:
        logger.exception("Authorization: Bearer abc.def to %s", "https://me:hunter22@host/x")
    [line] = lines_of(logger)
    assert "hunter22" not in str(line) and "abc.def" not in str(line)
    assert "postgresql://shop:***@db/shop" in line["exception"]


def test_a_line_within_an_attempt_has_its_ids_and_one_about_another_has_those(logger: logging.Logger) -> None:
    inside = CURRENT.set(Context(leased("python/m:f"), lambda fraction: None, worker_id="w1"))
    try:
        logger.warning("within")
        logger.warning("about another", extra=about(queue_id=99))
    finally:
        CURRENT.reset(inside)
    logger.warning("outside")
    within, another, outside = lines_of(logger)
    ids = {"execution_id", "queue_id", "path", "step", "attempt", "worker_id"}
    assert {name: within[name] for name in ids} == {
        **{"execution_id": 12, "queue_id": 7, "path": "flow", "step": "work"},
        **{"attempt": 1, "worker_id": "w1"},
    }
    assert {name: another[name] for name in ids & set(another)} == {"queue_id": 99}
    assert not ids & set(outside)


def test_text_is_as_it_was_with_the_attempt_behind_what_a_handler_says(logger: logging.Logger) -> None:
    logger.handlers[0].setFormatter(TextFormatter())
    inside = CURRENT.set(Context(leased("python/m:f"), lambda fraction: None))
    try:
        logger.warning("within")
        logger.warning("said already", extra=about(queue_id=7))
    finally:
        CURRENT.reset(inside)
    logger.warning("outside")
    handler = logger.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    within, said, outside = handler.stream.getvalue().splitlines()
    assert within.endswith("some.library: within [execution 12, step work, attempt 1]")
    assert said.endswith("some.library: said already") and outside.endswith("some.library: outside")


def test_no_message_passes_for_another_line_or_moves_the_cursor(logger: logging.Logger) -> None:
    logger.handlers[0].setFormatter(TextFormatter())
    logger.warning(
        "told by a worker: %s", "no\r\n2026-11-18 WARNING 1 holdfast.server: all is well\x1b[2J\x9b"
    )
    handler = logger.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    first, second = handler.stream.getvalue().splitlines()
    assert first.endswith(r"some.library: told by a worker: no\x0d")
    assert second == r"    2026-11-18 WARNING 1 holdfast.server: all is well\x1b[2J\x9b"


def test_a_program_that_logs_in_its_own_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.RootLogger(logging.ERROR)
    monkeypatch.setattr(logging, "root", root)
    monkeypatch.setattr(logging, "getLogger", lambda name=None: root)
    own = logging.StreamHandler(io.StringIO())
    root.addHandler(own)
    log_to_stderr(LogSettings(logging.INFO, "json"))
    assert root.handlers == [own] and root.level == logging.ERROR and settings_in_use() is None
    root.removeHandler(own)
    for form in ("json", "text"):
        log_to_stderr(LogSettings(logging.INFO, form))
        assert settings_in_use() == LogSettings(logging.INFO, form)
        root.removeHandler(root.handlers[0])
