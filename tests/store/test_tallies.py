"""Counts that processes keep in the store: each under a source of its own, added up when it has ended."""

import asyncio
import json
import random
from collections import Counter

import apsw
import pytest

from holdfast.store import Store, postgres_tallies, sqlite_tallies
from holdfast.store.tallies import Tally
from running import run
from store_scenario import NOW, opened, raw

HOUR = 3_600.0


def tally(name: str, value: int, *labels: str) -> Tally:
    return Tally(name, json.dumps(labels), value)


async def write(store: Store, source: str, *tallies: Tally, at: float = NOW, is_new: bool = True) -> bool:
    return await store.write_tallies(source, tallies, at, is_new=is_new)


async def sums(store: Store) -> dict[tuple[str, str], int]:
    return {(name, labels): value for name, labels, value in await store.tallies()}


async def sources(url: str) -> set[str]:
    table = "holdfast_tallies" if url.startswith("sqlite") else "tallies"
    return {source for (source,) in await raw(url, f"SELECT DISTINCT source FROM {table}")}


def test_what_several_sources_have_counted_is_added_up(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await sums(store) == {}
            await write(store, "a", tally("attempts", 2, "lost"), tally("started", 5))
            await write(store, "b", tally("attempts", 3, "lost"), tally("attempts", 1, "failed"))
            assert await sums(store) == {
                ("attempts", '["failed"]'): 1,
                ("attempts", '["lost"]'): 5,
                ("started", "[]"): 5,
            }

    run(main())


def test_a_source_says_how_much_it_has_counted_so_far_and_may_say_it_again(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await write(store, "a", tally("started", 5), tally("ended", 1))
            for _ in range(2):
                assert await write(store, "a", tally("started", 7), is_new=False)
            assert await sums(store) == {("started", "[]"): 7, ("ended", "[]"): 1}

    run(main())


def test_folding_changes_no_sum_and_leaves_one_source(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            for number in range(5):
                await write(store, f"s{number}", tally("started", number), tally("ended", 1, str(number % 2)))
            before = await sums(store)
            assert await store.fold_tallies(seen_before=NOW + 1) == 5
            assert await sums(store) == before
            assert await sources(store_url) == {""}
            await write(store, "later", tally("started", 100), at=NOW + 10)
            assert await store.fold_tallies(seen_before=NOW + 10) == 0, "that one is alive"
            assert await store.fold_tallies(seen_before=NOW + 11) == 1
            assert await sums(store) == {**before, ("started", "[]"): 110}
            assert await sources(store_url) == {""}

    run(main())


def test_one_source_is_folded_at_its_end_and_no_other(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await write(store, "a", tally("started", 1))
            await write(store, "b", tally("started", 2))
            assert await store.fold_tallies(seen_before=float("-inf"), source="a") == 1
            assert await sources(store_url) == {"", "b"}
            assert await sums(store) == {("started", "[]"): 3}

    run(main())


def test_a_source_that_was_folded_is_told_so_and_writes_nothing(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await write(store, "sleeper", tally("started", 5))
            await store.fold_tallies(seen_before=NOW + HOUR)
            assert not await write(store, "sleeper", tally("started", 6), at=NOW + HOUR, is_new=False)
            assert await sums(store) == {("started", "[]"): 5}

    run(main())


def test_a_sign_of_life_keeps_all_counts_of_a_source_from_being_folded(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await write(store, "a", tally("started", 1), tally("ended", 1))
            await write(store, "a", tally("started", 2), at=NOW + HOUR, is_new=False)
            assert await store.fold_tallies(seen_before=NOW + 1) == 0
            assert await write(store, "a", tally("ended", 2), at=NOW + HOUR, is_new=False)
            assert await sums(store) == {("started", "[]"): 2, ("ended", "[]"): 2}

    run(main())


@pytest.mark.parametrize("seed", range(6))
def test_several_who_fold_and_write_at_once_lose_and_double_nothing(store_url: str, seed: int) -> None:
    """Each process goes by what it is told: folded, it begins a new source with what it has not written."""
    r = random.Random(seed)
    expected: Counter[str] = Counter()

    async def process(store: Store, number: int) -> None:
        life, is_new = 0, True
        counts: Counter[str] = Counter()
        written: Counter[str] = Counter()
        for _ in range(15):
            name = r.choice("abc")
            counts[name] += 1
            expected[name] += 1
            while True:
                rest = [tally(key, counts[key] - written[key]) for key in counts]
                if await write(store, f"{number} {life}", *rest, is_new=is_new):
                    is_new = False
                    stored = counts.copy()
                    break
                life, is_new = life + 1, True
                written = stored.copy()
            await asyncio.sleep(0)

    async def folder(store: Store) -> None:
        for _ in range(10):
            await store.fold_tallies(seen_before=NOW + 1)
            await asyncio.sleep(0)

    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            await asyncio.gather(
                *(process(store, number) for number, store in enumerate((one, two, one, two))),
                folder(one),
                folder(two),
            )
            await one.fold_tallies(seen_before=NOW + 1)
            assert await sums(one) == {(name, "[]"): count for name, count in expected.items()}
            assert await sources(store_url) == {""}

    run(main())


def test_whatever_labels_hold_they_come_back_as_they_were(store_url: str) -> None:
    hostile = ['"', "\\", "\n", "{}", "'; DROP TABLE jobs; --", "é 中 🎉", ""]

    async def main() -> None:
        async with opened(store_url) as store:
            await write(store, "a", tally("steps", 1, *hostile))
            [(_, labels, _)] = await store.tallies()
            assert json.loads(labels) == hostile

    run(main())


def test_a_write_that_fails_in_its_middle_leaves_nothing(sqlite_url: str) -> None:
    async def main() -> None:
        async with opened(sqlite_url) as store:
            with pytest.raises((TypeError, apsw.Error)):
                await write(store, "a", tally("started", 1), Tally("ended", "[]", object()))  # type: ignore[arg-type]
            assert await sources(sqlite_url) == set()

    run(main())


def test_more_labels_than_are_kept_are_added_up_under_one(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"retries": '["other"]'}
    for module in (postgres_tallies, sqlite_tallies):
        monkeypatch.setattr(module, "LABELS_MAX", 3)

    async def main() -> None:
        async with opened(store_url) as store:
            for number in range(10):
                kinds = {f"kind {number}", "kind 1"}
                counted = [tally("retries", 1, kind) for kind in kinds]
                await write(store, f"s{number}", *counted, tally("free", 1, f"{number}"))
                await store.fold_tallies(seen_before=0.0, source=f"s{number}", others=others)
            found = await sums(store)
            retries = {labels: value for (name, labels), value in found.items() if name == "retries"}
            assert retries == {'["kind 0"]': 1, '["kind 1"]': 10, '["kind 2"]': 1, '["other"]': 7}
            assert sum(name == "free" for name, _ in found) == 10

    run(main())
