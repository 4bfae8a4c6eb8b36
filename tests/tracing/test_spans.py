"""A span for each attempt: one trace for an execution, linked across retries, current in the handler."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Context, Holdfast, PermanentError, Retry, TransientError
from holdfast.core.errors import InvalidInput
from holdfast.testing import AsyncRehearsal
from holdfast.tracing.spans import Tracing, span_id_of, trace_id_of
from holdfast.worker import heartbeats
from running import eventually, run
from scripted_server import ScriptedServer
from traced_spans import Traced
from typed_attempt import leased

ENDS_SOON = 60.0
HEAD = "apiVersion: holdfast/v1\nkind: Playbook\n"


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def linked(span: ReadableSpan) -> list[int]:
    assert {link.context.trace_id for link in span.links} <= {trace_of(span)}
    return [link.context.span_id for link in span.links]


def told(span: ReadableSpan, *names: str) -> list[Any]:
    assert span.attributes is not None
    return [span.attributes.get(f"holdfast.{name}") for name in names]


def test_all_attempts_of_an_execution_are_one_trace_and_each_retry_links_to_the_one_before(
    store_url: str, traced: Traced
) -> None:
    hf = Holdfast(store_url, tracing=traced.tracing)

    @hf.step
    async def fetch(ctx: Context) -> None: ...

    @hf.step(retry=Retry(delays=[0.01, 0.01]))
    def charge(ctx: Context) -> str:
        if not ctx.is_last_attempt:
            raise TransientError("the portal at https://me:hunter22@portal is closed")
        return "the output"

    hf.pipeline("order", [fetch, charge])

    async def scenario() -> tuple[int, int]:
        async with hf, hf.working(worker_id="w1"):
            first = await hf.submit("order", {"card": "4111 1111"}, lane="manual")
            second = await hf.submit("order")
            await first.wait(ENDS_SOON)
            await second.wait(ENDS_SOON)
        return first.id, second.id

    first, second = run(scenario())
    mine = [span for span in traced.spans if told(span, "execution_id") == [first]]
    others = [span for span in traced.spans if told(span, "execution_id") == [second]]
    assert len(mine) == len(others) == 4 and len(traced.spans) == 8
    assert {trace_of(span) for span in mine} == {trace_id_of("tests", first)}
    assert {trace_of(span) for span in others} == {trace_id_of("tests", second)}
    assert len({id_of(span) for span in traced.spans}) == 8

    fetched, *charged = mine
    assert fetched.name == "order/fetch" and not fetched.links
    assert told(fetched, "outcome", "error_type") == ["completed", None]
    assert fetched.status.status_code is StatusCode.UNSET
    assert [told(span, "step", "attempt", "outcome") for span in charged] == [
        ["charge", 1, "failed"],
        ["charge", 2, "failed"],
        ["charge", 3, "completed"],
    ]
    assert [linked(span) for span in charged] == [
        [],
        [id_of(charged[0])],
        [id_of(charged[1]), id_of(charged[0])],  # the latest first
    ]
    failed = charged[0]
    assert failed.kind is SpanKind.CONSUMER and failed.parent is None
    assert told(failed, "path", "round", "lane", "worker_id") == ["order", 1, "manual", "w1"]
    assert told(failed, "error_type", "category") == ["transient_error", "transient"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "the portal at https://me:***@portal is closed"
    assert failed.end_time is not None and failed.start_time is not None
    assert failed.start_time <= failed.end_time
    everything = str([span.to_json() for span in traced.spans])
    assert "4111" not in everything and "the output" not in everything and "hunter22" not in everything


def test_a_lease_that_ran_nothing_breaks_no_link(traced: Traced) -> None:
    """A dispatcher leases, and a process of its fleet takes the attempt over under the next number."""
    taken_over = leased("p/a")
    for attempt, fence in ((1, "2-x"), (2, "4-y"), (2, "5-z")):
        job = msgspec.structs.replace(taken_over, attempt=attempt, fence=fence)
        traced.tracing.begin(job, "w1").end(None)
    first, second, again = traced.spans
    assert linked(first) == [] and id_of(first) in linked(second) and id_of(second) in linked(again)
    assert len({id_of(span) for span in traced.spans}) == 3


def test_a_handler_sees_its_span_wherever_it_runs_and_its_own_spans_are_below_it(
    sqlite_url: str, traced: Traced
) -> None:
    hf = Holdfast(sqlite_url, tracing=traced.tracing)

    @hf.step
    async def at_once(ctx: Context) -> None:
        with traced.tracer.start_as_current_span("in at_once"):
            pass

    @hf.step
    async def waits(ctx: Context) -> None:
        with traced.tracer.start_as_current_span("in waits"):
            await asyncio.sleep(0)
            with traced.tracer.start_as_current_span("after the wait"):
                await asyncio.to_thread(traced.tracer.start_span("in a thread of its own").end)

    @hf.step
    def plain(ctx: Context) -> None:
        with traced.tracer.start_as_current_span("in plain"):
            pass

    @hf.step
    async def leaves_one_open(ctx: Context) -> None:
        otel_context.attach(trace.set_span_in_context(traced.tracer.start_span("left open")))

    steps = [at_once, waits, plain, leaves_one_open]
    for step in steps:
        hf.pipeline(step.name, [step])

    async def scenario() -> None:
        async with hf, hf.working(concurrency=3):
            submitted = [await hf.submit(step.name) for step in steps for _ in range(5)]
            for execution in submitted:
                await execution.wait(ENDS_SOON)
            assert not trace.get_current_span().get_span_context().is_valid

    run(scenario())
    by_id = {id_of(span): span for span in traced.spans}
    for name, parent in (
        ("in at_once", "at_once/at_once"),
        ("in waits", "waits/waits"),
        ("after the wait", "in waits"),
        ("in a thread of its own", "after the wait"),
        ("in plain", "plain/plain"),
    ):
        found = traced.named(name)
        assert len(found) == 5
        for span in found:
            assert span.parent is not None
            assert by_id[span.parent.span_id].name == parent
            assert span.parent.trace_id == trace_of(span)
    attempts = [span for span in traced.spans if span.kind is SpanKind.CONSUMER]
    assert len(attempts) == 20 and all(span.parent is None for span in attempts)


def test_a_step_in_a_process_of_its_own_sees_the_span_too(sqlite_url: str, traced: Traced) -> None:
    from tracing import isolated_span

    hf = Holdfast(sqlite_url, tracing=traced.tracing)
    hf.pipeline("p", [hf.step(isolation="process")(isolated_span.current)])

    async def scenario() -> Any:
        async with hf, hf.working():
            return (await (await hf.submit("p")).wait(ENDS_SOON)).outputs

    outputs = run(scenario())
    [span] = traced.spans
    assert outputs == {"current": [trace_of(span), id_of(span)]}


def test_an_http_step_carries_the_span_and_a_playbook_may_say_otherwise(
    sqlite_url: str, traced: Traced
) -> None:
    hf = Holdfast(sqlite_url, tracing=traced.tracing)
    with ScriptedServer() as server:
        for path in ("/plain", "/own", "/none"):
            server.answer(path, 503)
            server.answer(path, 200, json={})
        playbook = f"""{HEAD}metadata: {{name: asks, path: asks}}
