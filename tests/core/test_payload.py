"""What may enter as a workload or a result, and what is refused with which sentence."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
from holdfast.core.payload import (
    PAYLOAD_DEPTH_MAX,
    a_type,
    check_name,
    check_payload,
    decode_payload,
    encode_payload,
    payload_hash,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
).filter(lambda value: "inf" not in repr(value))


@pytest.mark.parametrize(("value", "told"), [(5, "an int"), ([], "a list"), (None, "a NoneType")])
def test_a_type_has_its_article(value: object, told: str) -> None:
    assert a_type(value) == told


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"inner": value}
    return value


@given(PLAIN)
def test_plain_data_comes_back_as_it_went_in(value: object) -> None:
    text = encode_payload(value, what="workload")
    check_payload(text, what="workload")
    assert decode_payload(text) == value


def test_a_refused_value_is_named_with_the_way_out() -> None:
    with pytest.raises(PayloadInvalid, match=r"The workload cannot be written as JSON: .*object") as refusal:
        encode_payload({"x": object()}, what="workload")
    assert "plain data" in refusal.value.guidance


@pytest.mark.parametrize("value", ["\ud800", {None: 1}, {(1, 2): 1}, range(3)], ids=ascii)
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(PayloadInvalid, match="cannot be written as JSON"):
        encode_payload(value, what="workload")


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadInvalid):
        encode_payload(endless, what="workload")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
def test_a_number_that_json_has_no_word_for_is_refused_with_its_place(number: float) -> None:
    with pytest.raises(PayloadInvalid, match=rf"holds {number} at \$\.rows\[1\]\.x,"):
        encode_payload({"rows": [None, {"x": number}], "none": None}, what="workload")


@pytest.mark.parametrize("depth", range(4))
def test_such_a_number_is_found_beside_and_below_what_is_none(depth: int) -> None:
    value: object = [None, math.inf]
    for level in range(depth):
        value = {"none": None, "below": value} if level % 2 else (None, value, 1.5)
    with pytest.raises(PayloadInvalid, match="holds inf at"):
        encode_payload(value, what="workload")


def test_none_is_no_reason_to_refuse() -> None:
    assert encode_payload({"a": None, "b": ("null", 1.5)}, what="workload") == '{"a":null,"b":["null",1.5]}'


def test_a_large_payload_is_refused_with_its_size_and_the_limit() -> None:
    assert encode_payload("x" * 998, what="output", bytes_max=1000)
    with pytest.raises(
        PayloadTooLarge, match=r"output is 1,001 bytes of JSON; the limit is 1,000"
    ) as refusal:
        encode_payload("x" * 999, what="output", bytes_max=1000)
    assert "payload_bytes_max" in refusal.value.guidance
    with pytest.raises(PayloadTooLarge, match="1,001 bytes"):
        check_payload(json.dumps("x" * 999), what="output", bytes_max=1000)


def test_the_size_counts_bytes_not_characters() -> None:
    with pytest.raises(PayloadTooLarge):
        check_payload('"' + "é" * 50 + '"', what="output", bytes_max=100)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("\0", r"\$,"),
        ({"a": [0, "x\0y"]}, r"\$\.a\[1\],"),
        ({"a": {"k\0": 1}}, r"\$\.a \(a key\),"),
        ({"k\0": {"inner": "clean"}}, r"\$ \(a key\),"),
    ],
    ids=["alone", "value", "key", "key of an object"],
)
def test_a_nul_character_is_refused_with_its_place(value: object, place: str) -> None:
    with pytest.raises(PayloadInvalid, match=f"NUL character at {place}") as refusal:
        encode_payload(value, what="workload")
    assert "base64" in refusal.value.guidance
    with pytest.raises(PayloadInvalid, match="NUL character"):
        check_payload(json.dumps(value), what="output")


def test_the_written_escape_of_a_nul_is_only_text() -> None:
    assert decode_payload(encode_payload("\\u0000", what="workload")) == "\\u0000"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nope",
        "[1,]",
        "1 2",
        '"\\x"',
        '"raw \0"',
        '"\ud800"',
        '"\\ud800"',
        '{"\\u0000"',
        "[" * 100_000,
    ],
    ids=range(11),
)
def test_a_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(PayloadInvalid, match="The output is not valid JSON text") as refusal:
        check_payload(text, what="output")
    assert "JSON encoder" in refusal.value.guidance


@pytest.mark.parametrize("number", ["1e999", "-1e400", "1E+309", "9" * 5_000, '[{"x": 1e999}]'])
def test_a_number_that_nobody_can_read_back_is_refused(number: str) -> None:
    with pytest.raises(PayloadInvalid, match="out of range"):
        check_payload(number, what="output")


@pytest.mark.parametrize("text", ["1e300", "1e-999", '"1e999"', json.dumps("9" * 5_000), "9" * 20])
def test_large_numbers_and_texts_that_look_like_more_are_taken(text: str) -> None:
    check_payload(text, what="output")
    decode_payload(text)


def test_what_is_nested_too_deeply_to_be_read_back_is_refused() -> None:
    assert encode_payload(nested(PAYLOAD_DEPTH_MAX), what="workload")
    with pytest.raises(PayloadInvalid, match=f"deeper than {PAYLOAD_DEPTH_MAX} levels"):
        encode_payload(nested(PAYLOAD_DEPTH_MAX + 1), what="workload")
    with pytest.raises(PayloadInvalid, match="levels"):
        check_payload(json.dumps(nested(PAYLOAD_DEPTH_MAX + 1)), what="output")


def test_wide_data_and_brackets_in_strings_are_not_deep() -> None:
    assert encode_payload([{"a": [1], "b": ']]\\"[['} for _ in range(500)], what="workload")
    assert encode_payload("[{" * 500, what="workload")


def test_the_hash_is_the_same_for_equal_data_whatever_the_order_of_keys() -> None:
    assert payload_hash('{"a":1,"b":{"c":2,"d":3}}') == payload_hash('{"b":{"d":3,"c":2},"a":1}')
    assert payload_hash("[1,2]") != payload_hash("[2,1]")


def test_a_name_is_a_short_printable_text() -> None:
    assert check_name("order 4711 é", what="idempotency key") == "order 4711 é"
    for name, problem in [
        ("", "non-empty string, not ''"),
        ("  ", "non-empty string"),
        (7, "non-empty string, not 7"),
        (None, "non-empty string, not None"),
        ("x" * 201, "201 characters long; the limit is 200"),
        ("a\0b", "cannot be printed"),
        ("a\nb", "cannot be printed"),
        ("\ud800", "cannot be printed"),
    ]:
        with pytest.raises(PayloadInvalid, match=f"The idempotency key .*{problem}"):
            check_name(name, what="idempotency key")


def test_nan_is_found_inside_records_too() -> None:
    @dataclass
    class Reading:
        value: float

    with pytest.raises(PayloadInvalid, match=r"nan at \$\.readings\[0\]\.value"):
        encode_payload({"readings": [Reading(math.nan)]}, what="workload")


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    KEY = "k"


@dataclass
class Order:
    lines: Any


class Record(msgspec.Struct):
    lines: Any


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({1: 1, "1": 2}, r"key 1 at \$,"),
        ({math.nan: 1}, r"key nan at \$,"),
        ({"a": [0, {"b": {2.5: 1}}]}, r"key 2.5 at \$\.a\[1\]\.b,"),
        (({date(2026, 1, 2): 1},), r"key datetime.date\(2026, 1, 2\) at \$\[0\],"),
        ({Colour.RED: 1}, r"key <Colour.RED: 'red'> at \$,"),
        ([Order({"x": Record({3: 1})})], r"key 3 at \$\[0\]\.lines\.x\.lines,"),
        ({"a": {1, 2}}, r"a set at \$\.a,"),
        (Order(frozenset("x")), r"a set at \$\.lines,"),
    ],
    ids=repr,
)
def test_keys_that_would_change_and_sets_are_refused_with_their_place(value: object, place: str) -> None:
    with pytest.raises(PayloadInvalid, match=f"The output has .*{place}") as refusal:
        encode_payload(value, what="output")
    assert ("Use a sorted list." if "set" in place else "string keys") in refusal.value.guidance


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(seconds=90), "PT90S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.20"), "1.20"),
        (b"abc", "YWJj"),
        ((1, (2,)), [1, [2]]),
        (Colour.RED, "red"),
        ({Word.KEY: Word.KEY}, {"k": "k"}),
        ({"order": Order((1,))}, {"order": {"lines": [1]}}),
        (Record(b"abc"), {"lines": "YWJj"}),
    ],
    ids=repr,
)
def test_other_data_comes_back_as_the_reference_says(value: object, back: object) -> None:
    assert decode_payload(encode_payload(value, what="workload")) == back
