"""Fixtures of the operator's tests: builders of plain values; a real API server with a played kubelet and agents."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane import ApiServer, control_plane, free_ports
from elastrain.api import names
from elastrain.api.job import JobSpec
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, GenerationMember, Member, Outcome, Phase, Progress, Target, Termination
from elastrain.etcd import EtcdClient
from elastrain.local.etcd_server import EtcdServer
from elastrain_operator import reflector
from elastrain_operator.kube import CAPACITY_PERMISSIONS, LEASE_PERMISSIONS, PERMISSIONS

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1", "command": ["python", "train.py"]}]}}


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def make_spec() -> Callable[..., JobSpec]:
    """``make_spec(maxReplicas=4, ...)``: a valid spec, fields in wire names."""
    return lambda **fields: JobSpec.model_validate({"maxReplicas": 4, "template": TEMPLATE, **fields})


@pytest.fixture
def pod_body() -> Callable[..., dict[str, Any]]:
    """``pod_body(ordinal, state={...}, ...)``: a worker pod as the API server shows it."""

    def build(
        ordinal: int = 0,
        *,
        phase: str = "Pending",
        state: dict[str, Any] | None = None,
        conditions: list[dict[str, Any]] | None = None,
        status: dict[str, Any] | None = None,
        **meta: Any,
    ) -> dict[str, Any]:
        containers = [{"name": "trainer", "image": "trainer:1", "state": state}] if state else []
        return {
            "metadata": {
                "name": f"job-{ordinal}",
                "namespace": "default",
                "uid": f"uid-{ordinal}",
                "creationTimestamp": wire_time(NOW),
                "labels": {names.LABEL_ORDINAL: str(ordinal), names.LABEL_JOB_UID: "job-uid"},
                **meta,
            },
            "spec": {"containers": [{"name": "trainer", "image": "trainer:1"}], "terminationGracePeriodSeconds": 30},
            "status": {
                "phase": phase,
                "containerStatuses": containers,
                "conditions": conditions or [],
                **(status or {}),
            },
        }

    return build


@pytest.fixture
def terminated() -> Callable[..., dict[str, Any]]:
    """``terminated(exit_code, record=..., reason=...)``: state of a container that has ended a second ago."""

    def build(exit_code: int, record: Termination | None = None, **fields: Any) -> dict[str, Any]:
        message = {"message": record.encode().decode()} if record else {}
        times = {"startedAt": wire_time(NOW), "finishedAt": wire_time(NOW + timedelta(seconds=90))}
        return {"terminated": {"exitCode": exit_code, **times, **message, **fields}}

    return build


def wire_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# ---- a real API server, with kubelet and agents played by the test ---------------------------------------------------
class Cluster:
    """Raw calls of the API server in one namespace of its own."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._server = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    def call(self, method: str, path: str, body: object = None, content: str = "application/json") -> dict[str, Any]:
        """Raises ``urllib.error.HTTPError``."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        with urllib.request.urlopen(request, context=self._tls, timeout=10) as answer:
            return dict(json.load(answer))

    def merge(self, path: str, body: object) -> dict[str, Any]:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def job_path(self, name: str = "") -> str:
        path = f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{names.PLURAL}"
        return f"{path}/{name}" if name else path

    def pods(self) -> dict[str, dict[str, Any]]:
        """Pods by name."""
        return {p["metadata"]["name"]: p for p in self.call("GET", self.pods_path)["items"]}

    def job(self, name: str) -> dict[str, Any]:
        return self.call("GET", self.job_path(name))

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.job(name).get("status") or {})

    def exists(self, name: str) -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            return bool(self.job(name))
        return False

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, message) of the events on a job."""
        items = self.call("GET", f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [(e["reason"], e["message"]) for e in items if e["involvedObject"]["name"] == name]

    def create_job(self, name: str, **spec: Any) -> JobKeys:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {"template": TEMPLATE, **spec},
        }
        created = self.call("POST", self.job_path(), body)
        return JobKeys(self.namespace, name, created["metadata"]["uid"])

    def patch_job(self, name: str, **spec: Any) -> None:
        self.merge(self.job_path(name), {"spec": spec})

    def set_trainer(self, pod: str, phase: str, state: dict[str, Any], ready: bool = False) -> None:
        """What a kubelet would report of a pod."""
        container = {
            "name": "trainer", "image": "trainer:1", "imageID": "", "ready": ready, "restartCount": 0, "state": state,
        }  # fmt: skip
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": wire_time(datetime.now(UTC)),
        }
        status = {"phase": phase, "containerStatuses": [container], "conditions": [condition]}
        self.merge(f"{self.pods_path}/{pod}/status", {"status": status})

    def end_trainer(self, pod: str, record: Termination) -> None:
        """The trainer container of a pod ends with this record."""
        stamp = wire_time(datetime.now(UTC).replace(microsecond=0))
        ended = {"exitCode": record.exit_code, "message": record.encode().decode(), "finishedAt": stamp}
        phase = "Failed" if record.outcome is Outcome.FAILED else "Succeeded"
        self.set_trainer(pod, phase, {"terminated": {**ended, "startedAt": stamp}})


