"""Steps in processes of their own, real ones: what they may do, and what their end is told as."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.processes import is_alive
from holdfast import Context, Holdfast
from holdfast.core.errors import DefinitionInvalid
from holdfast.core.model import ExecutionStatus
from holdfast.engine import ExecutionView
from holdfast.worker import processes
from holdfast.worker.attempt import Attempt
from holdfast.worker.isolation import ProcessIsolation, isolation_from
from running import eventually, run
from worker import isolated_steps as steps

ENDS_SOON = 60.0
SCRIPT = Path(__file__).parent / "isolated_app.py"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a process has ended is waited for, however long the system takes to tell."""
    monkeypatch.setattr(processes, "END_SECONDS_MAX", ENDS_SOON)


def app(url: str, *functions: Any) -> Holdfast:
    """An app with a pipeline of one step for each function, by its name."""
    hf = Holdfast(url)
    for function in functions:
        hf.pipeline(name_of(function), [function])
    return hf


def name_of(step: Any) -> str:
    return str(getattr(step, "name", None) or step.__name__)


def views(url: str, *calls: tuple[Any, Any], **options: Any) -> list[ExecutionView]:
    """How calls of steps end, one after the other in one worker."""
    hf = app(url, *{name_of(step): step for step, _ in calls}.values())

    async def scenario() -> list[ExecutionView]:
        async with hf, hf.working(**options):
            return [
                await (await hf.submit(name_of(step), workload)).wait(ENDS_SOON) for step, workload in calls
            ]

    return run(scenario(), 120)


def told(view: ExecutionView) -> tuple[str, str, str]:
    error = view.execution.error
    assert error is not None
    return error.error_type, error.category.value, error.message


def pid_in(path: Path) -> int:
    """Written by a step; 0 where it is not there yet."""
    return int(path.read_text() or 0) if path.exists() else 0


# ── what it may do ──


def test_a_step_runs_in_another_process_and_the_next_call_finds_it_warm(store_url: str) -> None:
    first, second = views(store_url, (steps.doubled, {"number": 3}), (steps.doubled, {"number": 4}))
    pid = first.outputs["doubled"]["pid"]
    assert pid != os.getpid()
    assert first.outputs["doubled"] == {"twice": 6, "pid": pid, "step": "doubled"}
    assert second.outputs["doubled"] == {"twice": 8, "pid": pid, "step": "doubled"}


def test_what_a_handler_forks_does_not_answer_for_it(sqlite_url: str) -> None:
    calls = ["one", "raises", "three", "four"]
    ends = views(sqlite_url, *[(steps.forks, workload) for workload in calls])
    assert [view.outputs.get("forks") for view in ends] == [f"from {workload}" for workload in calls]


def test_it_sees_the_outputs_of_earlier_stages_wherever_they_ran(sqlite_url: str) -> None:
    def parse(ctx: Context) -> str:
        return "parsed"

    hf = Holdfast(sqlite_url)
    hf.pipeline("both", [parse, steps.doubled])

    async def scenario() -> None:
        async with hf, hf.working():
            view = await (await hf.submit("both", {"number": 1})).wait(ENDS_SOON)
        assert view.outputs["doubled"]["parse"] == "parsed"

    run(scenario())


def test_async_functions_share_one_event_loop_for_the_life_of_the_process(sqlite_url: str) -> None:
    first, second = views(sqlite_url, *[(steps.doubled_later, {"number": number}) for number in (1, 2)])
    assert [view.outputs["doubled_later"]["twice"] for view in (first, second)] == [2, 4]
    assert first.outputs["doubled_later"]["pid"] == second.outputs["doubled_later"]["pid"]


def test_its_progress_is_shown_with_the_job(sqlite_url: str, tmp_path: Path) -> None:
    hf = app(sqlite_url, steps.told_then_ended)
    workload = {"pid": str(tmp_path / "pid"), "go on": str(tmp_path / "go on")}

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("told_then_ended", workload)

            async def progress() -> bool:
                return (await hf.queue()).items[0].progress == 0.75

            await eventually(progress, ENDS_SOON)
            (tmp_path / "go on").touch()
            assert (await execution.wait(ENDS_SOON)).outputs == {"told_then_ended": "ended"}

    run(scenario(), 120)


