"""All pods that are workers, or look like some: parsed on arrival, kept by job. The operator's only store of pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator import clock
from elastrain_operator.allocation.model import Held
from elastrain_operator.model import Pod
from elastrain_operator.observe import parse, resources
from elastrain_operator.observe.owner import owner
from elastrain_operator.observe.raw import mapping, text

SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
"""What the watch shows. It decides nothing: see :mod:`elastrain_operator.observe.owner`."""
OnPod = Callable[[JobKeys, Pod, bool], None]
"""Called with the job, the pod, and whether the pod is gone. Otherwise the pod is new or differs from before."""
OnStray = Callable[[str, Held | None], None]
"""Called with the UID of a pod that is no worker, and with what it holds on its node; None: nothing."""


class Pods:
    """Worker pods by their job. The last known state stays while the API server is silent.

    A *stray* has the label of a worker and is none, or a job's controller reference and no name of a worker. No job
    sees it; it counts only as the holder of its node's resources.
    """

    def __init__(self, on_pod: OnPod, on_stray: OnStray = lambda *_: None) -> None:
        self._on_pod = on_pod
        self._on_stray = on_stray
        self._by_uid: dict[str, tuple[JobKeys, Pod]] = {}
        self._by_job: dict[JobKeys, dict[str, Pod]] = {}
        self._strays: dict[str, Held | None] = {}

    def of(self, job: JobKeys) -> tuple[Pod, ...]:
        return tuple(self._by_job.get(job, {}).values())

    def uids(self) -> frozenset[str]:
        """UIDs of all known pods."""
        return frozenset(self._by_uid) | self._strays.keys()

    def find(self, uid: str) -> tuple[JobKeys, Pod] | None:
        """A worker pod and its job."""
        return self._by_uid.get(uid)

    def see(self, body: Mapping[str, Any]) -> None:
        """The pod exists; ``body`` is its current version."""
        uid = text(mapping(body.get("metadata")).get("uid"))
        before = self._by_uid.get(uid)
        now = _parsed(body, before)
        if now is None:
            self.forget(uid)
            self._see_stray(uid, body)
            return
        if now == before:
            return
        if before is not None and now[0] != before[0]:  # another job controls it
            self.forget(uid)
        self._forget_stray(uid)
        job, pod = self._by_uid[uid] = now
        self._by_job.setdefault(job, {})[uid] = pod
        self._on_pod(job, pod, False)

    def forget(self, uid: str, last: Mapping[str, Any] | None = None) -> None:
        """The pod is gone. ``last``: its last version, which may show how it ended, or a pod that was never seen."""
        self._forget_stray(uid)
        known = self._by_uid.pop(uid, None)
        if known is not None:
            pods = self._by_job[known[0]]
            del pods[uid]
            if not pods:
                del self._by_job[known[0]]
        final = (_parsed(last, known) if last is not None else None) or known
        if final is not None:
            self._on_pod(*final, True)

    def _see_stray(self, uid: str, body: Mapping[str, Any]) -> None:
        held = _held(body)
        if uid and (uid not in self._strays or self._strays[uid] != held):
            self._strays[uid] = held
            self._on_stray(uid, held)

    def _forget_stray(self, uid: str) -> None:
        if uid in self._strays:
            del self._strays[uid]
            self._on_stray(uid, None)


def _parsed(body: Mapping[str, Any], before: tuple[JobKeys, Pod] | None) -> tuple[JobKeys, Pod] | None:
    """The worker pod with its job; None if it is not one."""
    job = owner(body)
    pod = parse.pod(body, clock.now(), before[1] if before and before[0] == job else None) if job else None
    return (job, pod) if job and pod and pod.uid else None


def _held(body: Mapping[str, Any]) -> Held | None:
    spec = mapping(body.get("spec"))
    node = text(spec.get("nodeName"))
    over = mapping(body.get("status")).get("phase") in ("Succeeded", "Failed")
    return Held(node, resources.demand(spec)) if node and not over else None
