"""The mirror of etcd: its records, and when they count as unknown."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

import builders
from elastrain.api.keys import JobKeys
from elastrain.api.records import Member, Phase, Progress, Target, roster
from elastrain.etcd import Batch, Delete, EtcdDenied, EtcdUnavailable, KeyValue, Put, WatchState, WritesRefused
from elastrain_operator.records import mirror as coordination
from elastrain_operator.records.mirror import Mirror

KEYS = JobKeys("ns", "job", "uid")
TARGET = Target(min=1, max=2, desired=2, reason="Start")
MEMBER = Member(id="job-0.a", worker="job-0", address="10.0.0.1")
LOST = WatchState(connected=False, error=EtcdUnavailable("etcd:2379", "watch", "refused"))


class FakeEtcd:
    """Records writes; the test delivers the watch's events."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def put_all(self, records):
        self.stored |= records

    def delete_prefix_if(self, prefix, key, value):
        if self.stored.get(key) != value:
            return False
        gone = [k for k in self.stored if k.startswith(prefix)]
        for key in gone:
            del self.stored[key]
        return True

    def watch_prefix(self, prefix, on_events, on_state=None):
        raise AssertionError("not in these tests")


def batch(*changes, snapshot: bool = False) -> Batch:
    events = [Put(KeyValue(c[0], c[1], 1, 1)) if isinstance(c, tuple) else Delete(c, 1) for c in changes]
    return Batch(tuple(events), 1, snapshot)


def run(scenario):
    """Run ``scenario(mirror, etcd, woken)`` in an event loop; ``woken`` collects the woken jobs."""

    async def main():
        etcd, woken = FakeEtcd(), []
        await scenario(Mirror(etcd, "here", woken.append), etcd, woken)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(coordination, "LINGER", 0.02)


def test_nothing_is_known_before_the_first_full_list():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        assert mirror.of(KEYS) is None
        mirror.take(batch(snapshot=True))
        assert mirror.of(KEYS) is not None
        assert mirror.of(KEYS).members == ()

    run(scenario)


def test_plans_rely_on_no_records_while_etcd_refuses_writes():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch(snapshot=True))
        woken.clear()
        mirror.writes(WritesRefused("get a lease", "etcdserver: mvcc: database space exceeded"))
        assert (mirror.of(KEYS), woken) == (None, [None])
        assert mirror.outage is None, "deletions free space: the sweeper goes on"
        assert mirror.outage_of(KEYS).reason == "EtcdRefusesWrites"
        assert "NOSPACE" in mirror.outage_of(KEYS).message
        mirror.writes(None)
        assert (mirror.outage_of(KEYS), woken) == (None, [None, None])

    run(scenario)


def test_records_follow_the_watch_and_only_their_job_is_woken():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch((KEYS.target, TARGET.encode()), (KEYS.member(MEMBER.id), MEMBER.encode()), snapshot=True))
        assert mirror.of(KEYS).target == TARGET
        assert mirror.of(KEYS).members == (MEMBER,)
        woken.clear()
        mirror.take(batch(KEYS.member(MEMBER.id)))
        assert mirror.of(KEYS).members == ()
        assert woken == [KEYS]

    run(scenario)


def test_no_job_is_woken_by_this_operators_own_writes():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch(snapshot=True))
        steps = []
        mirror._on_steps = steps.append
        await mirror.put_target(KEYS, TARGET)
        woken.clear()
        mirror.take(batch(*etcd.stored.items()))
        assert (mirror.of(KEYS).target, woken, steps) == (TARGET, [], [KEYS])
        mirror.take(batch((KEYS.target, TARGET.encode())))
        assert woken == [KEYS], "another client wrote this one"

    run(scenario)


def test_job_is_woken_by_its_own_target_if_a_worker_is_asked_to_leave():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch(snapshot=True))
        await mirror.put_target(KEYS, TARGET.model_copy(update={"leaving": ("job-1",)}))
        woken.clear()
        mirror.take(batch(*etcd.stored.items()))
        assert woken == [KEYS]

    run(scenario)


def test_short_reconnect_is_no_outage():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch(snapshot=True))
        mirror.heard(LOST)
        assert mirror.of(KEYS) is not None
        mirror.heard(WatchState(connected=True))
        await asyncio.sleep(0.05)
        assert mirror.outage is None

    run(scenario)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(LOST.error, "EtcdUnavailable"), (EtcdDenied("etcd:2379", "me", "watch", "permission denied"), "EtcdDenied")],
)
def test_nothing_is_known_if_etcd_stays_away_and_all_jobs_are_woken(error, reason):
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch((KEYS.target, TARGET.encode()), snapshot=True))
        woken.clear()
        mirror.heard(dataclasses.replace(LOST, error=error))
        await asyncio.sleep(0.05)
        assert mirror.of(KEYS) is None
        assert (mirror.outage.reason, mirror.outage.message) == (reason, str(error))
        assert woken == [None]

    run(scenario)


