"""Which Kubernetes cluster this is, among those that share an etcd: the proof by which an operator deletes records."""

from __future__ import annotations

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, wait_fixed

from elastrain_operator.config import OperatorConfig
from elastrain_operator.kube.client import ApiError, Kube

PATIENCE = 60.0
"""Seconds for which the API server is asked."""

log = structlog.get_logger(__name__)


async def identified(config: OperatorConfig, kube: Kube) -> OperatorConfig:
    """``config`` with the UID of the namespace kube-system, unless it names the cluster.

    Raises ``ApiError`` if the API server does not give it for a minute.
    """
    if config.cluster:
        return config

    def log_failure(state: RetryCallState) -> None:
        log.warning(
            "this cluster is not known yet: allow the operator to get the namespace kube-system, or name the cluster "
            "with --cluster (etcd.clusterName)",
            error=str(state.outcome and state.outcome.exception()),
        )

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(ApiError),
        stop=stop_after_delay(PATIENCE),
        wait=wait_fixed(1.0),
        before_sleep=log_failure,
        reraise=True,
    )
    uid: str = await retrying(kube.cluster_uid)
    return config.model_copy(update={"cluster_uid": uid})
