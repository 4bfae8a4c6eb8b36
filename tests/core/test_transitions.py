"""The state machine of a job: which moves exist, and the decision between retry and death."""

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.catalogue import Category
from holdfast.core.failures import Classification
from holdfast.core.model import DeadReason, JobState, JobStatus
from holdfast.core.retry import RetryPolicy
from holdfast.core.transitions import (
    LEGAL_MOVES,
    Decision,
    Die,
    IllegalMove,
    RetryLater,
    Verdict,
    cancel,
    complete,
    decide,
    fail,
    lease,
    let_through,
    release,
)

NOW = 1_000.0


def job(status: JobStatus = JobStatus.LEASED, **fields: Any) -> JobState:
    is_leased = status is JobStatus.LEASED
    defaults: dict[str, Any] = {
        "id": 7,
        "execution_id": 1,
        "step": "a",
        "element": -1,
        "round": 1,
        "status": status,
        "attempts": 0 if status is JobStatus.QUEUED else 1,
        "max_attempts": 3,
        "available_at": 900.0,
        "fence": "1-f" if is_leased else None,
        "lease_until": 1_060.0 if is_leased else None,
        "unknown_errors": 0,
        "losses": 0,
        "crashes": 0,
        "dead_reason": None,
        "settled_fence": None,
        "settled_hash": None,
        "clear": None,
        "leased_alone": False,
        "worker_id": "w1",
    }
    return JobState(**{**defaults, **fields})


def verdict(category: Category = Category.TRANSIENT, **known: Any) -> Verdict:
    return Verdict(classification=Classification("some_error", category, "a rule", "Sorry", "Wait."), **known)


def policy(**fields: Any) -> RetryPolicy:
    return RetryPolicy(**{"jitter": False, **fields})


def failing(state: JobState, found: Verdict, rules: RetryPolicy, **given_: Any) -> tuple[JobState, Decision]:
    return fail(
        state, found, rules, **{"outcome_hash": "h", "cleared": True, "now": NOW, "draw": 1.0, **given_}
    )


# ── legal moves ──

MOVES: dict[JobStatus, list[Callable[[JobState], JobState]]] = {
    JobStatus.LEASED: [lambda state: lease(state, fence="2-f", lease_until=NOW, now=NOW)],
    JobStatus.DONE: [lambda state: complete(state, outcome_hash="h")],
    JobStatus.DEAD: [lambda state: failing(state, verdict(Category.PERMANENT), policy())[0]],
    JobStatus.CANCELLED: [cancel],
    JobStatus.RETRY: [
        lambda state: failing(msgspec.structs.replace(state, attempts=1), verdict(), policy())[0],
        lambda state: release(msgspec.structs.replace(state, attempts=2), now=NOW),
    ],
    JobStatus.QUEUED: [lambda state: release(msgspec.structs.replace(state, attempts=1), now=NOW)],
}


@pytest.mark.parametrize(("start", "end"), list(product(JobStatus, JobStatus)), ids=str)
def test_every_pair_of_states_moves_or_is_refused_as_the_table_says(start: JobStatus, end: JobStatus) -> None:
    for move in MOVES[end]:
        if end in LEGAL_MOVES[start]:
            assert move(job(start)).status is end
        else:
            with pytest.raises(IllegalMove, match=f"job 7 cannot go from {start} to {end}; allowed: "):
                move(job(start))


def test_the_table_is_the_one_of_the_contract() -> None:
    pairs = {f"{start} {end}" for start, ends in LEGAL_MOVES.items() for end in ends}
    assert pairs == {
        *("queued leased", "queued cancelled", "retry leased", "retry cancelled"),
        *("leased done", "leased retry", "leased dead", "leased queued", "leased cancelled"),
    }


def test_a_refusal_from_a_final_state_says_that_it_is_final() -> None:
    with pytest.raises(IllegalMove, match="nothing: it is final"):
        cancel(job(JobStatus.DEAD))


