"""The worker's own queue, and what it may lease: without a worker around them."""

from __future__ import annotations

import itertools

import pytest

from holdfast.core.model import Lane, Leased, LeaseRef
from holdfast.worker import prefetched
from holdfast.worker.prefetched import LEASE_JOBS_MAX, Prefetched, Room, Slots, room_for

BOTH = (Lane.MANUAL, Lane.BULK)


def job(number: int, lane: Lane, *, limited: bool = False) -> Leased:
    return Leased(
        queue_id=number,
        fence=f"{number}-a",
        execution_id=number,
        path="p",
        definition_id=1,
        step="s",
        handler="p/s",
        element=0,
        round=1,
        attempt=1,
        max_attempts=3,
        lane=lane,
        lease_until=60.0,
        timeout_seconds=60.0,
        workload="null",
        limited=limited,
    )


def holding(manual: int = 0, bulk_limited: int = 0, bulk: int = 0) -> Prefetched:
    held, numbers = Prefetched(), itertools.count(1)
    for lane, limited, count in (
        (Lane.MANUAL, False, manual),
        (Lane.BULK, True, bulk_limited),
        (Lane.BULK, False, bulk),
    ):
        for _ in range(count):
            held.add(job(next(numbers), lane, limited=limited), 0.0)
    return held


def taken(held: Prefetched, *, bulk: bool = True) -> list[int]:
    ids = []
    while (found := held.take(bulk=bulk)) is not None:
        ids.append(found.job.queue_id)
    return ids


def test_manual_jobs_pass_bulk_ones_and_those_under_a_limit_go_first_in_their_lane() -> None:
    held = Prefetched()
    for number, (lane, limited) in enumerate(
        [(Lane.BULK, False), (Lane.BULK, True), (Lane.MANUAL, False), (Lane.MANUAL, True), (Lane.BULK, True)]
    ):
        held.add(job(number, lane, limited=limited), 0.0)
    held.add_first(job(9, Lane.BULK))
    assert (len(held), held.manual, held.bulk, held.bulk_limited) == (6, 2, 4, 3)
    assert taken(held, bulk=False) == [3, 2]
    assert taken(held) == [9, 1, 4, 0]
    assert not held


def test_with_ageing_manual_jobs_do_not_pass_a_bulk_one_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(prefetched.time, "perf_counter", lambda: now[0])
    orders = []
    for ageing in (False, True):
        held = Prefetched(ageing=ageing)
        for number, lane in enumerate((Lane.BULK, Lane.MANUAL, Lane.MANUAL, Lane.MANUAL)):
            held.add(job(number, lane), now[0])
        first = held.take(bulk=True)
        now[0] += 1
        second = held.take(bulk=False)  # it needs a slot of its lane all the same
        assert first is not None and second is not None
        orders.append([first.job.queue_id, second.job.queue_id, *taken(held)])
    assert orders == [[1, 2, 3, 0], [1, 2, 0, 3]]


def test_what_has_waited_too_long_is_withdrawn_and_what_was_lost_is_dropped() -> None:
    held = Prefetched()
    for number, lane in enumerate((Lane.BULK, Lane.MANUAL, Lane.BULK, Lane.BULK)):
        held.add(job(number, lane), float(number))
    assert not held.has_waited(0.0) and held.has_waited(0.5)
    assert held.withdraw(2.0) == [LeaseRef(1, "1-a"), LeaseRef(0, "0-a")]
    held.drop(LeaseRef(2, "2-another"))
    held.drop(LeaseRef(2, "2-a"))
    assert held.withdraw_all() == [LeaseRef(3, "3-a")] and not held


