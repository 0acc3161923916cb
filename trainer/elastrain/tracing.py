"""OpenTelemetry traces of rescales: one trace per change of generation, by rank 0.

The ids of trace and root span derive from the job and the generation (:func:`trace_id`), so that an event or a log line
leads to its trace. A span is made after its event, from
timestamps that exist anyway; between rescales no code runs. Spans wait in a bounded queue, and a thread sends them: an
unreachable collector costs spans, which are counted, and never time.

Tracing is off unless the environment names a collector (OpenTelemetry's variables, such as
``OTEL_EXPORTER_OTLP_ENDPOINT``) and ``elastrain[tracing]`` is installed.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from elastrain import guests, threads

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

ENV_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENV_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENV_DISABLED = "OTEL_SDK_DISABLED"
QUEUE_SPANS = 512
"""Spans in the queue; further spans are dropped and counted."""
GATHER_SECONDS = 0.5
"""Seconds that the first span of a batch waits for others."""
CLOSE_SECONDS = 2.0
"""Seconds that an ending process spends on its last spans."""
ROOT = "rescale"
"""Name of a trace's root span."""

Attribute = str | int | float | bool

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Span:
    """An operation and its duration. Times are ``time.monotonic()`` seconds of the reporting process."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


def trace_id(job_uid: str, generation: int) -> int:
    """The 128-bit id of the change to ``generation`` of the job."""
    return int.from_bytes(_digest(job_uid, generation)[:16]) or 1


def root_id(job_uid: str, generation: int) -> int:
    """The 64-bit id of that change's root span."""
    return int.from_bytes(_digest(job_uid, generation)[16:24]) or 1


def _digest(job_uid: str, generation: int) -> bytes:
    return hashlib.sha256(f"elastrain/{job_uid}/{generation}".encode()).digest()


def enabled(environ: Mapping[str, str]) -> bool:
    """Whether the environment names a collector."""
    named = environ.get(ENV_TRACES_ENDPOINT) or environ.get(ENV_ENDPOINT)
    return bool(named) and environ.get(ENV_DISABLED, "").lower() != "true"


def from_environment(environ: Mapping[str, str], service: str, **attributes: Attribute) -> Tracer | None:
    """A tracer; None if the environment names no collector, or the tracer cannot be made (which is logged).

    ``attributes``: attributes of the process, of its resource in OpenTelemetry's terms.
    """
    if not enabled(environ):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        install = guests.way_out(error.name)
        log.warning("no traces: a package is missing", missing=error.name, install=install, enabled_by=ENV_ENDPOINT)
        return None
    # The exporter would log every attempt into the training's log; this module logs lost spans once and counts them.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    endpoint = environ.get(ENV_TRACES_ENDPOINT) or f"{environ[ENV_ENDPOINT].rstrip('/')}/v1/traces"
    return Tracer(OTLPSpanExporter(endpoint=endpoint), service, attributes)


class Tracer:
    """Sends spans from its own thread. Thread-safe; no method blocks or raises."""

    def __init__(
        self,
        exporter: SpanExporter,
        service: str,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        clocks: Callable[[], tuple[float, int]] = lambda: (time.monotonic(), time.time_ns()),
    ) -> None:
        """``clocks``: monotonic seconds, and nanoseconds since the epoch, of the same instant."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._exporter = exporter
        self._resource = Resource.create({"service.name": service, **(attributes or {})})
        self._scope = InstrumentationScope("elastrain")
        self._clocks = clocks
        self._waiting: queue.Queue[ReadableSpan | None] = queue.Queue(QUEUE_SPANS)
        self._closed = False
        self.dropped = 0
        """Spans that were not sent: the queue was full, or the collector did not accept them."""
        self._thread = threads.start(self._run, name="traces")

    def emit(self, job_uid: str, generation: int, spans: Iterable[Span], root: Span | None = None) -> None:
        """Send ``spans`` as parts of ``root``, the change to ``generation``."""
        for span in spans if root is None else (*spans, root):
            self._put(self._readable(job_uid, generation, span, is_root=span is root))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the queued spans, for at most ``seconds``."""
        if self._closed:
            return
        self._closed = True
        self._put(None)
        self._thread.join(seconds)
        if self.dropped or self._thread.is_alive():
            log.warning(
                "traces: the collector did not accept all spans", dropped=self.dropped, unsent=self._waiting.qsize()
            )

    # -- inside --------------------------------------------------------------------------------------------------------
    def _put(self, span: ReadableSpan | None) -> None:
        try:
            self._waiting.put_nowait(span)
        except queue.Full:
            self.dropped += 1

    def _readable(self, job_uid: str, generation: int, span: Span, *, is_root: bool) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

        def context(span_id: int) -> Any:
            return SpanContext(
                trace_id(job_uid, generation), span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
            )

        root = context(root_id(job_uid, generation))
        monotonic, epoch = self._clocks()
        return ReadableSpan(
            name=span.name,
            context=root if is_root else context(RandomIdGenerator().generate_span_id()),
            parent=None if is_root else root,
            resource=self._resource,
            instrumentation_scope=self._scope,
            kind=SpanKind.INTERNAL,
            attributes={"elastrain.job.uid": job_uid, "elastrain.generation": generation, **span.attributes},
            start_time=epoch - round((monotonic - span.start) * 1e9),
            end_time=epoch - round((monotonic - span.end) * 1e9),
        )

    def _run(self) -> None:
        while (batch := self._batch()) is not None:
            self._send(batch)
        self._exporter.shutdown()

    def _batch(self) -> list[ReadableSpan] | None:
        """The queued spans, once there is one; None after :meth:`close`."""
        first = self._waiting.get()
        if first is None:
            return None
        batch = [first]
        end = time.monotonic() + GATHER_SECONDS
        while not self._closed and (left := end - time.monotonic()) > 0:
            try:
                span = self._waiting.get(timeout=left)
            except queue.Empty:
                break
            if span is None:
                self._waiting.put(None)
                break
            batch.append(span)
        return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # requests and protobuf raise many kinds; training must not be affected
            log.debug("traces not sent", error=str(error))
            taken = False
        if not taken:
            if not self.dropped:
                log.warning("traces: the collector does not accept spans; training continues, lost spans are counted")
            self.dropped += len(batch)
