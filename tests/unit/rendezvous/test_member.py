"""A member's deadlines, and its reaction to the loss of its own record."""

from __future__ import annotations

import pytest

from elastrain.api.base import Record
from elastrain.api.keys import JobKeys
from elastrain.api.records import (
    CheckpointState,
    Ended,
    Generation,
    GenerationMember,
    Leader,
    Member,
    Phase,
    Progress,
    Target,
    roster,
)
from elastrain.etcd import Batch, Delete, EtcdUnavailable, KeyValue, Put
from elastrain.rendezvous.protocol import MemberProtocol
from elastrain.rendezvous.view_builder import everything

KEYS = JobKeys("ns", "job", "uid")
TTL = 5
OWN = Member(id="a.1", worker="a", address="a", phase=Phase.READY, store_port=1, generation=1)
AWAY = EtcdUnavailable("etcd:2379", "renew", "away")
LEADS = Leader(member="a.1", worker="a", address="a")


def placed(*ids: str) -> Generation:
    members = tuple(
        GenerationMember(id=i, worker=i[0], address=i[0], store_port=1, rank_offset=n) for n, i in enumerate(ids)
    )
    return Generation(number=1, members=members, reason="Start", leader="a.1")


def listed(records: dict[str, Record], *gone: str) -> Batch:
    puts = [Put(KeyValue(key, record.encode(), n, n, lease=1)) for n, (key, record) in enumerate(records.items(), 1)]
    return Batch((*puts, *(Delete(key, 9) for key in gone)), 9, snapshot=True, ranges=everything(KEYS))


def snapshot(*ids: str) -> Batch:
    generation = placed(*ids)
    return listed(
        {
            KEYS.target: Target(min=1, max=4, desired=4),
            KEYS.generation: generation,
            KEYS.roster(1): roster.split(generation)[0],
            **{KEYS.member(i): OWN.model_copy(update={"id": i, "worker": i[0]}) for i in ids},
        }
    )


@pytest.fixture
def member():
    member = MemberProtocol(KEYS, OWN, lease_ttl=TTL)
    member.contact.watch_reported(None, True, 0.0)
    member.take(snapshot("a.1", "b.1"), OWN, 0.0)
    member.look(OWN, 0.0)
    member.next(OWN, 1, 0.0)
    return member


@pytest.mark.parametrize("away_for", [1.0, 6.0, 60.0])
def test_a_member_rests_if_etcd_is_away(member, away_for):
    member.contact.lease_reported(AWAY, 0.0)
    member.look(OWN, away_for)
    assert member.next(OWN, 1, away_for) is None
    assert min(member.deadlines(away_for)) - away_for >= 1.0


def test_a_members_record_is_rewritten_if_it_vanishes(member):
    assert member.take(Batch((Delete(KEYS.member("a.1"), 10),), 10), OWN, 1.0)
    assert not member.take(Batch((Delete(KEYS.member("b.1"), 11),), 11), OWN, 1.0)


def test_a_members_record_is_rewritten_if_a_new_list_lacks_it(member):
    member.views.state.members.clear()
    assert member.take(Batch((), 12, snapshot=True, ranges=everything(KEYS)), OWN, 1.0)


def test_the_view_is_the_same_object_if_nothing_has_changed_since(member):
    """The agent compares views by identity, to handle each change once."""
    before = member.view
    member.look(OWN, 1.0)
    assert member.view is before


def test_the_view_shows_a_loss_if_a_missing_member_has_not_returned_in_time(member):
    member.contact.lease_reported(AWAY, 1.0)
    member.take(Batch((Delete(KEYS.member("b.1"), 10),), 10), OWN, 2.0)
    member.look(OWN, 2.0)
    assert not member.view.lost
    member.contact.lease_reported(None, 3.0)
    member.look(OWN, 3.0 + TTL)
    assert member.view.lost == ("b.1",)