defaults: {{retry: {{max_attempts: 3, delays: [0.01]}}}}
workflow:
  - {{step: plain, type: http, url: "{server.url}/plain", next: own}}
  - {{step: own, type: http, url: "{server.url}/own", headers: {{Traceparent: mine}}, next: none}}
  - {{step: none, type: http, url: "{server.url}/none", headers: {{traceparent: null}}}}
"""

        async def scenario() -> None:
            async with hf, hf.working():
                await hf.add_playbook(playbook)
                view = await (await hf.submit("asks")).wait(ENDS_SOON)
                assert view.summary == "Complete", view

        run(scenario())
    sent = {(one.path, one.headers.get("traceparent")) for one in server.requests}
    first, second = traced.named("asks/plain")
    assert linked(second) == [id_of(first)]
    assert sent == {
        ("/plain", f"00-{trace_of(first):032x}-{id_of(first):016x}-01"),
        ("/plain", f"00-{trace_of(second):032x}-{id_of(second):016x}-01"),
        ("/own", "mine"),
        ("/none", None),
    }


def test_without_tracing_an_http_step_sends_none(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    with ScriptedServer() as server:
        server.answer("/", 200, json={})
        playbook = f"""{HEAD}metadata: {{name: asks, path: asks}}
workflow: [{{step: ask, type: http, url: "{server.url}/"}}]
"""

        async def scenario() -> None:
            async with hf, hf.working():
                await hf.add_playbook(playbook)
                await (await hf.submit("asks")).wait(ENDS_SOON)

        run(scenario())
    assert ["traceparent" in one.headers for one in server.requests] == [False]


def test_an_attempt_that_was_put_aside_goes_on_in_a_linked_span(store_url: str, traced: Traced) -> None:
    hf = Holdfast(store_url, tracing=traced.tracing)
    parent = f"""{HEAD}metadata: {{name: parent, path: parent}}
