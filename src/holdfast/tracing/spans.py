"""The span of an attempt: its ids, what it tells, and how it is the current one while the handler runs.

    trace id  ◀── namespace, execution          every attempt of an execution, whatever process runs it
    span id   ◀── trace, job, number of lease   so that the next attempt knows the one before, and links to it

No process tells another of its spans: each works out the same ids from what it was leased. So the attempts
are roots of one trace, and a sampler that looks at trace ids keeps all of them or none. A span tells neither
workloads nor outputs, and errors only as they are reported: cleaned of secrets.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from typing import Any

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.core.failures import classify, clean_failure
from holdfast.core.model import Completed, Failed, Leased, Outcome

log = logging.getLogger("holdfast.tracing")

NAMESPACE_VARIABLE = "HOLDFAST_OTEL_NAMESPACE"
LINKED_LEASES = 2
FLUSH_MILLISECONDS = 3_000
_TRACE_CONTEXT = TraceContextTextMapPropagator()


class Tracing:
    """Makes the spans, by a tracer provider of the OpenTelemetry SDK: the one given, or the program's own.

    Databases give out the same numbers. Where several send to one place, `namespace` keeps them apart, the
    same in every worker of a database; without one it is the environment's HOLDFAST_OTEL_NAMESPACE."""

    def __init__(self, provider: trace.TracerProvider | None = None, *, namespace: str | None = None) -> None:
        if namespace is None:
            namespace = os.environ.get(NAMESPACE_VARIABLE, "")
        self._namespace = namespace
        self._provider = provider
        self._derived = _DerivedIds()
        self._tracer: trace.Tracer | None = None

    def begin(self, job: Leased, worker_id: str) -> AttemptSpan:
        """A span that begins now and is the current one of this task, until it is ended there."""
        tracer = self._tracer or self._found_tracer()
        trace_id, number = trace_id_of(self._namespace, job.execution_id), _lease_number(job.fence)
        self._derived.next = trace_id, span_id_of(trace_id, job.queue_id, number)
        span = tracer.start_span(
            f"{job.path}/{job.step}",
            context=current.Context(),  # of its own, whatever was current here
            kind=SpanKind.CONSUMER,
            attributes=_attributes(job, worker_id),
            links=_links(trace_id, job, number),
        )
        return AttemptSpan(span)

    def flush(self) -> None:
        """Send what has ended, for some seconds at most."""
        provider = self._provider or trace.get_tracer_provider()
        if isinstance(provider, SdkTracerProvider):
            provider.force_flush(FLUSH_MILLISECONDS)

    def close(self) -> None:
        """At the end of a worker. What a program has set up, it ends itself."""

    def _found_tracer(self) -> trace.Tracer:
        """Looked up when it is first needed: a program may set up its provider after it has made us."""
        from holdfast import __version__

        provider = self._provider or trace.get_tracer_provider()
        tracer = provider.get_tracer("holdfast", __version__)
        if isinstance(tracer, SdkTracer):
            # This tracer's alone, and only we have it: all other spans of the program get ids as before.
            tracer.id_generator = self._derived
        else:
            log.warning(
                "The tracer provider is none of the OpenTelemetry SDK: attempts get no spans, or spans"
                " without links, each in a trace of its own."
            )
        self._tracer = tracer
        return tracer


class AttemptSpan:
    __slots__ = ("_around", "_span", "traceparent")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._around = current.get_current()
        inside = trace.set_span_in_context(span, current.Context())
        # Set again at the end, and not detached: a handler may be ended in another context than it began in.
        current.attach(inside)
        carrier: dict[str, str] = {}
        _TRACE_CONTEXT.inject(carrier, inside)
        self.traceparent = carrier.get("traceparent", "")

    def end(self, outcome: Outcome | None) -> None:
        """None where it was settled in its handler's transaction."""
        span = self._span
        if isinstance(outcome, Failed):
            failure = clean_failure(outcome.failure)
            known = classify(failure)
            span.set_attributes(
                {
                    "holdfast.outcome": "failed",
                    "holdfast.error_type": known.error_type,
                    "holdfast.category": known.category.value,
                    "error.type": failure.exception or known.error_type,
                }
            )
            span.set_status(Status(StatusCode.ERROR, failure.message))
        else:
            is_completed = outcome is None or isinstance(outcome, Completed)
            span.set_attribute("holdfast.outcome", "completed" if is_completed else "deferred")
        self._leave()

    def end_abandoned(self) -> None:
        """Cut off: the lease was lost, the execution cancelled, or the worker's grace period over."""
        self._span.set_attribute("holdfast.outcome", "abandoned")
        self._leave()

    def _leave(self) -> None:
        current.attach(self._around)
        self._span.end()


def join(traceparent: str) -> None:
    """Make the span of an attempt, which another process has begun, the current one here."""
    current.attach(_TRACE_CONTEXT.extract({"traceparent": traceparent}, current.Context()))


def trace_id_of(namespace: str, execution_id: int) -> int:
    return _number(16, "execution", namespace, execution_id)


def span_id_of(trace_id: int, queue_id: int, lease_number: int) -> int:
    return _number(8, "attempt", trace_id, queue_id, lease_number)


def _number(size: int, *parts: str | int) -> int:
    """Never 0, which is no id."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode(errors="backslashreplace")).digest()[:size]) or 1


def _lease_number(fence: str) -> int:
    """Fences are `<number of the job's lease>-<token>`."""
    number = fence.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _links(trace_id: int, job: Leased, number: int) -> list[Link]:
    """To what was run before of this job: attempts that failed, or what was put aside of this one. Of two
    leases, for one may have run nothing: it was given back, or handed on to a fleet."""
    if job.attempt < 2 and job.parked is None:
        return []
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return [
        Link(SpanContext(trace_id, span_id_of(trace_id, job.queue_id, before), True, sampled))
        for before in range(number - 1, max(number - 1 - LINKED_LEASES, 0), -1)
    ]


def _attributes(job: Leased, worker_id: str) -> dict[str, Any]:
    return {
        "holdfast.execution_id": job.execution_id,
        "holdfast.queue_id": job.queue_id,
        "holdfast.path": job.path,
        "holdfast.step": job.step,
        "holdfast.attempt": job.attempt,
        "holdfast.round": job.round,
        "holdfast.lane": job.lane.value,
        "holdfast.worker_id": worker_id,
    }


class _DerivedIds(IdGenerator):
    """Gives the next span of this thread the ids that were worked out for it."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._random = RandomIdGenerator()

    @property
    def next(self) -> tuple[int, int] | None:
        found: tuple[int, int] | None = getattr(self._mine, "next", None)
        return found

    @next.setter
    def next(self, ids: tuple[int, int] | None) -> None:
        self._mine.next = ids

    def generate_trace_id(self) -> int:
        return self._random.generate_trace_id() if self.next is None else self.next[0]

    def generate_span_id(self) -> int:
        ids, self.next = self.next, None
        return self._random.generate_span_id() if ids is None else ids[1]
