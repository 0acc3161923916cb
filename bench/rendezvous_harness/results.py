"""The figures as types (what ``--json`` writes) and as tables."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from rescale_harness.results import Machine, Model, Spread


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


class PeerRun(Model):
    members: int
    seconds: float | None
    """Until every handler's ``next_rendezvous()`` had returned; None: not within the bound."""
    bound: float


class Report(Model):
    format: int = 1
    machine: Machine
    began: str
    """UTC."""
    lease_ttl: int
    runs: tuple[Run, ...]
    torch: tuple[PeerRun, ...]


def show(report: Report, console: Console) -> None:
    machine = report.machine
    console.print(
        f"{machine.processor}, {machine.cores} cores, etcd {machine.etcd}, load before {machine.load:g}",
        highlight=False,
    )
    table = _table(
        "elastrain: min / median / max over the runs",
        "members", "event", "s", "writes", "puts", "events", "MB sent", "generations", "etcd CPU s", "client CPU s",
    )  # fmt: skip
    for members in dict.fromkeys(r.members for r in report.runs):
        runs = [r for r in report.runs if r.members == members]
        for event in dict.fromkeys(e for r in runs for e in r.costs):
            costs = [r.costs[event] for r in runs if event in r.costs]
            table.add_row(
                str(members),
                event,
                _spread([c.seconds for c in costs], "{:.2f}"),
                _spread([c.writes for c in costs], "{:.0f}"),
                _spread([c.puts for c in costs], "{:.0f}"),
                _spread([c.events for c in costs], "{:.0f}"),
                _spread([c.sent_bytes / 1e6 for c in costs], "{:.2f}"),
                _spread([c.generations for c in costs], "{:.0f}"),
                _spread([c.etcd_cpu for c in costs], "{:.2f}"),
                _spread([c.client_cpu for c in costs], "{:.2f}"),
            )
    console.print(table)
    leases = _table("a quiet job: leases", "members", "TTL s", "renewals/s/member", "bytes/s/member", "etcd cores")
    for run in report.runs:
        t = run.lease
        leases.add_row(str(run.members), str(t.ttl), f"{t.renewals:.2f}", f"{t.bytes:.0f}", f"{t.etcd_cpu:.3f}")
    console.print(leases)
    peers = _table("torch's DynamicRendezvousHandler over c10d (threads of one process)", "members", "s to form")
    for peer in report.torch:
        peers.add_row(str(peer.members), f"{peer.seconds:.2f}" if peer.seconds is not None else f">{peer.bound:g}")
    if report.torch:
        console.print(peers)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == "event" else "right", no_wrap=True)
    return table


def _spread(values: list[float] | list[int], how: str) -> str:
    spread = Spread.of(values)
    if spread is None:
        return ""
    shown = [how.format(v) for v in (spread.min, spread.median, spread.max)]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)