@pytest.mark.parametrize(
    ("slots", "held", "ahead", "room"),
    [
        # usable, running, of these bulk; what waits; ahead → jobs, bulk, free slots, of these for bulk
        ((4, 0, 0), holding(), 0, Room(4, 3, 4, 3)),
        ((4, 3, 3), holding(), 0, Room(1, 0, 1, 0)),
        ((4, 2, 2), holding(), 0, Room(2, 1, 2, 1)),
        ((4, 4, 3), holding(), 0, Room(0, 0, 0, 0)),
        ((4, 3, 2), holding(), 0, Room(1, 1, 1, 1)),
        ((4, 3, 3), holding(bulk=2), 0, Room(1, 0, 1, 0)),
        ((4, 4, 0), holding(), 0, Room(0, 0, 0, 0)),
        ((4, 1, 1), holding(bulk_limited=2), 0, Room(1, 0, 1, 0)),
        ((4, 1, 1), holding(manual=3), 0, Room(0, 0, 0, 0)),
        ((4, 3, 3), holding(), 8, Room(9, 8, 1, 0)),
        ((4, 3, 3), holding(bulk=6), 8, Room(9, 0, 1, 0)),
        ((1, 0, 0), holding(), 0, Room(1, 1, 1, 1)),
        ((1, 1, 1), holding(), 0, Room(0, 0, 0, 0)),
        ((2, 1, 1), holding(), 0, Room(1, 0, 1, 0)),
        ((0, 0, 0), holding(), 0, Room(0, 0, 0, 0)),
        ((1_500, 0, 0), holding(), 0, Room(LEASE_JOBS_MAX, LEASE_JOBS_MAX, 1_500, 1_499)),
    ],
)
def test_the_room_of_a_worker_of_both_lanes(
    slots: tuple[int, int, int], held: Prefetched, ahead: int, room: Room
) -> None:
    assert room_for(Slots(*slots, BOTH), held, ahead) == room


def test_whatever_a_worker_holds_its_room_keeps_the_rules() -> None:
    """No slot that could be used is left unasked for, and no lease goes beyond what may be held."""
    seen = 0
    for lanes in (BOTH, (Lane.MANUAL,), (Lane.BULK,)):
        for usable, ahead, manual, limited, bulk in itertools.product(
            range(5), (0, 3, 20), range(4), range(3), (0, 1, 2, 12)
        ):
            for running in range(usable + 1):
                for running_bulk in range(running + 1):
                    slots = Slots(usable, running, running_bulk, lanes)
                    if running_bulk > slots.for_bulk:
                        continue
                    seen += 1
                    room = room_for(slots, holding(manual, limited, bulk), ahead)
                    before_bulk = running + manual + limited
                    assert 0 <= room.bulk <= max(room.jobs, 0)
                    assert 0 <= room.slots_bulk <= room.slots
                    assert room.slots == max(usable - before_bulk, 0)
                    assert room.jobs <= max(usable + ahead - before_bulk, 0)
                    if room.bulk:
                        assert running_bulk + limited + bulk + room.bulk <= slots.for_bulk + ahead
                    if Lane.MANUAL in lanes and room.slots:
                        assert room.jobs >= 1
                    if Lane.BULK not in lanes:
                        assert not room.bulk and not room.slots_bulk
                    elif room.slots and running_bulk + limited + bulk < min(
                        slots.for_bulk, usable - (running - running_bulk) - manual
                    ):
                        assert room.bulk >= 1
                    if lanes == (Lane.BULK,):
                        assert room.jobs == room.bulk
    assert seen > 5_000


def test_room_lets_in_more_where_a_kind_of_work_finds_it_that_did_not_before() -> None:
    closed, kept = Room(0, 0, 0, 0), Room(1, 0, 1, 0)
    assert kept.lets_in_more_than(closed) and not closed.lets_in_more_than(kept)
    assert Room(2, 1, 2, 1).lets_in_more_than(kept) and not Room(9, 0, 4, 0).lets_in_more_than(kept)
    assert Room(2, 1, 1, 1).lets_in_more_than(Room(2, 2, 1, 0))
    assert not Room(0, 1, 1, 1).lets_in_more_than(kept)
