"""Which changes of a pod may be handled later: the steps of a normal start. Pure.

The member's record in etcd shows when the worker is ready, and is always handled at once. Earlier changes of the pod
affect only figures.
"""

from __future__ import annotations

from dataclasses import replace

from elastrain_operator.facts import Pod, Trouble


def is_routine(before: Pod | None, now: Pod) -> bool:
    """Whether a pod has only been created (``before`` is None: not observed yet), been bound to a node, started or
    become ready since the last observation."""
    if _telling(now.trouble):
        return False
    if before is None:
        return not (now.terminating or now.ending or now.over or now.disruption or now.went_unready)
    if _telling(before.trouble) or before.started > now.started or before.ready > now.ready:
        return False
    came = replace(before, node=now.node, bound=now.bound, started=now.started, ready=now.ready, trouble=now.trouble)
    return came == now


def _telling(trouble: Trouble | None) -> bool:
    """Whether the trouble is more than containers being created."""
    return trouble is not None and not trouble.patience
