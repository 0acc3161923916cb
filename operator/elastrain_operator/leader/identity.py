"""Which Kubernetes cluster this is, among those that share an etcd: the proof by which an operator deletes records."""

from __future__ import annotations

from elastrain_operator.config import OperatorConfig
from elastrain_operator.kube.client import Kube
from elastrain_operator.kube.repeats import answered

PATIENCE = 60.0
"""Seconds for which the API server is asked."""


async def identified(config: OperatorConfig, kube: Kube) -> OperatorConfig:
    """``config`` with the UID of the namespace kube-system, unless it names the cluster.

    Raises ``ApiError`` if the API server does not give it for a minute.
    """
    if config.cluster:
        return config
    trouble = (
        "this cluster is not known yet: allow the operator to get the namespace kube-system, or name the cluster "
        "with --cluster (etcd.clusterName)"
    )
    uid = await answered(kube.cluster_uid, PATIENCE, trouble)
    return config.model_copy(update={"cluster_uid": uid})
