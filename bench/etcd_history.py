"""How much room the progress of training jobs takes in an etcd that keeps old revisions.

Writes progress records as rank 0's agent does (the newest ten rescales in each, as in a job that has been through some)
and looks at the size of etcd's file. ``python bench/etcd_history.py --help`` has the options.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

from elastrain.api.keys import JobKeys
from elastrain.api.records import CheckpointState, Progress, Rescale
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.etcd.server import EtcdServer

KEEPS = 120
"""Seconds of history at most with the chart's retention of a minute: it is compacted every minute, to the last one."""


@dataclass(frozen=True)
class Room:
    """Of one kind of job."""

    rescales: int
    record: int
    """Bytes of one record."""
    revision: float
    """Bytes of etcd's file for each write of it."""
    seconds: float
    """For each write, one after the other."""


def progress(step: int, rescales: int) -> Progress:
    """As of a job in the middle of its life."""
    one = Rescale(
        generation=17, from_size=63, to_size=64, reason="Grow", step=step, pause_seconds=0.3365,
        phases={"connect": 0.0274, "transfer": 0.0877, "first_step": 0.2231},
    )  # fmt: skip
    return Progress(
        generation=18, world_size=512, members=64, step=step, total_steps=2_000_000, epoch=1, samples=step * 4096,
        loss=2.3172, step_seconds=0.8113, rescales=(one,) * rescales,
        checkpoint=CheckpointState(step=step - 100, path="/checkpoints/lm/step-000120000"),
    )  # fmt: skip


def measure(writes: int) -> Iterator[Room]:
    """One etcd for each kind, so that nothing else is in its file."""
    for rescales in (0, 10):
        keys = JobKeys("research", "a-job-with-a-name", "0f9c3a1e-6f0b-4b52-9c55-2f6d0c1b7a11")
        with EtcdServer() as server, EtcdClient(EtcdConfig.of(server.endpoint), timeout=30) as client:
            (file,) = server.data_dir.rglob("snap/db")
            before, began = file.stat().st_size, time.perf_counter()
            for step in range(writes):
                client.put(keys.progress, progress(120_000 + step, rescales).encode())
            took = time.perf_counter() - began
            time.sleep(0.5)  # etcd writes its file every tenth of a second
            record = len(progress(120_000, rescales).encode())
            yield Room(rescales, record, (file.stat().st_size - before) / writes, took / writes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writes", type=int, default=20_000, help="of each kind (default: %(default)s)")
    options = parser.parse_args()
    print("| a job that has been rescaled | its record, bytes | etcd's file, bytes a write | MB kept at one a second |")
    print("| --- | ---: | ---: | ---: |")
    for room in measure(options.writes):
        name = f"{room.rescales} times or more" if room.rescales else "never"
        print(f"| {name} | {room.record} | {room.revision:.0f} | {room.revision * KEEPS / 1e6:.2f} |")


if __name__ == "__main__":
    main()
