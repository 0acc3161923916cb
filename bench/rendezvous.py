#!/usr/bin/env python3
"""The cost of forming a generation of thousands of members. ``--help`` explains its use."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench_harness import program
from bench_harness.machine import machine
from bench_rendezvous.report import PeerRun, Report, Run, notes, tables
from bench_rendezvous.scenario import PER_LINK, Scenario
from bench_rendezvous.torch_peer import measure
from elastrain.api import names
from elastrain.etcd.server import EtcdServer

HELP = """Measure how long simulated members take to form a generation through a real etcd, and what it costs.

One process plays all members, with an agent's own decisions (MemberProtocol and Core) and the same operations on keys:
each has its lease, its key and its watches. There are no ranks: they are ready at once, and break when their generation
does.
etcd starts anew for every run. Use a machine that does nothing else.

\b
Events, one after the other in each run:
  form         all start at once
  grow         the target asks for one more member, and it comes
  lose         one key vanishes; the collectives of all others break at that moment
  lose leader  the same, of the member that leads
  lose 10 %    the same, of a tenth at once
Seconds are from the event until every member of the new generation knows it and its own place. Writes include those
until its adoption is known.

\b
Examples:
  bench/rendezvous.py                                       all sizes, three runs each: ten minutes
  bench/rendezvous.py --members 8,64 --runs 1 --torch ""    a quick look"""


def one_run(size: int, ttl: int, limit: float, per_link: int) -> Run:
    """Without the garbage collector, which would scan the objects of all members: no real member has that cost."""
    gc.collect()
    gc.disable()
    try:
        with EtcdServer() as server:

            async def play() -> Run:
                return await Scenario(server, ttl, limit, per_link).run(size)

            return asyncio.run(play())
    finally:
        gc.enable()


def main(
    *,
    members: Annotated[str, typer.Option(help="Sizes, separated by commas; at least 3 each.")] = "8,64,256,1024,4096",
    torch: Annotated[str, typer.Option(help="Sizes of torch's own rendezvous; empty: none.")] = "8,64,128,256",
    torch_python: Annotated[Path, typer.Option(help="Python of an environment with another torch.")] = Path(
        sys.executable
    ),
    runs: Annotated[int, typer.Option(min=1, help="Of each size.")] = 3,
    lease_ttl: Annotated[int, typer.Option(min=2, help="Seconds.")] = 3 * names.DEFAULT_LEASE_TTL,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that one event may take.")] = 120,
    per_connection: Annotated[int, typer.Option(min=1, help="Members that share a connection to etcd.")] = PER_LINK,
    bound: Annotated[float, typer.Option(min=1, help="Seconds that torch may take.")] = 60,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    chosen, peers = program.numbers("--members", members, 3), program.numbers("--torch", torch)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    where, done, torch_runs = machine(), list[Run](), list[PeerRun]()
    output = program.Output("rendezvous", json, logs, markdown)

    def report() -> Report:
        return Report(
            machine=where,
            lease_ttl=lease_ttl,
            per_connection=per_connection,
            runs=tuple(done),
            torch=tuple(torch_runs),
        )

    with output.measuring():
        for size in peers:
            output.begins(f"torch's rendezvous, {size} members")
            torch_runs.append(measure(size, bound, torch_python))
            output.keep(report())
        for run in range(1, runs + 1):
            for size in chosen:
                output.begins(f"{size} members, run {run} of {runs}")
                done.append(one_run(size, lease_ttl, limit, per_connection))
                output.keep(report())
    output.show(tables(report()), notes(report()))


if __name__ == "__main__":
    program.run(main, HELP)
