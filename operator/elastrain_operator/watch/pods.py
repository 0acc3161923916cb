"""All pods that are workers, or look like some: watched, parsed on arrival, kept by job. The only store of pods.

The watch selects by a label of our own domain, since policies rewrite those of others (`app.kubernetes.io/managed-by`).
It decides nothing: a worker whose label is removed still runs, and holds its
accelerators. A pod that the watch no longer shows has therefore ended only if its deletion was under way. Any other one
is read until it does not exist, or has its label back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator import clock
from elastrain_operator.allocation import resources
from elastrain_operator.allocation.snapshot import Held
from elastrain_operator.facts import Pod
from elastrain_operator.kube.client import ApiError, Kube, pods_path
from elastrain_operator.raw import mapping, text
from elastrain_operator.waiting import until
from elastrain_operator.watch import parse
from elastrain_operator.watch.owner import owner
from elastrain_resource.reflector import Reflector

SELECTOR = names.LABEL_JOB_UID
"""Pods that have the label, whatever its value."""
AGAIN = 10.0
"""Seconds between two reads of a pod that the watch no longer shows."""

OnPod = Callable[[JobKeys, Pod, bool], None]
"""Called with the job, the pod, and whether the pod is gone. Otherwise the pod is new or differs from before."""
OnOtherPod = Callable[[str, Held | None], None]
"""Called with the UID of a pod that is no worker, and with what it holds on its node; None: nothing."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod with the label of a worker, or with a job as its controller."""

    uid: str
    job: JobKeys | None = None
    """The job that controls it; None: it is no worker, and counts as a holder of resources only."""
    pod: Pod | None = None
    held: Held | None = None
    """What a pod that is no worker holds on its node."""


