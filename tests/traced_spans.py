"""Spans as tests see them: of a tracer provider of their own, kept in memory, with nothing global set up; and
those that a collector was sent."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.tracing.spans import Tracing
from scripted_server import ScriptedServer


class Traced:
    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracing = Tracing(self.provider, namespace="tests")
        self.tracer = self.provider.get_tracer("the program's own")

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in the order of their beginning."""
        return sorted(self._kept.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def spans_in(server: ScriptedServer) -> list[tuple[str, Any]]:
    """Each with the name of the service that sent it, in the order of their beginning."""
    found = []
    for request in server.requests:
        assert (request.path, request.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            [service] = [
                item.value.string_value for item in resource.resource.attributes if item.key == "service.name"
            ]
            found += [(service, span) for scope in resource.scope_spans for span in scope.spans]
    return sorted(found, key=lambda one: one[1].start_time_unix_nano)
