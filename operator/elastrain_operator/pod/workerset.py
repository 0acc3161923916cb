"""A job's set of workers: the controller of its pods, with their number, for Kubernetes' disruption controller. Pure.

A PodDisruptionBudget with `maxUnavailable`, or in percent, asks the scale subresource of the pods' controller how many
pods there are to be. A job's own has no such number while the job is elastic, and counts groups of workers as one. So a
`WorkerSet` of the job holds it: only the operator writes it, and no user's manifest contains it.
"""

from __future__ import annotations

from typing import Any

from elastrain.api import names
from elastrain_operator.facts import JobRef
from elastrain_operator.pod.manifest import owned, owner


def path(job: JobRef) -> str:
    """Where the API server has the set of ``job``."""
    return f"{all_in(job.namespace)}/{names.worker_set(job.name, job.uid)}"


def all_in(namespace: str) -> str:
    """Where it has all sets of a namespace; empty: of all namespaces."""
    group = f"/apis/{names.API_VERSION}"
    return f"{group}/namespaces/{namespace}/{names.SET_PLURAL}" if namespace else f"{group}/{names.SET_PLURAL}"


def manifest(job: JobRef, number: int) -> dict[str, Any]:
    """The set of ``number`` workers, for server-side apply. The garbage collector deletes it with the job."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.SET_KIND,
        "metadata": owned(job, names.worker_set(job.name, job.uid)),
        "spec": {"replicas": number},
    }


def controlled(pod: dict[str, Any], job: JobRef, uid: str) -> dict[str, Any]:
    """``pod``, a manifest, with the set ``uid`` as its controller, beside its job."""
    own = owner(job)
    by_set = {**own, "kind": names.SET_KIND, "name": names.worker_set(job.name, job.uid), "uid": uid}
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": [{**own, "controller": False}, by_set]}}