def test_a_lease_counts_the_attempt_and_carries_its_fence() -> None:
    leased = lease(job(JobStatus.QUEUED), fence="1-abc", lease_until=1_060.0, now=NOW)
    assert (leased.attempts, leased.fence, leased.lease_until) == (1, "1-abc", 1_060.0)
    assert not leased.leased_alone
    assert lease(job(JobStatus.RETRY, losses=1), fence="2-abc", lease_until=1_060.0, now=NOW).leased_alone


def test_a_completed_attempt_leaves_its_fence_and_hash_behind() -> None:
    done = complete(job(), outcome_hash="h")
    assert (done.fence, done.lease_until, done.settled_fence, done.settled_hash) == (None, None, "1-f", "h")


def test_a_failed_attempt_leaves_its_fence_and_hash_behind() -> None:
    for category in (Category.TRANSIENT, Category.PERMANENT):
        settled, _ = failing(job(), verdict(category), policy())
        assert (settled.fence, settled.settled_fence, settled.settled_hash) == (None, "1-f", "h")


def test_a_released_attempt_is_given_back_and_settles_nothing() -> None:
    released = release(job(attempts=2, settled_fence="1-old", settled_hash="old"), now=NOW)
    assert (released.status, released.attempts, released.available_at) == (JobStatus.RETRY, 1, NOW)
    assert (released.fence, released.settled_fence, released.settled_hash) == (None, "1-old", "old")
    assert release(job(attempts=1), now=NOW).status is JobStatus.QUEUED


def test_nothing_brings_a_job_before_the_time_it_is_scheduled_for() -> None:
    """Not even a clock that has gone back meanwhile."""
    ahead = NOW + 500
    assert release(job(scheduled_for=ahead), now=NOW).available_at == ahead
    retried, decision = failing(job(scheduled_for=ahead), verdict(), policy(initial_delay=10))
    assert retried.available_at == ahead
    assert decision == RetryLater(10.0, ahead)
    assert release(job(scheduled_for=NOW - 5), now=NOW).available_at == NOW


def test_a_retry_waits_for_its_wave_and_death_for_nothing() -> None:
    retried, _ = failing(job(), verdict(), policy(), wave="wave 1")
    assert (retried.status, retried.held_by) == (JobStatus.RETRY, "wave 1")
    dead, _ = failing(job(), verdict(Category.PERMANENT), policy(), wave="wave 1")
    assert (dead.status, dead.held_by) == (JobStatus.DEAD, None)


def test_what_is_let_through_stays_what_it_was_and_is_held_no_more() -> None:
    held = job(JobStatus.QUEUED, held_by="barrier")
    free = let_through(held, available_at=NOW + 9, scheduled_for=NOW + 9)
    assert (free.status, free.attempts, free.held_by) == (JobStatus.QUEUED, 0, None)
    assert (free.available_at, free.scheduled_for) == (NOW + 9, NOW + 9)
    in_wave = job(JobStatus.RETRY, held_by="wave 1", scheduled_for=NOW - 9)
    assert let_through(in_wave, available_at=NOW, scheduled_for=None).scheduled_for == NOW - 9
    with pytest.raises(IllegalMove, match="not held"):
        let_through(job(JobStatus.QUEUED), available_at=NOW, scheduled_for=None)
    assert cancel(held).held_by is None


def test_a_clear_that_has_run_is_not_asked_for_again_and_one_that_has_not_is() -> None:
    assert failing(job(clear='["a"]'), verdict(), policy(), cleared=True)[0].clear is None
    assert failing(job(clear='["a"]'), verdict(), policy(), cleared=False)[0].clear == '["a"]'


# ── the decision ──

# Each row of the decision table, in its order: what of job, verdict and policy makes it apply.
ROWS: dict[DeadReason, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    DeadReason.POISONED: ({"crashes": 3, "losses": 4}, {}, {}),
    DeadReason.STOPPED: ({}, {"stop": True}, {}),
    DeadReason.NOT_RETRYABLE: ({}, {"retry": False}, {}),
    DeadReason.PERMANENT: ({}, {"category": Category.PERMANENT}, {}),
    DeadReason.EXHAUSTED: ({"attempts": 3}, {}, {}),
    DeadReason.UNKNOWN_LIMIT: (
        {"unknown_errors": 1},
        {"category": Category.UNKNOWN},
        {"unknown_attempts": 1},
    ),
}