class Played:
    """Plays kubelet and agents of one job: pods run at once, members form generations as the target says; those beyond
    its desired size stand by.

    ``held``: pods that do not start. ``crash`` and ``finish`` end pods as an agent would.
    """

    def __init__(self, cluster: Cluster, client: EtcdClient, keys: JobKeys) -> None:
        self.cluster, self.client, self.keys = cluster, client, keys
        self.held: set[str] = set()
        self.may_start: Callable[[str, dict[str, Any]], bool] = lambda _name, _pod: True
        """Asked about each pod that is not held; a test that plays the scheduler answers by the pod's node."""
        self.number, self.in_generation = 0, ()
        self._running: set[str] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def crash(self, pod: str, record: Termination) -> None:
        with self._lock:
            self._running.discard(pod)
            self.client.delete(self.keys.member(pod))
            self.cluster.end_trainer(pod, record)

    def lose_node(self, pod: str) -> None:
        """The node stops: the lease expires, and the node lifecycle controller marks the pod."""
        with self._lock:
            self._running.discard(pod)
            self.client.delete(self.keys.member(pod))
            started = self.cluster.pods()[pod]["status"]["containerStatuses"][0]["state"]
            time.sleep(1.1)  # Kubernetes' times are whole seconds, and this transition comes after the start
            self.cluster.set_trainer(pod, "Running", started, ready=False)

    def finish(self, step: int) -> None:
        """Training ends: progress first, then the agents."""
        with self._lock:
            progress = Progress(generation=self.number, world_size=1, members=1, step=step, finished=True)
            self.client.put(self.keys.progress, progress.encode())
            for pod in sorted(self._running):
                self.cluster.end_trainer(pod, Termination(outcome=Outcome.FINISHED, step=step))
            self._running.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing moves meanwhile."""
        with self._lock:
            yield

    def target(self) -> Target:
        """What the operator wants, as published."""
        raw = self.client.get(self.keys.target)
        assert raw is not None
        return Target.decode(raw.value)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            # Whatever is deleted under our hands is seen so in the next step.
            with self._lock, contextlib.suppress(urllib.error.HTTPError):
                self._step()

    def _step(self) -> None:
        pods = self.cluster.pods()  # first: a pod is made after the target that it is made for
        raw = self.client.get(self.keys.target)
        if raw is None:
            return
        target = Target.decode(raw.value)
        self._running &= pods.keys()
        for name, pod in pods.items():
            ours = pod["metadata"]["labels"].get(names.LABEL_JOB_UID) == self.keys.uid
            pending = pod["status"]["phase"] == "Pending" and name not in self.held
            if ours and pending and self.may_start(name, pod):
                started = wire_time(datetime.now(UTC).replace(microsecond=0))
                self.cluster.set_trainer(name, "Running", {"running": {"startedAt": started}}, ready=True)
                self._running.add(name)
        leaving = set(target.leaving) if target.desired else set(self._running)
        able = sorted(self._running - leaving)
        stayers = [name for name in able if name in self.in_generation]
        joiners = [name for name in able if name not in stayers]
        room = max(target.desired - len(stayers), 0)
        for name in joiners[room:]:
            member = Member(id=name, worker=name, address="127.0.0.1", phase=Phase.READY)
            if self.client.get(self.keys.member(name)) is None:
                self.client.put(self.keys.member(name), member.encode())
        wanted = tuple(sorted(stayers + joiners[:room]))
        if wanted != self.in_generation:
            self._form(wanted)
        for name in sorted(self._running & leaving):
            self.client.delete(self.keys.member(name))
            self.cluster.end_trainer(name, Termination(outcome=Outcome.DRAINED))
            self._running.discard(name)

    def _form(self, wanted: tuple[str, ...]) -> None:
        self.number, self.in_generation = self.number + 1, wanted
        members = tuple(
            GenerationMember(id=name, worker=name, address="127.0.0.1", store_port=1, rank_offset=i)
            for i, name in enumerate(wanted)
        )
        generation = Generation(number=self.number, members=members, reason="Test", leader=next(iter(wanted), "none"))
        self.client.put(self.keys.generation, generation.encode())
        for name in wanted:
            member = Member(id=name, worker=name, address="127.0.0.1", phase=Phase.READY, generation=self.number)
            self.client.put(self.keys.member(name), member.encode())


@pytest.fixture
def quick_reflector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that is tried again at once."""
    monkeypatch.setattr(reflector, "RETRY_DELAYS", (0.001,))
    monkeypatch.setattr(reflector, "RESUME_DELAY", 0.001)


