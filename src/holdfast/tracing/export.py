"""Where the spans of a process of ours go: by OTLP over HTTP, as the OTEL_* variables say.

    attempt ──end──▶ a bounded queue ──thread──▶ collector

Work never waits for the collector: what it does not take in time is dropped from the queue, and said in the
log. At the end of the process what is left is sent within a few seconds, or not at all.
"""

from __future__ import annotations

import logging
import threading

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from holdfast.core.errors import InvalidInput
from holdfast.tracing.spans import Tracing

log = logging.getLogger("holdfast.tracing")

LAST_SECONDS = 3.0
SERVICE_DEFAULT = "holdfast-worker"


class ExportedTracing(Tracing):
    """Of a process that sends its spans itself, and has to see to their end."""

    def __init__(self, provider: TracerProvider) -> None:
        super().__init__(provider)
        self._exporting = provider

    def close(self, seconds: float = LAST_SECONDS) -> None:
        """Send what is left, for at most so long."""
        # On a thread that the process does not wait for: a request that hangs is not called back.
        last = threading.Thread(target=self._exporting.shutdown, name="holdfast-last-spans", daemon=True)
        last.start()
        last.join(seconds)
        if last.is_alive():
            log.warning("The last spans could not be sent within %g s; they are lost.", seconds)


def exported_tracing() -> Tracing:
    """Those of this process: by the provider of its program where that has set one up, else by one of ours,
    which the handlers' own spans then share."""
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return Tracing()
    try:
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except Exception as error:
        raise InvalidInput(
            f"OpenTelemetry cannot be set up: {type(error).__name__}: {error}",
            guidance="Correct the OTEL_* variables of the environment.",
        ) from error
    trace.set_tracer_provider(provider)
    return ExportedTracing(provider)


def _resource() -> Resource:
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: SERVICE_DEFAULT}))
    return resource
