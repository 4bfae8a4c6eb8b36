"""The stream of events of a database that was put back from a backup: nobody misses anything unawares."""

import asyncio
from typing import Any

import pytest

from engine_scenario import stage
from holdfast.server import catching_up
from holdfast.store.numbering import NUMBERS_LEFT_OUT
from live_scenario import Absence, Ear, broadcasting, listen
from running import eventually, run
from serving import Served, on_a_server
from store_scenario import new, opened, raw, submit

BEYOND = "1.940"


def test_a_place_that_the_database_has_never_given_out_is_refused(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define(stage("a"))
        await s.start()
        last = await s.store.highest_event_row()
        answer = await s.get("/api/events/stream", after=f"1.{last + 1}")
        assert (answer.status, answer.code) == (410, "place_gone")
        answer = await s.send("GET", "/api/events/stream", headers={"Last-Event-ID": BEYOND})
        assert (answer.status, answer.code) == (410, "place_gone")
        assert "backup" in answer.json["error"]["message"]
        async with s.http.stream("GET", f"/api/events/stream?after=1.{last}") as response:
            assert response.status_code == 200

    on_a_server(store_url, story)


def test_a_place_whose_events_were_pruned_is_no_place_beyond_the_end(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            await submit(store, new(), new())
            last = await store.last_event_row()
            await raw(store_url, "DELETE FROM events")
            assert await store.last_event_row() == 0
            assert not await live.is_beyond_the_end(f"1.{last}")
            ear = await listen(live, after=f"1.{last}")
            await submit(store)
            assert await ear.hears(2)

    run(main())


def test_a_stream_that_finds_it_out_late_ends_so_that_its_client_asks_again(store_url: str) -> None:
    """The store was away when it began."""

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            absence = Absence(store)
            absence.is_away = True
            assert not await live.is_beyond_the_end(BEYOND)
            ear = Ear(live.stream(after=BEYOND))
            await asyncio.sleep(0)
            absence.is_away = False
            await eventually(ear.task.done)
            assert ear.events == []
            assert await live.is_beyond_the_end(BEYOND)

    run(main())


@pytest.mark.parametrize("by", ["nothing", "path", "execution_id"])
def test_who_was_told_more_than_the_backup_holds_is_told_all_that_comes_after_it(
    store_url: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are left out, so that every place of before lies before all that is new: also where more has
    come since than was lost."""
    monkeypatch.setattr(catching_up, "ROWS_OF_PATHS", 10)

    async def main() -> None:
        async with opened(store_url) as store:
            [first] = await submit(store)
            await store.leave_out_numbers(NUMBERS_LEFT_OUT)
            [second] = await submit(store, new())
            await submit(store, *[new(path="other") for _ in range(50)])
            filters = {"nothing": {}, "path": {"path": "mail"}, "execution_id": {"execution_id": second}}
            looks = counted_looks(store)
            async with broadcasting(store) as live:
                ear = await listen(live, after=BEYOND, **filters[by])
                await eventually(lambda: second in executions(ear))
                assert first not in executions(ear)
                assert len(looks) < 100  # and not one for each ten of ten billion
                [third] = await submit(store, new())
                if by != "execution_id":
                    await eventually(lambda: third in executions(ear))

    def counted_looks(store: Any) -> list[Any]:
        looks, read = [], store.event_rows

        async def counted(*asked: Any, **more: Any) -> Any:
            looks.append(asked)
            return await read(*asked, **more)

        monkeypatch.setattr(store, "event_rows", counted)
        return looks

    def executions(ear: Ear) -> set[int]:
        return {event.data["execution_id"] for event in ear.events}

    run(main())