def test_its_clear_hook_runs_in_a_process_too(sqlite_url: str, tmp_path: Path) -> None:
    hf, undone = app(sqlite_url, steps.fails_in_its_first_round), tmp_path / "undone"

    async def scenario() -> None:
        async with hf, hf.working():
            execution = await hf.submit("fails_in_its_first_round", {"undone": str(undone)})
            await execution.wait(ENDS_SOON)
            await hf.retry(execution.id, force=True)
            view = await execution.wait(ENDS_SOON)
        assert undone.read_text().split() == [str(view.outputs["fails_in_its_first_round"])]

    run(scenario())


def test_there_is_no_transaction_in_a_process_and_the_error_says_so(sqlite_url: str) -> None:
    [view] = views(sqlite_url, (steps.asks_for_a_transaction, None))
    _, category, message = told(view)
    assert category == "permanent"
    assert "ctx.transaction()" in message


# ── errors ──


def test_what_it_raises_is_told_as_if_it_had_run_in_the_worker(sqlite_url: str) -> None:
    isolated, inside = views(sqlite_url, (steps.divides, "0"), (steps.in_the_worker, "0"))
    assert told(isolated) == told(inside) == ("validation_error", "permanent", "division by zero")
    for view in (isolated, inside):
        assert view.execution.error is not None
        trace = view.execution.error.stack_trace.splitlines()
        assert trace[1].startswith(f'  File "{steps.__file__}"'), trace
        assert len(trace) == 4


def test_a_typed_error_keeps_all_it_says(sqlite_url: str) -> None:
    [view] = views(sqlite_url, (steps.refuses, 7))
    assert told(view) == ("no_page", "permanent", "no page 7")
    assert view.execution.error is not None
    assert view.execution.error.guidance == "Ask for another."


@pytest.mark.parametrize(("workload", "words"), [("set", "has a set"), ("large", "the limit is 1,048,576")])
def test_a_result_that_cannot_be_stored_is_refused(sqlite_url: str, workload: str, words: str) -> None:
    [view] = views(sqlite_url, (steps.unstorable, workload))
    assert words in told(view)[2]
    assert view.jobs[0].dead_reason == "permanent"


def test_a_process_that_crashes_is_told_with_its_signal_and_where_it_was(sqlite_url: str) -> None:
    [view] = views(sqlite_url, (steps.segfaults, None))
    message = "Step segfaults's process was ended by SIGSEGV (segmentation fault)."
    assert told(view) == ("process_crashed", "transient", message)
    assert view.execution.error is not None
    assert view.execution.error.stack_trace.endswith(" in segfaults")


