"""What the operator writes for a job: its target, and that its credentials are issued."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from elastrain.api.base import Many, Record


class Target(Record):
    """The target of a job. Written by the operator or the local runner, read by every agent."""

    min: Annotated[int, Field(ge=1)]
    """Smallest number of members of a generation."""
    max: Annotated[int, Field(ge=1)]
    """Largest number of members of a generation."""
    desired: Annotated[int, Field(ge=0)]
    """Desired number of members. 0: all members leave (suspend)."""
    leaving: Many[str] = ()
    """Names of workers (pods, not member ids) to exclude from the next generation."""
    reason: str = ""
    """Reason of the target, one CamelCase word; the generation inherits it."""
    above: int = 0
    """Numbers of new generations are greater. Set after a loss of etcd's data, which may leave no member that knows the
    last number."""
    drain: Annotated[float, Field(gt=0)] | None = None
    """Seconds from SIGTERM until running ranks are killed, if admission has shortened the pods' grace period; None: as
    an agent's environment says."""


class Issued(Record):
    """The issued credentials for etcd of the job's workers. Written by the operator once the job's user of etcd and the
    Secret exist; read by the operator only.

    The record lives in the same etcd as the user: an etcd that loses its data loses both, and the operator recreates
    both.
    """

    ca: str
    """SHA-256 (hex) of the CA certificates in the Secret."""
    key: str
    """Name of the key, and of the cluster, from which password and user are derived; not a secret."""
