"""A tenant writes records that cannot be read, or are expensive to read: the operator serves the others, and stays."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from operator_process import OperatorProcess, permit

pytestmark = pytest.mark.apiserver

HALF = 509 << 10
"""Bytes of a record: less than the limit of one."""


def filled(before: str, item: str, after: str) -> bytes:
    return (before + ",".join([item] * ((HALF - len(before) - len(after)) // (len(item) + 1))) + after).encode()


NUMBERS = filled('{"members":[', "0", "]}")
ATTACKS = {
    "numbers for members": NUMBERS,
    "a sign to be made harmless": filled('{"x":"\\u001b","members":[', "0", "]}"),
    "valid members": filled(
        '{"members":[', '{"id":"a","worker":"a","address":"","store_port":1,"rank_offset":0}', "]}"
    ),
    "unknown fields of a member": filled(
        '{"members":[{"id":"a","worker":"a","address":"","store_port":1,"rank_offset":0,"x":[', "[]", "]}]}"
    ),
    "depth": b"[" * HALF,
    "no JSON": b"\\" * HALF,
}


def peak(operator: OperatorProcess) -> int:
    """MiB that the process has ever had in memory."""
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10


@pytest.mark.parametrize("attack", ATTACKS)
def test_records_of_one_tenants_job_delay_no_other_tenants_and_cost_neither_log_nor_memory(
    attack, cluster, neighbour, etcd, operator_factory, client, eventually
):
    evil = cluster.create_job("evil", maxReplicas=1)
    permit(neighbour, cluster.namespace)
    for restarted in (False, True):
        operator = operator_factory(etcd, f"{cluster.namespace},{neighbour.namespace}")
        eventually(lambda: "evil-0" in cluster.pods(), 60, "the operator serves")
        if not restarted:
            for number in range(15):
                client.put(evil.roster(1, number), ATTACKS[attack])
        name = f"good-{int(restarted)}"
        began = time.monotonic()
        neighbour.create_job(name, maxReplicas=1)
        eventually(lambda name=name: f"{name}-0" in neighbour.pods(), 60, "the neighbour's job gets its pod")
        waited = time.monotonic() - began
        eventually(lambda name=name: neighbour.status(name).get("phase"), 30, "its status is written")
        assert waited < (15.0 if restarted else 5.0), "its start included"
        assert operator.is_running
        most, logged = peak(operator), operator.log.stat().st_size
        print(f"{attack}: {waited:.2f} s, {most} MiB, {logged} bytes of log")
        assert most <= 256
        assert logged <= 1 << 20
        operator.stop()
    assert all(client.delete(record.key) for record in client.get_prefix(evil.prefix)[0])


def test_a_job_is_refused_if_very_many_of_its_records_cannot_be_read(
    cluster, etcd, operator_factory, client, eventually
):
    evil = cluster.create_job("evil", maxReplicas=1)
    operator = operator_factory(etcd, cluster.namespace)
    eventually(lambda: "evil-0" in cluster.pods(), 60, "the operator serves")
    for number in range(2000):
        client.put(evil.member(f"m.{number}"), b"[]")
    condition = lambda: cluster.condition("evil", "CoordinationAvailable")  # noqa: E731
    eventually(lambda: condition().get("reason") == "RecordsUnreadable", 30, "it is refused")
    assert operator.log.stat().st_size <= 1 << 20
    cluster.create_job("good", maxReplicas=1)
    eventually(lambda: "good-0" in cluster.pods(), 5, "another job gets its pod")
