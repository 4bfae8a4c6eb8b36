"""Whatever comes from elsewhere can be stored afterwards, or is refused here."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.payload import decode_payload, encode_payload
from holdfast.steps.storable import _LONG_NUMBER, DEPTH_MAX, TooDeep, interval_text, parse_json, storable


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+5"), "100000"),
        (Decimal("NaN"), "NaN"),
        (Decimal("1E-400"), "1E-400"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (b"\x00\xff", "AP8="),
        (memoryview(b"a"), "YQ=="),
        (date(2024, 1, 2), "2024-01-02"),
        (time(3, 4), "03:04:00"),
        (datetime(2024, 1, 2, tzinfo=UTC), "2024-01-02T00:00:00+00:00"),
        (timedelta(days=1, seconds=2.5), "P1DT2.5S"),
        (timedelta(days=-1), "-P1D"),
        (timedelta(), "PT0S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({1: (2, {3})}, {"1": [2, [3]]}),
        (2**70, 2**70),
        (True, True),
        ("a\0\ud800é", "a\ufffd\ufffdé"),
        ({"\0": 1}, {"\ufffd": 1}),
    ],
)
def test_values_that_json_does_not_have(value: Any, expected: Any) -> None:
    assert storable(value) == expected
    encode_payload(storable(value), what="value")


def test_numbers_that_nobody_can_read_are_texts() -> None:
    assert storable(10**2000).startswith("0x")
    assert parse_json(b"9" * 5000) == "9" * 5000


def test_a_long_number_is_looked_at_from_its_first_digit_only() -> None:
    digits = "1" * 1000
    assert [place for place in range(1000) if _LONG_NUMBER.match(digits, place)] == [0]


@pytest.mark.parametrize(
    ("months", "days", "microseconds", "expected"),
    [
        (0, 0, 0, "PT0S"),
        (14, -3, 0, "P14M-3D"),
        (0, 1, 1, "P1DT0.000001S"),
        (0, 0, -90_500_000, "PT-90.5S"),
    ],
)
def test_intervals_keep_months_days_and_seconds_apart(
    months: int, days: int, microseconds: int, expected: str
) -> None:
    assert interval_text(months, days, microseconds) == expected


def test_json_is_read_by_its_charset_where_it_is_not_unicode() -> None:
    text = '{"city": "Zürich"}'
    for encoded in (text.encode("latin-1"), text.encode(), text.encode("utf-16")):
        assert parse_json(encoded, "iso8859-1") == {"city": "Zürich"}
    for charset in ("", "ascii", "hex"):
        with pytest.raises(ValueError):
            parse_json(text.encode("latin-1"), charset)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals()
    | st.dates() | st.timedeltas() | st.uuids() | st.text(alphabet="a\0\ud800", max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_anything_can_be_stored(value: Any) -> None:
    made = storable(value)
    assert decode_payload(encode_payload({"data": made}, what="output")) == {"data": made}


@given(VALUES)
def test_json_of_any_sender_can_be_stored(value: Any) -> None:
    text = json.dumps(value, default=str)  # with NaN, and escapes of what no text may hold
    encode_payload({"data": parse_json(text.encode())}, what="output")


@given(
    st.binary(max_size=50) | st.text(alphabet='[]{}",:0123456789.eE+-\\u tfn', max_size=40).map(str.encode)
)
def test_bytes_are_json_or_a_value_error(encoded: bytes) -> None:
    try:
        value = parse_json(encoded)
    except ValueError:
        return
    encode_payload({"data": value}, what="output")


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 1000, 100_000])
def test_what_is_too_deep_is_refused(levels: int) -> None:
    with pytest.raises(TooDeep):
        parse_json(b"[" * levels + b"]" * levels)
    assert parse_json(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)
    encode_payload({"data": {"a": parse_json(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)}}, what="output")
