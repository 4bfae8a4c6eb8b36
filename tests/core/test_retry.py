"""Durations, retry policies and their delays."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import PolicyInvalid
from holdfast.core.retry import (
    DURATION_SECONDS_MAX,
    RETRY_AFTER_MAX_SECONDS,
    RetryPolicy,
    parse_duration,
    parse_retry_after,
)

# ── durations ──


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0, 0.0),
        (0.5, 0.5),
        ("90", 90.0),
        ("0.5", 0.5),
        ("90s", 90.0),
        ("15m", 900.0),
        ("2h", 7200.0),
        ("1d", 86_400.0),
        ("500ms", 0.5),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (" 1H 30M ", 5400.0),
        ("1d2h3m4s5ms", 93_784.005),
    ],
)
def test_a_duration_is_seconds_or_a_text_with_units(written: object, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "junk",
    [
        *[-1, -0.5, math.nan, math.inf, -math.inf, 10**400, 10**5000, True, False, None, [], b"5s"],
        *["", "  ", "soon", "-5s", "5 parsecs", "1m1h", "s", "1e3", "nan", "inf", "9" * 400, "99999999d"],
        "\u0663s",  # a digit, but not one of ours
    ],
    ids=lambda junk: f"{type(junk).__name__}",
)
def test_a_wrong_duration_is_refused_with_its_field_and_the_allowed_forms(junk: object) -> None:
    with pytest.raises(PolicyInvalid) as refusal:
        parse_duration(junk, field="max_delay")
    for part in ("max_delay", "90s", "15m", "1h30m"):
        assert part in str(refusal.value)
    assert "max_delay" in refusal.value.guidance
    assert len(str(refusal.value)) < 400


def test_a_refused_duration_is_shown_as_written() -> None:
    with pytest.raises(PolicyInvalid, match="'soon'"):
        parse_duration("soon")


@given(st.floats(min_value=0, max_value=DURATION_SECONDS_MAX))
def test_a_number_of_seconds_is_its_own_duration(seconds: float) -> None:
    assert parse_duration(seconds) == seconds
    assert parse_duration(f"{seconds:.6f}s") == pytest.approx(seconds, abs=1e-5)


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_units_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == total


# ── Retry-After ──

NOON = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 1.5 ", 1.5),
        (7, 7.0),
        (0.25, 0.25),
        (10**400, DURATION_SECONDS_MAX),
        ("Tue, 14 Nov 2023 22:15:20 GMT", 120.0),
        ("Tue, 14 Nov 2023 22:15:20 -0000", 120.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        (-5, None),
        (True, None),
        (math.nan, None),
        (math.inf, None),
        ("x" * 1000, None),
        ("Tue, 99 Nov 2023 22:15:20 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | float | None, seconds: float | None) -> None:
    assert parse_retry_after(header, NOON) == seconds


def test_a_retry_after_date_needs_a_clock() -> None:
    assert parse_retry_after("Tue, 14 Nov 2023 22:15:20 GMT", None) is None
    assert parse_retry_after("120", None) == 120.0


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_retry_after_never_raises(header: str, now: float) -> None:
    seconds = parse_retry_after(header, now)
    assert seconds is None or seconds >= 0


# ── what a policy is made of ──


def test_the_defaults_are_those_of_the_contract() -> None:
    assert RetryPolicy().to_dict() == {
        "max_attempts": 3,
        "initial_delay": 1.0,
        "backoff_multiplier": 2.0,
        "max_delay": 60.0,
        "jitter": True,
        "unknown_attempts": 3,
        "wave": False,
    }
    policy = RetryPolicy()
    assert (policy.delays, policy.retry_when, policy.stop_when) == (None, None, None)
    assert policy.retries_total == 2


def test_explicit_delays_set_the_attempts_and_switch_jitter_off() -> None:
    policy = RetryPolicy(delays=[60, "3m", "600s"])
    assert (policy.delays, policy.max_attempts, policy.unknown_attempts) == ((60.0, 180.0, 600.0), 4, 4)
    assert policy.jitter is False
    assert RetryPolicy(delays=[60], jitter=True).jitter is True
    assert RetryPolicy(delays=(60,), max_attempts=9).max_attempts == 9


def test_durations_may_be_written_as_texts() -> None:
    policy = RetryPolicy(initial_delay="5s", max_delay="15m")
    assert (policy.initial_delay, policy.max_delay) == (5.0, 900.0)


def test_unknown_attempts_follow_max_attempts() -> None:
    assert RetryPolicy(max_attempts=7).unknown_attempts == 7
    assert RetryPolicy(max_attempts=7, unknown_attempts=2).unknown_attempts == 2


def test_a_policy_is_a_value() -> None:
    policy = RetryPolicy(max_attempts=2)
    assert policy == RetryPolicy(max_attempts=2) and hash(policy) == hash(RetryPolicy(max_attempts=2))
    with pytest.raises(AttributeError):
        policy.max_attempts = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, RetryPolicy.once()),
        (True, RetryPolicy()),
        (False, RetryPolicy.once()),
        (5, RetryPolicy(max_attempts=5)),
        ({}, RetryPolicy()),
        ({"max_attempts": 4, "initial_delay": "5s"}, RetryPolicy(max_attempts=4, initial_delay=5)),
        ({"delays": [1, 2], "max_delay": None}, RetryPolicy(delays=[1, 2])),
        (RetryPolicy(wave=True), RetryPolicy(wave=True)),
    ],
)
def test_shorthand(written: object, expected: RetryPolicy) -> None:
    assert RetryPolicy.from_shorthand(written) == expected


def test_an_absent_policy_is_the_default_one() -> None:
    default = RetryPolicy(max_attempts=8)
    assert RetryPolicy.from_shorthand(None, default) is default
    assert RetryPolicy.from_shorthand(False, default) == RetryPolicy.once()


@pytest.mark.parametrize("junk", ["5", "true", 2.0, [1, 2], 0, -1, 1001])
def test_other_shorthand_is_refused(junk: object) -> None:
    with pytest.raises(PolicyInvalid):
        RetryPolicy.from_shorthand(junk)


JUNK_DELAYS: list[object] = [[], [1] * 101, "60", 60, {"a": 1}, [-1], ["soon"], [None]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_attempts", value) for value in (0, -1, 1001, True, 2.0, "3")],
        *[("unknown_attempts", value) for value in (0, 4, True, "2")],
        *[("initial_delay", value) for value in (-1, math.nan, "soon", True)],
        *[("max_delay", value) for value in (-1, math.inf, "", "never")],
        *[("backoff_multiplier", v) for v in (0.99, 0, -2, math.nan, math.inf, 10**400, True, "2")],
        *[("delays", value) for value in JUNK_DELAYS],
        *[("jitter", value) for value in (1, "yes", 0)],
        *[("wave", value) for value in (1, "no")],
        *[("retry_when", value) for value in ("", "x" * 2001, 5, True)],
        *[("stop_when", value) for value in ("", "x" * 2001, ["x"])],
    ],
)
def test_a_wrong_field_is_refused_by_name_with_what_to_do(field: str, value: object) -> None:
    with pytest.raises(PolicyInvalid, match=field) as refusal:
        RetryPolicy.from_shorthand({field: value})
    assert refusal.value.guidance
    assert refusal.value.code == "policy_invalid"


def test_limits_themselves_are_allowed() -> None:
    policy = RetryPolicy(max_attempts=1000, unknown_attempts=1, backoff_multiplier=1, retry_when="x" * 2000)
    assert policy.max_attempts == 1000
    assert len(RetryPolicy(delays=[0] * 100).delays or ()) == 100
    assert RetryPolicy(max_attempts=3, unknown_attempts=3).unknown_attempts == 3


@pytest.mark.parametrize("key", ["max_retries", 5, "_x"])
def test_an_unknown_field_is_refused_with_the_list_of_allowed_ones(key: object) -> None:
    with pytest.raises(PolicyInvalid, match=f"{key}.*max_attempts, initial_delay.*wave"):
        RetryPolicy.from_shorthand({key: 3})


@pytest.mark.parametrize("field", ["initial_delay", "backoff_multiplier", "max_delay"])
def test_explicit_delays_contradict_exponential_ones(field: str) -> None:
    with pytest.raises(PolicyInvalid, match=f"delays and {field}"):
        RetryPolicy.from_shorthand({"delays": [1], field: 2})


# ── delays ──


def test_without_jitter_the_delay_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(max_attempts=10, jitter=False)
    assert [policy.delay_after(n, 1.0) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_multiplies_the_delay_and_the_cap_still_holds() -> None:
    policy = RetryPolicy(initial_delay=40)
    assert policy.delay_after(1, 0.5) == 20
    assert policy.delay_after(1, 1.5) == 60
    assert policy.delay_after(2, 0.5) == 30  # the cap comes first, then the draw
    assert policy.delay_after(2, 1.5) == 60


def test_explicit_delays_are_exact_and_the_last_repeats() -> None:
    policy = RetryPolicy(delays=[60, 180, 600], max_attempts=6)
    assert [policy.delay_after(n, 1.5) for n in range(1, 6)] == [60, 180, 600, 600, 600]
    assert RetryPolicy(delays=[600], jitter=True).delay_after(1, 1.5) == 900


@pytest.mark.parametrize(
    ("retry_after", "delay"),
    [(None, 10), (3, 10), (11, 11), (3600, 3600), (86_400, 3600), (math.inf, 3600), (math.nan, 10), (-5, 10)],
)
def test_retry_after_may_lengthen_a_delay_up_to_an_hour(retry_after: float | None, delay: float) -> None:
    assert RetryPolicy(delays=[10]).delay_after(1, 1.0, retry_after) == delay


def test_retry_after_never_shortens_a_longer_delay() -> None:
    assert RetryPolicy(delays=["2h"]).delay_after(1, 1.0, 86_400) == 7200


def test_a_delay_beyond_all_floats_is_the_cap() -> None:
    assert RetryPolicy(backoff_multiplier=1e300, jitter=False).delay_after(900, 1.0) == 60
    assert RetryPolicy(initial_delay=0, backoff_multiplier=1e300).delay_after(900, 1.0) == 0


def test_delays_are_asked_for_by_attempts_that_exist_with_a_fair_draw() -> None:
    with pytest.raises(ValueError, match="from 1"):
        RetryPolicy().delay_after(0, 1.0)
    with pytest.raises(ValueError, match="draw"):
        RetryPolicy().delay_after(1, 2.0)


durations = st.floats(min_value=0, max_value=1e6)
expressions = st.none() | st.text(min_size=1, max_size=30)
common: dict[str, st.SearchStrategy[Any]] = {
    "max_attempts": st.none() | st.integers(1, 1000),
    "jitter": st.none() | st.booleans(),
    "retry_when": expressions,
    "stop_when": expressions,
    "wave": st.booleans(),
}
exponential_policies = st.builds(
    RetryPolicy,
    initial_delay=durations,
    backoff_multiplier=st.floats(1, 1e9),
    max_delay=durations,
    **common,
)
explicit_policies = st.builds(RetryPolicy, delays=st.lists(durations, min_size=1, max_size=20), **common)
policies = exponential_policies | explicit_policies
attempts = st.integers(1, 1000)
draws = st.floats(0.5, 1.5)


@given(policies)
def test_a_policy_survives_its_plain_form(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_shorthand(policy.to_dict()) == policy


@given(exponential_policies, attempts, draws)
def test_an_exponential_delay_stays_within_its_cap(policy: RetryPolicy, attempt: int, draw: float) -> None:
    assert 0 <= policy.delay_after(attempt, draw) <= policy.max_delay


@given(policies, attempts, draws, st.floats())
def test_retry_after_only_lengthens_and_at_most_to_an_hour(
    policy: RetryPolicy, attempt: int, draw: float, retry_after: float
) -> None:
    plain = policy.delay_after(attempt, draw)
    asked = policy.delay_after(attempt, draw, retry_after)
    assert plain <= asked <= max(plain, RETRY_AFTER_MAX_SECONDS)


@given(exponential_policies, attempts)
def test_without_luck_delays_never_get_shorter(policy: RetryPolicy, attempt: int) -> None:
    assert policy.delay_after(attempt, 1.0) <= policy.delay_after(attempt + 1, 1.0)
