"""Workers send traces of rescales to the collector that the operator names."""

from __future__ import annotations

from elastrain.etcd import EtcdConfig
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest
from elastrain_resource.job import JobSpec

JOB = JobRef("default", "digits", "uid-1", 1)


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
