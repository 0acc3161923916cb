"""The manifest of a run."""

from __future__ import annotations

from pathlib import Path

from elastrain_resource.manifest import loads
from elastrain_verify.command.job import of_run

MANIFEST = """
apiVersion: elastrain.dev/v1alpha1
kind: ElasticTrainingJob
metadata: {name: digits}
spec:
  minReplicas: 1
  maxReplicas: 4
  template: {spec: {containers: [{name: trainer, image: train:1, command: [python, train.py]}]}}
"""


def test_ranks_that_differ_are_left_as_they_are_for_the_verdict() -> None:
    job = of_run(loads(MANIFEST, source="job.yaml"), Path("/tmp"), workers=2, most=3)
    assert job.spec.divergence is not None
    assert job.spec.divergence.every_steps == 0
