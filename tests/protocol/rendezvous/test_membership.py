"""Members against a real etcd; the test simulates their ranks."""

from __future__ import annotations

import shutil
import time

import pytest

from elastrain.api.records import Closed, Progress, Target, roster
from elastrain.etcd import EtcdClient, EtcdConfig, EtcdUnavailable, Transaction
from elastrain.rendezvous.membership import Membership
from players import TTL, Player, leader, workers

LONG = 20
"""Seconds of a lease that no delay of a busy machine reaches."""


def test_survivors_form_the_next_one_if_a_member_leaves(play):
    a, b, c = play("a", "b", "c", ttl=LONG)
    for p in (a, b, c):
        p.enter()
    began = time.monotonic()
    a.member.leave()
    assert workers(b.enter()) == ["b", "c"]
    assert time.monotonic() - began < LONG / 2, "a leave is known at once, not at the TTL"
    assert c.ended(1) == "worker a is gone"


def test_survivors_do_not_wait_for_the_lease_if_it_is_ended_with_proof(play, client, job_keys):
    """The local runner and the operator see that a worker's processes have ended."""
    a, b, c = play("a", "b", "c", ttl=LONG)
    for p in (a, b, c):
        p.enter()
    began = time.monotonic()
    a.die()  # the leader
    for p in (b, c):
        p.member.update(broken=1)
    lease = client.get(job_keys.member(a.member.id)).lease
    client.end_lease(lease)
    assert [workers(p.enter()) for p in (b, c)] == [["b", "c"]] * 2
    assert time.monotonic() - began < LONG, "no lease was awaited"
    client.end_lease(lease)  # no error, though it has ended


def test_a_member_is_not_passed_over_if_it_is_only_silent(play):
    a, b, c = play("a", "b", "c", ttl=LONG)
    for p in (a, b, c):
        p.enter()
    c.die()
    for p in (a, b):
        p.member.update(broken=1)
    assert c.member.id in b.enter().ids, "its lease lives"


def test_a_silent_member_is_lost_if_its_lease_expires(play):
    a, b = play("a", "b")
    a.enter(), b.enter()
    b.die()
    assert workers(a.enter(within=3 * TTL)) == ["a"]
    assert a.ended(1) == "worker b is gone"


def test_a_new_incarnation_joins_under_a_new_id(play):
    a, b = play("a", "b")
    a.enter(), b.enter()
    old = b.member.id
    b.member.reincarnate()
    assert b.member.id != old
    assert workers(a.enter()) == ["a"]
    b.ready()
    grown = a.enter()
    assert workers(grown) == ["a", "b"]
    assert grown.members[1].id == b.member.id
    assert b.member.record.restarts == 1


def test_a_restart_of_etcd_changes_nothing(play, etcd_factory, job_keys, eventually):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as own:
        a, b = play("a", "b", with_client=own)
        a.enter(), b.enter()
        server.kill()
        eventually(lambda: not a.member.reachable, what="the outage to be noticed")
        server.start()
        eventually(lambda: a.member.reachable and b.member.reachable, within=20.0, what="etcd to answer")
        b.member.update(step=7)
        eventually(lambda: (v := leader(a, b)) and v.step == 7, what="records to flow again")
        assert own.get(job_keys.generation).mod_revision == a.member.view.generation_mod_revision
        assert a.member.view.generation.number == 1
        assert leader(a, b).intact
        a.member.leave(), b.member.leave()


def test_no_member_is_lost_if_etcd_was_silent_for_longer_than_the_leases(play, etcd_factory, eventually):
    """All leases expire together when it wakes: that proves nothing about the members."""
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as own:
        a, b = play("a", "b", with_client=own)
        a.enter(), b.enter()
        ids = {a.member.id, b.member.id}
        server.pause()
        eventually(lambda: not (a.member.reachable or b.member.reachable), what="the outage to be noticed")
        eventually(lambda: time.monotonic() - max(p.member.lease[0] for p in (a, b)) > TTL + 0.5)
        server.resume()
        eventually(lambda: a.member.reachable and b.member.reachable, within=20.0, what="etcd to answer")
        b.member.update(step=9)
        eventually(lambda: (v := leader(a, b)) and v.step == 9)
        eventually(lambda: ids == {kv.key.rpartition("/")[2] for kv in listed(own, a)})
        eventually(lambda: (v := leader(a, b)) and set(v.alive) == ids)
        assert a.member.view.generation.number == 1
        assert not a.member.view.notified
        a.member.leave(), b.member.leave()


def test_members_restore_the_generation_and_numbers_continue_if_etcd_lost_its_data(
    play, etcd_factory, job_keys, eventually
):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as own:
        a, b = play("a", "b", with_client=own)
        a.enter(), b.enter()
        target = own.get(job_keys.target).value
        server.kill()
        shutil.rmtree(server.data_dir / "data")
        server.start()
        eventually(lambda: a.member.reachable and b.member.reachable, within=20.0, what="etcd to answer")

        def published() -> bool:  # as the operator does
            try:
                return own.put(job_keys.target, target) > 0
            except EtcdUnavailable:
                return False

        eventually(published, what="the target to be there again")
        eventually(lambda: own.get(job_keys.generation), what="the generation to be there again")
        again = a.sees(lambda v: v.generation).generation
        assert (again.number, sorted(workers(again))) == (1, ["a", "b"])
        b.member.leave()
        alone = a.enter()
        assert (alone.number, workers(alone)) == (2, ["a"])
        a.member.leave()


