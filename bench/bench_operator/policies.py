"""The chart's admission policies for the operator: the API server itself refuses what no job needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench_harness.program import Failed
from bench_operator.cluster import BIN, NAMESPACE, OPERATOR, RELEASE, START_SECONDS, ControlPlane, until, version
from bench_operator.net import Refused

CHART = Path(__file__).parents[2] / "charts/elastrain"
FOREIGN = {
    "metadata": {"name": "foreign", "namespace": NAMESPACE},
    "spec": {"containers": [{"name": "c", "image": "i:1"}]},
}


def install(plane: ControlPlane) -> None:
    """Install them as the chart's defaults say, and wait until they are in force. Raises :class:`Failed`."""
    path = plane.directory / "policies.yaml"
    argv = [
        str(BIN / "helm"), "template", RELEASE, str(CHART), f"--namespace={NAMESPACE}",
        "--set=operator.image.repository=registry.example/elastrain/operator", "--set=etcd.tls.mode=generated",
        "--show-only=templates/admission.yaml", f"--kube-version={version('kube-apiserver')}",
    ]  # fmt: skip
    made = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if made.returncode:
        raise Failed(f"helm template: exit code {made.returncode}: {made.stderr[-2000:]}")
    path.write_text(made.stdout)
    plane.kubectl("create", "-f", str(path), limit=START_SECONDS)
    api = plane.api(OPERATOR)

    def refuses() -> bool:
        try:
            api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", FOREIGN)
        except Refused as refusal:
            return "ValidatingAdmissionPolicy" in str(refusal)
        return False

    until(refuses, START_SECONDS, "the API server refuses a pod that no job owns")
    api.close()
