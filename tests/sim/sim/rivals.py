"""Two installations over one namespace, each with its own etcd: a job never has workers of both, and is never left to
neither of them. No pod starts here: what agents do is not in question."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from elastrain.api import names
from elastrain_operator import clock as operator_clock
from sim.etcd import Etcd
from sim.invariants import Violation, Wedge
from sim.operator import Installation, Operator
from sim.run import quiet
from sim.world import JOB, World

if TYPE_CHECKING:
    from sim.apiserver import Body

DISTURBED = 200.0
"""Seconds with faults. A claim is taken over after 60 s at first."""
QUIET = 5000.0
"""Seconds within which the job has workers afterwards: a claim that was lost once is taken over after 30 minutes, and
replacements of lost workers are paced."""
LOOK = 5.0


class Rivals:
    """The world of ``seed``, with an operator of another installation."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"rivals of {seed}")
        self.world = World(seed)
        self.world._schedule = lambda _name, _uid: None
        self.world.on_new_pod = self._created
        self.world.room = 0  # no operator shares the cluster out
        self.world.stale = self.rng.choice((0.0, 1.0, 3.0))
        self.both = 0
        """Workers that were created while both operators ran."""
        self.takers: list[str] = []
        """The etcds of the job's workers, one after the other."""
        operator_clock.now = self.world.time_of_day
        theirs = Installation(Etcd(self.world.clock), "theirs")
        self.rival = Operator(self.world, "operator-c", theirs)
        self.uninstalled = False
        self.violation: Violation | None = None

    def live(self) -> list[Body]:
        """The present job's workers."""
        pods, uid = self.world.api.objects["pods"].values(), self.world.job.uid
        return [p for p in pods if p["metadata"]["labels"][names.LABEL_JOB_UID] == uid]

    def _created(self, body: Body) -> None:
        etcds = {etcd_of(p) for p in self.live()} | {etcd_of(body)}
        if len(etcds) > 1:
            self.violation = Violation(6, f"{body['metadata']['name']} joins workers of another etcd: {sorted(etcds)}")
        etcd = etcd_of(body)
        if self.takers[-1:] != [etcd]:
            self.takers.append(etcd)
        self.both += self.rival.leads and any(o.leads for o in self.world.operators)

    # ---- what happens ------------------------------------------------------------------------------------------------
    def plan(self) -> None:
        acts = (self.lose_pods, self.pause, self.renew, self.renew, self.kill, self.resize)
        for _ in range(self.rng.randint(3, 8)):
            self.world.clock.after(self.rng.uniform(5.0, DISTURBED), self.rng.choice(acts))
        self.world.clock.after(self.rng.uniform(5.0, DISTURBED), self.uninstall)

    def lose_pods(self) -> None:
        for pod in list(self.world.api.objects["pods"]):
            self.world.api.remove("pods", pod)

    def pause(self) -> None:
        self.world.change_spec(suspend=True)
        self.world.clock.after(self.rng.uniform(1.0, 80.0), lambda: self.world.change_spec(suspend=False))

    def renew(self) -> None:
        """The job is deleted, and created again."""
        if self.world.body is not None:
            self.world.api.delete("jobs", JOB)
            self.world.clock.after(self.rng.uniform(0.5, 3.0), self._submit)

    def _submit(self) -> None:
        self.world.job = self.world._submit()
        self.world.change_spec(lossLimit=10**6)

    def kill(self) -> None:
        operator = self.rng.choice([self.rival, *self.world.operators])
        if not (self.uninstalled and operator is self.rival):
            operator.kill(self.rng.uniform(1.0, 20.0))

    def resize(self) -> None:
        if self.world.body is None:
            return
        spec = self.world.body["spec"]
        self.world.change_spec(replicas=self.rng.randint(spec["minReplicas"], spec["maxReplicas"]))

    def uninstall(self) -> None:
        """One of them for good, with the workers that it has made."""
        self.uninstalled = True
        self.rival.kill(1e9)
        for name in [p["metadata"]["name"] for p in self.live() if etcd_of(p) == "theirs:2379"]:
            self.world.api.remove("pods", name)


def etcd_of(pod: Body) -> str:
    env = pod["spec"]["containers"][0]["env"]
    return next(e["value"] for e in env if e["name"] == names.ENV_ETCD_ENDPOINTS)


def shared(seed: int) -> Rivals:
    """Run the world of ``seed``. Raises ``Violation``, and ``Wedge`` if the job is left without workers."""
    with quiet():
        rivals = Rivals(seed)
        world = rivals.world
        world.change_spec(lossLimit=10**6)
        rivals.plan()

        def until(when: float) -> None:
            while world.clock.step(when):
                if rivals.violation is not None:  # not raised where it is seen: that is inside an operator
                    raise rivals.violation

        until(DISTURBED + 10.0)
        deadline = world.clock.now + QUIET
        while len(rivals.live()) < world.body["spec"]["minReplicas"]:
            if world.clock.now >= deadline:
                raise Wedge(f"the job has workers again; its status: {world.body.get('status')}")
            until(world.clock.now + LOOK)
        return rivals
