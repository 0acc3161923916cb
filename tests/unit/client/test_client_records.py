"""The client's records of API objects."""

from typing import Any

import pytest

from elastrain.api.records import Outcome, Termination
from elastrain_cli.client.asynchronous import _body
from elastrain_cli.client.errors import Refused
from elastrain_cli.client.records import job_of, worker_of


def ended(message: str) -> dict:
    state = {"terminated": {"reason": "Error", "exitCode": 1, "message": message}}
    return {"metadata": {"name": "digits-0"}, "status": {"phase": "Failed", "containerStatuses": [{"state": state}]}}


def test_worker_has_its_termination_record_if_there_is_one() -> None:
    last = Termination(outcome=Outcome.FAILED, reason="ScriptFailed", message="KeyError: 'rate' (train.py:4)")
    worker = worker_of(ended(last.encode().decode()))
    assert (worker.reason, worker.message) == ("ScriptFailed", "KeyError: 'rate' (train.py:4)")


def test_worker_has_kubernetes_message_without_a_termination_record() -> None:
    worker = worker_of(ended("out of disk"))
    assert (worker.reason, worker.message) == ("Error", "out of disk")


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "image": "i:1", "command": ["python"]}]}}
    meta = {"name": "digits", "namespace": "ns"}
    spec = {"maxReplicas": 4, "template": template, **spec}
    return {"apiVersion": "elastrain.dev/v1alpha1", "kind": "ElasticTrainingJob", "metadata": meta, "spec": spec}


def test_fields_of_a_newer_version_are_kept_and_sent_back() -> None:
    newer = job(futureField={"a": [1]}, checkpoint={"path": "/c", "everyToken": 3})
    found = job_of(newer)
    assert found.spec.max_replicas == 4
    assert _body(found) == newer


def test_values_of_a_newer_version_are_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"job digits has values of another version of elastrain: spec\.cleanPodPolicy"):
        job_of(job(cleanPodPolicy="Sometimes"))
