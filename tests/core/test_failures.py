"""From an exception to plain data, a classification, and an error that is kept."""

import urllib.error
from email.message import Message
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.catalogue import CATALOGUE, Category
from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import (
    PermanentError,
    TransientError,
)
from holdfast.core.failures import (
    Classification,
    Failure,
    classify,
    clean_failure,
    failure_from_exception,
    stored_error,
)
from holdfast.core.masking import MESSAGE_CHARS_MAX, TRACE_BYTES_MAX

T, P, U = Category.TRANSIENT, Category.PERMANENT, Category.UNKNOWN


def of(exc: BaseException) -> Classification:
    return classify(failure_from_exception(exc))


# ── what was declared ──


def test_a_typed_exception_is_believed() -> None:
    found = of(PermanentError("connection refused"))
    assert (found.error_type, found.category) == ("permanent_error", P)
    assert found.rule == "raised as PermanentError"
    assert not found.should_retry
    found = of(TransientError("404", error_type="not_ready", user_message="Soon", guidance="Wait."))
    assert (found.error_type, found.category, found.rule) == ("not_ready", T, "raised as TransientError")
    assert (found.user_message, found.guidance) == ("Soon", "Wait.")
    assert of(TransientError()).error_type == "transient_error"


def test_what_a_worker_declares_is_believed() -> None:
    found = classify(Failure(message="x", category=U, status_code=404))
    assert (found.error_type, found.category, found.rule) == ("unknown", U, "reported by the worker")


def test_a_declared_error_type_takes_the_catalogues_category() -> None:
    found = classify(Failure(message="404", error_type="encrypted_file"))
    assert (found.error_type, found.category, found.rule) == ("encrypted_file", P, "reported by the worker")


def test_an_error_type_of_their_own_keeps_its_name_and_is_classified() -> None:
    found = classify(Failure(message="x", error_type="portal_down", status_code=503))
    assert (found.error_type, found.category, found.rule) == ("portal_down", T, "http status 503")
    assert classify(Failure(message="x", error_type="portal_down")).category is U


# ── from an exception ──


class Carrier(Exception):
    """An exception with whatever attributes a library might give it."""

    def __init__(self, **attributes: object) -> None:
        super().__init__("x")
        self.__dict__.update(attributes)


