"""`holdfast worker --otel` in a real process: what a collector gets, and that none holds up any work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_scenario import LIMIT_SECONDS, holdfast, process
from holdfast.tracing.spans import trace_id_of
from one_order import worked
from ports import kept_port
from scripted_server import ScriptedServer
from traced_spans import spans_in

SHOP = """
import logging
from holdfast import Context, Holdfast, Retry, TransientError
from opentelemetry import trace

hf = Holdfast()

@hf.step(retry=Retry(delays=[0.01]))
async def charge(ctx: Context):
    logging.getLogger("shop").info("charging")
    with trace.get_tracer("shop").start_as_current_span("of the shop's own"):
        if ctx.attempt == 1:
            raise TransientError("the card portal is closed")

hf.pipeline("order", [charge])
"""
APP = "traced_shop:hf"
OTEL = {
    "HOLDFAST_OTEL_NAMESPACE": "shop",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "HOLDFAST_LOG_FORMAT": "json",
    "NO_PROXY": "127.0.0.1",
    "OTEL_BSP_SCHEDULE_DELAY": "100",  # what is left at the end has seconds only
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "traced_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def has_both_attempts(server: ScriptedServer) -> bool:
    return [span.name for _, span in spans_in(server)].count("order/charge") == 2


def test_a_collector_gets_a_span_for_each_attempt_and_those_of_the_handlers(sqlite_url: str) -> None:
    with ScriptedServer() as collector:
        collector.answer("/v1/traces", 200)
        ended = worked(
            APP,
            sqlite_url,
            "--otel",
            until=lambda: has_both_attempts(collector),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            **OTEL,
        )
    assert ended.code == 0, ended
    spans = spans_in(collector)
    assert {service for service, _ in spans} == {"holdfast-worker"}
    by_name: dict[str, list[Any]] = {}
    for _, span in spans:
        by_name.setdefault(span.name, []).append(span)
    first, second = by_name["order/charge"]
    trace_id = trace_id_of("shop", 1).to_bytes(16)
    assert {span.trace_id for _, span in spans} == {trace_id}
    assert [link.span_id for link in second.links] == [first.span_id] and not first.links
    assert [span.parent_span_id for span in by_name["of the shop's own"]] == [first.span_id, second.span_id]
    assert first.status.message == "the card portal is closed"
    lines = [json.loads(line) for line in ended.err.splitlines()]
    logged = [(line["trace_id"], line["span_id"]) for line in lines if line["logger"] == "shop"]
    assert logged == [(trace_id.hex(), first.span_id.hex()), (trace_id.hex(), second.span_id.hex())]


def test_the_environment_asks_for_it_too_and_names_the_service(sqlite_url: str) -> None:
    with ScriptedServer() as collector:
        collector.answer("/v1/traces", 200)
        ended = worked(
            APP,
            sqlite_url,
            *("--processes", "2"),
            until=lambda: has_both_attempts(collector),
            HOLDFAST_OTEL="1",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_RESOURCE_ATTRIBUTES="service.name=shop",
            **OTEL,
        )
    assert ended.code == 0, ended
    assert [service for service, span in spans_in(collector) if span.name == "order/charge"] == ["shop"] * 2


def test_the_place_alone_asks_for_nothing(sqlite_url: str) -> None:
    with ScriptedServer() as collector:
        collector.answer("/v1/traces", 200)
        ended = worked(APP, sqlite_url, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **OTEL)
    assert ended.code == 0 and collector.requests == []


def test_a_collector_that_never_answers_holds_up_neither_the_work_nor_the_end(sqlite_url: str) -> None:
    """It would be waited for as long as the variables say: ten minutes."""
    with ScriptedServer() as collector:
        collector.answer("/v1/traces", act=collector.hold)
        ended = worked(
            APP,
            sqlite_url,
            "--otel",
            until=lambda: bool(collector.requests),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_TIMEOUT="600",
            **OTEL,
        )
        assert collector.requests
    assert ended.code == 0, ended
    assert "The last spans could not be sent within 3 s; they are lost." in ended.err


def test_nor_does_one_that_is_not_there(sqlite_url: str) -> None:
    with kept_port() as port:
        ended = worked(
            APP, sqlite_url, "--otel", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", **OTEL
        )
    assert ended.code == 0, ended
    assert all(json.loads(line) for line in ended.err.splitlines())


@pytest.mark.parametrize("command", ["worker", "serve"])
@pytest.mark.parametrize(
    "missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"]
)
def test_without_the_extra_it_says_how_to_install_it(
    sqlite_url: str, command: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    said = holdfast(None, command, "--db", sqlite_url, "--otel")
    assert said.code == 2 and "pip install 'holdfast[otel]'" in said.err, said


def test_a_wrong_setting_is_refused_in_words(sqlite_url: str) -> None:
    with process("worker", "--db", sqlite_url, "--otel", OTEL_SPAN_LINK_COUNT_LIMIT="many") as worker:
        _, err = worker.communicate(timeout=LIMIT_SECONDS)
    assert worker.returncode == 2 and "OpenTelemetry cannot be set up: " in err and "OTEL_*" in err
    assert "Traceback" not in err
