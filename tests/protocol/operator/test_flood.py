"""A tenant floods its own prefix of etcd: the operator serves the others in bounded memory, and so does the next."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conditions import until
from elastrain.api.keys import JobKeys
from elastrain.api.records import Member, Target
from elastrain.etcd import EtcdClient, EtcdConfig, Transaction
from elastrain_operator.records.mirror import Mirror

EVIL, GOOD = JobKeys("evil", "job", "uid-1"), JobKeys("good", "job", "uid-2")
TARGET = Target(min=1, max=2, desired=2, reason="Start")
MIB = 1 << 20
MOST = 200 * MIB
"""A page has at most 64 MiB and is in memory as bytes, as a message and as records. The chart allows 512 MiB."""


def resident() -> int:
    """Bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def flood(client: EtcdClient) -> None:
    """150 MiB under keys that no job has, and 12 MiB of members, as the job's user may write."""
    for n in range(150):
        client.put(f"{EVIL.prefix}{n}", b"x" * MIB)
    member = Member(id="m", worker="w" * 500, address="a").encode()
    for start in range(0, 20_000, 100):
        puts = tuple((EVIL.member(f"m.{n}"), member) for n in range(start, start + 100))
        client.commit(Transaction((), puts), "flood")


async def serve(client: EtcdClient, own: EtcdClient, *, during: bool) -> None:
    before = resident()
    mirror = Mirror(own, "here", lambda keys: None)
    mirror.start()
    assert await mirror.wait_listed(60.0), "150 MiB are no obstacle for the next operator"
    if during:
        await asyncio.to_thread(flood, client)
    await until(lambda: mirror.outage_of(EVIL) is not None, "the job to be refused", 60)
    began = time.monotonic()
    await asyncio.to_thread(client.put, GOOD.target, TARGET.model_copy(update={"max": 3 + during}).encode())
    await until(lambda: (c := mirror.of(GOOD)) and c.target and c.target.max == 3 + during, "another job's record")
    assert time.monotonic() - began < 10.0
    assert mirror.outage_of(EVIL).reason == "RecordsUnreadable"
    assert mirror.of(EVIL) is None
    assert mirror.outage is None
    assert (grown := resident() - before) < MOST, f"{grown >> 20} MiB"
    await mirror.close()


@pytest.mark.parametrize("during", [True, False], ids=["during", "before"])
def test_a_flood_takes_neither_the_operators_memory_nor_its_time(etcd_factory, during):
    """In a process of its own, whose memory no other test has used or left."""
    server = etcd_factory()
    if not during:
        with EtcdClient(EtcdConfig.of(server.endpoint), timeout=20.0) as client:
            flood(client)
    command = [sys.executable, __file__, server.endpoint, "during" if during else "before"]
    subprocess.run(command, check=True, timeout=150, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def main(endpoint: str, when: str) -> None:
    with EtcdClient(EtcdConfig.of(endpoint), timeout=20.0) as client, EtcdClient(client.config) as own:
        asyncio.run(serve(client, own, during=when == "during"))


if __name__ == "__main__":
    main(*sys.argv[1:])
