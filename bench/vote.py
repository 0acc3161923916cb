#!/usr/bin/env python3
"""What the votes for a step cost a rank of a large generation. ``--help`` explains its use."""

from __future__ import annotations

import contextlib
import resource
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import torch
import typer

from bench_harness import program
from bench_harness.machine import Machine, machine
from bench_harness.stats import Model
from bench_harness.tables import Table
from elastrain.elastic.comm import tcp_allreduce, tree
from elastrain.elastic.comm.channel import Channels, Purpose
from elastrain.elastic.comm.handshake import Identity
from elastrain.elastic.comm.header import Kind, Label, encode
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.tcp_allreduce import TcpAllreduce
from elastrain.elastic.commit import control

HELP = """Measure the processor time of one rank for the votes of one step, by the product's own sums: over the tree, as
they travel, and between all pairs of ranks, as large sums travel and votes did.

The peers are played: what they send is in the sockets before the rank begins, so that the figure has no wait in it, and
neither other ranks' work nor the network. The rank has two threads, as in training. Places in the tree: the root, a
rank between (a parent and as many children as any), and the last rank, a leaf. A second table has the connections of a
rank, and the time in which all ranks connect; these are threads of one process.

\b
Examples:
  bench/vote.py                                five runs of 100 steps: two minutes
  bench/vote.py --ranks 2,512 --runs 1         a quick look"""

GOAL = 2.0
"""Milliseconds of a rank's processor time, at 512 ranks."""
LABEL = Label(Kind.CONTROL)
PAIRS, TREE = "all pairs", "tree"
PLACES = ("root", "between", "leaf")
MOST_PLAYED = 128
"""Ranks that connect in one process: beyond them the figure is of its threads."""


class Run(Model):
    """One rank's votes."""

    ranks: int
    way: str
    """A place in the tree, or all pairs."""
    connections: int
    cpu: float
    """Milliseconds a step."""


class Forming(Model):
    """The connections of one generation."""

    ranks: int
    way: str
    most: int
    """Connections of the rank with the most of them."""
    milliseconds: float
    """From the first connect until every rank has all of its connections."""


class Report(Model):
    """All runs."""

    machine: Machine
    steps: int
    runs: tuple[Run, ...]
    formings: tuple[Forming, ...]


def rank_at(place: str, ranks: int) -> int | None:
    """None: no rank has this place."""
    if place == "between":
        return next(
            (r for r in range(1, ranks) if len(tree.children(r, ranks)) == min(tree.FAN, ranks - 1 - tree.FAN)), None
        )
    return 0 if place in ("root", PAIRS) else ranks - 1


class Played:
    """The other ends of a rank's connections."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._ends = {peer: socket.socketpair() for peer in range(ranks) if peer != rank}
        for _, there in self._ends.values():
            there.setblocking(False)
        self.mesh = Mesh(rank, {peer: here for peer, (here, _) in self._ends.items()}, self.shut)

    def over_tree(self, sequence: int) -> None:
        """Each neighbour sends its header, and the sum of its branch or of all."""
        self._send(sequence, tree.neighbours(self._rank, self._ranks), control.SIZE)

    def between_pairs(self, sequence: int) -> None:
        """Each peer sends its header, its part of this rank's chunk, and the sum of its own chunk."""
        padded = torch.zeros(max(control.SIZE, self._ranks))
        chunks = [len(chunk) for chunk in padded.tensor_split(self._ranks)]
        for peer in self._ends:
            self._send(sequence, [peer], chunks[self._rank] + chunks[peer])

    def _send(self, sequence: int, peers: list[int], numbers: int) -> None:
        for peer in peers:
            header = encode(sequence, LABEL.kind, LABEL.step, 8 * control.SIZE)
            self._ends[peer][1].send(header + bytes(8 * numbers))

    def drain(self) -> None:
        for _, there in self._ends.values():
            with contextlib.suppress(BlockingIOError):
                there.recv(1 << 16)

    def shut(self) -> None:
        for here, _ in self._ends.values():
            here.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for ends in self._ends.values():
            for end in ends:
                end.close()


@contextlib.contextmanager
def small_up_to(size: int) -> Iterator[None]:
    """Sums up to this size travel over the tree."""
    was, tcp_allreduce.SMALL_BYTES = tcp_allreduce.SMALL_BYTES, size
    try:
        yield
    finally:
        tcp_allreduce.SMALL_BYTES = was


