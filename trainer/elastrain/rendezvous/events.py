"""What a :class:`~elastrain.rendezvous.membership.Membership` tells its owner, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.api.records import Generation, Target
from elastrain.etcd import EtcdError


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """The newest generation, whether or not this member is in it. Numbers only grow; some may be skipped."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class GenerationEnded:
    """A generation that this member is in cannot go on, says the leader: it lost a member, or broke."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class TargetChanged:
    target: Target


@dataclass(frozen=True, slots=True)
class EtcdLost:
    """etcd does not answer (or no longer lets us in: ``EtcdDenied``). Go on; nobody else acts either."""

    error: EtcdError


@dataclass(frozen=True, slots=True)
class EtcdBack:
    """etcd answers again and the lease is confirmed; a fence is lifted."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The lease was not confirmed for its TTL, and this member is alone in its generation: somebody else may have
    formed another one. Stop committing steps until :class:`EtcdBack`, then see which generation is newest."""

    seconds: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """``progress.finished``, a finished member, or the job was closed: nothing is formed any more."""

    reason: str


MembershipEvent = NewGeneration | GenerationEnded | TargetChanged | EtcdLost | EtcdBack | Fenced | JobEnded
