"""What would make a job under Kueue larger, by the reason of its condition ``Grown``. Pure; see docs/kueue.md."""

from __future__ import annotations

from elastrain.api import names
from elastrain_resource.job import Condition, ElasticTrainingJob

_MORE = "raise the quota of its ClusterQueue or what it may borrow"
_CHANGES = {
    "Queued": f"it starts when other jobs give quota back; {_MORE}, or lower minReplicas",
    "ExtrasWait": f"it grows when other jobs give quota back; {_MORE}",
    "Evicted": f"it queues again when its workers have left; {_MORE}, or give the job a higher priority class",
    "AdmissionCheck": "kubectl describe workload -n {namespace} -l " + names.LABEL_JOB + "={name}",
    "QueueObjectMissing": "kubectl get localqueues,workloadpriorityclasses,resourceflavors -n {namespace}",
    "Moves": "kubectl get localqueues -n {namespace}",
    "CapacityUnknown": "elastrain doctor",
}


def queue_of(job: ElasticTrainingJob) -> str:
    """The job's LocalQueue; empty: Kueue does not decide its size."""
    return str((job.metadata.get("labels") or {}).get(names.LABEL_QUEUE, ""))


def change(job: ElasticTrainingJob, grown: Condition) -> str:
    """A step that makes the job larger; empty: none is needed, or the message names it."""
    if not queue_of(job):
        return ""
    return _CHANGES.get(grown.reason, "").format(name=job.name, namespace=job.namespace)