def decision(*rows: DeadReason, **more: Any) -> Decision:
    """The decision where all of these rows apply; of two categories the earlier row's is taken."""
    of_job: dict[str, Any] = {}
    of_verdict: dict[str, Any] = {}
    of_policy: dict[str, Any] = {}
    for row in reversed(rows):
        for target, part in zip((of_job, of_verdict, of_policy), ROWS[row], strict=True):
            target.update(part)
    of_verdict.update(more)
    return decide(job(**of_job), verdict(**of_verdict), policy(**of_policy), now=NOW, draw=1.0)


@pytest.mark.parametrize("reason", list(ROWS), ids=str)
def test_each_row_of_the_decision_table_kills_for_its_own_reason(reason: DeadReason) -> None:
    assert decision(reason) == Die(reason)


@pytest.mark.parametrize(("earlier", "later"), list(combinations(ROWS, 2)), ids=str)
def test_where_two_rows_apply_the_earlier_one_is_the_reason(earlier: DeadReason, later: DeadReason) -> None:
    assert decision(earlier, later) == Die(earlier)


def test_where_no_row_applies_the_job_is_retried() -> None:
    assert decision() == RetryLater(1.0, NOW + 1.0)


def test_the_rows_are_complete() -> None:
    assert set(ROWS) == set(DeadReason)


@pytest.mark.parametrize("reason", [DeadReason.PERMANENT, DeadReason.UNKNOWN_LIMIT], ids=str)
def test_a_true_retry_when_overrides_the_category(reason: DeadReason) -> None:
    assert isinstance(decision(reason, retry=True), RetryLater)


def test_a_true_retry_when_gives_no_attempt_beyond_the_last() -> None:
    assert decision(DeadReason.EXHAUSTED, retry=True) == Die(DeadReason.EXHAUSTED)


def test_a_permanent_error_on_the_only_attempt_is_permanent_not_exhausted() -> None:
    only = job(attempts=1, max_attempts=1)
    assert decide(only, verdict(Category.PERMANENT), policy(), now=NOW, draw=1.0) == Die(DeadReason.PERMANENT)


def test_a_false_stop_when_changes_nothing() -> None:
    assert isinstance(decision(stop=False), RetryLater)
    assert decision(DeadReason.PERMANENT, stop=False) == Die(DeadReason.PERMANENT)


@pytest.mark.parametrize("reason", [DeadReason.PERMANENT, DeadReason.UNKNOWN_LIMIT], ids=str)
def test_a_condition_that_failed_counts_as_not_given(reason: DeadReason) -> None:
    assert decision(reason, condition_error="retry_when: boom") == Die(reason)
    assert isinstance(decision(condition_error="stop_when: boom"), RetryLater)


def test_a_retry_after_lengthens_the_delay_and_never_shortens_it() -> None:
    assert decision(retry_after=30.0) == RetryLater(30.0, NOW + 30.0)
    assert decision(retry_after=0.1) == RetryLater(1.0, NOW + 1.0)


# ── counting ──


def test_only_unknown_errors_count_as_unknown() -> None:
    limited = policy(unknown_attempts=2, max_attempts=5)
    first, _ = failing(job(max_attempts=5), verdict(Category.UNKNOWN), limited)
    assert (first.status, first.unknown_errors) == (JobStatus.RETRY, 1)
    leased = lease(first, fence="2-f", lease_until=NOW, now=NOW)
    second, _ = failing(leased, verdict(), limited)
    assert second.unknown_errors == 1
    leased = lease(second, fence="3-f", lease_until=NOW, now=NOW)
    third, decided = failing(leased, verdict(Category.UNKNOWN), limited)
    assert (third.status, third.unknown_errors) == (JobStatus.DEAD, 2)
    assert decided == Die(DeadReason.UNKNOWN_LIMIT)
    assert third.dead_reason is DeadReason.UNKNOWN_LIMIT


