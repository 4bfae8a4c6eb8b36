"""Those who listen to the live stream: slow ones, many of them, through the store's absence, to the end."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.server import audience, catching_up, feed, pace
from holdfast.server import live as live_module
from holdfast.server.live import Live
from holdfast.server.pace import Pace
from holdfast.server.position import Position
from live_scenario import Absence, Ear, broadcasting, listen
from running import eventually, run
from store_scenario import new, opened, raw_connection, submit

MANY = 1_000


# attempts that have only begun


@on_both_stores
async def test_an_attempt_is_told_when_it_begins_and_does_not_move_the_place(s: Scenario) -> None:
    await s.define(stage("a"))
    async with broadcasting(s.store) as live:
        ear, other = await listen(live), await listen(live, path="other")
        id_ = await s.submit()
        await ear.hears(2)
        place = ear.token
        s.tick(1)
        job = await s.lease_one()
        began = (await ear.hears(3))[2]
        assert (began.type, began.token) == ("action_started", place)
        assert began.data["step"] == "a" and began.data["at"] == s.now and began.data["path"] == "p"
        # Its own id is a place to read the history on from, without a miss.
        assert len(await s.engine.events(id_, after=began.row)) == 2
        s.tick(1)
        await s.complete(job)
        await ear.hears(7)
        assert ear.types[3:] == [
            "action_started", "action_completed", "step_completed", "execution_completed",
        ]  # fmt: skip
        assert other.events == []


@on_both_stores
async def test_a_beginning_is_told_once_while_it_runs(s: Scenario) -> None:
    await s.define(stage("a"))
    async with broadcasting(s.store) as live:
        ear = await listen(live)
        await s.submit()
        await s.lease_one()
        await ear.hears(3)
        reader = live._feed
        assert reader is not None
        for _ in range(3):
            reader._begun_due_at = float("-inf")
            looks = reader.looks
            await eventually(lambda: reader.looks > looks + 1)  # noqa: B023
        assert ear.types.count("action_started") == 1


@on_both_stores
async def test_who_listens_to_one_execution_is_told_at_once_what_runs(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    s.tick(100)
    await s.lease_one()
    s.tick(100)
    async with broadcasting(s.store) as live:
        one, every = await listen(live, execution_id=id_), await listen(live)
        elsewhere = await listen(live, execution_id=id_, path="other")
        [began] = await one.hears(1)
        assert (began.type, began.data["at"]) == ("action_started", s.now - 100)
        back = await listen(live, execution_id=id_, after="1.0")
        await back.hears(3)
        assert back.types == ["execution_started", "step_started", "action_started"]
        assert every.events == elsewhere.events == []


# slow ones


class SlowEar:
    """Reads only when it is told to."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.ear = Ear(_nothing())

    async def read(self) -> None:
        self.ear.take(await anext(self._chunks))

    async def read_up_to(self, row: str) -> None:
        for _ in range(10_000):
            if row in self.ear.rows:
                return
            await self.read()
        raise AssertionError(f"{row} was not told")


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def all_rows(count: int) -> list[str]:
    return [f"{row}.{place}" for row in range(1, count + 1) for place in (0, 1)]


def test_a_slow_listener_catches_up_without_a_miss_and_keeps_nobody_waiting(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "BUFFER_BYTES", 2_000)
    monkeypatch.setattr(feed, "PORTION_BYTES", 1_000)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            quick, slow = await listen(live), SlowEar(live.stream())
            await slow.read()
            for _ in range(10):
                await submit(store, *[new() for _ in range(10)])
                store.announce_work()
            await quick.hears(200)
            assert quick.rows == all_rows(100)
            [listener] = [one for one in live._listeners if one.behind is not None]
            assert listener._bytes <= 2_000
            await slow.read_up_to("100.1")
            assert slow.ear.rows == all_rows(100)
            await submit(store)
            await slow.read_up_to("101.1")
            assert slow.ear.rows == all_rows(101)

    run(main())


def test_a_slow_listener_is_told_a_row_that_became_visible_while_it_was_behind(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "BUFFER_BYTES", 1)

    async def main() -> None:
        async with opened(postgres_url) as store, broadcasting(store) as live:
            quick, slow = await listen(live), SlowEar(live.stream())
            await slow.read()
            connection = await raw_connection(postgres_url)
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(
                "INSERT INTO executions (path, definition_id, lane, mode, workload, created_at)"
                " VALUES ('late', 1, 'bulk', 'bulk', 'null', 0)"
            )
            await connection.execute(
                "INSERT INTO events (execution_id, at, body)"
                ' SELECT max(id), 0, \'[{"type":"execution_started"}]\' FROM executions'
            )
            for row in (2, 3, 4):
                await submit(store)
                await quick.hears(2 * (row - 1))
            await transaction.commit()
            await connection.close()
            await quick.hears(7)
            await slow.read_up_to("4.1")
            await slow.read_up_to("1.0")
            assert set(slow.ear.rows) == {"1.0", *all_rows(4)[2:]}

    run(main())


