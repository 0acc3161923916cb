#!/usr/bin/env python3
"""What it costs thousands of members to agree on a generation. ``--help`` tells how to use it."""

from __future__ import annotations

import asyncio
import gc
import resource
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from elastrain.api import names
from elastrain.etcd.server import EtcdNotFound, EtcdServer
from rendezvous_harness import at_rest
from rendezvous_harness.report import markdown, show
from rendezvous_harness.results import AtRest, PeerRun, Report, Run
from rendezvous_harness.scenario import PER_LINK, Failed, Scenario
from rendezvous_harness.torch_peer import measure
from rescale_harness.machine import machine
from rescale_harness.report import render

HELP = """Measure how long simulated members take to form a generation through a real etcd, and what it costs.

One process plays all members, with an agent's own decisions (MemberProtocol and Core) and the same operations on keys:
each has its lease, its key and its watches. There are no ranks: they are ready at once, and break when their
generation does. etcd is started anew for every run. Use a machine that does nothing else.

\b
Events, one after the other in each run:
  form         all start at once
  grow         the target wants one more, and it comes
  lose         one key vanishes; the collectives of all others break at that moment
  lose leader  the same, of the member that leads
  lose 10 %    the same, of a tenth at once
Seconds are from the event until every member of the new generation knows it and its own place. Writes include those
until it is known to be adopted.

\b
Examples:
  bench/rendezvous.py                                  all sizes, three runs each: ten minutes
  bench/rendezvous.py --members 8,64 --runs 1          a quick look
  bench/rendezvous.py --json docs/rendezvous.json                                     the figures of the docs ...
  bench/rendezvous.py --render docs/rendezvous.json --into docs/rendezvous.md    ... written into their page

Exit codes: 0 measured, 1 the members did not come to a generation in time, 2 cannot be started as asked.
"""


REST_SECONDS = 30.0
"""For which real members are watched at rest."""


def refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def sizes(option: str, text: str, least: int) -> list[int]:
    """The comma-separated sizes of ``text``."""
    try:
        found = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        refuse(f"{option} {text!r}: must be numbers, separated by commas")
    if any(size < least for size in found):
        refuse(f"{option} {text!r}: each size must be at least {least}")
    return found


def one_run(size: int, ttl: int, limit: float, per_link: int) -> Run:
    """A collection of garbage would look at all members' objects again and again: that is no cost of theirs."""
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
    runs: Annotated[int, typer.Option(min=1, help="Of each size.")] = 3,
    rest: Annotated[int, typer.Option(min=0, help="Real members at rest; 0: none.")] = 8,
    json: Annotated[Path | None, typer.Option(help="Where every figure of every run is written.")] = None,
    lease_ttl: Annotated[int, typer.Option(min=2, help="Seconds.")] = 3 * names.DEFAULT_LEASE_TTL,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that one event may take.")] = 120,
    per_connection: Annotated[int, typer.Option(min=1, help="Members that share a connection to etcd.")] = PER_LINK,
    bound: Annotated[float, typer.Option(min=1, help="Seconds that torch may take.")] = 60,
    render_: Annotated[Path | None, typer.Option("--render", help="Run nothing; print this report.")] = None,
    into: Annotated[Path | None, typer.Option(help="With --render: write into this page.")] = None,
) -> None:
    if into is not None and render_ is None:
        refuse(f"--into {into}: needs --render FILE")
    if render_ is not None:
        render(render_, into, Report, markdown)
        return
    chosen, peers = sizes("--members", members, 3), sizes("--torch", torch, 1)
    console = Console()
    began = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    done: list[Run] = []
    resting: list[AtRest] = []
    torch_runs: list[PeerRun] = []
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    try:
        where = machine()
    except EtcdNotFound as error:
        refuse(str(error))

    def report() -> Report:
        return Report(
            machine=where,
            began=began,
            lease_ttl=lease_ttl,
            per_connection=per_connection,
            runs=tuple(done),
            rest=tuple(resting),
            torch=tuple(torch_runs),
        )

    def keep() -> None:
        if json is not None:
            json.write_text(report().model_dump_json(indent=1) + "\n")

    for ttl in dict.fromkeys((names.DEFAULT_LEASE_TTL, lease_ttl)) if rest else ():
        console.print(f"{rest} real members at rest, TTL {ttl} s", style="dim")
        with EtcdServer() as server:
            resting.append(at_rest.measure(server, rest, ttl, REST_SECONDS))
        keep()
    for size in peers:
        console.print(f"torch's rendezvous, {size} members", style="dim")
        torch_runs.append(measure(size, bound))
        keep()
    for run in range(1, runs + 1):
        for size in chosen:
            console.print(f"{size} members, run {run} of {runs}", style="dim")
            try:
                done.append(one_run(size, lease_ttl, limit, per_connection))
            except Failed as error:
                typer.echo(f"--members {size}: {error}", err=True)
                raise typer.Exit(1) from None
            keep()
    show(report(), console)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