def measure(ranks: int, way: str, steps: int) -> Run | None:
    """None: no rank has this place."""
    rank = rank_at(way, ranks)
    if rank is None:
        return None
    pairs = way == PAIRS
    with small_up_to(0 if pairs else tcp_allreduce.SMALL_BYTES):
        played = Played(rank, ranks)
        failures: list[BaseException] = []
        sums = TcpAllreduce(played.mesh, rank, failures.append)
        try:
            play = played.between_pairs if pairs else played.over_tree
            warm, spent = steps // 10 + 1, 0.0
            for step in range(1, warm + steps + 1):
                took = _vote(sums, play, step)
                spent += took if step > warm else 0.0
                played.drain()
        finally:
            played.shut()
            sums.close()
            played.close()
    if failures:
        raise program.Failed(f"{ranks} ranks, {way}: {failures[0]}")
    connections = ranks - 1 if pairs else len(tree.neighbours(rank, ranks))
    return Run(ranks=ranks, way=way, connections=connections, cpu=1000 * spent / steps)


def _vote(sums: TcpAllreduce, play: Callable[[int], None], step: int) -> float:
    """Seconds of processor time."""
    play(step)
    began = time.process_time()
    values = torch.zeros(control.SIZE, dtype=torch.float64)
    torch.futures.wait_all(sums.sum_together(values, label=LABEL))
    return time.process_time() - began


def form(ranks: int, way: str) -> Forming:
    """Connect played ranks, threads of this process, by the product's own listeners and handshakes."""
    key = secrets.token_bytes(32)
    channels = [Channels("127.0.0.1", Identity(1, rank, ranks, key)) for rank in range(ranks)]
    invitations = {rank: each.invitation for rank, each in enumerate(channels)}

    def meet(rank: int) -> int:
        peers = tree.others(rank, ranks) if way == PAIRS else tree.neighbours(rank, ranks)
        return len(channels[rank].meet(invitations, Purpose.SUMS, peers, lambda: False))

    try:
        with ThreadPoolExecutor(ranks) as pool:
            began = time.monotonic()
            connected = list(pool.map(meet, range(ranks)))
            took = time.monotonic() - began
    finally:
        for each in channels:
            each.close()
    return Forming(ranks=ranks, way=way, most=max(connected), milliseconds=1000 * took)


def tables(report: Report) -> list[Table]:
    return [_votes(report), *([_formed(report)] if report.formings else [])]


def _formed(report: Report) -> Table:
    rows = []
    for ranks in sorted({one.ranks for one in report.formings}):
        cells = []
        for way in (PAIRS, TREE):
            of = [one for one in report.formings if (one.ranks, one.way) == (ranks, way)]
            cells += [str(max(one.most for one in of)), _cell([one.milliseconds for one in of], 0)]
        rows.append((str(ranks), *cells))
    header = ("ranks", "sockets: all pairs", "ms", "sockets: tree", "ms")
    return Table("Connections of a rank, and the time in which all ranks connect, ms", header, tuple(rows))


def _votes(report: Report) -> Table:
    rows = []
    for ranks in sorted({run.ranks for run in report.runs}):
        of = [run for run in report.runs if run.ranks == ranks]
        cells = [_cell([run.cpu for run in of if run.way == way]) for way in (PAIRS, *PLACES)]
        most = max(run.connections for run in of if run.way != PAIRS)
        rows.append((str(ranks), str(2 * tree.depth(ranks)), *cells, f"{most} of {ranks - 1}"))
    header = ("ranks", "hops", PAIRS, *PLACES, "peers it talks to")
    return Table("Processor time of one rank for the votes of one step, ms", header, tuple(rows))


def _cell(values: list[float], digits: int = 2) -> str:
    of = (min(values), statistics.median(values), max(values)) if values else ()
    return " / ".join(f"{value:.{digits}f}" for value in of)


def main(
    *,
    ranks: Annotated[
        str, typer.Option(help="Sizes of the generation, separated by commas; at least 2.")
    ] = "2,8,32,128,512",
    steps: Annotated[int, typer.Option(min=1, help="Of each run.")] = 100,
    runs: Annotated[int, typer.Option(min=1, help="Of each size and place, in turns.")] = 5,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    sizes = program.numbers("--ranks", ranks, 2)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    where, done, formed = machine(), list[Run](), list[Forming]()
    output = program.Output("vote", json, logs, markdown)
    torch.set_num_threads(1)

    def report() -> Report:
        return Report(machine=where, steps=steps, runs=tuple(done), formings=tuple(formed))

    with output.measuring():
        for run in range(1, runs + 1):
            output.begins(f"run {run} of {runs}")
            for size in sizes:
                done += [found for way in (PAIRS, *PLACES) if (found := measure(size, way, steps)) is not None]
                formed += [form(size, way) for way in (PAIRS, TREE) if size <= MOST_PLAYED]
            output.keep(report())
    output.show(
        tables(report()),
        [f"Minimum / median / maximum of {runs} runs of {steps} steps.", f"Goal: at most {GOAL:g} ms.", *where.lines],
    )


if __name__ == "__main__":
    program.run(main, HELP)
