"""The live stream of events: nothing is missed, whoever comes, goes, comes back or is slow."""

from typing import Any

import pytest

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.core.errors import InvalidInput, PayloadInvalid
from holdfast.server import catching_up, feed
from holdfast.server.live import parse_token
from holdfast.server.position import TOKEN_CHARS_MAX, TOKEN_GAPS_MAX, TOKEN_RUNS_MAX, Position
from live_scenario import Ear, broadcasting, listen
from running import eventually, run
from store_scenario import NOW, new, opened, raw, raw_connection, submit

HISTORY = [
    "execution_started", "step_started", "action_started", "action_completed", "step_completed",
    "execution_completed",
]  # fmt: skip


async def run_one(s: Scenario, path: str = "p") -> int:
    id_ = await s.submit(path=path)
    s.tick(1)
    await s.complete(await s.lease_one())
    return id_


# telling


@on_both_stores
async def test_a_listener_is_told_what_happens_from_then_on_in_its_order(s: Scenario) -> None:
    await s.define(stage("a"))
    await run_one(s)
    async with broadcasting(s.store) as live:
        ear = await listen(live)
        id_ = await run_one(s)
        await eventually(lambda: "execution_completed" in ear.types)
        # Without what was told of an attempt while it ran, where the feed has looked at that moment.
        told = [event for event in ear.events if "~" not in event.row]
        assert [event.type for event in told] == HISTORY
        assert {event.data["execution_id"] for event in told} == {id_}
        assert {event.data["path"] for event in told} == {"p"}
        kept = [event.to_dict() for event in await s.events(id_)]
        assert [event.data for event in told] == [{**event, "path": "p"} for event in kept]


