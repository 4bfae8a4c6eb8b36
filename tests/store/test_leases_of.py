"""What a worker holds, and which handlers jobs have ever needed."""

from running import run
from store_scenario import GROUP, NOW, claim, complete, lease_of, new, opened, submit


def test_the_leases_of_a_worker_are_told_and_no_others(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            alone = new(group=GROUP._replace(alone=True))
            await submit(store, new(), new(), new(), alone, new())
            first, second = await claim(store, limit=2, lease_seconds=60.0)
            (elsewhere,) = await claim(store, limit=1, worker_id="worker-2")
            (by_itself,) = await claim(store, alone=True, limit=1, lease_seconds=90.0)
            assert await store.leases_of("worker-1", 10) == [
                (lease_of(first), False), (lease_of(second), False), (lease_of(by_itself), True),
            ]  # fmt: skip
            assert await store.leases_of("worker-1", 1) == [(lease_of(first), False)]
            assert await store.leases_of("worker-2", 10) == [(lease_of(elsewhere), False)]
            await complete(store, first)
            assert await store.leases_of("worker-1", 1) == [(lease_of(second), False)]
            assert await store.leases_of("nobody", 10) == []

    run(main())


def test_the_handlers_that_jobs_have_needed_are_told_once_each_by_name(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.handlers() == []
            names = ("send", "a", "send", "b")
            groups = [GROUP._replace(handler=name, rank=rank) for rank, name in enumerate(names)]
            await submit(store, *[new(group=group) for group in groups])
            for leased in await claim(store, NOW, handlers=("a",)):
                await complete(store, leased)
            assert await store.handlers() == ["a", "b", "send"]

    run(main())