def test_few_catch_up_at_once_and_all_of_them_in_the_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "PAGE_ROWS", 5)

    async def main() -> None:
        async with opened(sqlite_url) as store, broadcasting(store) as live:
            await submit(store, *[new() for _ in range(30)])
            at_once, most = 0, 0
            read = store.event_rows

            async def counted(*asked: Any, **filters: Any) -> Any:
                nonlocal at_once, most
                at_once += "until" in filters
                most = max(most, at_once)
                try:
                    return await read(*asked, **filters)
                finally:
                    at_once -= "until" in filters

            store.event_rows = counted  # type: ignore[method-assign]
            ears = [Ear(live.stream(after="1.0")) for _ in range(20)]
            for ear in ears:
                await ear.hears(60)
                assert ear.rows == all_rows(30)
            assert most <= catching_up.AT_ONCE

    run(main())


# many of them


def test_a_thousand_listeners_are_told_every_event_once_in_order_and_it_is_made_once(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    really = feed.events_in
    monkeypatch.setattr(feed, "events_in", lambda row: made.append(row.id) or really(row))
    monkeypatch.setattr(pace, "PAUSE_FOR_WORK", 0.0)  # there is no other work that it would leave time for

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ears = [Ear(live.stream()) for _ in range(MANY)]
            await eventually(lambda: all(ear.token for ear in ears), 170)
            assert live.listeners == MANY
            for _ in range(10):
                await submit(store, *[new() for _ in range(10)])
                store.announce_work()
            await eventually(lambda: all(len(ear.events) >= 200 for ear in ears), 170)
            assert {tuple(ear.rows) for ear in ears} == {tuple(all_rows(100))}
            assert made == list(range(1, 101))
            # One piece is shared by all of them.
            assert len({id(ear.chunks[1]) for ear in ears}) == 1
            for ear in ears:
                ear.task.cancel()
            await eventually(lambda: live.listeners == 0)

    run(main())


def test_what_is_long_is_written_in_parts(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "WRITTEN_BYTES_MAX", 1_000)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            long = f'[{{"type":"execution_started","x":"{"y" * 10_000}"}}]'
            await submit(store, new(events=long), new())
            await ear.hears(3)
            back = await listen(live, after="1.0")
            await back.hears(3)
            for one in (ear, back):
                assert one.rows == ["1.0", "2.0", "2.1"] and len(one.events[0].data["x"]) == 10_000
                assert max(map(len, one.chunks)) <= 1_000

    run(main())


def test_of_many_listeners_a_few_write_at_a_time(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "WOKEN_AT_ONCE", 3)
    woken: list[int] = []
    pause = Pace.wait

    async def wait(self: Pace) -> None:
        woken.append(0)
        await pause(self)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ears = [await listen(live) for _ in range(20)]
            wake = audience.Listener.wake

            def counted(self: audience.Listener) -> None:
                woken[-1] += 1
                wake(self)

            monkeypatch.setattr(Pace, "wait", wait)
            await eventually(lambda: bool(woken))
            monkeypatch.setattr(audience.Listener, "wake", counted)
            await submit(store)
            for ear in ears:
                await ear.hears(2)
            assert sum(woken) == 20 and max(woken) == 3

    run(main())


# coming and going


def test_the_store_is_read_only_while_somebody_listens(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            assert live._feed is None
            first, second = await listen(live), await listen(live, path="mail")
            assert live.listeners == 2
            reader = live._feed
            assert reader is not None
            await first.leave()
            assert live.listeners == 1 and live._feed is reader
            await second.leave()
            assert live.listeners == 0 and live._feed is None
            await eventually(reader._task.done)
            third = await listen(live)
            await submit(store)
            await third.hears(2)

    run(main())


def test_a_stream_that_is_dropped_unread_is_no_listener(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            unread = live.stream()
            del unread
            begun = live.stream()
            await anext(begun)
            assert live.listeners == 1
            del begun
            gc.collect()
            await eventually(lambda: live.listeners == 0)

    run(main())


def test_close_ends_every_stream_also_new_ones(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            live = Live(store)
            ears = [await listen(live), await listen(live, path="mail"), await listen(live, after="1.0")]
            await live.close()
            await asyncio.wait_for(asyncio.gather(*(ear.task for ear in ears)), 30)
            assert live.listeners == 0
            assert [chunk async for chunk in live.stream()] == []
            await live.close()

    run(main())


def test_a_silent_stream_says_that_it_is_there_and_where(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "KEEP_ALIVE_SECONDS", 0.05)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live, path="other")
            await submit(store)
            await eventually(lambda: ear.chunks.count(b": still here\nid: 1.1\n\n") >= 2)
            assert ear.events == [] and ear.token == "1.1"

    run(main())


# the store goes away


def test_streams_outlive_the_absence_of_the_store(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed, "AWAY_SECONDS", 0.01)
    monkeypatch.setattr(catching_up, "AWAY_SECONDS", 0.01)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            absence = Absence(store)
            ear = await listen(live)
            await submit(store)
            await ear.hears(2)
            absence.is_away = True
            reader = live._feed
            assert reader is not None
            await eventually(lambda: reader._is_away)
            await submit(store)
            back = await listen(live, after="1.0")  # it is told that the stream is open
            assert len(ear.events) == 2 and back.events == []
            absence.is_away = False
            await ear.hears(4)
            await back.hears(4)
            assert ear.rows == back.rows == all_rows(2)

    with caplog.at_level(logging.WARNING, "holdfast.server"):
        run(main())
    assert len([record for record in caplog.records if "waits for the store" in record.message]) == 1


def test_a_stream_opens_without_the_store_and_begins_when_it_is_back(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "AWAY_SECONDS", 0.01)
    monkeypatch.setattr(live_module, "OPEN_SECONDS_MAX", 0.05)
    monkeypatch.setattr(live_module, "KEEP_ALIVE_SECONDS", 0.05)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            absence = Absence(store)
            absence.is_away = True
            ear, back = Ear(live.stream()), Ear(live.stream(after="1.0"))
            await eventually(lambda: len(ear.chunks) > 2 and len(back.chunks) > 2)
            assert ear.chunks[:2] == [b"retry: 2000\n: still here\n\n", b": still here\n\n"]
            assert (ear.token, back.token) == (None, "1.0")
            absence.is_away = False
            await ear.opened()
            await submit(store)
            await ear.hears(2)
            await back.hears(2)
            absence.is_away = True
            waits = Ear(Live(store).stream())
            await waits.leave()

    run(main())


def test_a_feed_goes_on_after_an_error_of_its_own(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed, "AWAY_SECONDS", 0.01)
    faults = [ValueError("a bug")]

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            read = store.event_rows

            async def broken(*asked: Any, **filters: Any) -> Any:
                if faults:
                    raise faults.pop()
                return await read(*asked, **filters)

            store.event_rows = broken  # type: ignore[method-assign]
            await submit(store)
            await ear.hears(2)

    run(main())
    assert "goes on after an error" in caplog.text


def test_what_is_open_when_the_server_closes_while_the_store_is_away_ends(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            live = Live(store)
            Absence(store).is_away = True
            ear = Ear(live.stream())
            await eventually(lambda: live.listeners == 1)
            await live.close()
            await asyncio.wait_for(ear.task, 30)
            assert ear.events == []

    run(main())


def test_a_listener_is_left_behind_at_the_place_before_what_it_had_no_room_for() -> None:
    listener = audience.Listener(None, None)
    listener.offer(b"x" * audience.BUFFER_BYTES * 2, Position(1))
    listener.offer(b"y", Position(2))
    listener.offer(b"z", Position(3))
    assert listener.behind == Position(2)


@pytest.mark.parametrize("body", ['[{"type":"of a later version"}]', "no json"])
def test_a_row_that_cannot_be_read_costs_nobody_another_row(
    store_url: str, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            await submit(store, new(), new(events=body), new())
            await ear.hears(4)
            back = await listen(live, after="1.0")
            await back.hears(4)
            assert ear.rows == back.rows == ["1.0", "1.1", "3.0", "3.1"]

    run(main())
    assert "Row 2 of the events cannot be told" in caplog.text


def test_a_stream_that_is_closed_before_it_began_takes_no_place_from_its_client(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            live = Live(store)
            Absence(store).is_away = True
            ears = [Ear(live.stream()), Ear(live.stream(after="1.7"))]
            await eventually(lambda: live.listeners == 2)
            await live.close()
            await asyncio.wait_for(asyncio.gather(*(ear.task for ear in ears)), 30)
            assert [ear.token for ear in ears] in ([None, None], [None, "1.7"])

    run(main())


def test_a_stream_is_never_silent_for_much_longer_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audience, "KEEP_ALIVE_SECONDS", 100.0)

    async def main() -> None:
        listener = audience.Listener(None, None)
        listener._start_timer()
        loop = asyncio.get_running_loop()
        for silent, until_next_look in [(10.0, 90.0), (90.0, 10.0), (100.0, 100.0)]:
            listener._heard_at = loop.time() - silent
            listener._look()
            assert listener._timer is not None
            assert listener._timer.when() - loop.time() == pytest.approx(until_next_look, abs=5)
            listener._timer.cancel()
        listener.close()

    run(main())
