"""The operator's spans, and the generation that they belong to."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from elastrain import tracing
from elastrain.api.job import GenerationStatus, JobSpec, JobStatus
from elastrain.etcd import EtcdConfig
from elastrain.tracing import Tracer
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef
from elastrain_operator.job import traces as trace
from elastrain_operator.job.traces import Traces
from elastrain_operator.pod import manifest

JOB = JobRef("default", "digits", "uid-1", 1)


def at(number: int) -> JobStatus:
    return JobStatus(generation=GenerationStatus(number=number, size=2, reason="Grow")) if number else JobStatus()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> Traces:
    ticks = iter(range(1000))
    return Traces(Tracer(exporter, "elastrain-operator"), clock=lambda: float(next(ticks)))


def sent(traces: Traces, exporter: InMemorySpanExporter) -> list[tuple[str, int]]:
    """Names, and the generations whose traces they are in."""
    traces.close()
    numbers = {tracing.trace_id(JOB.uid, n): n for n in range(20)}
    return [(span.name, numbers[span.context.trace_id]) for span in exporter.get_finished_spans()]


def test_spans_belong_to_the_first_generation_that_followed(traces, exporter) -> None:
    traces.seen(JOB, at(3))
    with traces.span(JOB, "operator.put_target", desired=4):
        pass
    with traces.span(JOB, "operator.create_pods", pods=2):
        pass
    traces.seen(JOB, at(3))
    assert not exporter.get_finished_spans(), "no generation has followed yet"
    traces.seen(JOB, at(5))  # 4 was over before its status was written
    assert sent(traces, exporter) == [("operator.put_target", 4), ("operator.create_pods", 4)]


def test_spans_of_the_first_start_belong_to_generation_1(traces, exporter) -> None:
    traces.seen(JOB, at(0))
    with traces.span(JOB, "operator.create_pods", pods=2):
        pass
    traces.seen(JOB, at(1))
    assert sent(traces, exporter) == [("operator.create_pods", 1)]


def test_a_failed_action_has_a_span_with_its_error(traces, exporter) -> None:
    traces.seen(JOB, at(1))
    with pytest.raises(OSError, match="no etcd"), traces.span(JOB, "operator.put_target"):
        raise OSError("no etcd")
    traces.seen(JOB, at(2))
    traces.close()
    assert exporter.get_finished_spans()[0].attributes["error.type"] == "OSError"


def test_the_kept_spans_are_bounded(traces, exporter, monkeypatch) -> None:
    traces.seen(JOB, at(1))
    for _ in range(trace.KEPT_SPANS + 5):
        with traces.span(JOB, "operator.put_target"):
            pass
    monkeypatch.setattr(trace, "KEPT_JOBS", 3)
    for n in range(5):
        traces.seen(JobRef("default", f"other-{n}", f"other-{n}", 1), at(1))
    assert len(traces._jobs) == 3
    traces.close()


# ---- workers send theirs, too ----------------------------------------------------------------------------------------
def environment_of_a_worker(*own: dict[str, str], endpoint: str) -> list[dict[str, str]]:
    config = OperatorConfig(
        etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"), traces_endpoint=endpoint
    )
    container = {"name": "trainer", "image": "i", "command": ["python"], "env": list(own)}
    spec = JobSpec.model_validate({"maxReplicas": 2, "template": {"spec": {"containers": [container]}}})
    environment = manifest.pod(JOB, spec, 0, config)["spec"]["containers"][0]["env"]
    return [e for e in environment if e["name"].startswith("OTEL")]


def test_workers_get_the_collectors_address() -> None:
    assert environment_of_a_worker(endpoint="") == []
    found = environment_of_a_worker(endpoint="http://c:4318")
    assert found == [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4318"}]


def test_the_templates_collector_takes_precedence() -> None:
    own = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://mine:4318"}
    assert environment_of_a_worker(own, endpoint="http://c:4318") == [own]
