"""Who did what: every deed of a person leaves one entry, written with it."""

import pytest

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.core.errors import InvalidInput, RetryRefused
from holdfast.engine import RetryRequest, Submission
from store_scenario import raw


async def deeds(s: Scenario) -> list[tuple[str, str, str]]:
    """The oldest first."""
    found = (await s.engine.audit(limit=100)).items
    return [(row.actor, row.action, row.target) for row in reversed(found)]


async def failed(s: Scenario) -> int:
    execution_id = await s.submit()
    await s.fail(await s.lease_one(), error_type="validation_error", category="permanent")
    return execution_id


@on_both_stores
async def test_a_retry_and_a_redrive_leave_an_entry_each(s: Scenario) -> None:
    await s.define(stage("a", attempts=1))
    first, second = await failed(s), await failed(s)
    with pytest.raises(RetryRefused):
        await s.engine.retry(first, RetryRequest(by="eve"))
    await s.engine.retry(first, RetryRequest(by="ann", force=True))
    async for _ in s.engine.redrive(by="eve", force=True, dry_run=True):
        pass
    async for _ in s.engine.redrive(by="bob", force=True):
        pass
    assert await deeds(s) == [
        ("ann", "retry", f"execution {first}"),
        ("bob", "redrive", f"execution {second}"),
    ]
    [row] = (await s.engine.audit(action="retry")).items
    assert row.details == {"from_stage": "a", "round": 2, "force": True}


@on_both_stores
async def test_a_cancel_leaves_one_and_what_follows_from_it_none(s: Scenario) -> None:
    await s.define(stage("a"))
    execution_id = await s.submit()
    assert await s.engine.cancel(execution_id, by="ann")
    assert not await s.engine.cancel(execution_id, by="eve")
    batch_id, _ = await s.engine.batches.create("p")
    await s.engine.batches.add(batch_id, [Submission(path="p") for _ in range(3)])
    assert await s.engine.batches.cancel(batch_id, by="bob") == 3
    assert await s.engine.batches.cancel(batch_id, by="eve") == 0
    assert await deeds(s) == [
        ("ann", "cancel", f"execution {execution_id}"),
        ("bob", "cancel", f"batch {batch_id}"),
    ]


@on_both_stores
async def test_limits_and_pauses_leave_one_each(s: Scenario) -> None:
    await s.define(stage("a", limit="portal"))
    controls = s.engine.controls
    await controls.set_limit("portal", 3, by="ann")
    await controls.remove_limit("portal", by="bob")
    await controls.pause("lane", "bulk", by="ann", reason="quiet")
    await controls.resume("lane", "bulk", by="bob")
    assert await deeds(s) == [
        ("ann", "set_limit", "limit portal"), ("bob", "remove_limit", "limit portal"),
        ("ann", "pause", "lane bulk"), ("bob", "resume", "lane bulk"),
    ]  # fmt: skip
    with pytest.raises(InvalidInput):
        await controls.resume("lane", "bulk", by="a\nb")
    await controls.set_limit("portal", 3, manual_reserve=0, by="ann")
    newest = (await s.engine.store.audit(limit=1))[0]
    assert newest.details == {"max_concurrency": 3, "manual_reserve": 0}


@on_both_stores
async def test_it_is_read_page_by_page(s: Scenario) -> None:
    for name in "abc":
        await s.engine.tokens.create(name, "viewer")
    page = await s.engine.audit(limit=2)
    assert [row.target for row in page.items] == ["token c", "token b"]
    rest = await s.engine.audit(limit=2, cursor=page.next)
    assert ([row.target for row in rest.items], rest.next) == (["token a"], None)
    for wrong in ({"cursor": "x"}, {"limit": 0}, {"action": "guess"}):
        with pytest.raises(InvalidInput):
            await s.engine.audit(**wrong)  # type: ignore[arg-type]


@on_both_stores
async def test_what_only_a_newer_holdfast_does_is_told_as_it_stands(s: Scenario) -> None:
    table = "holdfast_audit" if s.store.url.startswith("sqlite") else "audit"
    await raw(
        s.store.url,
        f"INSERT INTO {table} (at, actor, action, target, details) VALUES (1, 'ann', 'fly', 'moon', '{{}}')",
    )
    assert await deeds(s) == [("ann", "fly", "moon")]
