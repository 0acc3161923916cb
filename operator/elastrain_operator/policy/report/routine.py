"""Which news of a pod can wait a moment: that it comes further on its way into training. Pure.

When it is there its member says so in etcd, and that never waits. What a pod does until then changes figures only.
"""

from __future__ import annotations

from dataclasses import replace

from elastrain_operator.model import Pod, Trouble


def is_routine(before: Pod | None, now: Pod) -> bool:
    """Whether a pod has only come to be (``before`` is None: nobody has looked at it yet), was bound to a node, has
    started or become ready since it was last looked at."""
    if _telling(now.trouble):
        return False
    if before is None:
        return not (now.terminating or now.ending or now.over or now.disruption or now.went_unready)
    if _telling(before.trouble) or before.started > now.started or before.ready > now.ready:
        return False
    came = replace(before, node=now.node, bound=now.bound, started=now.started, ready=now.ready, trouble=now.trouble)
    return came == now


def _telling(trouble: Trouble | None) -> bool:
    """Whether it is more than that containers are still being created."""
    return trouble is not None and not trouble.patience
