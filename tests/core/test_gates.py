"""Gates count places: whatever moves happen, the counts are those of where everybody stands."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.gates import BARRIER, BarrierGate, Gates, Place, WaveGate

STEPS = ("first", "request", "prepare", "download", "last")
position = STEPS.index


def gates(**barrier: object) -> Gates:
    return Gates(
        barriers=[BarrierGate("download", "request", 900.0, **barrier)],  # type: ignore[arg-type]
        waves=[WaveGate("download", number=2)],
    )


places = st.one_of(
    st.none(),
    st.builds(Place, st.sampled_from(STEPS), st.sampled_from([None, None, BARRIER, "wave 1", "wave 2"])),
)


@given(st.lists(st.lists(places, min_size=1, max_size=6), max_size=8))
def test_the_counts_are_those_of_where_everybody_stands(walks: list[list[Place | None]]) -> None:
    counted = gates()
    for walk in walks:
        before: Place | None = None
        for place in walk:
            counted.moved(before, place, position)
            before = place
    stand = [walk[-1] for walk in walks if walk[-1] is not None]
    at_download = [place for place in stand if place.step == "download"]
    waiting = sum(place.held_by == "wave 2" for place in at_download)
    assert counted.barriers[0].unsettled == sum(place.step in ("first", "request") for place in stand)
    assert counted.waves[0].waiting == waiting
    # What an earlier wave still holds has been let go with it, and only not been told yet.
    assert counted.waves[0].active == len(at_download) - waiting


def test_many_are_counted_at_once() -> None:
    counted = gates()
    counted.moved(None, Place("first"), position, times=500)
    assert counted.barriers[0].unsettled == 500


def test_an_open_barrier_counts_no_more() -> None:
    counted = gates(opened_at=1.0, unsettled=0)
    counted.moved(None, Place("request"), position)
    assert counted.barriers[0].unsettled == 0


def test_a_barrier_is_due_when_the_batch_is_closed_and_nobody_is_before_it() -> None:
    counted = gates()
    assert not counted.are_due(is_closed=False)
    assert counted.are_due(is_closed=True)
    counted.moved(None, Place("request"), position)
    assert not counted.are_due(is_closed=True)
    counted.moved(Place("request"), Place("prepare"), position)
    assert counted.need_attention(is_closed=True)


def test_an_open_barrier_needs_attention_until_everything_is_through() -> None:
    assert gates(opened_at=1.0, scheduled_for=2.0).need_attention(is_closed=True)
    assert not gates(opened_at=1.0, scheduled_for=2.0, released=True).need_attention(is_closed=True)


def test_a_wave_is_due_when_only_waiting_ones_are_left_whether_the_batch_is_closed_or_not() -> None:
    counted = gates(opened_at=1.0, released=True)
    counted.moved(None, Place("download"), position, times=2)
    counted.moved(Place("download"), Place("download", "wave 2"), position)
    assert not counted.are_due(is_closed=True)
    counted.moved(Place("download"), None, position)
    assert counted.are_due(is_closed=False)


def test_the_delay_of_those_that_wait_no_more_is_forgotten() -> None:
    counted = gates()
    counted.moved(None, Place("download", "wave 2"), position)
    counted.waves[0].longest_delay = 300.0
    counted.moved(Place("download", "wave 2"), None, position)
    assert counted.waves[0].longest_delay == 0.0
