"""A client for jobs on a cluster, over the official ``kubernetes`` package; needs ``elastrain[client]``.

::

    from elastrain.client import Jobs

    with Jobs(namespace="research") as jobs:
        jobs.scale("digits", 4)
        job = jobs.wait("digits", timeout_seconds=3600)
        print(job.status.phase, job.status.step)

:class:`AsyncJobs` is the same client with ``await``. Every error is a :class:`ClusterError`; its message names the
request, the cause and the remedy.
"""

from elastrain_cli.client.asynchronous import AsyncJobs
from elastrain_cli.client.blocking import Jobs
from elastrain_cli.client.errors import (
    ClusterError,
    JobExists,
    JobNotFound,
    NotAllowed,
    NotConnected,
    NotInstalled,
    Refused,
)
from elastrain_cli.client.records import LogLine
from elastrain_resource.job.shown import Event, Worker

__all__ = [
    "AsyncJobs", "ClusterError", "Event", "JobExists", "JobNotFound", "Jobs", "LogLine", "NotAllowed", "NotConnected",
    "NotInstalled", "Refused", "Worker",
]  # fmt: skip
