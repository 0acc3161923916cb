"""Keys of the chart's etcd on a real API server: created by the chart's own pod, with its rights, and not by Helm."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from charts import Run, keys
from conditions import eventually
from elastrain_operator.keys import certificates

if TYPE_CHECKING:
    from control_plane import ApiServer

pytestmark = pytest.mark.apiserver

PRESENT = "charts/elastrain"
APART = ("--set=crds.install=false", "--set=rbac.aggregateToDefaultRoles=false", "--set=etcd.replicas=1")
PRIVATE = "PRIVATE KEY"


class Release:
    """A release, what it has left in the cluster, and the process of its pod for keys."""

    def __init__(self, name: str, helm: Run, apiserver: ApiServer, home: Path) -> None:
        self.name, self.etcd = name, f"{name}-elastrain-etcd"
        self._helm, self._apiserver, self._home = helm, apiserver, home
        self._process: subprocess.Popen[bytes] | None = None

    def helm(self, *words: str) -> str:
        result = self._helm(*words, f"--namespace={self.name}", cluster=self._apiserver)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def install(self) -> None:
        self.helm("install", self.name, PRESENT, "--create-namespace", *APART)

    def upgrade(self, *settings: str) -> None:
        self.helm("upgrade", self.name, PRESENT, *APART, *settings)

    def secret(self, kind: str) -> dict[str, bytes] | None:
        """None: there is none."""
        shown = self._apiserver.kubectl("-n", self.name, "get", "secret", f"{self.etcd}-{kind}", "-o=yaml")
        if shown.returncode:
            return None
        data = yaml.safe_load(shown.stdout).get("data") or {}
        return {entry: base64.b64decode(value) for entry, value in data.items()}

    def full(self, kind: str) -> dict[str, bytes]:
        """The Secret, which exists and has entries."""
        found = self.secret(kind)
        assert found, kind
        return found

    def in_record(self) -> str:
        """Everything that Helm's record of the present release has, decoded."""
        documents = [d for d in yaml.safe_load_all(self.helm("get", "manifest", self.name)) if d]
        values = [v for d in documents if d["kind"] == "Secret" for v in (d.get("data") or {}).values()]
        return "\n".join(base64.b64decode(v).decode(errors="replace") for v in values)

    def keep(self) -> None:
        """Start the pod's command with the rights of its account."""
        manifests = list(filter(None, yaml.safe_load_all(self.helm("get", "manifest", self.name))))
        made = self._apiserver.kubectl("-n", self.name, "create", "token", f"{self.name}-elastrain-keys")
        assert made.returncode == 0, made.stderr
        config = yaml.safe_load(self._apiserver.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": made.stdout.strip()}
        (self._home / "keys").write_text(yaml.safe_dump(config))
        command = [sys.executable, *keys(manifests)[1:], "--port=0"]
        with (self._home / "keys.log").open("ab") as log:
            environment = {"KUBECONFIG": str(self._home / "keys"), "PATH": "/usr/bin"}
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def fill(self) -> None:
        """Wait until the pod has filled all Secrets, and stop it."""
        self.keep()
        what = "the Secrets to be filled: " + str(self._home / "keys.log")
        # kubectl takes 0.1 s of CPU.
        eventually(lambda: self.secret("server") and self.secret("root"), within=30, what=what, pause=0.3)
        assert self.stop() == 0, (self._home / "keys.log").read_text()

    def stop(self) -> int | None:
        if self._process is None:
            return None
        self._process.terminate()
        code = self._process.wait(10)
        self._process = None
        return code


@pytest.fixture
def release(helm: Run, apiserver: ApiServer, tmp_path: Path) -> Iterator[Callable[[str], Release]]:
    made: list[Release] = []

    def make(name: str) -> Release:
        made.append(Release(name, helm, apiserver, tmp_path))
        return made[-1]

    yield make
    for found in made:
        found.stop()
        helm("uninstall", found.name, f"--namespace={found.name}", cluster=apiserver)


def test_helm_knows_no_key_and_keeps_those_that_the_pod_has_created(release: Callable[[str], Release]) -> None:
    fresh = release("fresh")
    fresh.install()
    assert (fresh.secret("root"), fresh.secret("server")) == ({}, {}), "pods wait for these entries"
    fresh.fill()
    before = {kind: fresh.full(kind) for kind in ("root", "authority", "server")}
    assert before["root"].keys() == {"password", "job-key"}
    assert before["server"]["ca.crt"] == before["authority"]["ca.crt"]
    assert certificates.has_issued(before["server"]["ca.crt"], before["server"]["tls.crt"])
    assert f"{fresh.etcd}.fresh.svc" in certificates.facts(before["server"]["tls.crt"]).hosts

    fresh.upgrade("--set=operator.leaseTTL=7")
    fresh.helm("rollback", "fresh", "1")
    assert {kind: fresh.full(kind) for kind in before} == before
    assert fresh.in_record() == ""

    fresh.helm("uninstall", "fresh")
    assert fresh.full("root") == before["root"], "etcd's volume needs the same password"
    fresh.install()
    assert fresh.full("root") == before["root"]


def test_the_pod_names_the_secret_that_is_missing(
    release: Callable[[str], Release], apiserver: ApiServer, tmp_path: Path
) -> None:
    bare = release("bare")
    bare.install()
    apiserver.kubectl("-n", "bare", "delete", "secret", f"{bare.etcd}-server")
    bare.keep()
    words = f"Secret {bare.etcd}-server does not exist: `helm upgrade` creates it"
    eventually(lambda: words in (tmp_path / "keys.log").read_text(), within=30, what="the log to name the Secret")
    assert bare.stop() == 0
    assert bare.secret("authority") == {}, "nothing is created on half of the information"
