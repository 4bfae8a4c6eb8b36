"""Rehearsals: the real engine on a clock that jumps, with failures on demand."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from attempt_timeouts import Timeouts
from holdfast import (
    Context,
    Holdfast,
    InvalidInput,
    PermanentError,
    Retry,
    RetryRefused,
    TransientError,
    UnknownName,
)
from holdfast.core.errors import TransactionUnavailable
from holdfast.testing import AsyncRehearsal, Rehearsal, RehearsalFailed
from holdfast.testing.inline_worker import InlineWorker
from running import eventually
from running import run as run_async


async def use_inside_a_coroutine(rehearsal: Rehearsal) -> None:
    rehearsal.run("order", {"id": 1})


class Shop:
    """A pipeline of three stages, plain or async, that notes in which order its handlers were called."""

    def __init__(self, url: str, *, is_async: bool = False, **charge_options: Any) -> None:
        self.hf = Holdfast(url)
        self.is_async = is_async
        self.called: list[str] = []
        self.threads: set[int] = set()
        charge_options.setdefault("retry", Retry(max_attempts=3))
        steps = [
            self.hf.step(name="reserve")(self.handler(lambda ctx: {"for": ctx.workload["id"]})),
            self.hf.step(name="charge", **charge_options)(self.handler(lambda ctx: ctx.attempt)),
            self.hf.step(name="ship")(self.handler(lambda ctx: ctx.outputs["charge"] * 10)),
        ]
        self.hf.pipeline("order", steps)

    def handler(self, work: Callable[[Context], Any]) -> Callable[[Context], Any]:
        def plain(ctx: Context) -> Any:
            self.called.append(ctx.step)
            self.threads.add(threading.get_ident())
            return work(ctx)

        async def waiting(ctx: Context) -> Any:
            await asyncio.sleep(0)
            return plain(ctx)

        return waiting if self.is_async else plain


@pytest.fixture(params=["plain", "async"])
def shop(request: pytest.FixtureRequest, sqlite_url: str) -> Shop:
    return Shop(sqlite_url, is_async=request.param == "async")


# A run that heals


def test_a_stage_that_fails_twice_is_retried_after_the_delays_of_its_policy(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TimeoutError("gateway"), times=2)
        run = rehearsal.run("order", {"id": 7})
        assert run.status == "completed"
        assert run.attempts == {"reserve": 1, "charge": 3, "ship": 1}
        assert run.ran == [("reserve", 1), ("charge", 1), ("charge", 2), ("charge", 3), ("ship", 1)]
        assert run.delays == {"charge": [1.0, 2.0]}
        assert run.error_types == ["timeout", "timeout"]
        assert run.outputs == {"reserve": {"for": 7}, "charge": 3, "ship": 30}
        assert run.error is None
        assert rehearsal.clock.elapsed == 3.0
    assert shop.called == ["reserve", "charge", "ship"]
    assert [str(error) for error in run.exceptions] == ["gateway", "gateway"]


def test_long_delays_pass_on_the_clock_and_not_in_the_test(sqlite_url: str) -> None:
    shop = Shop(sqlite_url, retry=Retry(delays=["1h", "1d", "30d"]))
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", ConnectionResetError, times=3)
        run = rehearsal.run("order", {"id": 1})
        assert run.delays == {"charge": [3600.0, 86_400.0, 2_592_000.0]}
        assert rehearsal.clock.elapsed == 3600 + 86_400 + 2_592_000
    assert run.status == "completed"


def test_failures_come_in_the_order_they_were_asked_for(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TimeoutError("slow"))
        rehearsal.fail("charge", PermanentError("card refused", error_type="card_refused"))
        run = rehearsal.run("order", {"id": 1})
    assert run.error_types == ["timeout", "card_refused"]
    assert run.dead_reason == "permanent"
    assert run.error is not None
    assert (run.error.stage, run.error.category) == ("charge", "permanent")
    assert run.error.rule == "raised as PermanentError"
    assert shop.called == ["reserve"]


def test_a_failure_after_the_handler_leaves_what_the_handler_did(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", ConnectionResetError("lost the answer"), after=True)
        run = rehearsal.run("order", {"id": 1})
    assert run.status == "completed"
    assert shop.called == ["reserve", "charge", "charge", "ship"]


def test_a_failure_can_pick_the_execution_it_is_for(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", PermanentError("no"), times=None, when=lambda ctx: ctx.workload["id"] == 2)
        for number in (1, 2, 3):
            rehearsal.submit("order", {"id": number})
        assert [run.status for run in rehearsal.drain()] == ["completed", "failed", "completed"]


def test_a_retry_after_of_the_error_lengthens_the_delay(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TransientError("busy", retry_after=90))
        assert rehearsal.run("order", {"id": 1}).delays == {"charge": [90.0]}


# Lost workers and timeouts


@pytest.mark.parametrize(("after", "calls"), [(False, 1), (True, 2)])
def test_a_lost_worker_is_found_when_its_lease_runs_out(shop: Shop, after: bool, calls: int) -> None:
    with Rehearsal(shop.hf, lease_seconds=45) as rehearsal:
        rehearsal.lose_worker("charge", after=after)
        run = rehearsal.run("order", {"id": 1})
        assert rehearsal.clock.elapsed == 46.0  # the lease, and the policy's delay
    assert run.status == "completed"
    assert run.error_types == ["worker_lost"]
    assert "lease_lost" in [event.type for event in run.events]
    assert shop.called.count("charge") == calls


def test_a_job_whose_worker_always_dies_is_poisoned(sqlite_url: str) -> None:
    shop = Shop(sqlite_url, retry=Retry(max_attempts=50), max_crashes=2)
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.lose_worker("charge", times=None)
        run = rehearsal.run("order", {"id": 1})
    assert run.dead_reason == "poisoned"
    assert run.attempts["charge"] == 3  # one beside others, two alone
    assert shop.called == ["reserve"]


def test_a_timeout_takes_its_time_on_the_clock(sqlite_url: str) -> None:
    shop = Shop(sqlite_url, timeout="10m", retry=Retry(max_attempts=2, jitter=True))
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.time_out("charge", times=2)
        run = rehearsal.run("order", {"id": 1})
        assert rehearsal.clock.elapsed == 1201.0
    assert run.dead_reason == "exhausted"
    assert run.error is not None
    assert run.error.error_type == "timeout"
    assert "timeout of 600 s" in run.error.message


def test_a_deadline_ends_an_execution_that_waits_for_its_retry(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TransientError("busy", retry_after=1000))
        run = rehearsal.run("order", {"id": 1}, deadline="5m")
        assert run.status == "failed"
        assert rehearsal.clock.elapsed == 300.0


def test_a_delayed_submit_starts_when_it_is_due(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.submit("order", {"id": 1}, delay="1h")
        assert [run.ran for run in rehearsal.drain(within="59m")] == [[]]
        assert rehearsal.clock.elapsed == 59 * 60
        assert [run.status for run in rehearsal.drain(within="1m")] == ["completed"]
        assert rehearsal.clock.elapsed == 3600


# Stand-ins for handlers


def test_a_replaced_handler_is_run_in_the_place_of_the_real_one(shop: Shop) -> None:
    async def pay_nothing(ctx: Context) -> int:
        return 5

    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.replace("charge", pay_nothing)
        rehearsal.replace("order/ship", lambda ctx: ctx.outputs["charge"] + 1)
        assert rehearsal.run("order", {"id": 1}).outputs["ship"] == 6
    assert shop.called == ["reserve"]
    with Rehearsal(shop.hf) as rehearsal:
        assert rehearsal.run("order", {"id": 1}).outputs["ship"] == 10


@pytest.mark.parametrize("fails", [AssertionError("amount"), pytest.fail.Exception("must not be called")])
def test_an_assertion_in_a_stand_in_fails_the_test_and_not_the_attempt(
    shop: Shop, fails: BaseException
) -> None:
    def check(ctx: Context) -> None:
        raise fails

    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.replace("charge", check)
        with pytest.raises(type(fails), match=str(fails)):
            rehearsal.run("order", {"id": 1})
        rehearsal.replace("charge", lambda ctx: ctx.attempt)
        [run] = rehearsal.drain()
        assert (run.status, run.outputs["charge"]) == ("completed", 1)


def test_an_injected_assertion_error_is_the_pipelines(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.replace("charge", lambda ctx: 1)
        rehearsal.fail("charge", AssertionError("injected"))
        assert rehearsal.run("order", {"id": 1}).status == "failed"


def test_an_interrupt_ends_the_test_and_leaves_nothing_behind(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(ctx: Context) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Rehearsal(shop.hf) as rehearsal:
        rehearsal.replace("charge", interrupted)
        rehearsal.run("order", {"id": 1})
    assert shop.called == ["reserve"]
    gc.collect()
    assert "never retrieved" not in caplog.text


# Retrying, cancelling


def test_a_manual_retry_resumes_at_the_failed_stage_and_obeys_the_cooldown(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TimeoutError, times=6)
        run = rehearsal.run("order", {"id": 1})
        assert run.status == "failed"
        run = rehearsal.retry(run)
        with pytest.raises(RetryRefused) as refused:
            rehearsal.retry(run)
        assert refused.value.code == "cooldown"
        rehearsal.clock.advance("60s")
        run = rehearsal.retry(run, by="ana")
    assert run.status == "completed"
    assert run.attempts == {"reserve": 1, "charge": 7, "ship": 1}
    assert run.ran[-2:] == [("charge", 1), ("ship", 1)]
    assert shop.called == ["reserve", "charge", "ship"]


def test_a_retry_of_a_permanent_error_is_refused_unless_it_is_forced(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", ValueError("no such card"))
        run = rehearsal.run("order", {"id": 1})
        with pytest.raises(RetryRefused):
            rehearsal.retry(run)
        assert rehearsal.retry(run, force=True).status == "completed"


def test_the_clear_hook_runs_before_a_retried_stage(sqlite_url: str) -> None:
    cleared: list[int] = []
    shop = Shop(sqlite_url, retry=False, clear=lambda ctx: cleared.append(ctx.round))
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TimeoutError, after=True)
        run = rehearsal.run("order", {"id": 1})
        assert cleared == []
        assert rehearsal.retry(run).status == "completed"
    assert cleared == [2]


def test_a_cancelled_execution_runs_no_more(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        run = rehearsal.submit("order", {"id": 1})
        assert run.status == "running"
        assert rehearsal.cancel(run, by="ana").status == "cancelled"
        assert [run.ran for run in rehearsal.drain()] == [[]]


# Submitting from handlers, and from the program under test


def followed_up(url: str) -> Holdfast:
    hf = Holdfast(url)

    async def first(ctx: Context) -> int:
        return (await hf.submit("second", {"of": ctx.execution_id}, delay="2h")).id

    async def waits(ctx: Context) -> Any:
        child = await hf.submit("flaky", 3)
        return (await child.wait(within=30)).outputs

    hf.pipeline("first", [first])
    hf.pipeline("second", [hf.step(name="note")(lambda ctx: ctx.workload)])
    hf.pipeline("flaky", [hf.step(name="work", retry=Retry(delays=["10m"]))(lambda ctx: ctx.workload)])
    hf.pipeline("waits", [waits])
    return hf


def test_what_a_handler_submits_goes_to_the_rehearsal_and_is_drained(sqlite_url: str, tmp_path: Path) -> None:
    hf = followed_up(sqlite_url)
    with Rehearsal(hf) as rehearsal:
        run = rehearsal.run("first")
        assert run.status == "completed"
        assert [item.status for item in rehearsal.runs("second")] == ["running"]
        assert rehearsal.clock.elapsed == 0
        first, second = rehearsal.drain()
        assert first.outputs["first"] == second.id
        assert second.outputs == {"note": {"of": run.id}}
        assert rehearsal.clock.elapsed == 7200
    assert list(tmp_path.iterdir()) == []  # the program's own database was never touched


def test_a_handler_may_wait_for_work_it_submitted(sqlite_url: str) -> None:
    with Rehearsal(followed_up(sqlite_url)) as rehearsal:
        rehearsal.fail("work", TimeoutError)
        run = rehearsal.run("waits")
        assert run.outputs == {"waits": {"work": 3}}
        # The lease of the handler that waited was kept alive meanwhile.
        assert run.attempts == {"waits": 1}
        assert rehearsal.clock.elapsed == 600


def test_waiting_for_what_never_ends_is_told(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    async def waits_for_itself(ctx: Context) -> None:
        await hf.wait(ctx.execution_id)

    hf.pipeline("ring", [waits_for_itself])
    with pytest.raises(RehearsalFailed, match="will never end"), Rehearsal(hf) as rehearsal:
        rehearsal.run("ring")


def test_a_program_that_runs_in_another_event_loop_submits_to_the_rehearsal(sqlite_url: str) -> None:
    """As a web framework's test client does."""
    hf = followed_up(sqlite_url)
    errors: list[BaseException] = []

    def request() -> None:
        try:
            asyncio.run(endpoint())
        except BaseException as error:
            errors.append(error)

    async def endpoint() -> None:
        await hf.submit("second", "from a thread")
        view = await (await hf.submit("flaky", "waited for")).wait()
        assert view.status == "completed"

    with Rehearsal(hf) as rehearsal:
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
        assert errors == []
        rehearsal.do(endpoint())
        assert [run.status for run in rehearsal.drain()] == ["completed"] * 4


