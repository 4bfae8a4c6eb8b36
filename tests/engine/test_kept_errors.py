"""What is kept of an error, what people are told while it may heal and when it is final, and the log."""

import logging

import msgspec
import pytest

from engine_scenario import START, Scenario, on_both_stores, stage
from holdfast.core.failures import ErrorRule
from holdfast.core.model import EventType, RetryNote


@on_both_stores
async def test_an_error_is_stored_with_all_its_fields(s: Scenario) -> None:
    await s.define(stage("a", attempts=2))
    id_ = await s.submit()
    trace = "the beginning " + "x" * 2_000 + " the end"
    s.tick(5)
    await s.fail(await s.lease_one(), "connection refused", stack_trace=trace)
    error = (await s.execution(id_)).error
    assert error is not None
    assert (error.error_type, error.category, error.stage) == ("connection_error", "transient", "a")
    assert (error.message, error.timestamp, error.retry_count) == ("connection refused", START + 5, 0)
    assert error.user_message == "Network connection error"
    assert error.guidance == "Will retry automatically."
    assert "connection" in error.rule
    assert not error.final
    assert (len(error.stack_trace), error.stack_trace[-8:]) == (500, " the end")
    told = (await s.last_event(id_, EventType.ACTION_ERROR)).data
    assert told["stack_trace"] == trace
    assert (told["attempt"], told["error_type"], told["rule"]) == (1, "connection_error", error.rule)
    s.tick(1)
    await s.fail(await s.lease_one(), "connection refused")
    error = (await s.execution(id_)).error
    assert error is not None
    assert (error.retry_count, error.final) == (1, True)


@on_both_stores
async def test_a_final_error_no_longer_promises_a_retry(s: Scenario) -> None:
    await s.define(stage("a", attempts=2))
    id_ = await s.submit()
    await s.fail(await s.lease_one())
    assert (await s.engine.view(id_)).summary == "Retrying (attempt 1/1)"
    s.tick(1)
    await s.fail(await s.lease_one())
    view = await s.engine.view(id_)
    assert view.execution.error is not None
    assert view.execution.error.guidance
    for text in (
        view.execution.error.guidance,
        view.summary,
        (await s.last_event(id_, EventType.EXECUTION_FAILED)).data["guidance"],
        (await s.last_event(id_, EventType.ACTION_ERROR)).data["guidance"],
    ):
        assert "will retry" not in text.lower()


@on_both_stores
async def test_the_history_keeps_the_last_ten_and_counters_count_all(s: Scenario) -> None:
    await s.define(stage("a", attempts=13, initial_delay=0))
    id_ = await s.submit()
    for number in range(1, 14):
        s.tick(1)
        await s.fail(await s.lease_one(), f"connection refused #{number}")
    execution = await s.execution(id_)
    assert [note.attempt for note in execution.retry_history] == list(range(4, 14))
    last = RetryNote(13, "a", "connection_error", "connection refused #13", START + 13)
    assert execution.retry_history[-1] == last
    assert execution.retry_count == 12
    await s.retry(id_)
    await s.complete(await s.lease_one())
    execution = await s.execution(id_)
    assert (execution.error, execution.retry_count) == (None, 12)
    assert execution.retry_history[-1] == last


@on_both_stores
async def test_own_rules_come_first_the_steps_before_the_pipelines(s: Scenario) -> None:
    ready = ErrorRule("not_ready", category="transient", status=404, user_message="Not there yet")
    gone = ErrorRule("gone", category="permanent", status=404)
    await s.define(stage("a", errors=(ready,)), stage("b"), errors=(gone,))
    id_ = await s.submit()
    await s.fail(await s.lease_one(), "no such thing", status_code=404)
    error = (await s.execution(id_)).error
    assert error is not None
    assert (error.error_type, error.user_message) == ("not_ready", "Not there yet")
    s.tick(1)
    await s.complete(await s.lease_one())
    assert (await s.execution(id_)).error is None
    await s.fail(await s.lease_one(), "no such thing", status_code=404)
    assert (await s.job(id_)).dead_reason == "permanent"


@on_both_stores
async def test_a_retry_after_postpones_the_retry(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    await s.fail(await s.lease_one(), "slow down", status_code=429, retry_after=30.0)
    assert (await s.job(id_)).available_at == START + 30


@on_both_stores
async def test_unknown_errors_are_limited_by_their_own_count(s: Scenario) -> None:
    await s.define(stage("a", attempts=5, unknown_attempts=2, initial_delay=0))
    id_ = await s.submit()
    await s.fail(await s.lease_one(), "who knows")
    await s.fail(await s.lease_one(), "connection refused")
    assert await s.state(id_) == "retry 2/5"
    await s.fail(await s.lease_one(), "who knows")
    assert (await s.state(id_), (await s.job(id_)).dead_reason) == ("dead 3/5", "unknown_limit")
    assert "step_retry_exhausted a" not in await s.told(id_)


@on_both_stores
async def test_what_may_heal_is_logged_as_a_warning_and_the_rest_as_an_error(
    s: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    await s.define(stage("a"))
    await s.submit()
    await s.submit()
    first, second = await s.lease()
    await s.fail(first, "connection refused by https://ann:hunter22@db.example/")
    await s.fail(second, "file corrupted")
    logged = [record for record in caplog.records if record.name == "holdfast.engine"]
    assert [record.levelno for record in logged] == [logging.WARNING, logging.ERROR]
    assert "connection_error" in logged[0].getMessage()
    assert "hunter22" not in caplog.text


@on_both_stores
async def test_a_failure_is_logged_where_anybody_listens(
    s: Scenario, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, heard = logging.getLogger("holdfast"), Heard()
    monkeypatch.setattr(ours, "propagate", False)
    monkeypatch.setattr(ours, "handlers", [])
    await s.define(stage("a", attempts=50, initial_delay=0))
    await s.submit()

    async def fail_once(message: str) -> None:
        await s.fail(await s.lease_one(), message)

    await fail_once("connection refused at first")  # nobody has set up logging: Python's last resort
    assert "connection refused at first" in capsys.readouterr().err
    ours.addHandler(logging.NullHandler())
    await fail_once("connection refused again")
    assert capsys.readouterr().err == ""
    ours.addHandler(heard)
    await fail_once("connection refused a third time")
    heard.setLevel(logging.ERROR)
    await fail_once("connection refused a fourth time")
    heard.setLevel(logging.NOTSET)
    logging.getLogger("holdfast.engine").setLevel(logging.ERROR)
    await fail_once("connection refused a fifth time")
    logging.getLogger("holdfast.engine").setLevel(logging.NOTSET)
    await fail_once("connection refused a sixth time")
    told = [record.getMessage().rpartition(": ")[2] for record in heard.records]
    assert told == ["connection refused a third time", "connection refused a sixth time"]
    assert "attempt 3 of 50: connection_error (transient; rule: " in heard.records[0].getMessage()
    assert {record.levelno for record in heard.records} == {logging.WARNING}


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@on_both_stores
async def test_the_log_tells_the_whole_trace_and_the_execution_its_end(s: Scenario) -> None:
    await s.define(stage("a", attempts=3, initial_delay=0))
    id_ = await s.submit()
    for trace in ("short", 'a "quoted" line\n' + "x" * 900 + "the end", ""):
        await s.fail(await s.lease_one(), stack_trace=trace)
        error = (await s.execution(id_)).error
        told = (await s.last_event(id_, EventType.ACTION_ERROR)).data
        assert error is not None and error.stack_trace == trace[-500:]
        assert told.pop("attempt") == error.retry_count + 1
        assert told == msgspec.to_builtins(error) | {"stack_trace": trace}
