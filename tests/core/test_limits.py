"""Limits: the room they leave, by what is leased, is never exceeded and never wasted."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import DefinitionInvalid, InvalidInput
from holdfast.core.limits import FLEET_LIMIT, LIMIT_MAX, Limit, Room, check_limit_name, checked_limit
from holdfast.core.model import Lane

LANES = st.sampled_from(list(Lane))
NAMES = st.sampled_from(["", "portal", "mail", "unset"])
SIZES = st.integers(1, 6)


@st.composite
def limit(draw: Any, name: str) -> Limit:
    size = draw(SIZES)
    return Limit(name, size, draw(st.none() | st.integers(0, size)))


@st.composite
def some_limits(draw: Any) -> list[Limit]:
    names = draw(st.sets(st.sampled_from(["portal", "mail", FLEET_LIMIT])))
    return [draw(limit(name)) for name in sorted(names)]


@st.composite
def loads(draw: Any) -> dict[tuple[str, str], int]:
    """What is leased, by limit and lane; the limit over everything counts all of it, and more."""
    leased = {
        (name, lane): draw(st.integers(0, 7))
        for name in ("portal", "mail")
        for lane in (Lane.MANUAL, Lane.BULK)
    }
    for lane in Lane:
        under_names = sum(jobs for (_, its_lane), jobs in leased.items() if its_lane == lane)
        leased[FLEET_LIMIT, lane] = under_names + draw(st.integers(0, 3))
    return leased


def applying(limits: list[Limit], name: str) -> list[Limit]:
    return [each for each in limits if each.name in (name, FLEET_LIMIT)]


@given(some_limits(), loads(), st.lists(st.tuples(NAMES, LANES), max_size=40))
def test_one_more_is_let_in_exactly_where_every_limit_over_it_has_room(
    limits: list[Limit], leased: dict[tuple[str, str], int], asked: list[tuple[str, Lane]]
) -> None:
    room = Room(limits, leased)
    in_use = Counter(leased)
    for name, lane in asked:
        fits = all(
            in_use[each.name, Lane.MANUAL] + in_use[each.name, Lane.BULK] < each.max_concurrency
            and (lane is Lane.MANUAL or in_use[each.name, lane] < each.max_concurrency - each.reserve)
            for each in applying(limits, name)
        )
        left = room.left(name, lane)
        assert (left is None) == (not applying(limits, name))
        assert (left != 0) == fits
        assert room.take(name, lane) == fits
        if fits:
            in_use.update((each.name, lane) for each in applying(limits, name))


@given(some_limits(), loads(), NAMES, LANES)
def test_what_is_left_is_how_many_can_be_taken(
    limits: list[Limit], leased: dict[tuple[str, str], int], name: str, lane: Lane
) -> None:
    room = Room(limits, leased)
    left = room.left(name, lane)
    if left is not None:
        assert [room.take(name, lane) for _ in range(left + 2)] == [True] * left + [False] * 2


def test_the_reserve_is_one_where_there_is_more_than_one_place() -> None:
    assert [Limit("portal", size).reserve for size in (1, 2, 10)] == [0, 1, 1]
    assert [Limit("portal", 5, reserve).reserve for reserve in (0, 3, 5)] == [0, 3, 5]


@pytest.mark.parametrize("size", [0, -1, LIMIT_MAX + 1, 1.5, "5", True, None])
def test_a_limit_is_a_whole_number_in_its_bounds(size: object) -> None:
    with pytest.raises(InvalidInput):
        checked_limit("portal", size)


@pytest.mark.parametrize("reserve", [-1, 6, 0.5, "1", False])
def test_a_reserve_is_a_part_of_its_limit(reserve: object) -> None:
    with pytest.raises(InvalidInput, match="from 0 to 5"):
        checked_limit("portal", 5, reserve)


def test_a_checked_limit_is_as_it_was_given() -> None:
    assert checked_limit("portal", 5) == Limit("portal", 5, None)
    assert checked_limit(FLEET_LIMIT, 1, 1) == Limit(FLEET_LIMIT, 1, 1)


@pytest.mark.parametrize("name", ["", "a b", "-a", "x" * 101, "é", "a\n", 5, None])
def test_a_limit_has_a_plain_name(name: object) -> None:
    with pytest.raises(InvalidInput):
        checked_limit(name, 1)
    with pytest.raises(DefinitionInvalid):
        check_limit_name(name, of="step 'a'")


def test_a_step_cannot_name_the_limit_over_everything() -> None:
    check_limit_name("portal", of="step 'a'")
    with pytest.raises(DefinitionInvalid, match="holds for it anyway"):
        check_limit_name(FLEET_LIMIT, of="step 'a'")
