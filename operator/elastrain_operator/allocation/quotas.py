"""Quotas during an allocation: the administrator's (``capacity.quotas``), and Kubernetes' ResourceQuotas. Mutable, used
for one allocation.

The first bound what a namespace's workers hold, and may take workers above the minima. The second are enforced by the
API server, at the creation of each pod: they bound only pods that do not exist yet, and no worker leaves for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elastrain_operator.allocation import explanations
from elastrain_operator.allocation.snapshot import Amounts, Job, QuotaRoom

Used = tuple[dict[str, int] | None, dict[str, dict[str, int]]]


class Quotas:
    """The use of all quotas."""

    def __init__(
        self, most: Mapping[str, Mapping[str, int]], rooms: Iterable[QuotaRoom] = (), jobs: Iterable[Job] = ()
    ) -> None:
        """``most``: namespace → resource → bound. ``rooms``: ResourceQuotas; what ``jobs`` were granted earlier, and
        have not created yet, is reserved."""
        self._most = most
        self._used: dict[str, dict[str, int]] = {namespace: {} for namespace in most}
        self._hard = {room.key: dict(room.hard) for room in rooms}
        self._left = {room.key: dict(room.left) for room in rooms}
        for job in jobs:
            self._charge(job, max(job.size - len(job.workers), 0))

    # ---- of the administrator ----------------------------------------------------------------------------------------
    def refusal(self, namespace: str, demand: Amounts, times: int = 1) -> str | None:
        """Why the quota of the namespace does not permit so many times ``demand`` more; None: it does."""
        bounds = self._most.get(namespace, {})
        for resource, amount in demand:
            most, used = bounds.get(resource), self._used.get(namespace, {}).get(resource, 0)
            if most is not None and used + times * amount > most:
                return explanations.quota(namespace, resource, used, most, times * amount, workers=times)
        return None

    def use(self, namespace: str, demand: Amounts, times: int = 1) -> None:
        used = self._used.get(namespace)
        if used is not None:
            for resource, amount in demand:
                used[resource] = used.get(resource, 0) + times * amount

    def left(self) -> dict[str, dict[str, int]]:
        """Namespace → resource → amount that is still permitted."""
        return {n: {r: most - self._used[n].get(r, 0) for r, most in b.items()} for n, b in self._most.items()}

    # ---- of Kubernetes -----------------------------------------------------------------------------------------------
    def shortage(self, job: Job, granted: int, more: int = 1) -> str | None:
        """Why the API server would refuse one of ``more`` workers beside the ``granted`` ones; None: it would not, as
        far as is known."""
        new = _new(job, granted, more)
        for key in job.quotas if new else ():
            for resource, amount in job.charge:
                left = self._left[key].get(resource)
                if left is not None and left < new * amount:
                    return explanations.resource_quota(key, resource, left, self._hard[key][resource], new * amount)
        return None

    def charge(self, job: Job, granted: int, more: int = 1) -> None:
        """Count ``more`` workers beside the ``granted`` ones."""
        self._charge(job, _new(job, granted, more))

    def _charge(self, job: Job, pods: int) -> None:
        for key in job.quotas if pods else ():
            left = self._left[key]
            for resource, amount in job.charge:
                if resource in left:
                    left[resource] -= pods * amount

    # ---- all or nothing ----------------------------------------------------------------------------------------------
    def copy_of(self, job: Job) -> Used:
        """The use that a job's workers change, for :meth:`restore`."""
        used = self._used.get(job.namespace)
        return None if used is None else dict(used), {key: dict(self._left[key]) for key in job.quotas}

    def restore(self, job: Job, before: Used) -> None:
        used, left = before
        if used is not None:
            self._used[job.namespace] = used
        self._left.update(left)


def _new(job: Job, granted: int, more: int) -> int:
    """How many of ``more`` workers are new pods: those that exist are counted, and those of an earlier grant are
    reserved, since the API server may count a pod before it is seen."""
    return min(max(granted + more - max(len(job.workers), job.size), 0), more)
