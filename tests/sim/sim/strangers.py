"""Other users and programs of the cluster, and machines whose clocks differ by an hour: in one schedule of five.

They draw from random numbers of their own, so that every other schedule stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from elastrain.api import names
from elastrain.api.records import Outcome, Termination
from sim.invariants import Wedge

if TYPE_CHECKING:
    from sim.apiserver import Body
    from sim.world import World

ONE_IN = 5
HOUR = 3600.0
SNATCH_SECONDS = 3.0
"""Seconds for which new pods are deleted at once: the job's pauses between its attempts are longer."""
MOST_WORKERS = 4
ENDS = (
    Termination(outcome=Outcome.FINISHED, step=10**6),
    Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="forged"),
    Termination(outcome=Outcome.DRAINED),
)


class Strangers:
    """Plans and causes what they do."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(f"strangers of {world.seed}")
        self.counts: Counter[str] = Counter()
        self._snatching, self._born = False, 0

    def plan(self, first: float, last: float) -> float:
        """Returns when the last of it is over, which is by ``last``."""
        world, rng = self.world, self.rng
        if world.seed % ONE_IN:
            return first
        world.skews.update({place: rng.choice((-HOUR, 0.0, HOUR)) for place in ("api", *world.nodes)})
        world.on_new_pod = self._created
        over = first
        for act in rng.choices((self.forge, self.strip, self.snatch), k=rng.randint(1, 4)):
            when = rng.uniform(first, last)
            lasts = min(rng.uniform(1.0, 15.0), last - when)
            world.clock.at(when, self._cause, act, lasts)
            over = max(over, when + lasts)
        return over

    def _cause(self, act: Callable[[float], bool], seconds: float) -> None:
        if act(seconds):
            name = act.__name__
            self.counts[f"strangers {name}"] += 1
            self.world.note("STRANGERS", name, f"for {seconds:.1f} s")

    # ---- what they do ------------------------------------------------------------------------------------------------
    def forge(self, seconds: float) -> bool:
        """Pods with all labels of a worker that have failed or finished, and one that the job seems to control."""
        world = self.world
        if not world.api.up or world.api.refuses_pods or world.body is None:
            return False
        made = [self._forged(f"stranger-{len(world.foreign)}-{n}", end) for n, end in enumerate(ENDS)]
        high = 2**31 - 1 - len(world.foreign)
        made.append(self._forged(f"job-{high}", None, owned=True))
        for body in made:
            world.foreign.add(body["metadata"]["name"])
            world.api.create("pods", body)
        world.clock.after(seconds, self._remove, [b["metadata"]["name"] for b in made])
        return True

    def _forged(self, name: str, end: Termination | None, *, owned: bool = False) -> Body:
        job = self.world.job
        labels = {
            names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_JOB: job.job, names.LABEL_JOB_UID: job.uid,
            names.LABEL_ORDINAL: "0",
        }  # fmt: skip
        meta: dict[str, Any] = {"name": name, "namespace": job.namespace, "labels": labels}
        if owned:
            reference = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.job, "uid": job.uid}
            meta["ownerReferences"] = [{**reference, "controller": True}]
        state: dict[str, Any] = {"running": {"startedAt": "9999-12-31T23:59:59Z"}}
        if end is not None:
            state = {"terminated": {"exitCode": end.exit_code, "message": end.encode().decode(), "finishedAt": None}}
        status = {
            "phase": "Failed" if end else "Running", "containerStatuses": [{"name": "trainer", "state": state}],
        }  # fmt: skip
        spec = {"containers": [{"name": "trainer"}], "nodeName": "elsewhere"}
        return {"metadata": meta, "spec": spec, "status": status}

    def _remove(self, pods: list[str]) -> None:
        if not self.world.api.up:
            self.world.clock.after(1.0, self._remove, pods)
            return
        for name in pods:
            self.world.api.remove("pods", name)

    def strip(self, seconds: float) -> bool:
        """A worker loses its labels, and gets them back."""
        world = self.world
        workers = [p for n, p in sorted(world.api.objects["pods"].items()) if n not in world.foreign]
        labelled = [p for p in workers if p["metadata"].get("labels")]
        if not labelled or not world.api.up:
            return False
        body = self.rng.choice(labelled)
        meta = body["metadata"]
        self._label(meta["name"], meta["uid"], {})
        world.clock.after(seconds, self._label, meta["name"], meta["uid"], meta["labels"])
        return True

    def _label(self, name: str, uid: str, labels: dict[str, str]) -> None:
        api = self.world.api
        if not api.up:
            self.world.clock.after(1.0, self._label, name, uid, labels)
            return
        body = api.objects["pods"].get(name)
        if body is not None and body["metadata"]["uid"] == uid:
            self._check_not_lost(body)
            api.replace("pods", name, lambda b: {**b, "metadata": {**b["metadata"], "labels": labels}})

    def _check_not_lost(self, pod: Body) -> None:
        meta = pod["metadata"]
        failure = ((self.world.body or {}).get("status") or {}).get("lastFailure") or {}
        deleted = failure.get("reason") == "Deleted" and failure["worker"] == meta["name"]
        if deleted and "deletionTimestamp" not in meta:
            raise Wedge(f"a worker without labels is not lost: {failure['message']}")

    def snatch(self, seconds: float) -> bool:
        """For a moment new pods are deleted before they start."""
        self._snatching, self._born = True, 0
        self.world.clock.after(min(seconds, SNATCH_SECONDS), self._snatched)
        return True

    def _snatched(self) -> None:
        self._snatching = False

    def _created(self, body: Body) -> None:
        if not self._snatching:
            return
        self._born += 1
        if self._born > 3 * MOST_WORKERS:
            raise Wedge(f"pods that are deleted before they start are paced: {self._born} in {SNATCH_SECONDS:g} s")
        if self.rng.random() < 0.9:
            self.world.clock.after(self.rng.uniform(0.0, 0.2), self._take, body)

    def _take(self, body: Body) -> None:
        world, meta = self.world, body["metadata"]
        now = world.api.objects["pods"].get(meta["name"])
        if world.api.up and now is not None and now["metadata"]["uid"] == meta["uid"]:
            world.ledger.taken_away(now)
            world.api.delete("pods", meta["name"], meta["uid"])
