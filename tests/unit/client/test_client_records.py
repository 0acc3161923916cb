"""The client's records of API objects."""

from elastrain.api.records import Outcome, Termination
from elastrain.client.records import worker_of


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