@pytest.mark.parametrize("slowly", [False, True])
def test_two_tasks_of_a_test_may_wait_at_once(
    sqlite_url: str, slowly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the second asks for the next moment before the first has moved the clock to it."""
    hf = followed_up(sqlite_url)
    next_moment = InlineWorker._next_moment

    async def asked_slowly(worker: InlineWorker, *asked: Any) -> float | None:
        moment = await next_moment(worker, *asked)
        await asyncio.sleep(0.05)
        return moment

    if slowly:
        monkeypatch.setattr(InlineWorker, "_next_moment", asked_slowly)

    async def test() -> float:
        async with AsyncRehearsal(hf) as rehearsal:
            rehearsal.fail("work", TimeoutError, times=2)
            executions = [await hf.submit("waits") for _ in range(2)]
            views = await asyncio.gather(*(execution.wait() for execution in executions))
            assert [view.status for view in views] == ["completed", "completed"]
            return rehearsal.clock.elapsed

    assert run_async(test()) == 600


def test_time_does_not_pass_while_one_of_two_children_is_at_work(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    async def parent(ctx: Context) -> list[int]:
        children = [await hf.submit("flaky"), await hf.submit("slow", 2)]
        await asyncio.gather(*(child.wait() for child in children))
        return [child.id for child in children]

    async def slow(ctx: Context) -> None:
        async def other_waits() -> bool:
            return (await hf.status(ctx.workload)).summary.startswith("Retrying")

        await eventually(other_waits)
        await asyncio.sleep(0.02)  # work of its own, while the other waits for its retry

    hf.pipeline("parent", [parent])
    hf.pipeline("slow", [slow])
    hf.pipeline("flaky", [hf.step(name="work", retry=Retry(delays=["10m"]))(lambda ctx: None)])
    with Rehearsal(hf) as rehearsal:
        rehearsal.fail("work", TimeoutError)
        run = rehearsal.run("parent").expect("completed")
        assert run.outputs["parent"] == [2, 3]
        flaky, slowly = rehearsal.look(2), rehearsal.look(3)
        assert slowly.events[-1].at - slowly.events[0].at == 0
        assert flaky.events[-1].at - flaky.events[0].at == 600


# The program's own engine


def test_the_programs_own_engine_is_back_afterwards_and_was_not_harmed(shop: Shop) -> None:
    async def test() -> None:
        hf = shop.hf
        before = await hf.submit("order", {"id": 1}, idempotency_key="real")
        engine = await hf.engine()
        async with AsyncRehearsal(hf) as rehearsal:
            async with hf:  # must not close the real one
                assert (await hf.submit("order", {"id": 2}, idempotency_key="real")).created
            assert len(await rehearsal.drain()) == 1
            assert (await engine.view(before.id)).execution.workload == {"id": 1}
        assert await hf.engine() is engine
        again = await hf.submit("order", {"id": 1}, idempotency_key="real")
        assert (again.id, again.created) == (before.id, False)
        async with hf, hf.working():
            assert (await before.wait(within=30)).status == "completed"
            assert len((await hf.executions()).items) == 1

    run_async(test())


def test_the_engine_is_given_back_after_an_error_too(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Rehearsal(shop.hf) as rehearsal:
        folder = rehearsal.path.parent
        raise ZeroDivisionError
    assert not folder.exists()
    with Rehearsal(shop.hf) as rehearsal:
        assert rehearsal.run("order", {"id": 1}).id == 1


def test_no_worker_can_be_started_during_a_rehearsal(shop: Shop) -> None:
    async def work() -> None:
        async with shop.hf.working():
            pass

    with Rehearsal(shop.hf) as rehearsal, pytest.raises(InvalidInput, match="during a rehearsal"):
        rehearsal.do(work())


# Plain and async tests


def test_an_async_test_awaits_the_same(shop: Shop) -> None:
    async def test() -> None:
        async with AsyncRehearsal(shop.hf) as rehearsal:
            rehearsal.fail("charge", TimeoutError, times=3)
            run = await rehearsal.run("order", {"id": 7})
            assert run.dead_reason == "exhausted"
            rehearsal.lose_worker("ship", after=True)
            rehearsal.time_out("ship")
            run = await rehearsal.retry(run)
            assert run.status == "failed"
            assert run.error_types[3:] == ["worker_lost"]
            rehearsal.clock.advance(60)
            run = await rehearsal.retry(run, from_stage="charge")
            assert run.error_types[4:] == ["timeout"]
            submitted = await rehearsal.submit("order", {"id": 8})
            assert (await rehearsal.cancel(submitted)).status == "cancelled"
            assert (await rehearsal.look(submitted.id)).status == "cancelled"
            assert len(await rehearsal.runs("order")) == len(await rehearsal.drain()) == 2

    run_async(test())


def test_plain_handlers_run_in_the_thread_of_a_plain_test(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)
    with Rehearsal(shop.hf) as rehearsal:
        # It would be refused inside an event loop.
        rehearsal.replace(
            "ship", shop.handler(lambda ctx: asyncio.run(shop.hf.submit("order", {"id": 9})).id)
        )
        assert rehearsal.run("order", {"id": 1}).outputs["ship"] == 2
    assert shop.threads == {threading.get_ident()}


def test_a_plain_rehearsal_in_an_async_test_is_refused_with_what_to_write(shop: Shop) -> None:
    async def test() -> None:
        with pytest.raises(InvalidInput) as refused, Rehearsal(shop.hf):
            pass
        assert "AsyncRehearsal" in refused.value.guidance

    run_async(test())


def test_a_plain_handler_that_really_takes_too_long_is_timed_out(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, timeouts = Shop(sqlite_url, timeout="1h"), Timeouts(monkeypatch)
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.replace("charge", lambda ctx: timeouts.expire() if ctx.attempt == 1 else None)
        run = rehearsal.run("order", {"id": 1})
    assert run.error_types[0] == "timeout"
    assert run.attempts["charge"] == 2


def test_a_step_of_another_process_runs_in_this_one_and_has_no_transaction(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.pipeline(
        "isolated",
        [hf.step(isolation="process")(own_process), hf.step(isolation="process")(wants_a_transaction)],
    )
    with Rehearsal(hf) as rehearsal:
        run = rehearsal.run("isolated")
    assert run.outputs == {"own_process": os.getpid()}
    assert isinstance(run.exceptions[-1], TransactionUnavailable)


def own_process(ctx: Context) -> int:
    return os.getpid()


def wants_a_transaction(ctx: Context) -> None:
    with ctx.transaction():
        pass


# Mistakes in the test


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        (lambda r: r.fail("chrage", TimeoutError), "no step 'chrage'"),
        (lambda r: r.lose_worker("order/chrage"), "no step 'order/chrage'"),
        (lambda r: r.time_out(""), "no step ''"),
        (lambda r: r.replace("chrage", lambda ctx: 1), "no step 'chrage'"),
        (lambda r: r.run("ordre"), "no pipeline 'ordre'"),
        (lambda r: r.runs("ordre"), "no pipeline 'ordre'"),
        (lambda r: r.look(99), "99"),
    ],
)
def test_a_name_that_is_not_known_is_told_at_once(shop: Shop, mistake: Any, problem: str) -> None:
    with Rehearsal(shop.hf) as rehearsal, pytest.raises(UnknownName, match=problem) as refused:
        mistake(rehearsal)
    assert refused.value.guidance or "99" in problem


@pytest.mark.parametrize(
    "mistake",
    [
        lambda r: r.fail("charge", "timeout"),
        lambda r: r.fail("charge", KeyboardInterrupt),
        lambda r: r.fail("charge", UnicodeDecodeError),
        lambda r: r.fail("charge", TimeoutError, times=0),
        lambda r: r.fail("charge", TimeoutError, times=True),
        lambda r: r.fail("charge", TimeoutError, when="always"),
        lambda r: r.replace("charge", lambda: None),
        lambda r: r.replace("charge", 5),
        lambda r: r.clock.advance("soon"),
        lambda r: r.clock.advance(-1),
        lambda r: r.drain(within="soon"),
        lambda r: Rehearsal(r),
        lambda r: Rehearsal(r._hf, lease_seconds=0),
        lambda r: Rehearsal(r._hf, attempts_max=0),
        lambda r: Rehearsal(r._hf, url="sqlite:///mine.db"),
        lambda r: Rehearsal(r._hf).__enter__(),
        lambda r: Rehearsal(r._hf).run("order"),
        lambda r: r.do(use_inside_a_coroutine(r)),
        lambda r: r.run("order", {"id": 1}).expect("done"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(shop: Shop, mistake: Any) -> None:
    with Rehearsal(shop.hf) as rehearsal, pytest.raises(InvalidInput) as refused:
        mistake(rehearsal)
    assert str(refused.value)


def test_a_rehearsal_used_by_a_handler_of_its_own_is_told(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.replace("ship", lambda ctx: rehearsal.run("order", {"id": 2}).id)
        run = rehearsal.run("order", {"id": 1})
    assert "from inside a handler" in str(run.exceptions[-1])


def test_a_step_name_of_several_pipelines_needs_its_pipeline(shop: Shop) -> None:
    shop.hf.pipeline("refund", [shop.hf.step(name="charge")(lambda ctx: None)])
    with Rehearsal(shop.hf) as rehearsal:
        with pytest.raises(InvalidInput) as refused:
            rehearsal.fail("charge", TimeoutError)
        assert "order/charge, refund/charge" in refused.value.guidance
        rehearsal.fail("refund/charge", ValueError)
        assert rehearsal.run("order", {"id": 1}).status == "completed"
        assert rehearsal.run("refund").status == "failed"


def test_a_failure_that_did_not_happen_fails_the_test(shop: Shop) -> None:
    with pytest.raises(RehearsalFailed) as failed, Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TimeoutError("gateway"), times=2)
        rehearsal.lose_worker("ship", times=None)
        rehearsal.fail("charge", ValueError)  # after one timeout: never reached by the first run
        rehearsal.cancel(rehearsal.submit("order", {"id": 1}))
    told = str(failed.value)
    assert "fail('charge', TimeoutError('gateway')) at test_rehearsal.py:" in told
    assert "happened 0 of 2 times" in told
    assert "lose_worker('ship')" in told


def test_an_error_of_the_test_is_not_hidden_by_failures_that_did_not_happen(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", TimeoutError)
        raise ZeroDivisionError


def test_what_never_ends_is_ended(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    async def again(ctx: Context) -> None:
        await hf.submit("again", delay="1d")

    hf.pipeline("again", [again])
    with (
        pytest.raises(RehearsalFailed, match="20 attempts, the last at step again"),
        Rehearsal(hf, attempts_max=20) as rehearsal,
    ):
        rehearsal.submit("again")
        rehearsal.drain()


def test_an_expectation_that_fails_tells_the_story_and_shows_what_was_raised(shop: Shop) -> None:
    with Rehearsal(shop.hf) as rehearsal:
        rehearsal.fail("charge", ValueError("card number"))
        run = rehearsal.run("order", {"id": 1})
    assert run.expect("failed") is run
    with pytest.raises(RehearsalFailed) as failed:
        run.expect("completed")
    assert "Failed at charge" in str(failed.value)
    assert "action_error charge" in str(failed.value)
    assert failed.value.__cause__ is run.exceptions[0]
    assert "validation_error" in repr(run)


# ctx.transaction()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_transaction_of_a_stage_that_runs_twice_is_committed_once(sqlite_url: str, is_async: bool) -> None:
    hf = Holdfast(sqlite_url)
    tries: list[int] = []

    def book(ctx: Context) -> None:
        tries.append(ctx.attempt)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO bookings VALUES ($1)", ctx.attempt)

    async def book_async(ctx: Context) -> None:
        tries.append(ctx.attempt)
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO bookings VALUES ($1)", ctx.attempt)

    hf.pipeline("booking", [hf.step(name="book", retry=5)(book_async if is_async else book)])
    with Rehearsal(hf) as rehearsal:
        with apsw.Connection(str(rehearsal.path)) as db:
            db.execute("CREATE TABLE bookings (attempt integer)")
        rehearsal.lose_worker("book", after=True)
        rehearsal.fail("book", ConnectionResetError, after=True)
        rehearsal.time_out("book", after=True)
        rehearsal.run("booking").expect("completed")
        assert tries == [1, 2, 3, 4]
        assert db.execute("SELECT attempt FROM bookings").fetchall() == [(4,)]
        db.close()


# PostgreSQL


def test_a_rehearsal_can_run_on_postgresql(shop: Shop, postgres_url: str) -> None:
    with Rehearsal(shop.hf, url=postgres_url) as rehearsal:
        rehearsal.fail("charge", TimeoutError)
        rehearsal.lose_worker("charge")
        run = rehearsal.run("order", {"id": 1}).expect("completed")
        assert run.delays == {"charge": [1.0, 2.0]}
        assert rehearsal.clock.elapsed == 63
        rehearsal.submit("order", {"id": 2}, delay="1h")
        with pytest.raises(InvalidInput, match="another event loop"):
            asyncio.run(shop.hf.submit("order", {"id": 3}))
        with pytest.raises(InvalidInput):
            print(rehearsal.path)
    with Rehearsal(shop.hf, url=postgres_url) as rehearsal:  # nothing was left running
        assert [run.status for run in rehearsal.runs()] == ["completed", "cancelled"]
        assert rehearsal.run("order", {"id": 4}).status == "completed"


def test_a_database_in_use_is_refused(shop: Shop, postgres_url: str) -> None:
    in_use = Shop(postgres_url)

    async def submit() -> None:
        async with in_use.hf:
            await in_use.hf.submit("order", {"id": 1})

    run_async(submit())
    with pytest.raises(InvalidInput, match="still running"), Rehearsal(shop.hf, url=postgres_url):
        pass


def test_a_submit_in_a_transaction_of_the_callers_needs_a_rehearsal_on_postgresql(postgres_url: str) -> None:
    shop = Shop(postgres_url)

    async def submit(number: int, connection: Any) -> None:
        async with connection.transaction():
            await shop.hf.submit("order", {"id": number}, connection=connection)

    async def test() -> None:
        connection = await asyncpg.connect(postgres_url)
        async with AsyncRehearsal(shop.hf, url=postgres_url) as rehearsal:
            await submit(1, connection)
            assert [run.status for run in await rehearsal.drain()] == ["completed"]
        async with AsyncRehearsal(shop.hf) as rehearsal:
            with pytest.raises(InvalidInput, match="no PostgreSQL"):
                await submit(2, connection)
        assert await connection.fetchval("SELECT count(*) FROM holdfast.executions") == 1
        await connection.close()

    run_async(test())
