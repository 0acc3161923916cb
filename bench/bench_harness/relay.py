"""``python -m bench_harness.relay``: carries packets between TUN devices as a slow network does."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import selectors
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

QUEUE_SECONDS = 0.2
"""Of a line: packets that would wait longer for it are lost, as in a switch with a buffer of that size."""
_LARGEST = 65_536


@dataclass(frozen=True, slots=True)
class Link:
    """Between each node and the switch."""

    about: str
    megabits: float = 0.0
    """A second, in each direction; 0: no limit."""
    delay: float = 0.0
    """Seconds of one way between two nodes."""
    loss: float = 0.0
    """Part of the packets."""

    def dump(self) -> str:
        return json.dumps(asdict(self))


class Switch:
    """When a packet arrives. Pure: time and randomness are given."""

    def __init__(self, link: Link, nodes: Iterable[int], rng: random.Random) -> None:
        """``nodes``: by the descriptors of their devices."""
        self._link, self._rng = link, rng
        self._out = dict.fromkeys(nodes, 0.0)
        """When the line from a node is free again."""
        self._in = dict(self._out)
        """The same of the line to it."""

    def arrival(self, now: float, source: int, target: int, size: int) -> float | None:
        """When ``size`` bytes arrive that a node sends now; None: they are lost."""
        took = size * 8e-6 / self._link.megabits if self._link.megabits else 0.0
        sent = max(now, self._out[source]) + took
        if sent - now > QUEUE_SECONDS + took:
            return None
        self._out[source] = sent
        if self._link.loss and self._rng.random() < self._link.loss:
            return None
        there = sent + self._link.delay
        arrived = max(there, self._in[target] + took)
        if arrived - there > QUEUE_SECONDS:
            return None
        self._in[target] = arrived
        return arrived


def carry(link: Link, devices: Mapping[bytes, int]) -> None:
    """For ever. ``devices``: descriptors by IPv4 address."""
    switch = Switch(link, devices.values(), random.Random(1))
    selector, due = selectors.DefaultSelector(), list[tuple[float, int, int, bytes]]()
    numbers = itertools.count()
    for device in devices.values():
        selector.register(device, selectors.EVENT_READ)
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        for key, _ in selector.select(wait):
            for packet in _packets(key.fd):
                target = devices.get(packet[16:20])
                if target is None or packet[0] >> 4 != 4:
                    continue
                arrival = switch.arrival(time.monotonic(), key.fd, target, len(packet))
                if arrival is not None:
                    heapq.heappush(due, (arrival, next(numbers), target, packet))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, target, packet = heapq.heappop(due)
            os.write(target, packet)


def _packets(device: int) -> Iterable[bytes]:
    """Those that wait, a few at a time, so that no node holds up the others."""
    for _ in range(32):
        try:
            yield os.read(device, _LARGEST)
        except BlockingIOError:
            return


def main(link: str, *devices: str) -> None:
    """``devices``: ADDRESS=DESCRIPTOR."""
    pairs = (device.split("=") for device in devices)
    carry(Link(**json.loads(link)), {bytes(map(int, address.split("."))): int(fd) for address, fd in pairs})


if __name__ == "__main__":
    main(*sys.argv[1:])
