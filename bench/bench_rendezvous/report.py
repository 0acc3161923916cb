"""The figures as types, and their tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bench_harness.machine import Machine
from bench_harness.stats import Model, Spread, text_of
from bench_harness.tables import Table

GOALS = {1024: 3.0, 4096: 15.0}
"""Seconds in which so many members should form a generation on two cores."""
WRITES_EACH = 5
"""Per member that forms a generation: O(N) in all."""
WRITES_FOR_A_LOSS = 13
"""At any size: the key, the next generation, the records of the first eight members whose collectives broke, the
adoption, and for a leader its place."""


class Cost(Model):
    """The cost of one event, between two readings of all counters."""

    seconds: float
    """Until every member of the newest generation knew it and its own place."""
    writes: int
    """Entries of etcd's log: puts, transactions, grants and revocations of leases."""
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
    """A quiet job, which only renews its leases. Per member and second."""

    ttl: int
    renewals: float
    bytes: float
    """Both directions."""
    etcd_cpu: float
    """Cores of etcd for all members together."""


class Run(Model):
    members: int
    costs: dict[str, Cost]
    """By event: form, grow, lose, lose leader, lose 10 %."""
    lease: LeaseTraffic


class PeerRun(Model):
    """torch's handlers."""

    members: int
    seconds: float | None
    """Until every handler's ``next_rendezvous()`` had returned; None: not within the bound."""
    bound: float
    cpu: float
    """Seconds of its process until then, or until the bound."""


class Report(Model):
    """Everything."""

    machine: Machine
    lease_ttl: int
    per_connection: int
    """Simulated members that share a connection."""
    runs: tuple[Run, ...]
    torch: tuple[PeerRun, ...]


def tables(report: Report) -> list[Table]:
    """All tables; those without a row are not shown."""
    return [events_table(report), goals_table(report), leases_table(report), peer_table(report)]


def by_size(report: Report) -> dict[int, list[Run]]:
    sizes = dict.fromkeys(r.members for r in report.runs)
    return {size: [r for r in report.runs if r.members == size] for size in sizes}


def events_table(report: Report) -> Table:
    header = (
        "members", "event", "s", "writes", "watch events", "MB from etcd", "MB to etcd", "etcd CPU s", "client CPU s",
        "cores busy",
    )  # fmt: skip
    rows = []
    for members, runs in by_size(report).items():
        for event in dict.fromkeys(e for r in runs for e in r.costs):
            costs = [r.costs[event] for r in runs if event in r.costs]
            row = (
                f"{members:,}",
                event,
                text_of(costs, lambda c: c.seconds, ".2f"),
                text_of(costs, lambda c: c.writes, ",.0f"),
                text_of(costs, lambda c: c.events, ",.0f"),
                text_of(costs, lambda c: c.sent_bytes / 1e6, ".2f"),
                text_of(costs, lambda c: c.received_bytes / 1e6, ".2f"),
                text_of(costs, lambda c: c.etcd_cpu, ".2f"),
                text_of(costs, lambda c: c.client_cpu, ".2f"),
                text_of(costs, lambda c: (c.etcd_cpu + c.client_cpu) / c.seconds, ".1f"),
            )
            rows.append(row)
    return Table("Cost of each event", header, tuple(rows), left=2)


def goals_table(report: Report) -> Table:
    rows = []
    sizes = by_size(report)
    for members, bound in GOALS.items():
        formed = (r.costs["form"].seconds for r in sizes.get(members, []))
        rows += _goal(f"{members:,} members form, s", bound, formed)
    for members, runs in sizes.items():
        each = (r.costs["form"].writes / members for r in runs)
        rows += _goal(f"{members:,} members form, writes each", WRITES_EACH, each)
        lost = (r.costs["lose"].writes for r in runs)
        rows += _goal(f"{members:,} members lose one, writes", WRITES_FOR_A_LOSS, lost)
    return Table("Goals", ("goal", "bound", "median", "max", "kept"), tuple(rows))


def _goal(goal: str, bound: float, values: Iterable[float]) -> list[tuple[str, ...]]:
    found = Spread.of(values)
    if found is None:
        return []
    kept = "yes" if found.max <= bound else "by the median" if found.median <= bound else "no"
    return [(goal, f"{bound:g}", f"{found.median:.2f}", f"{found.max:.2f}", kept)]


def leases_table(report: Report) -> Table:
    header = ("members", "TTL s", "renewals/s each", "bytes/s each", "etcd cores")
    rows = []
    for members, runs in by_size(report).items():
        found = [r.lease for r in runs]
        row = (
            f"{members:,}",
            str(found[0].ttl),
            text_of(found, lambda t: t.renewals, ".2f"),
            text_of(found, lambda t: t.bytes, ".0f"),
            text_of(found, lambda t: t.etcd_cpu, ".3f"),
        )
        rows.append(row)
    return Table("A job at rest: renewal of the leases", header, tuple(rows))


def peer_table(report: Report) -> Table:
    rows = []
    for peer in report.torch:
        took = f"{peer.seconds:.2f}" if peer.seconds is not None else f"not in {peer.bound:g}"
        costs = [r.costs["form"] for r in report.runs if r.members == peer.members]
        rows.append((f"{peer.members:,}", took, f"{peer.cpu:.1f}", text_of(costs, lambda c: c.seconds, ".2f")))
    title = "torch's DynamicRendezvousHandler on a c10d TCPStore: forming only"
    return Table(title, ("members", "s", "CPU s", "elastrain, same size, s"), tuple(rows))


def notes(report: Report) -> list[str]:
    return [
        *report.machine.lines,
        f"Three figures are minimum / median / maximum over the runs; {report.per_connection} simulated members share "
        "a connection to etcd.",
        "Writes are entries of etcd's log: puts, transactions, grants and revocations of leases. CPU is that of etcd "
        "and of the process that plays all members, until the adoption of the generation is known.",
    ]
