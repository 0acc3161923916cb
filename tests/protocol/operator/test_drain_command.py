"""``kubectl drain`` itself over nodes with workers: it ends, and some worker always holds the newest state.

Real: kubectl, API server, disruption controller, operator, etcd. The test simulates scheduler, kubelets and agents.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from control_plane import ApiServer, program, running
from elastrain.api.records import Outcome, Termination
from node_pool import Pool
from played import Played
from raw_cluster import Cluster

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(240)]

BOUND = 60
"""Seconds that a drain may take here. kubectl repeats a refused eviction every 5 s."""
USERS = {"minAvailable": {"minAvailable": 1}, "maxUnavailable": {"maxUnavailable": 1}}
BUDGETS = {"own": None, **USERS}
FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="no data")
EMPTIES = "--delete-emptydir-data"
"""Workers have ``/dev/shm``, which is a volume of the kind ``emptyDir``."""


@pytest.fixture(scope="module")
def _disruption_controller(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("drains")
    manager = program("kube-controller-manager", "ELASTRAIN_KUBE_CONTROLLER_MANAGER")
    flags = ("--controllers=disruption-controller", "--leader-elect=false", "--secure-port=0")
    with running([manager, f"--kubeconfig={apiserver.kubeconfig}", *flags], home / "controller.log", Path(home)):
        yield


class Scene:
    """Nodes of three devices, an operator that shares them out, and a job that commits ten steps a second."""

    def __init__(
        self, apiserver: ApiServer, cluster: Cluster, play: Callable[..., Played], eventually: Any, home: Path
    ) -> None:
        self.cluster, self.pool, self.eventually = cluster, Pool(cluster), eventually
        self._apiserver, self._play, self._home = apiserver, play, home
        self._stop = threading.Event()
        self._trainers: list[threading.Thread] = []
        self._drains: list[Drain] = []
        for node in ("a", "b"):
            self.pool.join(node, 3)

    def node(self, short: str) -> str:
        return f"{short}.{self.cluster.namespace}"

    def train(self, workers: int, budget: dict[str, Any] | None = None, **spec: Any) -> Played:
        """The job trains, with the operator's budget, or with a user's own."""
        if budget is not None:
            chosen = {"selector": {"matchLabels": {"elastrain.dev/job": "job"}}, **budget}
            self.cluster.call("POST", self._budgets, {"metadata": {"name": "own"}, "spec": chosen})
            spec["protectState"] = False
        template = {"template": self.pool.template(), **spec}
        player = self._play(self.cluster.create_job("job", maxReplicas=workers, **template))
        player.may_start = self.pool.bound
        self.eventually(lambda: self.trains(workers), 60, f"{workers} workers train")
        saves = "checkpoint" in spec
        self._trainers.append(threading.Thread(target=self._commit, args=(player, saves), daemon=True))
        self._trainers[-1].start()
        if not saves:
            self.eventually(self._guarded, 30, "its budget is in force")
        return player

    def trains(self, workers: int) -> bool:
        return bool(self.cluster.status("job").get("readyReplicas") == workers)

    def _commit(self, player: Played, saves: bool) -> None:
        while not self._stop.wait(0.1):
            if player.in_generation:
                player.commit(player.step + 1, saved=player.step if saves else 0)

    @property
    def _budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.cluster.namespace}/poddisruptionbudgets"

    def _guarded(self) -> bool:
        found = self.cluster.call("GET", self._budgets)["items"]
        return any(b.get("status", {}).get("expectedPods") for b in found)

    def on(self, node: str) -> set[str]:
        """Pods of the job on a node."""
        return {n for n, p in self.cluster.pods().items() if p["spec"].get("nodeName") == self.node(node)}

    def evicted(self) -> set[str]:
        """Pods whose eviction the API server has accepted, and that are not gone yet."""
        return {n for n, p in self.cluster.pods().items() if "deletionTimestamp" in p["metadata"]}

    def drain(self, node: str, *flags: str, within: float = BOUND) -> Drain:
        command = [self._apiserver.kubectl_program, f"--kubeconfig={self._apiserver.kubeconfig}", "drain"]
        command += [self.node(node), "--ignore-daemonsets", f"--timeout={within:g}s", *(flags or (EMPTIES,))]
        self._drains.append(Drain(command, self._home / f"drain-{len(self._drains)}.log"))
        return self._drains[-1]

    def close(self) -> None:
        self._stop.set()
        for thread in self._trainers:
            thread.join(10)
        for drain in self._drains:
            drain.process.kill()
            drain.process.wait()


class Drain:
    """One ``kubectl drain``."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        return self._log.read_text()

    @property
    def was_refused(self) -> bool:
        """Whether an eviction was; kubectl asks again."""
        return "violate the pod's disruption budget" in self.text

    def ends(self) -> int:
        """Its exit code, within its bound."""
        code = self.process.wait(BOUND + 10)
        print(self.text)
        return code