def listed(client: EtcdClient, player: Player):
    return client.get_prefix(player.member.keys.members)[0]


def test_a_key_is_restored_if_it_was_deleted(play, client, job_keys, eventually):
    (a,) = play("a")
    a.enter()
    client.delete(job_keys.member(a.member.id))
    eventually(lambda: client.get(job_keys.member(a.member.id)) is not None, what="the key to be written again")


def test_the_view_shows_target_and_end(play, client, job_keys):
    (a,) = play("a")
    a.enter()
    target = Target(min=1, max=8, desired=3, reason="Scaled")
    client.put(job_keys.target, target.encode())
    a.sees(lambda v: v.target == target)
    client.put(job_keys.closed, Closed(member="x", reason="Failed", message="boom").encode())
    assert a.sees(lambda v: v.ended).closed.reason == "Failed"


def test_a_record_is_ignored_if_it_cannot_be_read(play, client, job_keys):
    client.put(job_keys.member("odd"), b"not json")
    _, b = play("a", "b")
    assert workers(b.enter()) == ["a", "b"]


def test_progress_is_written_at_most_once_a_second_and_the_newest_wins(play, client, job_keys, eventually):
    (a,) = play("a")
    for step in range(1, 50):
        a.member.publish(Progress(generation=1, world_size=1, members=1, step=step))
    eventually(lambda: (kv := client.get(job_keys.progress)) and Progress.decode(kv.value).step == 49, within=10.0)
    first = client.get(job_keys.progress)
    assert first.mod_revision - first.create_revision < 10
    a.member.publish(Progress(generation=1, world_size=1, members=1, step=50, finished=True))
    assert a.member.flush(5.0)
    assert Progress.decode(client.get(job_keys.progress).value).finished


def test_start_names_etcd_if_it_is_unreachable(job_keys):
    with EtcdClient(EtcdConfig.of("127.0.0.1:1"), timeout=1.0) as client:
        member = Membership(client, job_keys, worker="a", address="127.0.0.1")
        with pytest.raises(EtcdUnavailable, match=r"127\.0\.0\.1:1 is unavailable"):
            member.start()


# ---- the leader ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("most", "seeing"), [(roster.INLINE, 3), (roster.INLINE + 1, 1)])
def test_only_the_leader_sees_other_members_records_if_the_job_may_be_large(play, most, seeing):
    a, b, c = play("a", "b", "c", most=most)
    for p in (a, b, c):
        p.enter()
    assert [p.member.view.complete for p in (a, b, c)].count(True) == seeing
    assert sum(len(p.member.view.members) for p in (a, b, c)) == 3 * seeing


def test_survivors_of_a_large_job_learn_of_a_loss_from_the_leader(play):
    a, b, c = play("a", "b", "c", most=roster.INLINE + 1)
    for p in (a, b, c):
        p.enter()
    c.die()
    assert [workers(p.enter(within=4 * TTL)) for p in (a, b)] == [["a", "b"]] * 2


def test_the_job_continues_if_the_leader_dies_before_it_has_written_the_generation(play, client, job_keys, monkeypatch):
    a, b, c = play("a", "b", "c")
    for p in (a, b, c):
        p.enter()
    monkeypatch.setattr(a.member._client, "commit", lambda *_, **__: False)  # all share it: no member can write
    c.member.leave()
    a.die()
    monkeypatch.undo()
    assert workers(b.enter(within=4 * TTL)) == ["b"]


def test_the_written_generation_stands_if_the_leader_dies_just_after(play):
    a, b, c = play("a", "b", "c")
    for p in (a, b, c):
        p.enter()
    c.member.leave()
    assert workers(a.enter()) == ["a", "b"]
    a.die()
    assert [workers(b.enter()), workers(b.enter(within=4 * TTL))] == [["a", "b"], ["b"]]


def test_a_leader_that_was_replaced_cannot_write(client, job_keys):
    client.put(job_keys.leader, b"first")
    held = client.get(job_keys.leader).mod_revision
    client.put(job_keys.leader, b"second")
    stale = Transaction(((job_keys.generation, 0), (job_keys.leader, held)), ((job_keys.generation, b"x"),))
    assert not client.commit(stale, "form a generation")
    assert client.get(job_keys.generation) is None


def test_another_member_leads_if_the_decisions_of_the_first_fail_without_end(play, eventually, monkeypatch) -> None:
    first, second = play("a", "b")
    eventually(lambda: second.member.view.generation is not None, what="the first generation")

    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(first.member._driver.protocol, "next", fails)
    with pytest.raises(RuntimeError, match="the membership failed 10 times in a row"):
        first.member.wait_for(lambda _view: False, 30)
    first.member.leave()
    eventually(lambda: second.member.view.generation.size == 1, within=30, what="the next generation, by the other one")