def test_nothing_is_written_for_a_moment_if_a_call_has_failed(member):
    member.put_off(1.0)
    assert member.next(OWN, 1, 1.1) is None
    assert member.next(OWN, 1, 2.0) is not None


def test_a_lost_member_ends_its_generation_if_etcd_has_lost_all_records_of_it_meanwhile(member):
    """No other member could notify the waiting survivors."""
    member.contact.watch_reported(AWAY, False, 10.0)
    member.contact.watch_reported(None, True, 20.0)
    mine = {KEYS.target: Target(min=1, max=4, desired=1), KEYS.member("a.1"): OWN, KEYS.leader: LEADS}
    member.take(listed(mine, KEYS.generation, KEYS.roster(1), KEYS.member("b.1")), OWN, 20.0)
    member.contact.lease_reported(None, 20.0)
    later = 20.0 + 2 * TTL
    member.look(OWN, later)
    assert member.view.condemned == {1: "worker b is gone"}
    restores = member.next(OWN, 1, later)
    assert restores is not None and restores.transaction is not None
    member.take(Batch(tuple(Put(KeyValue(k, v, 10, 10)) for k, v in restores.transaction.puts), 10), OWN, later)
    member.look(OWN, later)
    todo = member.next(OWN, 1, later)
    assert todo is not None and todo.transaction is not None
    assert Generation.decode(dict(todo.transaction.puts)[KEYS.generation]).ended == (1,)


@pytest.fixture
def wiped(member):
    """A member when etcd has come back without its data."""
    gone = (KEYS.target, KEYS.generation, KEYS.roster(1), KEYS.member("a.1"), KEYS.member("b.1"))
    member.take(Batch(tuple(Delete(key, 2) for key in gone), 2, snapshot=True, ranges=everything(KEYS)), OWN, 20.0)
    member.look(OWN, 20.0)
    return member


def test_the_newest_generation_is_written_again_if_etcd_has_lost_its_data(wiped):
    """Otherwise new members would form one of the same number, or begin at step 0 beside those that train."""
    todo = wiped.next(OWN, 1, 20.0)
    assert todo is not None and todo.transaction is not None
    assert todo.transaction.unchanged == ((KEYS.generation, 0), (KEYS.target, 0))
    written = dict(todo.transaction.puts)
    assert Generation.decode(written[KEYS.generation]) == placed("a.1", "b.1")
    assert Target.decode(written[KEYS.target]).desired == 4


@pytest.mark.parametrize("number", [1, 2])
def test_no_generation_is_written_again_if_etcd_has_it_or_a_newer_one(wiped, number):
    newer = placed("a.1", "b.1").model_copy(update={"number": number})
    wiped.take(Batch((Put(KeyValue(KEYS.generation, newer.encode(), 3, 3, lease=0)),), 3), OWN, 20.0)
    wiped.look(OWN, 20.0)
    todo = wiped.next(OWN, 1, 20.0)
    assert todo is not None and (todo.transaction is None or KEYS.generation not in dict(todo.transaction.puts))


def test_no_generation_is_written_again_if_the_jobs_records_were_deleted(member):
    member.take(Batch((Delete(KEYS.generation, 10),), 10), OWN, 20.0)
    member.look(OWN, 20.0)
    todo = member.next(OWN, 1, 20.0)
    assert todo is not None and (todo.transaction is None or KEYS.generation not in dict(todo.transaction.puts))


# ---- an old snapshot of etcd was restored ----------------------------------------------------------------------------
STOP = Target(min=1, max=4, desired=0, reason="Suspend")
"""The target at the time of the snapshot, long past."""


def former(revision: int, *, own: Member = OWN, **more: Record) -> Batch:
    """A list of a restored snapshot: generation 1, while the member knows generation 4."""
    records = {KEYS.target: STOP, KEYS.generation: placed("a.1"), KEYS.member("a.1"): own, **more}
    puts = [Put(KeyValue(key, record.encode(), 1, 1, lease=1)) for key, record in records.items()]
    return Batch(tuple(puts), revision, snapshot=True, ranges=everything(KEYS))