@pytest.fixture
def scene(
    apiserver, cluster, play, eventually, operator_process, operator_factory, etcd, tmp_path, _disruption_controller
) -> Iterator[Scene]:
    operator_process.stop()  # it serves all namespaces, and does not share them out
    operator_factory(etcd, cluster.namespace, "--capacity", "--capacity-hysteresis=0")
    made = Scene(apiserver, cluster, play, eventually, tmp_path)
    yield made
    made.close()


def kept(player: Played) -> bool:
    """Whether each generation has a worker of the one before, from which it has the state."""
    return all(before & after for before, after in pairwise(player.formed))


@pytest.mark.parametrize(("budget", "at_once"), [(None, 2), *zip(USERS.values(), (2, 1), strict=True)], ids=BUDGETS)
def test_a_drain_moves_all_workers_of_an_elastic_job_and_the_last_holder_last(scene: Scene, budget, at_once):
    player = scene.train(3, budget)
    assert scene.on("a") == {"job-0", "job-1", "job-2"}
    with player.paused():  # no evicted worker leaves yet
        drain = scene.drain("a")
        scene.eventually(lambda: drain.was_refused, 30, "the budget refuses the rest")
        assert len(scene.evicted()) == at_once
    assert drain.ends() == 0
    assert not scene.on("a")
    scene.eventually(lambda: scene.trains(3) and len(scene.on("b")) == 3, 60, "all train on the other node")
    assert kept(player), player.formed


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_a_drain_goes_on_while_the_job_is_already_being_drained(scene: Scene, budget):
    player = scene.train(3, budget)
    scene.pool.join("c", 3)
    with player.paused():
        first = scene.drain("a")
        scene.eventually(scene.evicted, 30, "the first drain has begun")
    second = scene.drain("b")  # where the first replacements may be
    assert (first.ends(), second.ends()) == (0, 0)
    assert not scene.on("a") | scene.on("b")
    scene.eventually(lambda: scene.trains(3) and len(scene.on("c")) == 3, 60, "all train on the last node")
    assert kept(player), player.formed


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_a_drain_waits_for_no_worker_of_a_job_that_is_suspended(scene: Scene, budget):
    volume = {"name": "c", "persistentVolumeClaim": {"claimName": "c"}}
    template = scene.pool.template(volumes=[volume])
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "c", "mountPath": "/c"}]
    player = scene.train(3, budget, template=template, checkpoint={"path": "/c", "everySteps": 1})
    scene.eventually(lambda: scene.cluster.condition("job", "CheckpointHealthy").get("status") == "True", 30, "a save")
    with player.paused():
        scene.cluster.patch_job("job", suspend=True)
        drain = scene.drain("a")
        scene.eventually(scene.evicted, 30, "the drain has begun")
    assert drain.ends() == 0
    assert not scene.on("a")
    assert scene.drain("b").ends() == 0, "of a node without a worker"
    scene.pool.join("c", 3)
    scene.cluster.patch_job("job", suspend=False)
    scene.eventually(lambda: scene.trains(3) and len(scene.on("c")) == 3, 60, "it resumes on the last node")


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_a_drain_waits_for_no_worker_of_a_job_that_fails(scene: Scene, budget):
    player = scene.train(3, budget, backoffLimit=0)
    with player.paused():
        drain = scene.drain("a")
        scene.eventually(lambda: drain.was_refused, 30, "the budget refuses the rest")
        holder = min(scene.on("a") - scene.evicted())
    player.crash(holder, FAILED)
    scene.eventually(lambda: scene.cluster.status("job").get("phase") == "Failed", 30, "it has failed")
    assert drain.ends() == 0
    assert not scene.on("a")


def test_a_drain_of_the_only_holder_ends_in_time_and_names_the_budget(scene: Scene):
    scene.train(1)
    waits = scene.drain("a", within=8)
    assert waits.ends() == 1
    assert waits.was_refused
    assert "global timeout reached: 8s" in waits.text
    assert scene.on("a") == {"job-0"}, "it trains on"
    drain = scene.drain("a")
    scene.cluster.patch_job("job", protectState=False)
    assert drain.ends() == 0
    assert not scene.on("a")


def test_a_drain_needs_the_flag_for_volumes_that_end_with_the_pod(scene: Scene):
    scene.train(2)
    refused = scene.drain("a", "--timeout=10s")
    assert refused.ends() == 1
    assert "cannot delete Pods with local storage (use --delete-emptydir-data to override)" in refused.text
    assert "declare no controller" not in refused.text, "their set is one"
    assert not scene.evicted()
