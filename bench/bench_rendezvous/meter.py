"""Readings of etcd's own counters and of processor time."""

from __future__ import annotations

import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_COUNTERS = {
    "writes": "etcd_server_proposals_committed_total",
    "sent_bytes": "etcd_network_client_grpc_sent_bytes_total",
    "received_bytes": "etcd_network_client_grpc_received_bytes_total",
    "renewals": "etcd_debugging_lease_renewed_total",
}


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    counters: dict[str, float]
    etcd_cpu: float
    client_cpu: float

    @classmethod
    def take(cls, endpoint: str, pid: int) -> Self:
        """Raises ``OSError`` if etcd does not answer."""
        with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "{" not in line)
        counters = {name: float(values.get(metric, 0)) for name, metric in _COUNTERS.items()}
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), counters, (int(stat[11]) + int(stat[12])) / ticks, time.process_time())

    def since(self, name: str, earlier: Reading) -> int:
        return int(self.counters[name] - earlier.counters[name])
