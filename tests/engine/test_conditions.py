"""retry_when and stop_when: what they may read, what they decide, and what happens when they fail."""

from typing import Any

from engine_scenario import Scenario, failed, on_both_stores, stage
from holdfast.core.failures import Classification, Failure, classify
from holdfast.core.model import EventType
from holdfast.core.retry import RetryPolicy
from holdfast.engine.conditions import Attempted, judge
from holdfast.store import Store

# Every variable of the contract, with what it holds after the second attempt of the job below.
TRUE = [
    "attempt == 2",
    "max_attempts == 4",
    "'refused' in error",
    "error == 'connection refused'",
    "error.message == 'connection refused'",
    "error.type == 'service_unavailable'",
    "error.category == 'transient'",
    "status_code == 503",
    "not success",
    "result is none",
    "data is none",
    "response is none",
    "step == 'a'",
    "workload.customer.name == 'Ann'",
    "execution_id > 0",
    "{{ attempt < max_attempts and status_code >= 500 }}",
]
TRUE_TOGETHER = " and ".join(f"({condition.strip('{} ')})" for condition in TRUE)


@on_both_stores
async def test_a_condition_reads_every_variable_of_the_contract(s: Scenario) -> None:
    await s.define(stage("a", attempts=4, stop_when=TRUE_TOGETHER))
    id_ = await s.submit({"customer": {"name": "Ann"}})
    await s.fail(await s.lease_one(), status_code=503)
    assert await s.state(id_) == "retry 1/4"
    s.tick(1)
    await s.fail(await s.lease_one(), status_code=503)
    assert (await s.job(id_)).dead_reason == "stopped"


@on_both_stores
async def test_a_condition_reads_the_same_where_another_process_gave_out_the_lease(s: Scenario) -> None:
    await s.define(stage("a", attempts=4, stop_when=TRUE_TOGETHER))
    id_ = await s.submit({"customer": {"name": "Ann"}})
    await s.fail(await s.lease_one(), status_code=503)
    s.tick(1)
    job = await s.lease_one()
    await s.another_engine().report([failed(job, status_code=503)])
    assert (await s.job(id_)).dead_reason == "stopped"


@on_both_stores
async def test_a_condition_reads_what_a_service_answered_with_its_error(s: Scenario) -> None:
    condition = "data.code == 'gone' and response.data.code == 'gone' and result.status_code == 503"
    await s.define(stage("a", attempts=4, stop_when=condition))
    id_ = await s.submit()
    await s.fail(await s.lease_one(), status_code=503, data={"code": "busy"})
    assert await s.state(id_) == "retry 1/4"
    s.tick(1)
    await s.fail(await s.lease_one(), status_code=503, data={"code": "gone"})
    assert (await s.job(id_)).dead_reason == "stopped"


class NeverPeeks:
    """A store that must not be asked for jobs before they are settled."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        assert name != "peek_jobs", "the lease was given out from here: nothing needs to be looked up"
        return getattr(self._store, name)


@on_both_stores
async def test_an_attempt_that_was_leased_from_here_is_not_looked_up_when_it_fails(s: Scenario) -> None:
    await s.define(stage("a", attempts=2, initial_delay=0))
    id_ = await s.submit()
    s.engine = await s.engine_on(NeverPeeks(s.store))
    await s.fail(await s.lease_one())
    await s.fail(await s.lease_one())
    assert await s.state(id_) == "dead 2/2"


# A policy, a message, and what becomes of a job whose first attempt fails with it.
DECIDED: list[tuple[dict[str, object], str, str, str | None]] = [
    ({"retry_when": "'corrupted' in error"}, "file corrupted", "retry 1/3", None),
    ({"retry_when": "status_code == 503"}, "connection refused", "dead 1/3", "not_retryable"),
    ({"stop_when": "attempt == 1"}, "connection refused", "dead 1/3", "stopped"),
    ({"stop_when": "attempt == 2"}, "connection refused", "retry 1/3", None),
    ({"retry_when": "true", "unknown_attempts": 1}, "who knows", "retry 1/3", None),
    ({"unknown_attempts": 1}, "who knows", "dead 1/3", "unknown_limit"),
    ({"retry_when": "true", "stop_when": "true"}, "connection refused", "dead 1/3", "stopped"),
]


@on_both_stores
async def test_conditions_decide_before_the_category_does(s: Scenario) -> None:
    for policy, message, state, reason in DECIDED:
        await s.define(stage("a", **policy))
        id_ = await s.submit()
        await s.fail(await s.lease_one(), message)
        assert (await s.state(id_), (await s.job(id_)).dead_reason) == (state, reason), policy
        assert "condition_error" not in (await s.last_event(id_, EventType.ACTION_ERROR)).data


@on_both_stores
async def test_a_condition_that_fails_is_told_and_counts_as_not_given(s: Scenario) -> None:
    broken = {"retry_when": "status_code > 499", "stop_when": "nobody.knows"}
    await s.define(stage("a", **broken))
    heals, stays = await s.submit(), await s.submit()
    first, second = await s.lease()
    await s.fail(first, "connection refused")
    await s.fail(second, "file corrupted")
    assert await s.state(heals) == "retry 1/3"
    assert (await s.job(stays)).dead_reason == "permanent"
    told = (await s.last_event(heals, EventType.ACTION_ERROR)).data["condition_error"]
    assert told.startswith("stop_when: the condition `nobody.knows` has no answer")
    assert "; retry_when: the condition `status_code > 499` has no answer" in told


@on_both_stores
async def test_a_lost_worker_takes_the_same_conditions(s: Scenario) -> None:
    await s.define(stage("a", stop_when="error.type == 'worker_lost'"))
    id_ = await s.submit()
    await s.lease()
    await s.lose()
    assert (await s.job(id_)).dead_reason == "stopped"


def test_without_conditions_nothing_is_evaluated() -> None:
    failure = Failure(message="connection refused", retry_after=7.0)
    known: Classification = classify(failure)
    verdict = judge(failure, known, RetryPolicy(), None, None)  # type: ignore[arg-type]
    assert (verdict.stop, verdict.retry, verdict.condition_error) == (None, None, None)
    assert verdict.retry_after == 7.0


def test_what_a_condition_says_of_its_failure_can_be_stored() -> None:
    failure = Failure(message="connection refused")
    attempt = Attempted(execution_id=1, definition_id=1, step="a", attempts=1, max_attempts=2)
    policy = RetryPolicy(retry_when="workload[workload.key]", stop_when="workload.key < 1")
    verdict = judge(failure, classify(failure), policy, attempt, {"key": "\ud800\0"})
    assert verdict.condition_error is not None
    assert "\0" not in verdict.condition_error.encode().decode()