class WorkerPods:
    """Worker pods by their job. The last known state stays while the API server is silent."""

    def __init__(
        self, kube: Kube, namespaces: tuple[str, ...], on_pod: OnPod, on_other_pod: OnOtherPod = lambda *_: None
    ) -> None:
        """``namespaces``: empty: all."""
        self._kube = kube
        self._on_pod = on_pod
        self._on_other_pod = on_other_pod
        self.on_listed: Callable[[], None] = lambda: None
        """Called when the pods of one more namespace may be known."""
        self._by_uid: dict[str, SeenPod] = {}
        self._by_job: dict[JobKeys, dict[str, Pod]] = {}
        self._doubted: set[str] = set()
        self._doubt = asyncio.Event()
        self._news = asyncio.Event()
        self._watches = {
            namespace: Reflector(
                kube, pods_path(namespace), "worker pods", {"labelSelector": SELECTOR}, parse=self._read,
                on_change=self._changed, on_problem=self._noted,
            )
            for namespace in namespaces or ("",)
        }  # fmt: skip

    async def run(self) -> None:
        """Watch, until cancelled."""
        await asyncio.gather(*(watch.run() for watch in self._watches.values()), self._settle())

    async def listed(self, seconds: float) -> None:
        """Wait until the pods of all namespaces are listed, or it is known that some may not be read.

        Such namespaces, and those that are not listed within ``seconds``, are served once they are. Raises ``ApiError``
        if no namespace is listed within ``seconds``.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while not (
            self._any_listed and all(w.listed or (w.problem and w.problem.denied) for w in self._watches.values())
        ):
            self._news.clear()
            if not await until(self._news, deadline - asyncio.get_running_loop().time()):
                break
        if not self._any_listed:
            raise ApiError("list worker pods", 0, "Unlisted", self.problem or f"no answer within {seconds:g} s")

    def has(self, namespace: str) -> bool:
        """Whether the pods of this namespace were ever listed."""
        watch = self._watches.get(namespace) or self._watches.get("")
        return watch is not None and watch.listed

    @property
    def problem(self) -> str:
        """Why the pods may be out of date; empty: they are current."""
        return next((watch.problem.text for watch in self._watches.values() if watch.problem), "")

    def of(self, job: JobKeys) -> tuple[Pod, ...]:
        return tuple(self._by_job.get(job, {}).values())

    def see(self, body: Mapping[str, Any]) -> bool:
        """Another watch shows a pod that the selector misses. Returns whether it is a worker."""
        seen = self._read(body) if owner(body) else None
        if seen is None or seen.pod is None:
            return False
        self._keep(seen)
        self._check(seen)
        return True

    # ---- inside ----------------------------------------------------------------------------------------------------
    @property
    def _any_listed(self) -> bool:
        return any(watch.listed for watch in self._watches.values())

    def _noted(self) -> None:
        self._news.set()
        self.on_listed()

    def _read(self, body: Mapping[str, Any]) -> SeenPod | None:
        """The pod; None if it has no UID. Never raises."""
        uid, job = text(mapping(body.get("metadata")).get("uid")), owner(body)
        if not uid:
            return None
        before = self._by_uid.get(uid)
        known = before.pod if before is not None and before.job == job else None
        pod = parse.pod(body, clock.now(), known) if job else None
        return SeenPod(uid, job, pod) if pod else SeenPod(uid, held=_held(body))

    def _changed(self, _key: str, before: SeenPod | None, after: SeenPod | None) -> None:
        if before is not None and (after is None or after.uid != before.uid):
            if after is None and before.pod is not None and not before.pod.terminating:
                self._check(before)  # each deletion is marked first: the label is gone, or events were missed
            else:
                self._forget(before.uid)
        if after is not None:
            self._keep(after)

    def _keep(self, seen: SeenPod) -> None:
        before = self._by_uid.get(seen.uid)
        if before == seen:
            return
        if before is not None and before.job != seen.job:  # another controls it
            self._forget(seen.uid)
        self._by_uid[seen.uid] = seen
        if seen.job is not None and seen.pod is not None:
            self._by_job.setdefault(seen.job, {})[seen.uid] = seen.pod
            self._on_pod(seen.job, seen.pod, False)
        else:
            self._on_other_pod(seen.uid, seen.held)

    def _forget(self, uid: str) -> None:
        """The pod does not exist any more, or is no longer its job's."""
        self._doubted.discard(uid)
        known = self._by_uid.pop(uid, None)
        if known is None:
            return
        if known.job is None or known.pod is None:
            self._on_other_pod(uid, None)
            return
        pods = self._by_job[known.job]
        del pods[uid]
        if not pods:
            del self._by_job[known.job]
        self._on_pod(known.job, known.pod, True)

    # ---- pods that the watch does not show --------------------------------------------------------------------------
    def _check(self, seen: SeenPod) -> None:
        if seen.pod is not None and seen.uid not in self._doubted:
            self._doubted.add(seen.uid)
            self._doubt.set()

    async def _settle(self) -> None:
        """Read all pods in doubt, again and again."""
        while True:
            await until(self._doubt, AGAIN if self._doubted else None)
            self._doubt.clear()
            for uid in sorted(self._doubted):
                try:
                    await self._look(uid)
                except ApiError as error:
                    log.warning("pod that the watch does not show not read", uid=uid, error=str(error))

    async def _look(self, uid: str) -> None:
        """Read one pod. Raises ``ApiError``; then nothing changes."""
        known = self._by_uid.get(uid)
        if known is None or known.job is None or known.pod is None:
            self._doubted.discard(uid)
            return
        body = await self._kube.get_pod(known.job.namespace, known.pod.name)
        if self._by_uid.get(uid) is not known:
            return  # the watch has shown more meanwhile, such as its deletion, and this answer may be older
        seen = self._read(body) if body else None
        if body is None or seen is None or seen.uid != uid:
            self._forget(uid)
            return
        self._keep(seen)
        if names.LABEL_JOB_UID in mapping(body["metadata"].get("labels")):
            self._doubted.discard(uid)  # the watch shows it again


def _held(body: Mapping[str, Any]) -> Held | None:
    spec = mapping(body.get("spec"))
    node = text(spec.get("nodeName"))
    over = mapping(body.get("status")).get("phase") in ("Succeeded", "Failed")
    return Held(node, resources.demand(spec)) if node and not over else None