def _operator_account(apiserver: ApiServer, path: Path, namespace: str = "") -> Path:
    """A kubeconfig, at ``path``, that may do what ``kube.py`` says that an operator needs, and nothing else: in one
    namespace, or in all."""
    admin = Cluster(apiserver.kubeconfig, namespace or "default")
    name = {"metadata": {"name": "elastrain-operator"}}
    needed = {**PERMISSIONS, **LEASE_PERMISSIONS, **({} if namespace else CAPACITY_PERMISSIONS)}
    rules = [{"apiGroups": [g], "resources": [r], "verbs": sorted(verbs)} for (g, r), verbs in needed.items()]
    rbac = "/apis/rbac.authorization.k8s.io/v1" + (f"/namespaces/{namespace}" if namespace else "")
    kind = "Role" if namespace else "ClusterRole"
    admin.call("POST", f"{rbac}/{kind.lower()}s", {**name, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "elastrain-operator", "namespace": admin.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "elastrain-operator"}
    admin.call("POST", f"{rbac}/{kind.lower()}bindings", {**name, "roleRef": role, "subjects": [subject]})
    accounts = f"/api/v1/namespaces/{admin.namespace}/serviceaccounts"
    admin.call("POST", accounts, name)
    answer = admin.call("POST", f"{accounts}/elastrain-operator/token", {"spec": {"expirationSeconds": 7200}})
    config = yaml.safe_load(apiserver.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One of their own: an operator that serves all namespaces would act on jobs that other areas' tests leave."""
    with control_plane(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture(scope="session")
def operator_kubeconfig(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an operator that serves all namespaces."""
    return _operator_account(apiserver, tmp_path_factory.mktemp("operator") / "kubeconfig")


class OperatorProcess:
    """``python -m elastrain_operator`` against the API server, allowed no more than it says that it needs."""

    def __init__(self, kubeconfig: Path, log: Path, *flags: str) -> None:
        self.log = log
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        argv = [sys.executable, "-m", "elastrain_operator", "--drain-extra=1", *flags]
        self.health_port, self.metrics_port = free_ports(2)
        argv += [f"--health-port={self.health_port}", f"--metrics-port={self.metrics_port}"]
        with log.open("ab") as out:
            self.process = subprocess.Popen(argv, env=environ, stdout=out, stderr=subprocess.STDOUT)

    def health(self) -> dict[str, Any]:
        """What the liveness probe reads."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/healthz", timeout=5) as answer:
            return dict(json.load(answer))

    def metrics(self) -> str:
        """What Prometheus reads."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        """SIGTERM ends it quickly and in order."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(15) == 0, self.log.read_text()[-3000:]
        faults = [x for x in self.log.read_text().splitlines() if "Traceback" in x or "forbidden" in x]
        assert not faults, faults


@pytest.fixture(scope="session")
def shared_operators() -> list[OperatorProcess]:
    """Those that ``operator_process`` has started."""
    return []


@pytest.fixture(scope="session")
def operator_process(
    operator_kubeconfig: Path,
    etcd: EtcdServer,
    shared_operators: list[OperatorProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], OperatorProcess]]:
    """``operator_process()``: the running operator that most tests share; starts it where none runs. Its ``stop()``
    ends it, if it runs."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    started = shared_operators

    def start() -> OperatorProcess:
        if not (started and started[-1].is_running):
            started.append(OperatorProcess(operator_kubeconfig, log, f"--etcd-endpoints={etcd.endpoint}"))
        return started[-1]

    def stop() -> None:
        if started:
            started[-1].stop()

    start.stop = stop
    yield start
    for operator in started:
        operator.stop()


@pytest.fixture
def operator_factory(
    apiserver: ApiServer,
    cluster: Cluster,
    operator_kubeconfig: Path,
    shared_operators: list[OperatorProcess],
    tmp_path: Path,
) -> Iterator[Callable[..., OperatorProcess]]:
    """``operator_factory(etcd, namespace, *flags)``: an operator of the test's namespace; without ``--capacity``, with
    no right in any other. The shared one, which serves all namespaces, is stopped before."""
    namespaced = _operator_account(apiserver, tmp_path / "kubeconfig", cluster.namespace)
    for shared in shared_operators:
        shared.stop()
    started: list[OperatorProcess] = []

    def start(etcd: EtcdServer, namespace: str, *more: str) -> OperatorProcess:
        flags = (f"--etcd-endpoints={etcd.endpoint}", f"--namespaces={namespace}", *more)
        kubeconfig = operator_kubeconfig if "--capacity" in more else namespaced
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(OperatorProcess(kubeconfig, log, *flags))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()


@pytest.fixture
def cluster(apiserver: ApiServer) -> Cluster:
    """A namespace of its own on the API server."""
    found = Cluster(apiserver.kubeconfig, f"test-{time.monotonic_ns()}")
    found.call("POST", "/api/v1/namespaces", {"metadata": {"name": found.namespace}})
    # A controller creates this one in a whole cluster.
    account = f"/api/v1/namespaces/{found.namespace}/serviceaccounts"
    found.call("POST", account, {"metadata": {"name": "default"}})
    return found


@pytest.fixture
def play(cluster: Cluster, client: EtcdClient) -> Iterator[Callable[[JobKeys], Played]]:
    """``play(keys)``: kubelet and agents for one job."""
    players: list[Played] = []

    def start(keys: JobKeys) -> Played:
        players.append(Played(cluster, client, keys))
        return players[-1]

    yield start
    for player in players:
        player.close()