def test_a_lost_worker_counts_as_a_crash_only_while_the_job_ran_alone() -> None:
    lost = verdict(worker_lost=True)
    beside_others, _ = failing(job(leased_alone=False), lost, policy())
    assert (beside_others.losses, beside_others.crashes) == (1, 0)
    alone, _ = failing(job(leased_alone=True, losses=1), lost, policy())
    assert (alone.losses, alone.crashes) == (2, 1)
    own_error, _ = failing(job(leased_alone=True, losses=1), verdict(), policy())
    assert (own_error.losses, own_error.crashes) == (1, 0)


@pytest.mark.parametrize("alone", [False, True])
def test_the_death_of_its_own_process_is_a_crash_of_the_job_whoever_ran_beside_it(alone: bool) -> None:
    counted, decided = failing(job(leased_alone=alone), verdict(crashed=True), policy())
    assert (counted.losses, counted.crashes) == (1, 1)
    assert isinstance(decided, RetryLater)
    again = lease(counted, fence="2-f", lease_until=NOW, now=NOW)
    assert again.leased_alone
    assert failing(again, verdict(crashed=True), policy(), max_crashes=2)[1] == Die(DeadReason.POISONED)


def test_max_crashes_alone_poison_a_job() -> None:
    state = job(leased_alone=True, losses=2, crashes=1, max_attempts=9)
    assert failing(state, verdict(worker_lost=True), policy(), max_crashes=3)[0].status is JobStatus.RETRY
    assert failing(state, verdict(worker_lost=True), policy(), max_crashes=2)[1] == Die(DeadReason.POISONED)


# ── properties ──

VERDICTS = st.builds(
    verdict,
    st.sampled_from(Category),
    stop=st.sampled_from([None, True, False]),
    retry=st.sampled_from([None, True, False]),
    retry_after=st.none() | st.floats(0, 5_000),
    worker_lost=st.booleans(),
    crashed=st.booleans(),
)
HEALING = st.builds(verdict, st.just(Category.TRANSIENT), worker_lost=st.booleans(), crashed=st.booleans())


@st.composite
def histories(
    draw: st.DrawFn, verdicts: st.SearchStrategy[Verdict]
) -> list[tuple[JobState, Decision, float]]:
    """A job failed again and again until it is dead: each settled state, its decision and its moment."""
    rules = draw(
        st.builds(
            RetryPolicy, max_attempts=st.integers(1, 6), initial_delay=st.floats(0, 100), jitter=st.booleans()
        )
    )
    state, now, told = job(JobStatus.QUEUED, max_attempts=rules.max_attempts), NOW, []
    while state.is_live:
        state = lease(state, fence=f"{len(told)}-f", lease_until=now + 60, now=now)
        now += draw(st.floats(0, 1_000))
        jitter = draw(st.floats(0.5, 1.5))
        state, decided = failing(state, draw(verdicts), rules, now=now, draw=jitter, max_crashes=99)
        told.append((state, decided, now))
    return told


@given(histories(VERDICTS))
def test_attempts_never_pass_their_maximum_and_every_retry_lies_ahead(
    history: list[tuple[JobState, Decision, float]],
) -> None:
    for number, (state, decided, now) in enumerate(history, start=1):
        assert state.attempts == number <= state.max_attempts
        assert state.crashes <= state.losses
        assert (state.status is JobStatus.DEAD) == (state.dead_reason is not None)
        if isinstance(decided, RetryLater):
            assert state.status is JobStatus.RETRY
            assert state.available_at == decided.available_at == now + decided.delay >= now
        else:
            assert state.dead_reason is decided.reason
            assert decided.reason is not DeadReason.EXHAUSTED or state.attempts == state.max_attempts


@given(histories(HEALING))
def test_an_error_that_may_heal_never_kills_before_the_last_attempt(
    history: list[tuple[JobState, Decision, float]],
) -> None:
    last, decided, _ = history[-1]
    assert decided == Die(DeadReason.EXHAUSTED)
    assert len(history) == last.attempts == last.max_attempts
