"""The benchmark of the rendezvous, on a real etcd, and its tables."""

import asyncio
from collections.abc import Iterator

import pytest

from bench_harness.machine import machine
from bench_rendezvous import scenario
from bench_rendezvous.http2 import CallFailed
from bench_rendezvous.link import Link, Watching
from bench_rendezvous.report import (
    Cost,
    LeaseTraffic,
    PeerRun,
    Report,
    Run,
    events_table,
    goals_table,
    leases_table,
    peer_table,
)  # fmt: skip
from elastrain.etcd import Batch, Put, Range
from elastrain.etcd.server import EtcdServer


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as running:
        yield running


def test_every_event_of_a_run_leads_to_the_expected_generation(server, monkeypatch) -> None:
    monkeypatch.setattr(scenario, "REST_SECONDS", 0.1)
    run = asyncio.run(scenario.Scenario(server, ttl=5, limit=30).run(6))
    assert list(run.costs) == ["form", "grow", "lose", "lose leader", "lose 10 %"]
    assert [c.generations for c in run.costs.values()] == [1] * 5
    assert 6 * 3 <= run.costs["form"].writes <= 6 * 5
    assert run.lease.renewals > 0


def test_a_link_carries_large_values_refusals_and_events(server) -> None:
    async def play() -> None:
        link = await Link.open(server.endpoint)
        large = bytes(range(256)) * 4096  # a megabyte, more than etcd's flow-control window
        heard: asyncio.Queue[Batch] = asyncio.Queue()
        await link.watch((Range.prefix("a/"),), Watching(heard.put_nowait))
        await link.put("a/large", large)
        found = await link.get("a/large")
        assert found is not None and found.value == large
        with pytest.raises(CallFailed, match="Put"):
            await link.put("a/other", b"", lease=12345)
        assert (await heard.get()).snapshot
        (news,) = (await asyncio.wait_for(heard.get(), 10)).events
        assert isinstance(news, Put) and news.kv.value == large
        lease = await link.grant(60)
        await link.put("a/leased", b"x", lease)
        await link.revoke(lease)
        assert await link.get("a/leased") is None
        assert link.failed is None
        link.close()

    asyncio.run(play())


def cost(seconds: float, writes: int) -> Cost:
    return Cost(
        seconds=seconds, writes=writes, sent_bytes=2_000_000, received_bytes=1_000_000, events=7,
        generations=1, etcd_cpu=seconds / 2, client_cpu=seconds,
    )  # fmt: skip


def report() -> Report:
    lease = LeaseTraffic(ttl=15, renewals=0.2, bytes=30, etcd_cpu=0.01)
    runs = tuple(
        Run(members=1024, costs={"form": cost(s, 4096), "lose": cost(0.1, w)}, lease=lease)
        for s, w in ((2.0, 4), (2.5, 4), (4.0, 40))
    )
    torch = (PeerRun(members=8, seconds=1.5, bound=60, cpu=1.0), PeerRun(members=256, seconds=None, bound=60, cpu=90))
    return Report(machine=machine(), lease_ttl=15, per_connection=64, runs=runs, torch=torch)


def test_tables_show_the_spread_over_the_runs_and_which_goals_were_kept() -> None:
    form, lose = events_table(report()).rows
    assert form[:4] == ("1,024", "form", "2.00 / 2.50 / 4.00", "4,096")
    assert form[5:7] + form[9:] == ("2.00", "1.00", "1.5")
    assert lose[3] == "4 / 4 / 40"
    assert [row[4] for row in goals_table(report()).rows] == ["by the median", "yes", "by the median"]
    assert leases_table(report()).rows[0][2:] == ("0.20", "30", "0.010")
    assert [row[1:3] for row in peer_table(report()).rows] == [("1.50", "1.0"), ("not in 60", "90.0")]