@pytest.mark.parametrize(
    ("step", "error_type", "category", "words"),
    [
        (
            steps.killed_by_another,
            "process_crashed",
            "transient",
            "SIGKILL (killed). The worker did not do that",
        ),
        (steps.exits_hard, "process_exited", "unknown", "ended with exit code 3"),
        (steps.exits, "process_exited", "unknown", "called exit('nothing to do')"),
        (steps.closes_everything, "process_exited", "unknown", "closed the connection"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_end_is_told_as_what_it_was_and_the_worker_goes_on(
    sqlite_url: str, step: Any, error_type: str, category: str, words: str
) -> None:
    ended, after = views(sqlite_url, (step, None), (steps.doubled, {"number": 1}), concurrency=1)
    assert told(ended)[:2] == (error_type, category)
    assert words in told(ended)[2]
    assert after.outputs["doubled"]["twice"] == 2


def test_a_rule_of_the_user_decides_about_crashes_too(sqlite_url: str) -> None:
    [view] = views(sqlite_url, (steps.segfaults_as_known, None))
    error_type, category, message = told(view)
    assert (error_type, category) == ("ours", "permanent")
    assert "SIGSEGV (segmentation fault). Its memory was limited to 1 GB;" in message
    assert view.jobs[0].attempts == 1


# ── limits ──

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a limit of memory")


@linux_only
@pytest.mark.parametrize("how", ["blocks", "objects", "mapping"])
def test_a_step_that_eats_memory_is_stopped_at_its_limit(sqlite_url: str, how: str) -> None:
    eaten, after = views(sqlite_url, (steps.eats, how), (steps.doubled, {"number": 1}), concurrency=1)
    message = "Step eats needed more memory than its limit of 160 MB."
    assert told(eaten) == ("memory_limit", "unknown", message)
    assert after.outputs["doubled"]["twice"] == 2


@linux_only
def test_a_process_that_holds_on_to_too_much_of_its_limit_is_replaced(sqlite_url: str) -> None:
    sizes = [1, 1, 100_000_000, 1]
    pids = [view.outputs["keeps"] for view in views(sqlite_url, *[(steps.keeps, size) for size in sizes])]
    assert pids[0] == pids[1] == pids[2] != pids[3]


def test_a_process_is_replaced_after_its_share_of_calls(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CALLS_PER_PROCESS_MAX", 2)
    calls = [(steps.doubled, {"number": number}) for number in range(3)]
    pids = [view.outputs["doubled"]["pid"] for view in views(sqlite_url, *calls)]
    assert pids[0] == pids[1] != pids[2]


@pytest.mark.parametrize(
    "step",
    [steps.sleeps, steps.sleeps_in_another_group, steps.holds_the_interpreter],
    ids=lambda step: step.name,
)
def test_a_step_that_blocks_for_ever_is_killed_and_its_slot_is_free(sqlite_url: str, step: Any) -> None:
    stuck, after = views(sqlite_url, (step, None), (steps.doubled, {"number": 1}), concurrency=1)
    message = f"Step {step.name} did not finish within its timeout of 0.5 s."
    assert told(stuck) == ("timeout", "transient", message)
    assert after.outputs["doubled"]["twice"] == 2


def test_what_a_step_has_started_is_killed_with_it(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time begins once the program runs, however long that takes here."""
    hf = app(sqlite_url, steps.starts_a_program)
    begin, beginning = Attempt._begin_timeout, list[asyncio.Task[None]]()

    async def begin_once_it_runs(attempt: Attempt) -> None:
        await eventually(lambda: pid_in(tmp_path / "pid"), ENDS_SOON)
        begin(attempt)

    def begin_later(attempt: Attempt) -> None:
        beginning.append(asyncio.create_task(begin_once_it_runs(attempt)))

    monkeypatch.setattr(Attempt, "_begin_timeout", begin_later)

    async def scenario() -> None:
        async with hf, hf.working():
            view = await (await hf.submit("starts_a_program", str(tmp_path / "pid"))).wait(ENDS_SOON)
            assert told(view)[0] == "timeout"
            program = pid_in(tmp_path / "pid")
            assert program
            await eventually(lambda: not is_alive(program), ENDS_SOON)

    run(scenario(), 120)


@pytest.mark.usefixtures("quick_heartbeats")
def test_a_cancelled_execution_kills_its_process(sqlite_url: str, tmp_path: Path) -> None:
    hf = app(sqlite_url, steps.told_then_ended, steps.doubled)
    workload = {"pid": str(tmp_path / "pid"), "go on": str(tmp_path / "never")}

    async def scenario() -> None:
        async with hf, hf.working(concurrency=1):
            execution = await hf.submit("told_then_ended", workload)
            pid = await eventually(lambda: pid_in(tmp_path / "pid"), ENDS_SOON)
            assert is_alive(pid)
            await hf.cancel(execution.id)
            await eventually(lambda: not is_alive(pid), ENDS_SOON)
            after = await (await hf.submit("doubled", {"number": 1})).wait(ENDS_SOON)
            assert after.outputs["doubled"]["twice"] == 2

    run(scenario(), 120)


# ── poison ──


def test_a_step_that_kills_its_process_is_poisoned_and_its_neighbours_complete(store_url: str) -> None:
    hf = app(store_url, steps.segfaults, steps.doubled)

    async def scenario() -> None:
        async with hf, hf.working(concurrency=2):
            killer = await hf.submit("segfaults")
            innocents = await hf.submit_many("doubled", [{"number": number} for number in range(20)])
            view = await killer.wait(ENDS_SOON)
            job = view.jobs[0]
            assert (job.dead_reason, job.attempts, job.max_attempts) == ("poisoned", 2, 5)
            for innocent in innocents:
                ended = await innocent.wait(ENDS_SOON)
                assert (ended.status, ended.jobs[0].attempts) == (ExecutionStatus.COMPLETED, 1)
            history = await killer.events()
        assert "lease_lost" not in {event.type for event in history}
        errors = [event for event in history if event.type == "action_error"]
        assert [event.data.get("crashed") for event in errors] == [True, True]

    run(scenario(), 180)


@pytest.mark.parametrize(("lane", "slots"), [("bulk", 3), ("manual", 2)])
def test_a_suspect_with_a_process_of_its_own_runs_beside_other_work(
    sqlite_url: str, tmp_path: Path, lane: str, slots: int
) -> None:
    """One of several slots is kept for manual work."""
    let_go, is_busy = threading.Event(), threading.Event()

    def busy(ctx: Context) -> None:
        is_busy.set()
        let_go.wait(ENDS_SOON)

    hf = app(sqlite_url, busy, steps.crashes_once)

    async def scenario() -> None:
        async with hf, hf.working(concurrency=slots):
            first = await hf.submit("busy")
            await eventually(is_busy.is_set, ENDS_SOON)
            crashing = await hf.submit("crashes_once", str(tmp_path / "crashed"), lane=lane)
            view = await crashing.wait(ENDS_SOON)
            assert view.outputs == {"crashes_once": 2}
            assert (await first.status()).status is ExecutionStatus.RUNNING
            let_go.set()
            await first.wait(ENDS_SOON)

    run(scenario(), 120)


def test_a_process_that_dies_while_idle_costs_no_attempt(sqlite_url: str) -> None:
    hf = app(sqlite_url, steps.doubled)

    async def scenario() -> None:
        async with hf, hf.working():
            first = await (await hf.submit("doubled", {"number": 1})).wait(ENDS_SOON)
            os.kill(first.outputs["doubled"]["pid"], signal.SIGKILL)
            second = await (await hf.submit("doubled", {"number": 2})).wait(ENDS_SOON)
        assert second.jobs[0].attempts == 1
        assert second.outputs["doubled"]["pid"] != first.outputs["doubled"]["pid"]

    run(scenario(), 120)


# ── starting and ending ──


def test_a_module_that_cannot_be_imported_fails_the_attempt_and_says_why(sqlite_url: str) -> None:
    [view] = views(sqlite_url, (steps.in_a_missing_module, None))
    error_type, category, message = told(view)
    assert (error_type, category) == ("unknown", "unknown")
    assert message.endswith("ModuleNotFoundError: No module named 'no_such_module_anywhere'")
    assert view.jobs[0].attempts == 5


@pytest.mark.parametrize(
    ("program", "words"),
    [("/no/such/python", "the system refused"), ("/bin/false", "ended with exit code 1")],
)
def test_a_process_that_cannot_start_fails_the_attempt_and_says_why(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    [view] = views(sqlite_url, (steps.doubled, {"number": 1}))
    assert told(view)[2].startswith("The process of step doubled could not be started: ")
    assert words in told(view)[2]


def test_starting_is_bounded_in_time(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_SECONDS_MAX", 0.0)
    [view] = views(sqlite_url, (steps.doubled, {"number": 1}))
    assert "was not ready to begin within 0 s" in told(view)[2]


def test_processes_end_with_their_worker(sqlite_url: str) -> None:
    [view] = views(sqlite_url, (steps.doubled, {"number": 1}))
    assert not is_alive(view.outputs["doubled"]["pid"])


def test_a_worker_that_is_dropped_kills_what_runs(sqlite_url: str, tmp_path: Path) -> None:
    hf = app(sqlite_url, steps.told_then_ended)
    workload = {"pid": str(tmp_path / "pid"), "go on": str(tmp_path / "never")}

    async def scenario() -> None:
        async with hf:
            worker = await hf.worker()
            working = asyncio.create_task(worker.run())
            await hf.submit("told_then_ended", workload)
            pid = await eventually(lambda: pid_in(tmp_path / "pid"), ENDS_SOON)
            working.cancel()
            await asyncio.wait([working])
            await eventually(lambda: not is_alive(pid), ENDS_SOON)

    run(scenario(), 120)


# ── real workers, whose step is in their own script ──


def start_worker(url: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT), url, *arguments])


def submitter(url: str) -> Holdfast:
    from worker import isolated_app

    hf = Holdfast(url)
    hf.pipeline("waits", [isolated_app.waits])
    return hf


def test_a_process_does_not_outlive_a_killed_worker(sqlite_url: str, tmp_path: Path) -> None:
    hf = submitter(sqlite_url)
    workload = {"pid": str(tmp_path / "pid"), "go on": "never"}

    async def scenario() -> None:
        async with hf:
            await hf.submit("waits", workload)
            worker = start_worker(sqlite_url)
            try:
                pid = await eventually(lambda: pid_in(tmp_path / "pid"), ENDS_SOON)
                assert is_alive(pid)
            finally:
                worker.kill()
                worker.wait(30)
            await eventually(lambda: not is_alive(pid), ENDS_SOON)

    run(scenario(), 150)


def test_signals_for_all_processes_of_a_service_let_a_step_finish(sqlite_url: str, tmp_path: Path) -> None:
    hf = submitter(sqlite_url)
    workload = {"pid": str(tmp_path / "pid"), "go on": str(tmp_path / "go on")}

    async def scenario() -> None:
        async with hf:
            execution = await hf.submit("waits", workload)
            worker = start_worker(sqlite_url)
            pid = await eventually(lambda: pid_in(tmp_path / "pid"), ENDS_SOON)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
            os.kill(worker.pid, signal.SIGTERM)
            (tmp_path / "go on").touch()
            assert worker.wait(60) == 0
            view = await execution.status()
            assert view.outputs == {"waits": "ended"}
            assert view.jobs[0].attempts == 1

    run(scenario(), 150)


def test_a_script_that_starts_a_worker_when_imported_is_told_what_to_do(
    sqlite_url: str, tmp_path: Path
) -> None:
    hf = submitter(sqlite_url)

    async def scenario() -> None:
        async with hf:
            execution = await hf.submit("waits", {"pid": str(tmp_path / "pid"), "go on": "never"})
            worker = start_worker(sqlite_url, "unguarded")
            try:
                view = await execution.wait(ENDS_SOON)
            finally:
                worker.terminate()
                worker.wait(60)
            assert "A worker cannot be started while a step's module is imported" in told(view)[2]

    run(scenario(), 150)


# ── what is refused ──


def nested() -> Callable[[Context], None]:
    def inner(ctx: Context) -> None:
        return None

    return inner


class Steps:
    def method(self, ctx: Context) -> None:
        return None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda ctx: None, "it is a lambda"),
        (nested(), "inner is defined inside nested"),
        (functools.partial(steps.undo), "is no function with a name"),
        (Steps().method, "is no function with a name"),
    ],
    ids=["lambda", "closure", "partial", "method"],
)
def test_what_a_child_could_not_import_is_refused_where_it_is_defined(
    function: Callable[[Context], Any], words: str
) -> None:
    hf = Holdfast("sqlite:///x.db")
    for options in ({}, {"clear": function}):
        with pytest.raises(DefinitionInvalid, match=words) as refused:
            hf.step(isolation="process", name="s", **options)(steps.undo if options else function)
        assert "at the top of a module" in refused.value.guidance


def shadowed(ctx: Context) -> str:
    return "the first of this name"


first_of_its_name = shadowed


def shadowed(ctx: Context) -> str:  # type: ignore[no-redef]
    return "the second of this name"


def test_a_function_whose_name_leads_to_another_is_refused() -> None:
    hf = Holdfast("sqlite:///x.db")
    step = hf.step(isolation="process")(first_of_its_name)
    with pytest.raises(DefinitionInvalid, match="leads to"):
        hf.pipeline("p", [step])
    hf.pipeline("p", [hf.step(isolation="process")(shadowed)])


@pytest.mark.parametrize("isolation", ["threads", "", None, 1, "Process"])
def test_an_unknown_isolation_is_refused_with_those_there_are(isolation: Any) -> None:
    with pytest.raises(DefinitionInvalid) as refused:
        Holdfast("sqlite:///x.db").step(isolation=isolation)(steps.undo)
    assert refused.value.guidance == "Allowed are: thread, process."


@pytest.mark.parametrize(
    ("memory", "count"),
    [
        (None, None),
        (2**30, 2**30),
        ("512MB", 512 * 2**20),
        ("1.5 gb", 3 * 2**29),
        ("64MiB", 64 * 2**20),
        ("2G", 2**31),
        ("100000000", 100_000_000),
    ],
)
def test_memory_is_given_in_bytes_or_as_a_text(memory: Any, count: int | None) -> None:
    assert isolation_from("process", memory, "Step s") == ProcessIsolation(count)


@pytest.mark.parametrize("memory", ["", "much", "-1GB", "1e9", True, 1.5, 0, "10MB", 2**70, "9" * 400, [1]])
def test_a_memory_that_makes_no_sense_is_refused(memory: Any) -> None:
    with pytest.raises(DefinitionInvalid, match="memory of Step s cannot be"):
        isolation_from("process", memory, "Step s")


def test_memory_without_a_process_is_refused() -> None:
    with pytest.raises(DefinitionInvalid, match="where none can be set") as refused:
        Holdfast("sqlite:///x.db").step(memory="1GB")(steps.undo)
    assert 'isolation="process"' in refused.value.guidance