@pytest.fixture
def ahead(member):
    """A member in generation 4."""
    newer = placed("a.1", "b.1").model_copy(update={"number": 4})
    member.take(Batch((Put(KeyValue(KEYS.generation, newer.encode(), 12, 12)),), 12), OWN, 10.0)
    return member


@pytest.mark.parametrize("revision", [5, 10_000], ids=["as saved", "with --bump-revision"])
def test_the_newest_generation_and_target_are_written_again_if_an_old_snapshot_was_restored(ahead, revision):
    ahead.take(former(revision), OWN, 20.0)
    ahead.look(OWN, 20.0)
    assert ahead.view.target.desired == 4, "the snapshot's target would stop the job"
    todo = ahead.next(OWN, 1, 20.0)
    assert todo is not None and todo.transaction is not None
    written = dict(todo.transaction.puts)
    assert Generation.decode(written[KEYS.generation]).number == 4
    assert Target.decode(written[KEYS.target]).desired == 4
    assert set(todo.transaction.unchanged) == {(KEYS.generation, 1), (KEYS.target, 1)}


def test_the_operators_next_target_counts_if_an_old_snapshot_was_restored(ahead):
    ahead.take(former(5), OWN, 20.0)
    asked = Target(min=1, max=4, desired=3)
    ahead.take(Batch((Put(KeyValue(KEYS.target, asked.encode(), 1, 6)),), 6), OWN, 20.0)
    ahead.look(OWN, 20.0)
    assert ahead.view.target == asked
    todo = ahead.next(OWN, 1, 20.0)
    assert todo is not None and todo.transaction is not None
    assert [key for key, _ in todo.transaction.puts if key == KEYS.target] == []


def test_a_members_record_is_rewritten_if_a_list_shows_a_former_one(ahead):
    assert ahead.take(former(5, own=OWN.model_copy(update={"phase": Phase.WARMING})), OWN, 20.0)
    assert not ahead.take(former(5), OWN, 20.0)


def test_a_number_above_the_targets_floor_is_given_next(member):
    """After a loss of all data and of all members that knew the last number."""
    floor = Target(min=1, max=4, desired=2, above=41)
    member.take(Batch((Put(KeyValue(KEYS.target, floor.encode(), 1, 13)),), 13), OWN, 20.0)
    member.look(OWN, 20.0)
    assert member.view.highest == 41


@pytest.mark.parametrize(
    "key, record",
    [
        (KEYS.ended, Ended(numbers=(3, 4), why="gone")),
        (KEYS.progress, Progress(generation=4, world_size=1, members=1, step=1)),
        (KEYS.roster(4), roster.Part()),
    ],
)
def test_a_number_is_not_reused_if_any_record_names_it(key, record):
    """After a loss of etcd's data the members that wrote it may be gone, too."""
    member = MemberProtocol(KEYS, OWN, lease_ttl=TTL)
    member.take(listed({key: record}), OWN, 0.0)
    member.look(OWN, 0.0)
    assert member.view.highest == 4


@pytest.mark.parametrize(
    ("checkpoint", "saved_step"),
    [
        (None, 0),
        (CheckpointState(error="no space"), 0),
        (CheckpointState(step=100, path="/c/step-000000100", error="no space"), 100),
    ],
)
def test_a_member_knows_the_newest_checkpoint_if_progress_names_it(checkpoint, saved_step):
    member = MemberProtocol(KEYS, OWN, lease_ttl=TTL)
    progress = Progress(generation=4, world_size=1, members=1, step=120, checkpoint=checkpoint)
    member.take(listed({KEYS.progress: progress}), OWN, 0.0)
    member.look(OWN, 0.0)
    assert (member.view.step, member.view.saved_step) == (120, saved_step)
