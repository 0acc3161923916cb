"""Traces of rescales: ids that every process computes, and a collector whose failures are harmless."""

from __future__ import annotations

import threading
import time

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from elastrain import tracing
from elastrain.tracing import ROOT, Span, Tracer


def test_job_and_generation_determine_the_trace() -> None:
    sent = []
    for service in ("elastrain-agent", "elastrain-rank"):
        exporter = InMemorySpanExporter()
        tracer = Tracer(exporter, service)
        tracer.emit("uid", 7, [Span("part", 1.0, 2.0)], Span(ROOT, 0.0, 3.0) if service == "elastrain-rank" else None)
        tracer.close()
        sent += exporter.get_finished_spans()
    (root,) = [span for span in sent if span.name == ROOT]
    parts = [span for span in sent if span.name == "part"]
    assert {span.context.trace_id for span in sent} == {tracing.trace_id("uid", 7)}
    assert root.parent is None
    assert all(span.parent.span_id == root.context.span_id for span in parts)
    assert len({span.context.span_id for span in sent}) == 3
    assert {span.resource.attributes["service.name"] for span in parts} == {"elastrain-agent", "elastrain-rank"}


def test_generations_and_jobs_have_distinct_traces() -> None:
    assert len({tracing.trace_id(uid, n) for uid in ("a", "b") for n in (1, 2)}) == 4


def test_times_are_those_of_the_wall_clock() -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "s", clocks=lambda: (100.0, 5_000_000_000_000))
    tracer.emit("uid", 1, [Span("part", 98.0, 99.5)])
    tracer.close()
    (span,) = exporter.get_finished_spans()
    assert (span.start_time, span.end_time) == (4_998_000_000_000, 4_999_500_000_000)


class Away(SpanExporter):
    """A collector that first does not answer, and then refuses."""

    def __init__(self) -> None:
        self.called, self.release = threading.Event(), threading.Event()

    def export(self, spans) -> SpanExportResult:
        self.called.set()
        self.release.wait(10)
        return SpanExportResult.FAILURE


def test_a_collector_that_is_away_costs_spans_that_are_counted_and_no_time(eventually) -> None:
    away = Away()
    tracer = Tracer(away, "s")
    tracer.emit("uid", 1, [Span("first", 0.0, 1.0)])
    assert away.called.wait(5)
    began = time.monotonic()
    for generation in range(tracing.QUEUE_SPANS + 10):
        tracer.emit("uid", generation, [Span("more", 0.0, 1.0)])
    assert time.monotonic() - began < 5
    assert tracer.dropped >= 9
    away.release.set()
    eventually(lambda: tracer.dropped == tracing.QUEUE_SPANS + 11, what="all to be counted")


def test_closing_is_bounded_if_the_collector_hangs() -> None:
    away = Away()
    tracer = Tracer(away, "s")
    tracer.emit("uid", 1, [Span("first", 0.0, 1.0)])
    assert away.called.wait(5)
    began = time.monotonic()
    tracer.close(0.2)
    assert time.monotonic() - began < 5
    away.release.set()


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_off_unless_a_collector_is_named(environ: dict[str, str], wanted: bool) -> None:
    assert tracing.enabled(environ) is wanted
    tracer = tracing.from_environment(environ, "s")
    assert (tracer is not None) is wanted
    if tracer is not None:
        tracer.close()
