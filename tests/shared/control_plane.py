"""A control plane of two processes on loopback, etcd and kube-apiserver, without the rest of a cluster; the paths of
their programs and of Helm."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from bench_harness.processes import free_ports
from elastrain_resource.schema.crd import crd, set_crd
from programs import MISSING

CACHE = Path(os.environ.get("ELASTRAIN_CACHE", Path.home() / ".cache/elastrain")) / "bin"
TOKEN = "of-the-test"
START_SECONDS = 60


@dataclass(frozen=True)
class ApiServer:
    """A running API server that serves ``ElasticTrainingJob``."""

    kubectl_program: str
    kubeconfig: Path

    def kubectl(self, *args: str, document: dict[str, Any] | str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, with ``document`` (as YAML) on its standard input."""
        text = document if isinstance(document, str) or document is None else yaml.safe_dump(document)
        return subprocess.run(
            [self.kubectl_program, f"--kubeconfig={self.kubeconfig}", "--request-timeout=20s", *args],
            input=text, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


def program(
    name: str, variable: str, require: str = "ELASTRAIN_REQUIRE_APISERVER", built_by: str = "e2e/cluster/build.sh"
) -> str:
    """Path of the program ``name``: named by the environment variable, else from the project's cache, else from PATH.
    Skips the test if there is none (fails if the variable ``require`` is 1); the message names ``built_by``."""
    named = os.environ.get(variable)
    candidates = [named] if named else [str(CACHE / name), shutil.which(name)]
    found = next((c for c in candidates if c and os.access(c, os.X_OK)), None)
    if found is None:
        _missing(f"there is no {name}: neither ${variable}, {CACHE / name} nor PATH names one", require, built_by)
    return found


def etcd_program() -> str:
    """Path of an etcd. Skips the test if there is none (fails if ELASTRAIN_REQUIRE_APISERVER=1)."""
    built = sorted(CACHE.glob("etcd-[0-9]*"))
    named = os.environ.get("ELASTRAIN_ETCD") or (str(built[-1]) if built else shutil.which("etcd"))
    if not named:
        reason = f"there is no etcd: neither $ELASTRAIN_ETCD, {CACHE}/etcd-* nor PATH names one"
        _missing(reason, "ELASTRAIN_REQUIRE_APISERVER", "scripts/get-etcd")
    return named


def _missing(reason: str, require: str, built_by: str) -> NoReturn:
    if os.environ.get(require) == "1":
        pytest.fail(f"{require}=1, but {reason}", pytrace=False)
    pytest.skip(f"{MISSING}{reason} (`make test` brings it; {built_by} builds it)")


@contextlib.contextmanager
def control_plane(home: Path, *flags: str) -> Iterator[ApiServer]:
    """etcd and kube-apiserver (with more ``flags``), with the CRD, ended with the block; their files and logs are in
    ``home``. Skips the test without these programs (fails if ELASTRAIN_REQUIRE_APISERVER=1)."""
    etcd, kubectl = etcd_program(), program("kubectl", "ELASTRAIN_KUBECTL")
    apiserver = program("kube-apiserver", "ELASTRAIN_KUBE_APISERVER")
    client, peer, secure = free_ports(3)
    key = home / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (home / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    etcd_argv = [
        etcd, "--data-dir", str(home / "etcd"), "--unsafe-no-fsync",
        "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
        "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
        "--initial-cluster", f"default=http://127.0.0.1:{peer}",
    ]  # fmt: skip
    apiserver_argv = [
        apiserver, f"--etcd-servers=http://127.0.0.1:{client}", f"--secure-port={secure}", "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1", f"--cert-dir={home / 'certs'}",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}", f"--token-auth-file={home / 'tokens.csv'}",
        "--authorization-mode=RBAC", "--allow-privileged=true", "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",  # which publishes no address of loopback
        *flags,
    ]  # fmt: skip
    with (
        running(etcd_argv, home / "etcd.log", home),
        running(apiserver_argv, home / "apiserver.log", home) as process,
    ):
        _wait_until_ready(process, f"https://127.0.0.1:{secure}/readyz", home / "apiserver.log")
        found = ApiServer(kubectl, _kubeconfig(home / "kubeconfig", secure))
        _install_crd(found)
        yield found


@contextlib.contextmanager
def running(argv: list[str], log: Path, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, ended with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, context=unverified, timeout=2):
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(
                    f"kube-apiserver is not ready after {START_SECONDS} s ({error}):\n{log.read_text()[-3000:]}"
                )
        time.sleep(0.1)


def _kubeconfig(path: Path, port: int) -> Path:
    access = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "t", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": "t", "user": {"token": TOKEN}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "current-context": "t",
    }
    path.write_text(yaml.safe_dump(access))
    return path


def _install_crd(server: ApiServer) -> None:
    for definition in (crd(), set_crd()):
        applied = server.kubectl("create", "-f", "-", document=definition)
        assert applied.returncode == 0, applied.stderr
        name = f"crd/{definition['metadata']['name']}"
        waited = server.kubectl("wait", "--for=condition=Established", name, "--timeout=30s")
        assert waited.returncode == 0, waited.stderr