def test_job_is_unknown_if_one_of_its_records_is_unreadable():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch((KEYS.target, TARGET.encode()), (KEYS.generation, b"{}"), snapshot=True))
        assert mirror.of(KEYS) is None
        assert mirror.outage_of(KEYS).reason == "RecordsUnreadable"
        assert "generation" in mirror.outage_of(KEYS).message
        assert mirror.of(JobKeys("ns", "other", "uid2")) is not None

    run(scenario)


@pytest.mark.parametrize("value", [b"{", MEMBER.encode().replace(b"warming", b"hibernating")])
def test_a_member_of_a_newer_version_exists_and_the_job_is_known(value):
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch((KEYS.target, TARGET.encode()), (KEYS.member(MEMBER.id), value), snapshot=True))
        assert mirror.outage_of(KEYS) is None
        found = mirror.of(KEYS).member_of("job-0")
        assert (found.id, isinstance(found.phase, Phase)) == (MEMBER.id, False)

    run(scenario)


@pytest.mark.parametrize("key", [KEYS.leader, KEYS.ended, KEYS.closed, KEYS.issued, KEYS.rosters + "strange"])
def test_job_is_known_if_a_record_that_plans_do_not_use_cannot_be_read(key):
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch((key, b"{"), (KEYS.target, TARGET.encode()), snapshot=True))
        assert (mirror.of(KEYS).target, mirror.issued(KEYS)) == (TARGET, None)

    run(scenario)


def test_job_is_not_known_until_all_members_of_a_large_generation_are():
    large = builders.generation(1, *(f"job-{i}" for i in range(100)))
    parts = [(KEYS.roster(1, i), part.encode()) for i, part in enumerate(roster.split(large))]

    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch((KEYS.generation, roster.header(large).encode()), *parts[1:], snapshot=True))
        assert mirror.of(KEYS) is None
        mirror.take(batch(parts[0]))
        assert (mirror.of(KEYS).generation, mirror.of(KEYS).earlier(1)) == (large, large.members)

    run(scenario)


def test_nothing_is_kept_of_a_job_without_records():
    async def scenario(mirror, etcd, woken):
        written = ((KEYS.target, TARGET.encode()), (KEYS.member(MEMBER.id), MEMBER.encode()), (KEYS.progress, b"{"))
        mirror.take(batch(*written, snapshot=True))
        mirror.take(batch(*(key for key, _ in written), KEYS.pairs_group("a")))
        assert mirror._jobs == {}

    run(scenario)


def test_only_records_that_this_cluster_wrote_are_offered_to_the_sweeper():
    async def scenario(mirror, etcd, woken):
        await mirror.put_target(KEYS, TARGET)
        foreign = JobKeys("ns", "job", "of-another-cluster")
        written = [*etcd.stored.items(), (foreign.target, TARGET.encode()), (foreign.owner, b"there")]
        mirror.take(batch(*written, snapshot=True))
        assert mirror.jobs() == [KEYS]
        await mirror.delete_records(KEYS)
        assert etcd.stored == {}

    run(scenario)


@pytest.mark.parametrize("former", [b"default", None], ids=["of the first version", "lost with etcd's data"])
def test_a_job_of_this_api_server_is_adopted_if_its_records_name_another_owner(former):
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        listed = [(KEYS.target, TARGET.encode()), *([(KEYS.owner, former)] if former else [])]
        mirror.take(batch(*listed, snapshot=True))
        assert not mirror.is_ours(KEYS)
        await mirror.adopt(KEYS)
        assert etcd.stored == {KEYS.owner: b"here"}
        mirror.take(batch(*etcd.stored.items()))
        etcd.stored.clear()
        await mirror.adopt(KEYS)
        assert etcd.stored == {}, "no write without a change"

    run(scenario)


def test_a_job_without_records_is_not_adopted():
    async def scenario(mirror, etcd, woken):
        mirror.heard(WatchState(connected=True))
        mirror.take(batch(snapshot=True))
        await mirror.adopt(KEYS)
        assert etcd.stored == {}

    run(scenario)


def test_steps_alone_are_distinguished_from_urgent_changes():
    progress = Progress(generation=1, world_size=2, members=2, step=10, loss=0.5)

    async def main():
        woken, stepped = [], []
        mirror = Mirror(FakeEtcd(), "here", woken.append, stepped.append)
        mirror.take(batch((KEYS.progress, progress.encode()), snapshot=True))
        woken.clear()
        mirror.take(batch((KEYS.progress, progress.model_copy(update={"step": 11, "loss": 0.4}).encode())))
        assert (woken, stepped) == ([], [KEYS])
        mirror.take(batch((KEYS.progress, progress.model_copy(update={"step": 12, "finished": True}).encode())))
        assert (woken, stepped) == ([KEYS], [KEYS])
        mirror.take(batch((KEYS.progress, b"{}")))
        mirror.take(batch(KEYS.progress))
        assert woken == [KEYS] * 3

    asyncio.run(main())
