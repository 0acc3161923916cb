"""The chart's rights on a control plane, and Kueue and the operator with these rights alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from charts import Run
from control_plane import ApiServer
from elastrain_cli.etcd_server import EtcdServer
from kueue_server import ACCOUNT, Kueue
from operator_process import OperatorProcess
from warm import Warm

NAMESPACE = "elastrain"
SETTINGS = ("--set=kueue.enabled=true,fullnameOverride=operator,capacity.enabled=false", f"--namespace={NAMESPACE}")
SHOWN = ("rbac", "kueue", "admission", "lease", "cluster-identity")


def install(server: ApiServer, helm: Run, *values: str) -> list[dict[str, Any]]:
    """The chart's rights and admission policies, in force. Returns all objects."""
    show = [f"--show-only=templates/{name}.yaml" for name in SHOWN]
    settings = (*SETTINGS, *(f"--set={value}" for value in values))
    made = helm("template", "x", "charts/elastrain", *settings, "--kube-version=1.34.0", *show)
    assert made.returncode == 0, made.stderr
    objects = [o for o in yaml.safe_load_all(made.stdout) if o]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator", "namespace": NAMESPACE}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    applied = server.kubectl("apply", "-f", "-", document=yaml.safe_dump_all([space, account, *objects]))
    assert applied.returncode == 0, applied.stderr
    return objects


def kueue_of(server: ApiServer, objects: list[dict[str, Any]], home: Path) -> Kueue:
    """Kueue with its own rights and those that the chart's ``objects`` give it; not started."""
    named = {o["kind"]: o for o in objects if o["metadata"]["name"] == f"operator.{NAMESPACE}.kueue"}
    role, binding = named["ClusterRole"], named["ClusterRoleBinding"]
    [subject] = binding["subjects"]
    assert f"system:serviceaccount:{subject['namespace']}:{subject['name']}" == ACCOUNT
    return Kueue(server, home, role["rules"])


def access_of(server: ApiServer, path: Path) -> Path:
    """A kubeconfig, at ``path``, with a token of the chart's service account."""
    token = server.kubectl("create", "token", "operator", f"--namespace={NAMESPACE}", "--duration=2h").stdout
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    path.write_text(yaml.safe_dump(config))
    return path


class Operator:
    """The operator of all namespaces: ``start()``, ``kill()``, ``process``; ``flags`` of the next start."""

    def __init__(self, warm: Warm, access: Path, etcd: EtcdServer, folder: Path) -> None:
        self._warm, self._access, self._folder = warm, access, folder
        self.flags = [f"--etcd-endpoints={etcd.endpoint}", "--kueue"]
        self.process: OperatorProcess | None = None

    def start(self) -> OperatorProcess:
        if self.process is None or not self.process.is_running:
            self.process = OperatorProcess(self._warm, self._access, self._folder / "operator.log", *self.flags)
        return self.process

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
