"""The figures for people: on a terminal, and as Markdown for docs/rendezvous.md. Pure but for printing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from rich.console import Console

from rendezvous_harness.results import Report
from rescale_harness.report import Table, markdown_tables, show_tables
from rescale_harness.results import Spread

T = TypeVar("T")

GOALS = {1024: 3.0, 4096: 15.0}
"""Seconds in which so many members should form a generation on two cores."""
WRITES_EACH = 5
"""Per member that forms a generation: O(N) in all."""
WRITES_FOR_A_LOSS = 13
"""Whatever the size: the key, the next generation, the word of the first eight that it broke, that it was adopted, and
for a leader its place."""
QUIET = 0.5
"""Load average above which somebody else used the machine."""


def show(report: Report, console: Console) -> None:
    show_tables(tables(report), notes(report), console)


def markdown(report: Report) -> str:
    return markdown_tables(tables(report), notes(report))


def tables(report: Report) -> list[tuple[str, Table]]:
    """All tables that have a row, each with a title."""
    found = [
        ("What each event costs", events_table(report)),
        ("Goals", goals_table(report)),
        ("A job at rest: keeping the leases", leases_table(report)),
        ("The same of real agents' memberships, each with its own connection", rest_table(report)),
        ("torch's DynamicRendezvousHandler on a c10d TCPStore: forming only", peer_table(report)),
    ]
    return [(title, table) for title, table in found if table.rows]


def events_table(report: Report) -> Table:
    header = (
        "members", "event", "s", "writes", "watch events", "MB from etcd", "MB to etcd", "etcd CPU s", "client CPU s",
        "cores busy",
    )  # fmt: skip
    rows = []
    for members in dict.fromkeys(r.members for r in report.runs):
        runs = [r for r in report.runs if r.members == members]
        for event in dict.fromkeys(e for r in runs for e in r.costs):
            costs = [r.costs[event] for r in runs if event in r.costs]
            row = (
                f"{members:,}",
                event,
                _of(costs, lambda c: c.seconds, ".2f"),
                _of(costs, lambda c: c.writes, ",.0f"),
                _of(costs, lambda c: c.events, ",.0f"),
                _of(costs, lambda c: c.sent_bytes / 1e6, ".2f"),
                _of(costs, lambda c: c.received_bytes / 1e6, ".2f"),
                _of(costs, lambda c: c.etcd_cpu, ".2f"),
                _of(costs, lambda c: c.client_cpu, ".2f"),
                _of(costs, lambda c: (c.etcd_cpu + c.client_cpu) / c.seconds, ".1f"),
            )
            rows.append(row)
    return Table(header, tuple(rows), left=2)


def goals_table(report: Report) -> Table:
    header = ("goal", "is at most", "median", "max", "kept")
    rows = []
    for members, bound in GOALS.items():
        formed = Spread.of(r.costs["form"].seconds for r in report.runs if r.members == members)
        rows += _goal(f"{members:,} members form, s", bound, formed)
    for members in dict.fromkeys(r.members for r in report.runs):
        runs = [r for r in report.runs if r.members == members]
        rows += _goal(
            f"{members:,} members form, writes each",
            WRITES_EACH,
            Spread.of(r.costs["form"].writes / members for r in runs),
        )
        rows += _goal(
            f"{members:,} members lose one, writes", WRITES_FOR_A_LOSS, Spread.of(r.costs["lose"].writes for r in runs)
        )
    return Table(header, tuple(rows))


def _goal(what: str, bound: float, found: Spread | None) -> list[tuple[str, ...]]:
    if found is None:
        return []
    kept = "yes" if found.max <= bound else "by the median" if found.median <= bound else "no"
    return [(what, f"{bound:g}", f"{found.median:.2f}", f"{found.max:.2f}", kept)]


def leases_table(report: Report) -> Table:
    header = ("members", "TTL s", "renewals/s each", "bytes/s each", "renewals/s in all", "kB/s in all", "etcd cores")
    rows = []
    for members in dict.fromkeys(r.members for r in report.runs):
        found = [r.lease for r in report.runs if r.members == members]
        row = (
            f"{members:,}",
            str(found[0].ttl),
            _of(found, lambda t: t.renewals, ".2f"),
            _of(found, lambda t: t.bytes, ".0f"),
            _of(found, lambda t: t.renewals * members, ".0f"),  # noqa: B023 - called at once
            _of(found, lambda t: t.bytes * members / 1e3, ".1f"),  # noqa: B023
            _of(found, lambda t: t.etcd_cpu, ".3f"),
        )
        rows.append(row)
    return Table(header, tuple(rows))


def rest_table(report: Report) -> Table:
    header = (
        "members", "TTL s", "renewals/s each", "bytes/s to etcd each", "bytes/s from etcd each", "etcd cores each",
        "own cores each",
    )  # fmt: skip
    rows = tuple(
        (
            f"{r.members:,}",
            str(r.ttl),
            f"{r.renewals:.2f}",
            f"{r.sent:.0f}",
            f"{r.received:.0f}",
            f"{r.etcd_cpu:.5f}",
            f"{r.client_cpu:.5f}",
        )
        for r in report.rest
    )
    return Table(header, rows)


def peer_table(report: Report) -> Table:
    header = ("members", "s", "CPU s", "elastrain, same size, s")
    rows = []
    for peer in report.torch:
        took = f"{peer.seconds:.2f}" if peer.seconds is not None else f"not in {peer.bound:g}"
        costs = [r.costs["form"] for r in report.runs if r.members == peer.members]
        rows.append((f"{peer.members:,}", took, f"{peer.cpu:.1f}", _of(costs, lambda c: c.seconds, ".2f")))
    return Table(header, tuple(rows))


def notes(report: Report) -> list[str]:
    m = report.machine
    found = [
        f"{report.began}; {m.processor}, {m.cores} cores, {m.memory_gib:g} GiB, {m.system}; Python {m.python}, torch "
        f"{m.torch}, etcd {m.etcd}, elastrain {m.revision or m.elastrain}; load {m.load:g} before it began.",
        "Three figures are min / median / max over the runs; a connection to etcd for "
        f"{report.per_connection} simulated members.",
        "Writes are entries of etcd's log: puts, transactions, grants and revocations of leases. CPU is that of etcd's "
        "process and of the one that plays all members, until the generation was known to be adopted.",
    ]
    if m.load > QUIET:
        found.append("The machine was not quiet: others' work is in the times, though not in writes, bytes and CPU.")
    return found


def _of(values: Iterable[T], figure: Callable[[T], float], form: str) -> str:
    spread = Spread.of(figure(v) for v in values)
    if spread is None:
        return "–"
    shown = [format(v, form) for v in (spread.min, spread.median, spread.max)]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)
