"""``elastrain.join()``: how a training process gets its :class:`~elastrain.elastic.job.Job`."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from typing import Literal

import structlog

from elastrain.api import names
from elastrain.api.settings import ShareRule
from elastrain.elastic import torch_probes
from elastrain.elastic.assemble import strategy_for
from elastrain.elastic.batching import batch_of
from elastrain.elastic.comm.backend import device_of_rank
from elastrain.elastic.group.device_time import DeviceTime
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import Session
from elastrain.elastic.job import Job

log = structlog.get_logger(__name__)

_joined: weakref.ref[Session] | None = None
"""Of the job that this process has joined."""


def join(*, numerics: Literal["exact", "bitwise"] = "exact") -> Job:
    """Join the job that this process was started for; used as ``with elastrain.join() as job:``.

    ``numerics``: "exact" gives the fixed-size run's model up to the order of floating-point additions. "bitwise" gives
    it to the bit, at a cost (docs/numerics.md), and makes torch use deterministic algorithms in this process.

    Returns as soon as the agent has answered. The first iteration of :meth:`Job.steps` waits for a generation, so that
    the other ranks train while this one imports and builds its model. Raises ``RuntimeError`` if no agent started this
    process, ``ValueError`` for other ``numerics`` and settings that do not fit, and ``ConnectionError`` or
    ``TimeoutError`` if the agent does not answer.
    """
    global _joined  # noqa: PLW0603 - one job for each process
    if numerics not in ("exact", "bitwise"):
        raise ValueError(f"elastrain.join(numerics={numerics!r}): must be 'exact' or 'bitwise'")
    if multiprocessing.parent_process() is not None:
        raise RuntimeError(
            "elastrain.join(): multiprocessing has started this process, and its parent is the rank: leave mp.spawn() "
            "out, since the agent starts a process for each rank; and put the script under if __name__ == '__main__':, "
            "since the worker processes of a data loader import it"
        )
    if _joined is not None and (session := _joined()) is not None and not session.closed:
        raise RuntimeError(
            "elastrain.join(): this process has joined already: pass its job to the functions that need it"
        )
    joined = os.environ.get(names.ENV_JOINED, "")
    if joined not in ("", str(os.getpid())):
        raise RuntimeError(
            f"elastrain.join(): process {joined} of this worker is the rank, and has started this one: only the one "
            f"that the agent has started may join. Put the script under if __name__ == '__main__':, or remove "
            f"${names.ENV_JOINED} and ${names.ENV_AGENT_SOCKET} from the environment of a program that is no rank"
        )
    path = os.environ.get(names.ENV_AGENT_SOCKET)
    if not path:
        raise RuntimeError(
            f"elastrain.join(): ${names.ENV_AGENT_SOCKET} is not set, so no agent started this process. "
            "Run the script by 'elastrain run job.yaml', or on a cluster by 'kubectl apply -f job.yaml'."
        )
    heartbeat = Heartbeat.of_environment()
    local_rank = int(os.environ.get(names.ENV_LOCAL_RANK, "0"))
    device = device_of_rank(local_rank)  # before the script can use another one
    session = Session(path, local_rank)
    if local_rank == 0 and (warning := torch_probes.untested()):
        log.warning(warning)
    if session.welcome.settings.shares is ShareRule.MEASURED and device.type == "cuda":
        heartbeat.device = DeviceTime(device)
    batch = batch_of(session.welcome.settings.batch)
    job = Job(session, strategy_for(numerics, session, batch.small), heartbeat, device, batch)
    _joined = weakref.ref(session)
    os.environ[names.ENV_JOINED] = str(os.getpid())
    return job