class Response:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Hostile(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("no")

    @property
    def response(self) -> object:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


class Always503(Exception):
    status_code = 503


class Wrapped(Exception):
    def __getattr__(self, name: str) -> object:
        return {"status_code": 503, "sqlstate": "40001"}.get(name)


def test_what_an_error_tells_is_found_wherever_it_comes_from() -> None:
    assert failure_from_exception(Always503("x")).status_code == 503
    assert failure_from_exception(type("Derived", (Always503, ValueError), {})("x")).status_code == 503
    assert failure_from_exception(Wrapped("x")).status_code == 503
    assert failure_from_exception(Wrapped("x")).sqlstate == "40001"
    late = ValueError("x")
    assert failure_from_exception(late).status_code is None
    late.status_code = 503  # type: ignore[attr-defined]
    assert failure_from_exception(late).status_code == 503


class HostileHeaders:
    def get(self, key: str) -> str:
        raise RuntimeError(key)


@pytest.mark.parametrize(
    ("exc", "status"),
    [
        (Carrier(status_code=503), 503),
        (Carrier(status=404), 404),
        (Carrier(response=Response(status_code=429)), 429),
        (Carrier(response=Response(status=502)), 502),
        (Carrier(response={"ResponseMetadata": {"HTTPStatusCode": 500}}), 500),
        (Carrier(status_code="200", status=404), 404),
        (Carrier(status_code=True), None),
        (Carrier(status_code=600), None),
        (Carrier(status="running"), None),
        (urllib.error.HTTPError("http://h", 410, "Gone", Message(), None), 410),
        (Hostile(), None),
        (Exception(), None),
    ],
)
def test_the_status_is_found_where_libraries_keep_it(exc: Exception, status: int | None) -> None:
    assert failure_from_exception(exc).status_code == status


def test_an_http_error_is_judged_by_its_status_though_its_type_is_a_connection_error() -> None:
    assert of(urllib.error.HTTPError("http://h", 404, "?", Message(), None)).rule == "http status 404"


@pytest.mark.parametrize(
    ("exc", "sqlstate"),
    [
        (Carrier(sqlstate="40P01"), "40P01"),
        (Carrier(pgcode="23505"), "23505"),
        (Carrier(orig=Carrier(sqlstate="40001")), "40001"),
        (Carrier(sqlstate="40p01"), "40P01"),
        (Carrier(sqlstate="nonsense"), None),
        (Carrier(sqlstate=40001), None),
    ],
)
def test_the_sqlstate_is_found_where_drivers_keep_it(exc: Exception, sqlstate: str | None) -> None:
    assert failure_from_exception(exc).sqlstate == sqlstate


DATE = "Tue, 14 Nov 2023 22:15:20 GMT"


@pytest.mark.parametrize(
    ("exc", "seconds"),
    [
        (TransientError(retry_after=5), 5.0),
        (Carrier(response=Response(headers={"Retry-After": "7"})), 7.0),
        (Carrier(headers={"retry-after": "8"}), 8.0),
        (Carrier(headers={"Retry-After": "soon"}), None),
        (Carrier(headers={"Retry-After": ["8"]}), None),
        (Carrier(headers="none"), None),
        (Carrier(headers=HostileHeaders()), None),
        (Carrier(headers={"Retry-After": DATE}), None),
        (TransientError(retry_after=float("nan")), None),
    ],
)
def test_retry_after_is_found(exc: Exception, seconds: float | None) -> None:
    assert failure_from_exception(exc).retry_after == seconds


def test_a_retry_after_date_counts_where_the_time_is_known() -> None:
    exc = Carrier(headers={"Retry-After": DATE})
    assert failure_from_exception(exc, now=1_700_000_000.0).retry_after == 120.0


def test_an_exception_is_described_by_its_name_and_classes() -> None:
    failure = failure_from_exception(ConnectionRefusedError("refused"))
    assert failure.exception == "ConnectionRefusedError"
    assert failure.exception_types == (
        "builtins.ConnectionRefusedError",
        "builtins.ConnectionError",
        "builtins.OSError",
        "builtins.Exception",
    )
    assert (failure.message, failure.category, failure.error_type) == ("refused", None, None)


@pytest.mark.parametrize(
    ("exc", "message"),
    [
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("  "), "RuntimeError"),
        (RuntimeError("a\x00b\ud800c"), "a\ufffdb\ufffdc"),
        (Hostile(), "Hostile (its message could not be read)"),
        (RuntimeError("x" * 5000), "x" * 3999 + "…"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_message_is_always_there_and_can_be_stored(exc: BaseException, message: str) -> None:
    assert failure_from_exception(exc).message == message


def raised(exc: Exception, *, cause: Exception | None = None) -> Exception:
    try:
        raise exc from cause
    except Exception as caught:
        return caught


def test_the_trace_is_kept_up_to_a_limit_from_its_end() -> None:
    trace = failure_from_exception(raised(RuntimeError("short\x00"))).stack_trace
    assert trace.startswith("Traceback") and trace.endswith("RuntimeError: short\ufffd\n")
    trace = failure_from_exception(raised(RuntimeError("é" * 20_000 + "the end"))).stack_trace
    assert trace.endswith("the end\n")
    assert TRACE_BYTES_MAX - 4 <= len(trace.encode()) <= TRACE_BYTES_MAX
    assert "Hostile" in failure_from_exception(raised(Hostile())).stack_trace


class Unspeakable(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RecursionError


def test_a_trace_that_cannot_be_formatted_is_left_out() -> None:
    failure = failure_from_exception(Unspeakable("x"))
    assert (failure.message, failure.stack_trace) == ("x", "")


def test_a_failure_crosses_http() -> None:
    failure = failure_from_exception(raised(TransientError("x", error_type="e", retry_after=2)))
    wire = msgspec.json.encode(failure)
    assert msgspec.json.decode(wire, type=Failure) == failure
    assert msgspec.json.encode(Failure(message="m")) == b'{"message":"m"}'


def test_odd_attributes_of_a_typed_exception_are_left_out() -> None:
    odd: Any = TransientError("x")
    odd.error_type, odd.user_message, odd.guidance = 5, "", None
    failure = failure_from_exception(odd)
    assert (failure.error_type, failure.user_message, failure.guidance) == (None, None, None)


# ── stored errors ──


def test_a_stored_error_has_all_that_people_and_programs_ask_for() -> None:
    failure = failure_from_exception(raised(TimeoutError("slow")))
    kept = stored_error(
        failure, classify(failure), stage="parsing", timestamp=12.5, retry_count=1, final=False
    )
    assert msgspec.to_builtins(kept) == {
        "error_type": "timeout",
        "category": "transient",
        "message": "slow",
        "stage": "parsing",
        "timestamp": 12.5,
        "retry_count": 1,
        "user_message": "Processing timed out",
        "guidance": "Will retry automatically. Large documents may take longer.",
        "rule": "exception type TimeoutError",
        "stack_trace": failure.stack_trace[-500:],
        "final": False,
    }


@pytest.mark.parametrize(
    ("message", "guidance"),
    [
        ("timed out", CATALOGUE["timeout"].final_guidance),
        ("odd", CATALOGUE["unknown"].final_guidance),
        ("invalid file", "Please re-upload the document."),
    ],
)
def test_a_final_error_no_longer_promises_a_retry(message: str, guidance: str) -> None:
    failure = Failure(message=message)
    kept = stored_error(failure, classify(failure), stage="s", timestamp=0, retry_count=3, final=True)
    assert (kept.guidance, kept.final) == (guidance, True)


def test_a_stored_error_keeps_the_end_of_the_trace() -> None:
    failure = Failure(message="m", stack_trace="y" * 900 + "the end")
    kept = stored_error(failure, classify(failure), stage="s", timestamp=0, retry_count=0, final=False)
    assert (len(kept.stack_trace), kept.stack_trace[-8:]) == (500, "ythe end")


# ── clean failures ──

CLEANED = ("message", "exception", "error_type", "user_message", "guidance", "sqlstate", "stack_trace")


def with_text(field: str, text: str) -> Failure:
    return msgspec.structs.replace(Failure(message="m"), **{field: text})


@pytest.mark.parametrize("field", CLEANED)
@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("at postgresql://me:hunter2@db/x", "at postgresql://me:***@db/x"),
        ("Authorization: Basic abc", "Authorization: ***"),
        ("nothing to hide", "nothing to hide"),
        ("", ""),
    ],
)
def test_each_text_that_a_worker_reports_is_made_fit_to_be_kept(field: str, text: str, cleaned: str) -> None:
    assert clean_failure(with_text(field, text)) == with_text(field, cleaned)


@pytest.mark.parametrize("field", CLEANED)
def test_each_text_that_a_worker_reports_is_bounded(field: str) -> None:
    cleaned = getattr(clean_failure(with_text(field, "x" * 1_000_000)), field)
    assert len(cleaned) == (TRACE_BYTES_MAX if field == "stack_trace" else MESSAGE_CHARS_MAX)


def test_cleaning_leaves_the_rest_as_it_was() -> None:
    bare = Failure(message="m")
    assert clean_failure(bare) == bare  # what was not given stays None
    full = Failure(
        message="m",
        exception="Slow",
        exception_types=("app.Slow", "builtins.Exception"),
        error_type="slow",
        category=T,
        status_code=503,
        sqlstate="40001",
        retry_after=2.5,
        user_message="Slow",
        guidance="Wait.",
        stack_trace="Traceback",
    )
    assert clean_failure(full) == full


def test_the_rule_that_is_kept_quotes_nothing_that_a_store_refuses() -> None:
    assert classify(clean_failure(Failure(message="m", sqlstate="40\x00"))).rule == "sqlstate 40\ufffd"


def test_an_exception_is_described_without_its_secrets() -> None:
    failure = failure_from_exception(raised(RuntimeError("cannot reach postgresql://me:hunter2@db/x")))
    assert "hunter2@" not in failure.message
    assert "postgresql://me:***@db/x" in failure.stack_trace.splitlines()[-1]


# ── whatever comes ──

RULES = (
    ErrorRule(error_type="bad_login", category=P, message="login failed", user_message="Wrong password"),
    ErrorRule(error_type="odd", exception="KeyError", status=500, guidance="Wait."),
)
texts = st.text(alphabet=st.characters(codec=None))
failures = st.builds(
    Failure,
    message=texts,
    exception=texts,
    exception_types=st.lists(texts | st.sampled_from(["builtins.OSError"]), max_size=3).map(tuple),
    error_type=st.none() | texts | st.sampled_from(sorted(CATALOGUE)),
    category=st.none() | st.sampled_from(Category),
    status_code=st.none() | st.integers(),
    sqlstate=st.none() | texts | texts.map("40{}".format),
    user_message=st.none() | texts,
    guidance=st.none() | texts,
    stack_trace=texts,
)


@given(failures)
def test_every_failure_is_classified_and_can_be_stored(reported: Failure) -> None:
    failure = clean_failure(reported)
    found = classify(failure, RULES)
    assert found.error_type and found.rule and found.user_message and found.guidance
    assert found.should_retry is (found.category is not P)
    kept = stored_error(failure, found, stage="s", timestamp=0, retry_count=0, final=True)
    assert len(kept.stack_trace) <= 500
    assert b"\\u0000" not in msgspec.json.encode(kept)


@given(texts)
def test_any_message_can_be_carried(text: str) -> None:
    failure = failure_from_exception(RuntimeError(text))
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure


def test_a_trace_tells_the_causes_first_as_python_does() -> None:
    error = raised(ValueError("second"), cause=raised(KeyError("first")))
    trace = failure_from_exception(error).stack_trace
    first, between, second = (trace.index(words) for words in ("KeyError: 'first'", "direct cause", "second"))
    assert first < between < second


def test_a_trace_tells_what_was_being_handled_unless_it_was_suppressed() -> None:
    def handling(*, suppress: bool) -> BaseException:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                if suppress:
                    raise ValueError("second") from None
                raise ValueError("second")  # noqa: B904 - the implicit context is the point
        except ValueError as caught:
            return caught

    assert (
        "During handling of the above exception"
        in failure_from_exception(handling(suppress=False)).stack_trace
    )
    assert "first" not in failure_from_exception(handling(suppress=True)).stack_trace


def test_a_trace_of_a_group_tells_its_members() -> None:
    error = raised(ExceptionGroup("several", [ValueError("one"), KeyError("two")]))
    trace = failure_from_exception(error).stack_trace
    assert "ValueError: one" in trace and "KeyError: 'two'" in trace


def test_errors_that_cause_each_other_for_ever_end_somewhere() -> None:
    first, second = raised(ValueError("first")), raised(KeyError("second"))
    first.__cause__, second.__cause__ = second, first
    trace = failure_from_exception(first).stack_trace
    assert trace.endswith("ValueError: first\n")
    assert trace.count("direct cause") <= 10


def test_an_error_that_was_never_raised_has_a_trace_of_one_line() -> None:
    assert failure_from_exception(ValueError("calm")).stack_trace == "ValueError: calm\n"


def test_what_a_mixin_behind_the_exception_tells_is_heard() -> None:
    class Answered:
        status_code = 503
        headers = {"Retry-After": "7"}  # noqa: RUF012

    class Refused(Exception, Answered): ...

    failure = failure_from_exception(Refused("busy"), now=0.0)
    assert (failure.status_code, failure.retry_after) == (503, 7.0)
