"""As of :mod:`elastrain_cli.client`: the client for jobs on a cluster that other programs import."""

from elastrain_cli.client import (
    AsyncJobs,
    ClusterError,
    Event,
    JobExists,
    JobNotFound,
    Jobs,
    LogLine,
    NotAllowed,
    NotConnected,
    NotInstalled,
    Refused,
    Worker,
)

__all__ = [
    "AsyncJobs", "ClusterError", "Event", "JobExists", "JobNotFound", "Jobs", "LogLine", "NotAllowed", "NotConnected",
    "NotInstalled", "Refused", "Worker",
]  # fmt: skip
