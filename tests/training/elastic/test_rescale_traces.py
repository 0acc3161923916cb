"""A rescale is one trace, of the times that rank 0 has."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from elastrain import tracing
from elastrain.api.records import Generation
from elastrain.elastic.group.report import Switch, Times, spans
from elastrain_cli.local.runner import LocalJob

MANIFEST = Path(__file__).parents[3] / "examples" / "01-digits" / "job.yaml"


class Collector(ThreadingHTTPServer):
    """Accepts OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.spans: dict[int, list[tuple[str, str, Any]]] = defaultdict(list)
        """By trace: service, name, span."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            who = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans[int.from_bytes(span.trace_id)].append((who["service.name"], span.name, span))


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    yield server
    server.shutdown()
    server.server_close()


def test_growing_is_one_trace_of_rank_0(collector: Collector, warm_agents, monkeypatch, tmp_path, eventually) -> None:
    for module in (
        "sklearn.datasets",
        "opentelemetry.sdk.trace.export",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    ):
        warm_agents.imports(module)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_address[1]}")
    environment = {"EPOCHS": "10000", "STEP_SECONDS": "0.01"}
    with LocalJob(MANIFEST, state_dir=tmp_path / "state", replicas=1, environment=environment) as job:
        job.wait(lambda s: s.progress and s.progress.step >= 5, timeout=60, what="5 steps")
        job.scale(2)
        status = job.wait(lambda s: s.progress and s.progress.world_size == 2, timeout=60, what="two workers to train")
        assert status.generation is not None
        trace = tracing.trace_id(job.keys.uid, status.generation.number)
        expected = {
            ("elastrain-rank", "rank.connect"): 1,
            ("elastrain-rank", "rank.transfer"): 1, ("elastrain-rank", "rank.first_step"): 1,
            ("elastrain-rank", "rank.pause"): 1, ("elastrain-rank", "rescale"): 1,
        }  # fmt: skip

        def counted() -> dict[tuple[str, str], int]:
            found: dict[tuple[str, str], int] = defaultdict(int)
            for service, name, _ in collector.spans[trace]:
                found[service, name] += 1
            return dict(found)

        with contextlib.suppress(AssertionError):  # the comparison below shows more
            eventually(lambda: counted() == expected)
        assert counted() == expected
    (root,) = [span for _, name, span in collector.spans[trace] if name == "rescale"]
    facts = {a.key: a.value for a in root.attributes}
    assert (facts["elastrain.from_ranks"].int_value, facts["elastrain.to_ranks"].int_value) == (1, 2)
    assert facts["elastrain.reason"].string_value == "Grow"
    for _, name, span in collector.spans[trace]:
        assert span.start_time_unix_nano <= span.end_time_unix_nano, name
        assert name == "rescale" or span.parent_span_id == root.span_id


def switch(**times: float | None) -> Switch:
    facts: dict[str, Any] = {"last_commit": 10.0, "broken": None, "heard": 8.0, "connected": 8.5, "entered": 10.1,
                             "synchronised": 10.2}  # fmt: skip
    return Switch(Generation(number=2, reason="Grow", leader="l"), 0, 1, 40, 0, Times(**(facts | times)))


def test_connecting_lies_beside_training_if_the_change_was_planned() -> None:
    parts, whole = spans(switch(), 10.4)
    shown = {s.name: (s.start, s.end) for s in parts}
    assert shown == {
        "rank.connect": (8.0, 8.5), "rank.transfer": (10.1, 10.2), "rank.first_step": (10.2, 10.4),
        "rank.pause": (10.0, 10.4),
    }  # fmt: skip
    assert (whole.start, whole.end) == (8.0, 10.4)
    assert whole.attributes["elastrain.pause_seconds"] == 0.4


def test_a_loss_has_its_detection_and_decision_in_the_pause() -> None:
    parts, whole = spans(switch(broken=10.3, heard=10.5, connected=10.6, entered=10.6, synchronised=10.7), 11.0)
    shown = {s.name: (s.start, s.end) for s in parts}
    assert (shown["rank.detect"], shown["rank.decide"]) == ((10.0, 10.3), (10.3, 10.5))
    assert (whole.start, whole.end) == shown["rank.pause"] == (10.0, 11.0)


def test_a_joiner_has_no_pause() -> None:
    parts, _ = spans(switch(last_commit=None), 10.4)
    assert "rank.pause" not in {s.name for s in parts}
