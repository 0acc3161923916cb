"""The figures as types: what ``--json`` writes and ``--render`` reads."""

from __future__ import annotations

from rescale_harness.results import Machine, Model


class Cost(Model):
    """What something cost, between two readings of all counters."""

    seconds: float
    """Until every member that should be in the newest generation knew it and its own place."""
    writes: int
    """Entries of etcd's log: puts, transactions, grants and revocations of leases."""
    puts: int
    """Versions of keys that were written; a transaction may write several."""
    sent_bytes: int
    """By etcd, to all members."""
    received_bytes: int
    events: int
    """Watch events delivered."""
    generations: int
    """Formed meanwhile."""
    etcd_cpu: float
    """Seconds."""
    client_cpu: float
    """Seconds of the one process that plays all members."""


class LeaseTraffic(Model):
    """A quiet job: renewals only. Per member and second."""

    ttl: int
    renewals: float
    bytes: float
    """Both directions."""
    etcd_cpu: float
    """Cores that etcd used for all members together."""


class Run(Model):
    members: int
    costs: dict[str, Cost]
    """By event: form, grow, lose, lose leader, lose 10 %."""
    lease: LeaseTraffic


class AtRest(Model):
    """Real members of a quiet job, each with its own connection. Per member and second; no ranks."""

    members: int
    ttl: int
    renewals: float
    sent: float
    """Bytes by a member: all that TCP carries, of renewals, of watches and of keeping the connection."""
    received: float
    """Bytes by etcd, to a member."""
    etcd_cpu: float
    """Cores."""
    client_cpu: float
    """Cores that a member uses."""


class PeerRun(Model):
    members: int
    seconds: float | None
    """Until every handler's ``next_rendezvous()`` had returned; None: not within the bound."""
    bound: float
    cpu: float
    """Seconds that its process used, or had used when the bound had passed."""


class Report(Model):
    format: int = 2
    machine: Machine
    began: str
    """UTC."""
    lease_ttl: int
    per_connection: int
    """Simulated members that share one."""
    runs: tuple[Run, ...]
    rest: tuple[AtRest, ...] = ()
    torch: tuple[PeerRun, ...]
