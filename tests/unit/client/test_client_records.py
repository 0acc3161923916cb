"""What the client makes of the API server's objects."""

from elastrain.api.records import Outcome, Termination
from elastrain.client.records import worker_of


def ended(message: str) -> dict:
    state = {"terminated": {"reason": "Error", "exitCode": 1, "message": message}}
    return {"metadata": {"name": "digits-0"}, "status": {"phase": "Failed", "containerStatuses": [{"state": state}]}}


def test_worker_has_its_agents_last_words_if_it_has_left_any() -> None:
    last = Termination(outcome=Outcome.FAILED, reason="ScriptFailed", message="KeyError: 'rate' (train.py:4)")
    worker = worker_of(ended(last.encode().decode()))
    assert (worker.reason, worker.message) == ("ScriptFailed", "KeyError: 'rate' (train.py:4)")


def test_worker_has_kubernetes_words_if_its_agent_has_left_none() -> None:
    worker = worker_of(ended("out of disk"))
    assert (worker.reason, worker.message) == ("Error", "out of disk")
