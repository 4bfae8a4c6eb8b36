"""A tracer provider of a test's own, whose spans are kept in memory: nothing global is set up."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.tracing.spans import Tracing


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
