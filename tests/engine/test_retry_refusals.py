"""When a retry by hand is refused: each reason, its sentence, and which one is told where several apply."""

import pytest

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.core.errors import RetryRefused


async def refusal(s: Scenario, id_: int, **request: object) -> RetryRefused:
    with pytest.raises(RetryRefused) as refused:
        await s.retry(id_, **request)
    return refused.value


async def failed_at_b(s: Scenario, message: str = "connection refused") -> int:
    await s.define(stage("a", attempts=1), stage("b", attempts=1))
    id_ = await s.submit()
    await s.complete(await s.lease_one())
    await s.fail(await s.lease_one(), message)
    return id_


@on_both_stores
async def test_only_a_failed_execution_can_be_retried(s: Scenario) -> None:
    await s.define(stage("a", attempts=2))
    id_ = await s.submit()
    refused = await refusal(s, id_, force=True, full=True)
    assert (refused.code, refused.http_status) == ("not_failed", 409)
    assert "is running; only a failed one" in str(refused)
    assert "Wait until it has ended" in refused.guidance
    job = await s.lease_one()
    await s.fail(job)
    assert (await refusal(s, id_)).code == "not_failed"
    s.tick(1)
    await s.complete(await s.lease_one())
    refused = await refusal(s, id_, force=True)
    assert refused.code == "not_failed"
    assert "Submit the work again" in refused.guidance
    cancelled = await s.submit()
    await s.engine.cancel(cancelled)
    refused = await refusal(s, cancelled, force=True)
    assert (refused.code, refused.guidance) == ("not_failed", "Submit the work again to run it.")


@on_both_stores
async def test_a_permanent_error_is_not_retried_unless_an_operator_forces_it(s: Scenario) -> None:
    id_ = await failed_at_b(s, "the file is corrupted")
    refused = await refusal(s, id_)
    assert (refused.code, refused.http_status) == ("permanent_error", 409)
    assert str(refused) == (
        "Retrying will not help: File appears to be invalid or corrupted (the file is corrupted)."
    )
    assert refused.guidance == "Please re-upload the document."
    await s.retry(id_, force=True)
    assert await s.state(id_) == "queued 0/1"


@on_both_stores
async def test_the_category_decides_not_the_reason_of_death(s: Scenario) -> None:
    await s.define(stage("a", stop_when="true"))
    id_ = await s.submit()
    await s.fail(await s.lease_one(), "connection refused")
    await s.retry(id_)


@on_both_stores
async def test_five_retries_by_hand_are_the_limit(s: Scenario) -> None:
    id_ = await failed_at_b(s)
    for _ in range(5):
        s.tick(61)
        await s.retry(id_)
        await s.fail(await s.lease_one())
    s.tick(61)
    refused = await refusal(s, id_)
    assert (refused.code, refused.http_status, refused.retry_after) == ("retry_cap", 429, None)
    assert "retried 5 times by hand" in str(refused)
    assert (await refusal(s, id_, force=True)).code == "retry_cap"


@on_both_stores
async def test_a_minute_lies_between_two_retries_by_hand(s: Scenario) -> None:
    id_ = await failed_at_b(s)
    await s.retry(id_)
    await s.fail(await s.lease_one())
    s.tick(14.5)
    refused = await refusal(s, id_)
    assert (refused.code, refused.http_status, refused.retry_after) == ("cooldown", 429, 46.0)
    assert refused.guidance == "Try again in 46 seconds."
    s.tick(45.4)
    assert (await refusal(s, id_)).retry_after == 1.0
    s.tick(0.1)
    await s.retry(id_)


@on_both_stores
async def test_a_full_retry_that_would_lose_results_wants_a_confirmation(s: Scenario) -> None:
    id_ = await failed_at_b(s)
    refused = await refusal(s, id_, full=True)
    assert (refused.code, refused.http_status) == ("confirmation_required", 409)
    assert str(refused) == "A full retry discards the results up to a."
    assert (await refusal(s, id_, full=True, force=True)).code == "confirmation_required"
    await s.retry(id_, full=True, confirm=True)


@on_both_stores
async def test_where_several_reasons_apply_the_first_in_order_is_told(s: Scenario) -> None:
    id_ = await failed_at_b(s, "the file is corrupted")
    for _ in range(5):
        await s.retry(id_, force=True)
        assert (await refusal(s, id_, force=True)).code == "not_failed"  # and in its cooldown
        await s.fail(await s.lease_one(), "the file is corrupted")
        if (await s.execution(id_)).manual_retries < 5:
            # Now it is failed, permanent, in its cooldown and, where full, unconfirmed.
            assert (await refusal(s, id_, full=True)).code == "permanent_error"
            assert (await refusal(s, id_, full=True, force=True)).code == "cooldown"
            s.tick(60)
            assert (await refusal(s, id_, full=True, force=True)).code == "confirmation_required"
    # And now, with the cap reached and the cooldown running:
    assert (await refusal(s, id_, full=True)).code == "permanent_error"
    assert (await refusal(s, id_, full=True, force=True)).code == "retry_cap"


@on_both_stores
async def test_automatic_retries_count_neither_for_the_limit_nor_for_the_cooldown(s: Scenario) -> None:
    await s.define(stage("a", attempts=8, initial_delay=0))
    id_ = await s.submit()
    for _ in range(8):
        await s.fail(await s.lease_one())
    execution = await s.execution(id_)
    assert (execution.retry_count, execution.manual_retries) == (7, 0)
    await s.retry(id_)
    assert await s.state(id_) == "queued 0/8"


@on_both_stores
async def test_a_refused_retry_changes_nothing(s: Scenario) -> None:
    id_ = await failed_at_b(s, "the file is corrupted")
    before = (await s.engine.view(id_), await s.events(id_))
    await refusal(s, id_)
    assert (await s.engine.view(id_), await s.events(id_)) == before
