"""The chart's etcd as processes on loopback: its containers, in the order in which a kubelet starts them."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from bench_harness.processes import free_ports
from charts import Manifests, one
from conditions import eventually
from control_plane import etcd_program, program
from elastrain.etcd import EtcdConfig

CONFIGURATION = "etcd-gateway.cfg"


def haproxy_program() -> str:
    """Path of an HAProxy. Skips the test if there is none (fails if ELASTRAIN_REQUIRE_HELM=1)."""
    return program("haproxy", "ELASTRAIN_HAPROXY", require="ELASTRAIN_REQUIRE_HELM", built_by="scripts/get-haproxy")


class EtcdMember:
    """One pod of the StatefulSet, with a folder for its volume."""

    def __init__(self, etcd: ChartEtcd, ordinal: int) -> None:
        self.name = f"{etcd.name}-{ordinal}"
        self.volume = etcd.home / self.name
        self.client, self.inner, self.peer, self.metrics, self.clear = free_ports(5)
        self.etcd = etcd
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, container: dict[str, Any]) -> list[str]:
        """The command of a container, for this machine."""
        text = self.adapted("\n".join(container["command"]).replace("$(POD_NAME)", self.name))
        name, *arguments = text.replace(f"{self.etcd.name}.training.svc", "127.0.0.1").split("\n")
        if "--configuration" in text:
            arguments.append(f"--haproxy={haproxy_program()}")
        return [{"etcd": etcd_program(), "python": sys.executable}[name], *arguments]

    def adapted(self, words: str) -> str:
        """A command or a configuration, with the ports and paths of this machine."""
        for member in self.etcd.members:
            words = words.replace(f"{member.name}.{self.etcd.name}-peers.training.svc:2380", f"127.0.0.1:{member.peer}")
        words = words.replace("0.0.0.0", "127.0.0.1")
        ports = {2377: self.clear, 2378: self.inner, 2379: self.client, 2380: self.peer, 2381: self.metrics}
        for port, free in ports.items():
            words = words.replace(f":{port}", f":{free}")
        words = words.replace("/etc/etcd/tls", str(self.etcd.home)).replace("/etc/etcd/root", str(self.etcd.home))
        return words.replace("/etc/elastrain", str(self.volume)).replace("/var/lib/etcd", str(self.volume))

    def run(self, name: str) -> subprocess.Popen[bytes]:
        """Start the container of that name."""
        self.volume.mkdir(exist_ok=True)
        if name == "gateway":
            (self.volume / CONFIGURATION).write_text(self.adapted(self.etcd.configuration))
        with (self.etcd.home / f"{self.name}-{name}.log").open("ab") as log:
            command = self.command(self.etcd.containers[name])
            environment = {**os.environ, "POD_IP": "127.0.0.2"}  # beside 127.0.0.1, which stands for the pod's own
            self._processes[name] = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
        return self._processes[name]

    def answers(self, path: str) -> bool:
        """Whether a probe of etcd succeeds."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}{path}", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def finish_start(self) -> None:
        """After the container ``etcd`` was started: await its probe, and start the others in their order."""
        probe = self.etcd.containers["etcd"]["startupProbe"]["httpGet"]["path"]
        eventually(lambda: self.answers(probe), within=30, what=f"{self.name} answers {probe} with 200")
        if "root" in self.etcd.containers:
            assert self.run("root").wait(60) == 0, self._log("root")
            self.run("gateway")
            eventually(self._is_open, what=f"the gateway of {self.name} to listen")

    def _is_open(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.client)) == 0

    def stop(self) -> None:
        """As at the deletion of the pod: containers before the etcd that they need."""
        for name, process in reversed(self._processes.items()):
            (process.terminate if name == "gateway" else process.kill)()  # it ends the HAProxy that it has started
            process.wait(10)
        self._processes.clear()

    def _log(self, name: str) -> str:
        return (self.etcd.home / f"{self.name}-{name}.log").read_text(errors="replace")[-3000:]


def write_keys(manifests: Manifests, home: Path) -> None:
    """The files of its Secrets; the password is ``secret``."""
    for name, value in one(manifests, "Secret", "-server")["data"].items():
        (home / name).write_bytes(base64.b64decode(value))
    (home / "password").write_bytes(b"secret")


class ChartEtcd:
    """All pods of the StatefulSet."""

    def __init__(self, manifests: Manifests, home: Path) -> None:
        stateful = one(manifests, "StatefulSet")
        pod = stateful["spec"]["template"]["spec"]
        self.home, self.name = home, stateful["metadata"]["name"]
        self.containers = {c["name"]: c for c in (*pod.get("initContainers", ()), *pod["containers"])}
        self.configuration = ""
        if "gateway" in self.containers:
            write_keys(manifests, home)
            self.configuration = one(manifests, "ConfigMap", f"{self.name}-gateway")["data"][CONFIGURATION]
        self.members: list[EtcdMember] = []
        for ordinal in range(stateful["spec"]["replicas"]):
            self.members.append(EtcdMember(self, ordinal))

    def start(self, *members: EtcdMember) -> None:
        """Start all pods, or these."""
        for member in members or self.members:
            member.run("etcd")
        for member in members or self.members:
            member.finish_start()

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def config(self, *members: EtcdMember, user: str = "root") -> EtcdConfig:
        """Of a client that reaches all pods, or these; ``user`` empty: one without a password."""
        endpoints = ",".join(f"127.0.0.1:{m.client}" for m in members or self.members)
        password = str(self.home / "password") if user else ""
        return EtcdConfig.of(endpoints, ca=str(self.home / "ca.crt"), username=user, password_file=password)
