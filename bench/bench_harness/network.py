"""A slow network between the nodes of a run: each in a network namespace of its own, and one process that delays.

A kernel without ``netem`` can limit a rate and delay nothing, so packets go through TUN devices and a Python process
(:mod:`bench_harness.relay`). It needs root, and makes only namespaces and devices that it removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from bench_harness.processes import popen
from bench_harness.relay import Link

LINKS: Mapping[str, Link] = {
    "fast": Link("namespaces without limits"),
    "1gbit": Link("1 Gb/s and 10 ms there and back", megabits=1000, delay=0.005),
    "100mbit": Link("100 Mb/s, 60 ms there and back, one packet in a thousand lost", 100, 0.030, 0.001),
}
"""By the words of ``--network``."""
_NETS = "10.251"
"""A made network is one of its 256 subnets, which no route leads into from elsewhere."""
MTU = 9000
"""Large packets, so that one process carries 1 Gb/s."""
_DEVICE = "/dev/net/tun"
_TUNSETIFF, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000


def missing() -> str | None:
    """What this machine lacks for it; None: nothing."""
    if os.geteuid() != 0:
        return "--network: network namespaces need root"
    if shutil.which("ip") is None or not Path(_DEVICE).exists():
        return f"--network: needs the program ip (package iproute2) and {_DEVICE}"
    return None


class Network:
    """Use as a context manager. Number 0 is this process' own namespace, with the services; nodes count from 1."""

    def __init__(self, link: Link, nodes: int, log: Path) -> None:
        """``nodes``: most that ever start."""
        self._link, self._nodes, self._log = link, nodes, log
        self._tag = f"el{os.getpid() % 100_000}"
        self._subnet = ""
        self._relay: subprocess.Popen[bytes] | None = None

    def address(self, number: int) -> str:
        """Of a node, or of the services."""
        return f"{self._subnet}.{number + 1}"

    def carried(self) -> int:
        """Bytes that the nodes and the services have sent."""
        counter = "/sys/class/net/{}/statistics/tx_bytes"
        own = int(Path(counter.format(f"{self._tag}d0")).read_text())
        nodes = (
            _ip("netns", "exec", f"{self._tag}n{number}", "cat", counter.format(f"{self._tag}d{number}"))
            for number in range(1, self._nodes + 1)
        )
        return own + sum(map(int, nodes))

    def inside(self, number: int, command: Sequence[str]) -> list[str]:
        """``command`` in the namespace of a node."""
        return ["ip", "netns", "exec", f"{self._tag}n{number}", *command]

    @property
    def pids(self) -> tuple[int, ...]:
        """The relay's, which this object ends."""
        return () if self._relay is None else (self._relay.pid,)

    def __enter__(self) -> Self:
        devices = []
        self._subnet = free_subnet(_ip("-4", "-o", "address", "show"), os.getpid())
        try:
            for number in range(self._nodes + 1):
                devices.append(self._device(number))
            command = [sys.executable, "-m", "bench_harness.relay", self._link.dump()]
            command += [f"{self.address(number)}={device}" for number, device in enumerate(devices)]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
            with self._log.open("ab") as log:
                self._relay = popen(command, log, environment, keep=devices)
        except BaseException:
            self.__exit__()
            raise
        finally:
            for device in devices:
                os.close(device)
        return self

    def __exit__(self, *_: object) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
            self._relay = None
        for number in range(1, self._nodes + 1):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", f"{self._tag}n{number}")

    def _device(self, number: int) -> int:
        """Make namespace and device of a node; returns the descriptor of its packets."""
        name = f"{self._tag}d{number}"
        device = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN | _NO_HEADER))
        there: tuple[str, ...] = ()
        if number:
            namespace = f"{self._tag}n{number}"
            _ip("netns", "add", namespace)
            _ip("link", "set", name, "netns", namespace)
            there = ("-n", namespace)
            _ip(*there, "link", "set", "lo", "up")
        _ip(*there, "address", "add", f"{self.address(number)}/24", "dev", name)
        _ip(*there, "link", "set", name, "mtu", str(MTU), "up")
        return device


def free_subnet(addresses: str, first: int) -> str:
    """The first from number ``first`` on of which ``ip -4 -o address`` shows no address. Pure.

    Raises ``RuntimeError`` if all are taken.
    """
    for number in range(first, first + 256):
        if f" {_NETS}.{number % 256}." not in addresses:
            return f"{_NETS}.{number % 256}"
    raise RuntimeError(f"all subnets of {_NETS}.0.0/16 are taken: end other runs with --network")


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