def test_a_stream_opens_with_words_for_the_client_and_a_place_to_go_on_from(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            assert ear.chunks[0].startswith(b"retry: 2000\n: still here\nid: 1.0")
            assert ear.chunks[0].endswith(b"\n\n")

    run(main())


def test_filters_let_through_one_execution_or_one_path(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            [first] = await submit(store)
            ears = {
                "all": await listen(live),
                "one": await listen(live, execution_id=first + 1),
                "path": await listen(live, path="other"),
                "both": await listen(live, path="other", execution_id=first + 1),
                "neither": await listen(live, path="mail", execution_id=first + 1),
            }
            assert await submit(store, new(path="other"), new(path="other"), new()) == [
                first + 1, first + 2, first + 3,
            ]  # fmt: skip
            store.announce_work()
            await ears["all"].hears(6)
            await ears["path"].hears(4)
            await ears["one"].hears(2)
            await ears["both"].hears(2)
            heard = {
                name: [event.data["execution_id"] - first for event in ear.events[::2]]
                for name, ear in ears.items()
            }
            assert heard == {"all": [1, 2, 3], "one": [1], "path": [1, 2], "both": [1], "neither": []}

    run(main())


def test_what_another_process_commits_without_a_word_is_told(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, opened(store_url) as there, broadcasting(store) as live:
            ear = await listen(live)
            await submit(there)
            await ear.hears(2)

    run(main())


def test_more_than_one_page_is_told_in_order(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAGE_ROWS", 7)
    monkeypatch.setattr(feed, "PORTION_BYTES", 1_000)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            await submit(store, *[new() for _ in range(40)])
            await ear.hears(80)
            assert ear.rows == [f"{row}.{place}" for row in range(1, 41) for place in (0, 1)]

    run(main())


def test_data_is_one_line_whatever_is_in_it(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            await submit(
                store, new(path="a\nb\r\u2028c", events='[{"type":"execution_started","x":"1\\n\\n2"}]')
            )
            [told] = await ear.hears(1)
            assert (told.data["path"], told.data["x"]) == ("a\nb\r\u2028c", "1\n\n2")

    run(main())


# going on


@on_both_stores
async def test_a_listener_goes_on_behind_any_event_on_another_server(s: Scenario) -> None:
    await s.define(stage("a"))
    async with broadcasting(s.store) as live:
        ear = await listen(live)
        for _ in range(3):
            await run_one(s)
        await eventually(lambda: ear.types.count("execution_completed") == 3)
        whole = [event for event in ear.events if "~" not in event.row]
    async with broadcasting(s.store) as live:
        for place, event in enumerate(whole):
            again = await listen(live, after=event.token)
            last = whole[-1].row
            if place + 1 < len(whole):
                await eventually(lambda: last in again.rows)  # noqa: B023 - it is waited for here
            missing = [told.row for told in whole[place + 1 :] if told.row not in again.rows]
            assert missing == []
            # Within one row some is told again, and never anything of a row before.
            repeated = [told.row for told in whole[: place + 1] if told.row in again.rows]
            assert {row.partition(".")[0] for row in repeated} <= {event.row.partition(".")[0]}
            await again.leave()


def test_of_a_row_with_several_events_only_the_last_moves_the_place(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            before = ear.token
            await submit(store)
            first, second = await ear.hears(2)
            assert first.token == before != second.token
            again = await listen(live, after=first.token)
            await again.hears(2)
            assert again.rows == ["1.0", "1.1"]
            behind = await listen(live, after=second.token)
            await submit(store)
            await behind.hears(2)
            assert behind.rows == ["2.0", "2.1"]

    run(main())


def test_a_listener_that_was_told_nothing_goes_on_from_where_it_opened(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            ear = await listen(live, path="mail")
            await ear.leave()
            await submit(store)
            again = await listen(live, path="mail", after=ear.token)
            await again.hears(2)

    run(main())


@pytest.mark.parametrize("asked", [{}, {"execution_id": 4}, {"path": "other"}])
def test_an_old_place_is_caught_up_page_by_page(
    store_url: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "PAGE_ROWS", 3)
    monkeypatch.setattr(catching_up, "PIECE_BYTES", 500)
    monkeypatch.setattr(catching_up, "ROWS_OF_PATHS", 5)

    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            paths = {id_: "other" if id_ % 4 == 0 else "mail" for id_ in range(1, 31)}
            await submit(store, *[new(path=path) for path in paths.values()])
            wanted = [
                id_
                for id_, path in paths.items()
                if asked.get("execution_id", id_) == id_ and asked.get("path", path) == path
            ]
            ear = await listen(live, after="1.0", **asked)
            await ear.hears(2 * len(wanted))
            assert ear.rows == [f"{row}.{place}" for row in wanted for place in (0, 1)]
            first = ear.events[0 if len(wanted) == 1 else 1]
            again = await listen(live, after=first.token, **asked)
            expected = ear.rows if len(wanted) == 1 else ear.rows[2:]
            await again.hears(len(expected))
            assert again.rows == expected

    run(main())


def test_what_is_committed_while_somebody_catches_up_is_told(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            await submit(store, *[new() for _ in range(50)])
            ears = []
            for _ in range(10):
                ears.append(Ear(live.stream(after="1.0")))
                await submit(store, new())
                store.announce_work()
            for ear in ears:
                await eventually(lambda: len(set(ear.rows)) == 120)  # noqa: B023
                firsts = list(dict.fromkeys(ear.rows))
                assert firsts == [f"{row}.{place}" for row in range(1, 61) for place in (0, 1)]

    run(main())


# places as words


@pytest.mark.parametrize(
    "position",
    [
        Position(0),
        Position(17),
        Position(17, frozenset({1})),
        Position(940, frozenset({17, 18, 19, 24})),
        Position(10**17, frozenset({10**17 - 1, 3})),
    ],
)
def test_a_place_is_read_as_it_was_written(position: Position) -> None:
    assert parse_token(position.token) == position
    assert set(position.token) <= set("0123456789.-")


@pytest.mark.parametrize(
    "gaps",
    [set(range(2, 2_000, 2)), set(range(5, 5 + 10 * TOKEN_GAPS_MAX)), set(range(1, 10**6, 997))],
)
def test_of_too_many_gaps_the_place_is_an_earlier_one(gaps: set[int]) -> None:
    text = Position(10**6, frozenset(gaps)).token
    found = parse_token(text)
    assert len(text) <= TOKEN_CHARS_MAX
    assert text.count(".") - 1 <= TOKEN_RUNS_MAX and 0 < len(found.gaps) <= TOKEN_GAPS_MAX
    assert found.gaps == {gap for gap in gaps if gap <= found.last}
    assert found.last + 1 in gaps


@pytest.mark.parametrize(
    "text",
    [
        "x", "1", "1.", "1.x", "2.17", "17", "1.17.", "1.17.0", "1.17.3-0", "1.17.-3", "1.17.3-", "1.17 ",
        "1.\u0661\u0667", "1.17\n", f"1.{10**19}", f"1.17.1-{TOKEN_GAPS_MAX + 1}",
        "1.17" + ".1" * (TOKEN_GAPS_MAX + 1),
        "1.17" + f".{10**18 - 1}" * 10, "1." + "0" * TOKEN_CHARS_MAX,
    ],
)  # fmt: skip
def test_a_word_that_no_feed_gave_out_is_refused_before_the_stream_opens(text: str, sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store, broadcasting(store) as live:
            with pytest.raises(InvalidInput, match="no place in the feed"):
                live.stream(execution_id=None, path=None, after=text)
            assert live.listeners == 0

    run(main())


@pytest.mark.parametrize("path", ["\x00", "a\nb", " "])
def test_a_path_that_nothing_can_have_is_refused_before_the_stream_opens(path: str, store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store, broadcasting(store) as live:
            with pytest.raises(PayloadInvalid, match="path"):
                live.stream(path=path, after="1.0")
            assert live.listeners == 0

    run(main())


# rows that become visible late


async def open_row(url: str, path: str = "late") -> tuple[Any, Any]:
    """A transaction that has drawn its event's number and is not committed."""
    connection = await raw_connection(url)
    transaction = connection.transaction()
    await transaction.start()
    execution_id = await connection.fetchval(
        "INSERT INTO executions (path, definition_id, lane, mode, workload, created_at)"
        f" VALUES ('{path}', 1, 'bulk', 'bulk', 'null', 0) RETURNING id"
    )
    await connection.execute(
        "INSERT INTO events (execution_id, at, body)"
        f' VALUES ({execution_id}, {NOW}, \'[{{"type":"execution_started"}}]\')'
    )
    return connection, transaction


def test_a_row_that_becomes_visible_late_is_told_to_who_listens_and_who_comes_back(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            opened(postgres_url) as store,
            broadcasting(store) as live,
            broadcasting(store) as elsewhere,
        ):
            await submit(store)
            ear = await listen(live)
            connection, transaction = await open_row(postgres_url)  # row 2
            await submit(store)
            await ear.hears(2)  # nothing waits for what is open
            assert ear.rows == ["3.0", "3.1"]
            between = ear.token
            filtered = await listen(elsewhere, path="late", after=between)
            again = await listen(elsewhere, after=between)
            await transaction.commit()
            await connection.close()
            for one in (ear, again, filtered):
                await eventually(lambda: "2.0" in one.rows)  # noqa: B023
            assert ear.rows == ["3.0", "3.1", "2.0"]
            assert "3.0" not in again.rows
            afterwards = await listen(live, after=between)
            await afterwards.hears(1)
            assert afterwards.rows[0] == "2.0"
            behind = await listen(live, after=ear.token)
            await submit(store)
            await behind.hears(2)
            assert behind.rows == ["4.0", "4.1"]

    run(main())


def test_a_row_that_is_missing_when_the_feed_starts_is_told_when_it_comes(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store, broadcasting(store) as live:
            await submit(store)
            connection, transaction = await open_row(postgres_url)
            await submit(store, new(), new())
            ear = await listen(live)
            await transaction.commit()
            await connection.close()
            await ear.hears(1)
            assert ear.rows == ["2.0"]

    run(main())


def test_a_gap_that_the_feed_does_not_know_is_looked_for_when_a_listener_brings_it(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            connection, transaction = await open_row(postgres_url)
            await submit(store)
            await ear.hears(2)
            assert live._feed is not None
            live._feed._gaps.clear()  # as if it had been given up here
            live._feed._gaps_changed()
            brought = await listen(live, after=ear.token)
            await submit(store)
            await brought.hears(2)
            again = await listen(live, after=brought.token)  # its own place has the gap as well
            await transaction.commit()
            await connection.close()
            for one in (brought, again):
                await eventually(lambda: "1.0" in one.rows)  # noqa: B023

    run(main())


@pytest.mark.parametrize("asked", [{}, {"path": "late"}])
def test_a_row_that_is_missing_further_back_than_a_new_feed_looks_is_told_to_who_comes_back(
    postgres_url: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LOOK_BACK_ROWS", 3)
    monkeypatch.setattr(feed, "OPEN_SECONDS_MAX", 0.1)

    async def main() -> None:
        async with opened(postgres_url) as store, broadcasting(store) as live:
            await submit(store, *[new(path="late") for _ in range(3)])
            connection, transaction = await open_row(postgres_url)  # row 4
            await submit(store, *[new() for _ in range(20)], new(path="late"))
            # Nobody has listened meanwhile; two come back from before it, and one that was told its last row.
            ears = [await listen(live, after=token, **asked) for token in ("1.3", "1.2", "1.3")]
            for ear in ears:
                await eventually(lambda: "25.1" in ear.rows)  # noqa: B023
            assert all("4.0" not in ear.rows for ear in ears)
            ears += [await listen(live, after=ear.token, **asked) for ear in ears]
            async with broadcasting(store) as elsewhere:
                ears += [await listen(elsewhere, after=ear.token, **asked) for ear in ears[:3]]
                await transaction.commit()
                await connection.close()
                for ear in ears:
                    await eventually(lambda: "4.0" in ear.rows)  # noqa: B023

    run(main())


def test_rows_further_back_are_not_looked_at_where_no_transaction_stays_open(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LOOK_BACK_ROWS", 3)

    async def main() -> None:
        async with opened(postgres_url) as store, broadcasting(store) as live:
            await submit(store, *[new() for _ in range(20)])
            await raw(postgres_url, "DELETE FROM events WHERE id % 5 = 0 AND id < 20")
            reader, looked = store.event_gaps, []

            async def event_gaps(*asked: int) -> Any:
                looked.append(asked)
                return await reader(*asked)

            store.event_gaps = event_gaps  # type: ignore[method-assign]
            ear = await listen(live, after="1.1")
            await eventually(lambda: "19.1" in ear.rows)
            assert len(looked) == 1

    run(main())


def test_gaps_that_nobody_can_fill_are_given_up_after_their_time(postgres_url: str) -> None:
    async def main() -> None:
        clock = [0.0]
        async with opened(postgres_url) as store, broadcasting(store, clock=lambda: clock[0]) as live:
            ear = await listen(live)
            rolled_back, first = await open_row(postgres_url)
            still_open, second = await open_row(postgres_url)
            await submit(store)
            await ear.hears(2)
            await first.rollback()
            await rolled_back.close()
            reader = live._feed
            assert reader is not None and reader.position.gaps == {1, 2}
            await turns(reader, 3)
            assert reader.position.gaps == {1, 2}
            clock[0] += feed.GAP_SECONDS_MIN + 1
            await turns(reader, 3)
            assert reader.position.gaps == {1, 2}  # somebody may still fill either
            await second.commit()
            await still_open.close()
            await eventually(lambda: reader.position == Position(3))
            await ear.hears(3)  # what was told may still be on its way
            assert ear.rows == ["3.0", "3.1", "2.0"]

    run(main())


async def turns(reader: feed.Feed, count: int) -> None:
    """Wait until the feed has looked so many times."""
    begun = reader.looks
    await eventually(lambda: reader.looks >= begun + count)


def test_old_gaps_are_given_up_as_soon_as_no_transaction_is_open(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store, broadcasting(store) as live:
            await submit(store, *[new() for _ in range(50)])  # long ago: their time is NOW
            await raw(postgres_url, "DELETE FROM events WHERE id % 5 = 0")
            await listen(live)
            reader = live._feed
            assert reader is not None
            await eventually(lambda: reader.position == Position(49))

    run(main())


def test_there_are_never_too_many_gaps(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "GAPS_MAX", 20)

    async def main() -> None:
        async with opened(postgres_url) as store, broadcasting(store) as live:
            ear = await listen(live)
            for _ in range(5):
                await raw(postgres_url, "SELECT setval('events_id_seq', nextval('events_id_seq') + 100)")
                await submit(store)
            await ear.hears(10)
            assert live._feed is not None
            assert len(live._feed.position.gaps) <= 22
            assert max(live._feed.position.gaps) == live._feed.last - 1

    run(main())


def test_sqlite_has_no_gaps(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store, broadcasting(store) as live:
            await submit(store, new(), new(), new())
            await raw(sqlite_url, "DELETE FROM events WHERE id = 2")
            ear = await listen(live)
            await raw(sqlite_url, "UPDATE sqlite_sequence SET seq = 20 WHERE name = 'events'")
            await submit(store)
            await ear.hears(2)
            assert ear.rows[0] == "21.0" and ear.token == "1.21"
            again = await listen(live, after="1.3.2")
            await again.hears(2)
            assert again.token == "1.21"

    run(main())
