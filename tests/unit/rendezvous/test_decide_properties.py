"""Invariants of ``decide``: a job in memory is driven at random, and each proposal is checked.

The message of each assertion is the broken promise.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from budgets import examples
from elastrain.api.records import Phase, Target
from elastrain.rendezvous import groups
from elastrain.rendezvous.decide import MAX_OUTSTANDING, Condemn, Propose, Wait, decide


class AnyHistory(RuleBasedStateMachine):
    """Members that can switch in process: they stay ready while they train."""

    def __init__(self, make_job: Any, group_size: int = 1) -> None:
        super().__init__()
        self.make_job, self.group_size = make_job, group_size
        self.job = make_job()
        self.count = 0

    @initialize(least=st.integers(1, 4), more=st.integers(0, 4), first=st.integers(0, 6))
    def begin(self, least: int, more: int, first: int) -> None:
        n = self.group_size
        target = Target(min=least * n, max=(least + more) * n, desired=(least + more) * n)
        self.job = self.make_job(target=target, group_size=n)
        for i in range(first):
            self.join(ready=True, slots=1, group=i // n, place=i % n)
        self.judge()
        self.pass_time(5.0)
        self.judge()
        if self.job.base is not None:
            self.adopt()

    # ---- what may happen -------------------------------------------------------------------------------------------
    @rule(ready=st.booleans(), slots=st.integers(1, 3), group=st.integers(0, 4), place=st.integers(0, 9))
    def join(self, ready: bool, slots: int, group: int, place: int) -> None:
        """Several may claim one place of a group."""
        if len(self.job.members) < 9:
            own = {"group": group, "place": place % self.group_size, "group_size": self.group_size}
            self.job.join(f"w{self.count}", ready=ready, slots=slots, **own)
            self.count += 1

    @rule(pick=st.randoms(use_true_random=False))
    def become_ready(self, pick: Any) -> None:
        warming = [m for m in self.job.members.values() if m.record.phase is Phase.WARMING]
        if warming:
            self.job.ready(pick.choice(warming).record.worker)

    @precondition(lambda self: self.job.members)
    @rule(pick=st.randoms(use_true_random=False), speak=st.booleans())
    def die(self, pick: Any, speak: bool) -> None:
        """``speak``: peers report that their collectives failed, before they are notified."""
        dead = pick.choice(list(self.job.members.values()))
        view = self.job.view()
        peers = [m for m in view.members if view.adopted_by(m) == view.adopted_by(dead)]
        trained = view.adopted_by(dead)
        self.job.die(dead.record.worker)
        for peer in peers:
            if peer.id != dead.id and trained and speak:
                self.job.fail(peer.record.worker)

    @precondition(lambda self: self.job.members)
    @rule(pick=st.randoms(use_true_random=False))
    def leave(self, pick: Any) -> None:
        self.job.set(pick.choice(list(self.job.members.values())).record.worker, phase=Phase.LEAVING)

    @precondition(lambda self: self.job.base is not None)
    @rule()
    def break_collective(self) -> None:
        view = self.job.view()
        number = max((view.adopted_by(m) for m in view.members), default=0)
        for m in view.members:
            if number and view.adopted_by(m) == number:
                self.job.fail(m.record.worker)
                break  # the others are notified

    @precondition(lambda self: self.job.base is not None)
    @rule()
    def adopt(self) -> None:
        alive = self.job.view().alive
        if all(m.id in alive for m in self.job.base.members):
            self.job.adopt()
            self.job.step += 1

    @rule(size=st.integers(0, 8), pick=st.randoms(use_true_random=False))
    def retarget(self, size: int, pick: Any) -> None:
        old = self.job.target
        workers = [m.record.worker for m in self.job.members.values()]
        self.job.target = Target(
            min=old.min,
            max=old.max,
            desired=0 if size == 0 else min(old.max, max(old.min, size)),
            leaving=tuple(pick.sample(workers, pick.randint(0, min(2, len(workers))))),
        )

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.job.pass_time(seconds)

    # ---- what must hold --------------------------------------------------------------------------------------------
    @invariant()
    def judge(self) -> None:
        view, base = self.job.view(), self.job.base
        action = self.job.run()
        if isinstance(action, Wait):
            assert action.until > self.job.now, "a wait lies ahead"
        if isinstance(action, Condemn | Propose):
            over = action.numbers if isinstance(action, Condemn) else action.generation.ended
            assert set(over) <= view.condemned.keys(), "only a generation that lost a member or broke is ended"
            notified = self.job.view().notified
            assert view.condemned.keys() <= notified.keys(), "members of an ended generation are notified"
        elif view.leader and view.condemned.keys() - view.notified.keys():
            assert isinstance(action, Wait), "a notification follows soon"
            assert action.until <= self.job.memory.unnotified_since + self.job.timing.notify, "soon"
        if not isinstance(action, Propose):
            return
        proposed = action.generation
        ids = [m.id for m in proposed.members]
        records = {m.id: m.record for m in view.members}
        offset = 0
        for m in proposed.members:
            assert m.rank_offset == offset, "rank offsets are contiguous"
            offset += records[m.id].slots
        assert len(set(ids)) == len(ids), "no member is in a generation twice"
        n = self.group_size
        places = [(records[i].group if n > 1 else i, records[i].place) for i in ids]
        made = [places[i : i + n] for i in range(0, len(places), n)]
        assert all([p for _, p in g] == [*range(n)] for g in made), "groups are whole, in the order of places"
        for i in range(0, len(ids), n):
            own = len({group for group, _ in made[i // n]}) == 1
            assert own or all(view.adopted_by(view.alive[m]) for m in ids[i : i + n]), "mates of old mix to keep state"
        assert proposed.number == (base.number + 1 if base else 1), "numbers grow by one"
        assert not ids or len(ids) >= view.target.min, "no generation is smaller than min"
        gives = {m.id for m in view.keepers}
        others = [records[i] for i in ids if i not in gives]
        assert all(r.phase is Phase.READY for r in others), "only ready members are in a proposal"
        leaving = set(view.target.leaving)
        assert not any(r.worker in leaving for r in others), "a leaving worker is in no proposal, unless it gives state"
        inside = {m.id for m in view.base_alive if not view.is_leaving(m)}
        trained = [base.members[i : i + n] for i in range(0, len(base.members), n)] if base else []
        # A group gets mates for lost workers, and one that is mixed may become those of its workers again.
        own = {records[i].group for i in inside} if n > 1 else set()
        trains = n * max(sum(any(m.id in inside for m in group) for group in trained), len(own))
        assert not ids or len(others) <= max(view.target.desired, trains), "no group joins beyond desired"
        outstanding = proposed.number - view.in_force if view.in_force is not None else 0
        assert outstanding <= MAX_OUTSTANDING, "proposals fit into the readiness slots"
        if ids and outstanding < MAX_OUTSTANDING:
            pause = self.job.memory.breaks >= 2  # then new workers wait, and with them their mates
            staying = view.whole(view.stayers) if pause else view.stayers
            assert {m.id for m in staying} <= set(ids), "ready members of the base stay"
            # Leavers that give the state are ahead: no stayer has it, so there is no order of trained ranks to keep.
            given = [i for i in ids if i in gives and view.is_leaving(view.alive[i])]
            assert n > 1 or ids[: len(given)] == given, "leavers that give the state come first"
            rest = ids[len(given) :]
            kept = [i for i in rest if base and base.member(i) is not None]
            order = [m.id for m in base.members if m.id in kept] if base else []
            assert n > 1 or kept == order == rest[: len(kept)], "stayers keep their order, and joiners come after them"
        # One of no members stops those of a broken generation, in which nobody trains: the others begin at once.
        stops = not ids and self.job.view().in_force is None
        # Only the newest records are kept: after so many that none has adopted, the one that trained is unknown.
        forgotten = view.taken - self.job.view().taken
        enough = stops or forgotten or not isinstance(self.job.decide(), Propose)
        assert enough, "one proposal is enough if nothing changes"

    @invariant()
    def only_the_leader_acts(self) -> None:
        leader = self.job.view().leader
        for m in self.job.members.values():
            if m.id != leader:
                action = decide(self.job.view(self_id=m.id), self.job.memory, self.job.now, self.job.timing)
                assert not isinstance(action, Propose), "only the oldest live member proposes"

    def teardown(self) -> None:
        """Without further events, the job comes to rest in the desired generation."""
        job = self.job
        for _ in range(12):
            self.judge()
            if job.base is not None and not job.view().lost:
                job.adopt()
            for m in list(job.members.values()):  # members without a place leave
                let_go = job.base is not None and job.base.member(m.id) is None and job.view().is_leaving(m)
                if let_go and job.base.number <= max(job.view().adopted_by(m), m.record.broken, 0):
                    job.die(m.record.worker)
            job.pass_time(100.0)
        view = job.view()
        willing = [m for m in view.alive.values() if m.record.phase is Phase.READY and not view.is_leaving(m)]
        n = self.group_size
        there = {(m.record.group if n > 1 else m.id, m.record.place) for m in willing}
        able = n * sum(all((group, p) in there for p in range(n)) for group, place in there if not place)
        if view.target.desired and able >= view.target.min:
            assert job.base is not None and len(job.base.members) >= view.target.min, "enough willing members train"
            room = max(view.target.desired // n * n, len(view.stayers))
            mixed = n > 1 and any(m.id not in {m.id for g in groups.of(willing) for m in g} for m in view.base_alive)
            assert mixed or len(job.base.members) == min(able, room), (
                "all willing members up to the desired number train"
            )
            assert view.intact and view.adopted, "the generation in force is whole"


@pytest.mark.hypothesis  # its plugin detects only functions by itself
@pytest.mark.timeout(600)  # a failure takes minutes to be made small; it must not be cut off before it is shown
@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_promises_are_kept_for_any_history(make_job, group_size):
    run_state_machine_as_test(
        lambda: AnyHistory(make_job, group_size),
        settings=examples(80 // group_size, stateful_step_count=40),
    )