workflow: [{{step: sub, type: playbook, path: child}}]
"""
    child = f"""{HEAD}metadata: {{name: child, path: child}}
workflow: [{{step: nap, type: sleep, seconds: 0.01}}]
"""

    async def scenario() -> int:
        async with hf, hf.working():
            await hf.add_playbook(child)
            await hf.add_playbook(parent)
            execution = await hf.submit("parent")
            view = await execution.wait(ENDS_SOON)
            assert view.summary == "Complete", view
        return execution.id

    execution_id = run(scenario())
    parts = traced.named("parent/sub")
    assert [told(span, "attempt", "outcome") for span in parts] == [[1, "deferred"], [1, "completed"]]
    assert {trace_of(span) for span in parts} == {trace_id_of("tests", execution_id)}
    assert linked(parts[1]) == [id_of(parts[0])]


def test_an_attempt_that_is_cut_off_ends_its_span(
    sqlite_url: str, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEATS_PER_LEASE", 200)  # a cancelled lease is found out soon
    hf = Holdfast(sqlite_url, tracing=traced.tracing)
    entered = threading.Event()

    @hf.step
    async def hangs(ctx: Context) -> None:
        entered.set()
        await asyncio.Event().wait()

    @hf.step(retry=False)
    async def cancels_itself(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if ctx.workload == "waits":
            await asyncio.sleep(0)

    hf.pipeline("hangs", [hangs])
    hf.pipeline("cancels", [cancels_itself])

    async def scenario() -> None:
        async with hf, hf.working(grace_seconds=0):
            for workload in ("waits", "ends"):
                await (await hf.submit("cancels", workload)).wait(ENDS_SOON)
            cancelled = await hf.submit("hangs")
            await eventually(entered.is_set)
            await hf.cancel(cancelled.id)
            await eventually(lambda: traced.named("hangs/hangs"))
            entered.clear()
            await hf.submit("hangs")
            await eventually(entered.is_set)

    run(scenario())
    assert [told(span, "outcome") for span in traced.named("hangs/hangs")] == [["abandoned"]] * 2
    waited, ended = traced.named("cancels/cancels_itself")
    assert told(waited, "outcome") == ["failed"] and waited.status.status_code is StatusCode.ERROR
    assert told(ended, "outcome") == ["completed"]


def test_what_is_settled_in_the_handlers_transaction_is_completed(store_url: str, traced: Traced) -> None:
    hf = Holdfast(store_url, tracing=traced.tracing)

    @hf.step
    async def writes(ctx: Context) -> None:
        async with ctx.transaction() as db:
            await db.execute("CREATE TABLE notes (text text)")

    hf.pipeline("p", [writes])

    async def scenario() -> None:
        async with hf, hf.working():
            view = await (await hf.submit("p")).wait(ENDS_SOON)
            assert view.summary == "Complete", view

    run(scenario())
    assert [told(span, "outcome") for span in traced.spans] == [["completed"]]


def test_a_sampler_keeps_all_attempts_of_an_execution_or_none(sqlite_url: str) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(sampler=TraceIdRatioBased(0.5), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    hf = Holdfast(sqlite_url, tracing=Tracing(provider, namespace="sampled"))
    flags: list[str] = []

    @hf.step(retry=Retry(delays=[0.01]))
    async def flaky(ctx: Context) -> None:
        flags.append(ctx.traceparent[-2:])
        if ctx.attempt == 1:
            raise TransientError("not yet")

    hf.pipeline("p", [flaky])

    async def scenario() -> None:
        async with hf, hf.working():
            for execution in [await hf.submit("p") for _ in range(40)]:
                await execution.wait(ENDS_SOON)

    run(scenario())
    spans_of: dict[int, int] = {}
    for span in kept.get_finished_spans():
        spans_of[trace_of(span)] = spans_of.get(trace_of(span), 0) + 1
    assert 0 < len(spans_of) < 40 and set(spans_of.values()) == {2}
    assert flags.count("01") == 2 * len(spans_of) and flags.count("00") == 80 - 2 * len(spans_of)


class Failing(SpanProcessor):
    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Span, parent_context: otel_context.Context | None = None) -> None:
        if self._at == "start":
            raise RuntimeError("no beginning")

    def on_end(self, span: ReadableSpan) -> None:
        if self._at == "end":
            raise RuntimeError("no end")


@pytest.mark.parametrize("at", ["start", "end"])
def test_what_fails_in_tracing_is_no_harm_to_the_work(
    sqlite_url: str, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Failing(at))
    hf = Holdfast(sqlite_url, tracing=Tracing(provider))

    @hf.step
    async def at_once(ctx: Context) -> None: ...

    @hf.step(retry=False)
    def fails(ctx: Context) -> None:
        raise PermanentError("its own error")

    hf.pipeline("p", [at_once, fails])

    async def scenario() -> None:
        async with hf, hf.working():
            view = await (await hf.submit("p")).wait(ENDS_SOON)
        assert view.execution.error is not None and view.execution.error.message == "its own error"

    run(scenario())
    assert caplog.text.count("The span of an attempt failed; the attempt itself goes on.") == 2


def test_without_a_provider_of_the_sdk_the_work_goes_on(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hf = Holdfast(sqlite_url, tracing=Tracing(trace.NoOpTracerProvider()))

    @hf.step
    def plain(ctx: Context) -> str:
        return ctx.traceparent

    hf.pipeline("p", [plain])

    async def scenario() -> None:
        async with hf, hf.working():
            for _ in range(2):
                assert (await (await hf.submit("p")).wait(ENDS_SOON)).outputs == {"plain": ""}

    run(scenario())
    assert caplog.text.count("The tracer provider is none of the OpenTelemetry SDK") == 1


def test_the_ids_are_the_same_in_every_version_and_process() -> None:
    """Workers of two versions run the attempts of one execution: a change here would tear its trace apart."""
    trace_id = trace_id_of("shop", 17)
    assert f"{trace_id:032x}" == "950bb35de8774f7dde3ee31cb47f5ad0"
    assert f"{span_id_of(trace_id, 4, 2):016x}" == "b1bda1a2d2e0b6a9"
    assert trace_id_of("", 17) != trace_id != trace_id_of("shop", 18)
    assert span_id_of(trace_id, 4, 2) not in (span_id_of(trace_id, 4, 3), span_id_of(trace_id, 42, 2))


def test_the_namespace_is_the_environments_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_OTEL_NAMESPACE", "shop")
    assert Tracing()._namespace == "shop" and Tracing(namespace="")._namespace == ""


def test_a_rehearsal_of_a_traced_program_makes_no_spans(traced: Traced) -> None:
    hf = Holdfast(tracing=traced.tracing)

    @hf.step
    async def looks(ctx: Context) -> str:
        return ctx.traceparent

    hf.pipeline("p", [looks])

    async def scenario() -> None:
        async with AsyncRehearsal(hf):
            execution = await hf.submit("p")
            assert (await execution.wait()).outputs == {"looks": ""}

    run(scenario())
    assert traced.spans == []


def test_what_is_not_installed_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidInput, match="is not installed") as refused:
        Holdfast(tracing=True)
    assert "pip install 'holdfast[otel]'" in refused.value.guidance


def test_something_else_than_a_tracing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tracing must be True, False or a Tracing, not 'shop'"):
        Holdfast(tracing="shop")


def test_nobody_who_did_not_ask_imports_opentelemetry(tmp_path: Path) -> None:
    code = """
import sys, asyncio
from holdfast import Context, Holdfast
import holdfast.cli, holdfast.cli.worker, holdfast.cli.serve, holdfast.server.service
hf = Holdfast("sqlite:///x.db")
@hf.step
def plain(ctx: Context) -> None: ...
hf.pipeline("p", [plain])
async def main():
    async with hf, hf.working():
        await (await hf.submit("p")).wait()
asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
