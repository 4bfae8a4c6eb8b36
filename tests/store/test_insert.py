"""Inserting: ids, idempotency keys and definitions."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import IdempotencyConflict
from holdfast.core.model import ClaimGroup, ExecutionStatus, Lane, Mode
from holdfast.store import sqlite_insert
from running import run
from store_scenario import GROUP, NOW, PATH, claim, keyed, new, opened, raw, row_counts, submit, together


def test_ids_follow_the_order_of_submission(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            # Groups, keys and times in no order: nothing but the position may decide.
            items = [
                new(
                    step=f"step-{i}",
                    group=ClaimGroup("send", "bulk", (7 * i) % 10),
                    idempotency_key=f"key-{(13 * i) % 50}",
                    available_at=NOW - i,
                )
                for i in range(50)
            ]
            ids = await submit(store, *items[:30]) + await submit(store, *items[30:])
            assert ids == sorted(set(ids))
            jobs = await raw(store_url, "SELECT step, execution_id FROM jobs ORDER BY id")
            assert jobs == [(f"step-{i}", id_) for i, id_ in enumerate(ids)]
            events = await raw(store_url, "SELECT execution_id FROM events ORDER BY id")
            assert events == [(id_,) for id_ in ids]

    run(main())


def test_an_execution_is_stored_as_it_was_given(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            given = keyed(
                "k", lane=Lane.MANUAL, mode=Mode.AUTO, batch_id=4, deadline_seconds=5.5, deadline_at=NOW + 5.5
            )
            (id_,) = await submit(store, given)
            row = await store.execution(id_)
            assert row is not None
            assert (row.path, row.version, row.status) == (PATH, 1, ExecutionStatus.RUNNING)
            assert (row.lane, row.mode, row.batch_id) == (Lane.MANUAL, Mode.AUTO, 4)
            assert (row.idempotency_key, row.workload) == ("k", {"to": "ann"})
            assert (row.created_at, row.deadline_at, row.finished_at) == (NOW, NOW + 5.5, None)
            assert (row.round, row.manual_retries, row.retry_count) == (1, 0, 0)
            assert (row.error, row.retry_history, row.last_completed_stage) == (None, (), None)
            ((job, execution),) = await store.peek_jobs([1])
            assert (job.step, job.attempts, job.max_attempts) == ("first", 0, 3)
            assert (execution.deadline_seconds, execution.lane) == (5.5, Lane.MANUAL)

    run(main())


def test_each_of_a_mixed_list_is_stored_with_its_own_values(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            # Neighbours that differ in one thing only, and some that are alike again further on.
            differences: list[dict[str, Any]] = [
                {}, {}, {"path": "other"}, {}, {"delay_seconds": 2.5}, {"delay_seconds": 2.5},
                {"deadline_seconds": 7.25}, {"deadline_seconds": 7.25, "delay_seconds": 0.1}, {"batch_id": 3},
                {"lane": Lane.MANUAL},
                {"mode": Mode.AUTO}, {"max_attempts": 9}, {"step": "last", "events": '[{"type":"x"}]'},
                {"group": GROUP._replace(limit="portal")}, {"idempotency_key": "k", "workload_hash": "h"}, {},
            ]  # fmt: skip
            items = [new(workload=str(n), **fields) for n, fields in enumerate(differences)]
            ids = await submit(store, *items)
            stored = await raw(
                store_url,
                "SELECT e.id, e.path, e.definition_id, e.lane, e.mode, e.batch_id, j.step, g.handler,"
                " g.limit_name,"
                " j.max_attempts, v.body, e.workload, e.workload_hash, e.idempotency_key, e.deadline_seconds,"
                " e.deadline_at, e.created_at, j.available_at, j.created_at, v.at, j.round,"
                " CASE WHEN j.limited THEN 1 ELSE 0 END"
                " FROM executions e JOIN jobs j ON j.execution_id = e.id"
                " JOIN events v ON v.execution_id = e.id"
                " JOIN claim_groups g ON g.id = j.claim_group ORDER BY j.id",
            )
            assert stored == [
                (
                    id_, *item.kind[:6], item.kind.group.handler, item.kind.group.limit, *item.kind[7:9],
                    *item[1:5], item.deadline_seconds and NOW + item.deadline_seconds, NOW,
                    NOW + item.delay_seconds, NOW, NOW, 1, int(item.kind.group.limit != ""),
                )
                for id_, item in zip(ids, items, strict=True)
            ]  # fmt: skip

    run(main())


@pytest.mark.parametrize("keyed_too", [False, True])
def test_a_workload_comes_back_as_the_text_that_was_given(store_url: str, keyed_too: bool) -> None:
    """Whatever is in it: what a store wraps it in for the way must not change it."""
    texts = [
        json.dumps(text, ensure_ascii=ascii_only)
        for text in (
            '"',
            "\\",
            '\\"',
            "\\u0041",
            "{}",
            "[1,2]",
            "null",
            "é\u2028\U0001f600",
            "\x01\n\t\x7f",
            "",
            "$1 ?1",
        )
        for ascii_only in (False, True)
    ] + ["null", "true", "1e400", "12345678901234567890", "0.1", "[]", " { }", '"' + "x" * 100_000 + '"']

    async def main() -> None:
        async with opened(store_url) as store:
            keys = [keyed(f"{n} ' \" \\ é", "h", workload=texts[0]) for n in range(2 * keyed_too)]
            ids = await submit(store, *keys, *(new(workload=text) for text in texts))
            found = await raw(store_url, "SELECT id, workload FROM executions ORDER BY id")
            assert [workload for _, workload in found[len(keys) :]] == texts
            again = await store.insert([*keys, new()], NOW)
            assert [item.execution_id for item in again[:-1]] == ids[: len(keys)]

    run(main())


@pytest.mark.parametrize("bound", ["RUN_ITEMS_MAX", "RUN_CHARACTERS_MAX"])
def test_a_long_list_is_written_in_runs_of_bounded_size(
    tmp_path: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    whole = sqlite_insert._insert_run

    def noted(db: Any, sql: Any, first_id: int, items: Any, *more: Any) -> None:
        sizes.append(len(items))
        whole(db, sql, first_id, items, *more)

    monkeypatch.setattr(sqlite_insert, "_insert_run", noted)
    monkeypatch.setattr(sqlite_insert, bound, {"RUN_ITEMS_MAX": 3, "RUN_CHARACTERS_MAX": 12}[bound])

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/runs.db"
        async with opened(url) as store:
            texts = ["1111", "2222", "3333", "4444", '"longer than the bound"', "5555", "6666"]
            ids = await submit(store, *(new(workload=text) for text in texts))
            assert ids == list(range(1, 8))
            jobs = "SELECT e.workload FROM executions e JOIN jobs j ON j.execution_id = e.id ORDER BY j.id"
            assert [text for (text,) in await raw(url, jobs)] == texts
        assert sizes == {"RUN_ITEMS_MAX": [3, 3, 1], "RUN_CHARACTERS_MAX": [3, 1, 1, 2]}[bound]

    run(main())


def test_a_known_key_gives_the_execution_it_named_before(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            (first,) = await store.insert([keyed("k")], NOW)
            before = await row_counts(store_url)
            (again,) = await store.insert([keyed("k", workload='{"to":"not looked at"}')], NOW + 1)
            assert (first.created, again.created) == (True, False)
            assert again.execution_id == first.execution_id
            assert await row_counts(store_url) == before

    run(main())


def test_a_key_twice_in_one_call_makes_one_execution(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store)
            answers = await store.insert([keyed("a"), keyed("b"), keyed("a"), new(), keyed("b")], NOW)
            assert [answer.created for answer in answers] == [True, True, False, True, False]
            assert answers[0].execution_id == answers[2].execution_id
            assert answers[1].execution_id == answers[4].execution_id
            assert (await row_counts(store_url))["jobs"] == 4

    run(main())


def test_the_same_key_of_another_pipeline_is_another_key(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            answers = await store.insert([keyed("k"), keyed("k", path="other")], NOW)
            assert [answer.created for answer in answers] == [True, True]

    run(main())


def test_calls_at_once_with_one_key_make_one_execution(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            await submit(one)
            # Opposite orders: two transactions that wait for each other's key must still both answer.
            orders = ([keyed("a"), keyed("b")], [keyed("b"), keyed("a")])
            answers = await together(
                *(store.insert(orders[i % 2], NOW) for i in range(8) for store in (one, two))
            )
            flat = [item for answer in answers for item in answer]
            assert len({item.execution_id for item in flat}) == 2
            assert sum(item.created for item in flat) == 2
            assert (await row_counts(store_url))["executions"] == 3

    run(main())


@pytest.mark.parametrize("same_call", [True, False])
def test_a_key_with_another_workload_is_refused_and_nothing_of_the_call_is_written(
    store_url: str, same_call: bool
) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await submit(store, *([] if same_call else [keyed("k")]))
            before = await row_counts(store_url)
            with pytest.raises(IdempotencyConflict, match="'k' of mail belongs to execution") as refusal:
                await store.insert([new(), keyed("k"), keyed("k", "h2"), new(step="last")], NOW)
            assert "another key" in refusal.value.guidance
            assert await row_counts(store_url) == before

    run(main())


def test_claim_groups_are_made_once_whoever_makes_them(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            items = [new(group=ClaimGroup("send", "bulk", rank, alone=rank > 5)) for rank in range(10)]
            await together(*(store.insert(items, NOW) for store in (one, two) * 3))
            await one.insert(items, NOW)
            assert (await row_counts(store_url))["claim_groups"] == 10
            assert len(await claim(two)) == 42

    run(main())


def test_a_group_made_in_a_refused_call_is_made_again_by_the_next(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            fresh = new(group=ClaimGroup("fresh", "bulk", 1))
            with pytest.raises(IdempotencyConflict):
                await store.insert([fresh, keyed("k"), keyed("k", "h2")], NOW)
            await submit(store, fresh)
            assert [row.handler for row in await claim(store, handlers=("fresh",))] == ["fresh"]

    run(main())


# definitions


def test_the_same_content_is_the_same_version(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            first = await store.save_definition("mail", "{}", "h1", NOW)
            again = await store.save_definition("mail", "{}", "h1", NOW + 1)
            assert first == again
            assert (first.path, first.version, first.content) == ("mail", 1, "{}")
            assert await store.definition(first.id) == first
            assert await store.definition(first.id + 1) is None

    run(main())


def test_new_content_is_the_next_version_of_its_path(store_url: str) -> None:
    async def versions() -> list[tuple[str, int]]:
        async with opened(store_url) as store:
            saved = [("mail", "1"), ("mail", "2"), ("post", "1"), ("mail", "3"), ("mail", "1")]
            rows = [await store.save_definition(path, content, content, NOW) for path, content in saved]
            return [(row.path, row.version) for row in rows]

    assert run(versions()) == [("mail", 1), ("mail", 2), ("post", 1), ("mail", 3), ("mail", 1)]


def test_saves_at_once_give_each_content_one_version(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as one, opened(store_url) as two:
            contents = [str(i % 5) for i in range(20)]
            rows = await together(
                *(
                    (one, two)[i % 2].save_definition("mail", content, content, NOW)
                    for i, content in enumerate(contents)
                )
            )
            assert {row.version for row in rows} == {1, 2, 3, 4, 5}
            assert len({(row.content, row.version) for row in rows}) == 5

    run(main())
