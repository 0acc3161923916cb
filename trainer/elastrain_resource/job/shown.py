"""What is shown beside a job: its workers and events, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of a job: a pod, or processes of this machine."""

    name: str
    ordinal: int
    """A job never reuses an ordinal: a higher one is a younger worker."""
    phase: str
    """The pod's phase: Pending, Running, Succeeded, Failed or Unknown; Terminating during its deletion."""
    node: str
    """Empty before the pod is scheduled."""
    reason: str
    """Kubernetes' reason for waiting or ending: Unschedulable, ImagePullBackOff, OOMKilled; often empty."""
    message: str
    """The reason as a sentence."""
    started: datetime | None


@dataclass(frozen=True, slots=True)
class Event:
    """One Kubernetes event of a job."""

    time: datetime | None
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int


def time_of(text: Any) -> datetime | None:
    """Kubernetes' time stamp; None if absent."""
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
