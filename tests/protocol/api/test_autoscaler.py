"""Kubernetes' own HorizontalPodAutoscaler on an ElasticTrainingJob: its real controller, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from elastrain.api import names
from kube_scheduling import controllers

if TYPE_CHECKING:
    from control_plane import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly]

PATIENCE = 30.0


@pytest.fixture(scope="module")
def autoscaler(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kubernetes' controller manager with only this controller."""
    home, often = tmp_path_factory.mktemp("autoscaler"), "--horizontal-pod-autoscaler-sync-period=1s"
    with controllers(apiserver, home, "horizontal-pod-autoscaler-controller", more=(often,)):
        yield


class Scaled:
    """A job of one to four workers, and its autoscaler, which has no metrics and acts only on its own bounds."""

    def __init__(self, apiserver: ApiServer, name: str) -> None:
        self.name = name
        self._apiserver = apiserver

    def apply(self, kind: str, api_version: str, spec: dict[str, Any]) -> None:
        document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": self.name}, "spec": spec}
        result = self._apiserver.kubectl("apply", "-f", "-", document=document)
        assert result.returncode == 0, result.stderr

    def between(self, least: int, most: int) -> None:
        target = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": self.name}
        spec = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most}
        self.apply("HorizontalPodAutoscaler", "autoscaling/v2", spec)

    def _get(self, kind: str) -> dict[str, Any]:
        result = self._apiserver.kubectl("get", kind, self.name, "-o", "json")
        assert result.returncode == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    @property
    def replicas(self) -> int:
        return int(self._get("etj")["spec"]["replicas"])

    @property
    def refusal(self) -> str:
        """The message of its condition about a size that it could not set."""
        return self.says("FailedUpdateScale")

    def says(self, reason: str) -> str:
        """The message of its condition with this reason; empty: it has none."""
        conditions = self._get("hpa").get("status", {}).get("conditions", [])
        return next((c["message"] for c in conditions if c["reason"] == reason), "")

    def scale(self, replicas: int) -> str:
        """By the scale subresource itself, as KEDA does between 0 and 1. Returns the refusal."""
        done = self._apiserver.kubectl("scale", "etj", self.name, f"--replicas={replicas}")
        return done.stderr if done.returncode else ""

    def make_elastic(self) -> None:
        done = self._apiserver.kubectl("patch", "etj", self.name, "--type=merge", '-p={"spec":{"replicas":null}}')
        assert done.returncode == 0, done.stderr

    @property
    def is_elastic(self) -> bool:
        return "replicas" not in self._get("etj")["spec"]


@pytest.fixture
def scaled(apiserver: ApiServer, autoscaler: None, request: pytest.FixtureRequest) -> Iterator[Scaled]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    job = Scaled(apiserver, name)
    container = {"name": "trainer", "image": "digits:1", "command": ["python", "train.py"]}
    job.apply(
        names.KIND,
        names.API_VERSION,
        {"replicas": 1, "maxReplicas": 4, "template": {"spec": {"containers": [container]}}},
    )
    yield job
    apiserver.kubectl("delete", "etj,hpa", name)


def test_a_job_is_scaled_to_the_bounds_of_its_autoscaler(scaled: Scaled, eventually: Callable[..., None]) -> None:
    scaled.between(2, 3)
    eventually(lambda: scaled.replicas == 2, PATIENCE, "the autoscaler to set its least size")
    scaled.between(1, 1)
    eventually(lambda: scaled.replicas == 1, PATIENCE, "the autoscaler to set its largest size")


def test_an_autoscaler_gets_the_rule_if_it_leaves_the_bounds_of_the_job(
    scaled: Scaled, eventually: Callable[..., None]
) -> None:
    scaled.between(9, 9)
    eventually(lambda: scaled.refusal, PATIENCE, "the autoscaler to say that it was refused")
    assert "replicas (9) must be between minReplicas (1) and maxReplicas (4)" in scaled.refusal
    assert scaled.replicas == 1


def test_an_autoscaler_leaves_an_elastic_job_alone_and_says_why(
    scaled: Scaled, eventually: Callable[..., None]
) -> None:
    scaled.make_elastic()
    scaled.between(2, 3)
    eventually(lambda: scaled.says("FailedGetScale"), PATIENCE, "the autoscaler to say what it lacks")
    assert 'the spec replicas field ".spec.replicas" does not exist' in scaled.says("FailedGetScale")
    assert scaled.is_elastic


def test_no_scale_to_zero_ends_a_job(scaled: Scaled) -> None:
    """KEDA's ``minReplicaCount`` is 0 by default: without an active trigger it asks for no replica."""
    assert "should be greater than or equal to 1" in scaled.scale(0)
    assert scaled.replicas == 1
    assert not scaled.scale(2)
    assert scaled.replicas == 2
