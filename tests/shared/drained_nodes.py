"""A job on nodes of its own that are drained, by ``kubectl drain`` or by a controller that evicts.

Real: API server, operator, etcd, and the disruption controller. Scheduler,
kubelets and agents are simulated.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from control_plane import ApiServer
from node_pool import Pool
from played import Played
from raw_cluster import Cluster

BOUND = 60
"""Seconds that a drain may take here. kubectl repeats a refused eviction every 5 s."""
EMPTIES = "--delete-emptydir-data"
"""Workers have ``/dev/shm``, which is a volume of the kind ``emptyDir``."""


def kept(player: Played) -> bool:
    """Whether each generation has a worker of the one before, from which it has the state."""
    return all(before & after for before, after in pairwise(player.formed))


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
