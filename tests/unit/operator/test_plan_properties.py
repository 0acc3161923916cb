"""Properties of every plan: random histories of faults and changes of the spec in a simulated world.

The messages of the assertions are the promises.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.api.records import Outcome, Progress, Target, Termination
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination, Observed, Pod
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.policy import ending
from elastrain_operator.policy.losses import counting
from elastrain_operator.policy.size import sizes as size
from elastrain_resource.job import JobStatus, Leaving
from job_world import JobWorld

LIMIT = 3
MAX = 4
ENDINGS = {
    "script": Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom"),
    "killed": Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled"),
}


class World(JobWorld):
    def __init__(self) -> None:
        super().__init__(maxReplicas=MAX, backoffLimit=LIMIT)
        self.ordinals: set[int] = set()
        self.script_failures = 0
        self.other_losses = 0

    # ---- what must hold at every pass ------------------------------------------------------------------------------
    def wanted(self) -> int:
        return size.desired_replicas(self.spec, self.status, self.share)

    def check(self, seen: Observed, made: Plan) -> None:
        status = made.status or self.status
        asked = self.asked_by(made)
        ended = ending.terminal_condition(status) is not None
        silent = {p.name for p in seen.pods if counting.is_silent(p, seen.coordination)}
        staying = [
            p for p in seen.pods
            if not p.ending and not p.terminating and p.name not in asked and p.name not in silent
        ]  # fmt: skip
        desired = self.wanted()

        if made.create:
            assert len(staying) + len(made.create) <= desired, "never more workers than desired"
        assert not set(made.create) & self.ordinals, "an ordinal never names two pods"
        self.ordinals |= set(made.create)
        if not ended and not self.spec.suspend and seen.coordination:
            chosen = asked - self.draining
            if chosen and not set(chosen) <= set(seen.coordination.target.leaving if seen.coordination.target else ()):
                assert len(staying) >= self.spec.min_replicas, "never below minReplicas by the operator's own choice"
        if seen.coordination is None and not ended:
            assert not made.create, "no worker is created while etcd is unknown"
            assert made.target is None, "no target is decided while etcd is unknown"
        for deletion in made.delete:
            self._check_deletion(seen, self.pods[deletion.pod], ended, silent, asked)
        true = [c.type for c in status.conditions if c.status == "True"]
        finals = set(true) & {"Suspended", "Succeeded", "Failed", "PodsReady"}
        assert len(finals) <= 1, "at most one of Suspended, Succeeded, Failed, PodsReady is True"
        assert JobStatus.model_validate(status.model_dump(mode="json", by_alias=True)) == status, "status round-trips"
        assert status.restarts.user <= self.script_failures, "a failure is counted once"
        assert status.restarts.infrastructure <= self.other_losses, "a worker that was asked to leave is not lost"
        assert len(set(status.counted_failures)) == len(status.counted_failures), "a failure is counted once"
        self._check_books(made)

    def _check_books(self, made: Plan) -> None:
        if self.state.usage and made.usage:
            for part in ("training", "rescaling", "waiting", "redone", "spare"):
                assert getattr(made.usage, part) >= getattr(self.state.usage, part), "no part of the ledger decreases"
            assert made.usage.in_generation <= made.usage.held, "training uses only held accelerators"

    def _check_deletion(self, seen: Observed, pod: Pod, ended: bool, silent: set[str], asked: set[str]) -> None:
        if pod.ending or ended or not pod.started or pod.name in silent:
            return
        assert seen.coordination is not None, "no running worker is deleted while etcd is unknown"
        assert pod.name in asked, "a running worker is deleted only after it was asked to leave"
        drain_over = self.now - self.asked_since.get(pod.name, self.now) >= timedelta(seconds=pod.grace)
        assert drain_over or not pod.ready, "a running worker is deleted only when it has left or its deadline passed"

    # ---- what happens ----------------------------------------------------------------------------------------------
    def lose(self, pod: Pod, how: str) -> None:
        self.script_failures += how == "script"
        self.other_losses += how == "killed"
        self.end(pod.name, ENDINGS[how])

    def delete(self, pod: Pod) -> None:
        self.other_losses += 1
        self.pods[pod.name] = dataclasses.replace(pod, terminating=True)

    def lose_node(self, pod: Pod) -> None:
        self.other_losses += 1
        self.pods[pod.name] = dataclasses.replace(pod, ready=False, went_unready=True)
        self.unregister(pod.name)

    def turn_stubborn(self, pod: Pod) -> None:
        self.stubborn.add(pod.name)

    def wipe_etcd(self) -> None:
        self.records = Coordination()

    def finish(self) -> None:
        done = Progress(generation=1, world_size=1, members=1, step=9, finished=True)
        self.records = dataclasses.replace(self.records, progress=done)


HAPPENINGS = st.one_of(
    st.sampled_from(
        ["operate", "operate", "kubelet", "agents", "agents", "restart_operator", "outage", "return", "wait"]
    ),
    st.tuples(st.just("scale"), st.integers(1, MAX)),
    st.tuples(st.just("share"), st.integers(1, MAX), st.integers(0, 8)),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.sampled_from(["script", "killed", "delete", "lose_node", "turn_stubborn"]), st.integers(0, MAX)),
)
HISTORIES = st.lists(HAPPENINGS, max_size=40)


def happen(world: World, what: object) -> None:
    match what:
        case "operate":
            world.operate()
        case "kubelet":
            world.kubelet()
        case "agents":
            world.agents()
        case "restart_operator":
            world.state = LoopState()
        case "outage":
            world.reachable = False
        case "return":
            world.reachable = True
        case "wait":
            world.now += timedelta(seconds=20)
        case ("scale", int(size)):
            world.fields["replicas"] = size
        case ("share", int(most), int(which)):
            named = {"release": frozenset({f"job-{which}"}), "replace": frozenset({f"job-{which + 1}"})}
            world.share = Share(most, "NoRoom", "not grown", **named)
        case ("suspend", bool(on)):
            world.fields["suspend"] = on
        case (("script" | "killed" | "delete" | "lose_node" | "turn_stubborn") as fault, int(which)):
            running = world.running()
            if not running:
                return
            victim = running[which % len(running)]
            if fault in ENDINGS:
                world.lose(victim, fault)
            else:
                getattr(world, fault)(victim)


@examples(80)
@given(HISTORIES)
def test_the_desired_workers_train_in_the_end_for_any_history(history):
    world = World()
    for what in history:
        happen(world, what)
    world.settle()
    if ending.terminal_condition(world.status):
        assert world.status.restarts.user > LIMIT, "a job fails only when its script failed too often"
        assert not world.live(), "no worker of a failed job keeps running"
        return
    assert len(world.live()) == world.wanted(), "the desired number of workers exists"
    assert world.placed() == {p.name for p in world.live()}, "all of them are in the generation"
    assert world.records.target and not world.records.target.leaving, "no worker stays asked to leave forever"
    assert world.status.phase == ("Suspended" if world.spec.suspend else "Running")


@examples(60)
@given(HISTORIES)
def test_plans_are_idempotent(history):
    world = World()
    for what in history:
        happen(world, what)
    for _ in range(5):  # a replaced worker is asked, deleted, recreated
        made = world.operate()
    assert (made.create, made.delete, made.target, made.events) == ((), (), None, ()), "plans are idempotent"
    assert made.status is None, "a status is written only when it changes"


@examples(60)
@given(HISTORIES)
def test_a_finished_job_stays_finished(history):
    world = World()
    for what in history:
        happen(world, what)
    already = ending.terminal_condition(world.status)
    world.finish()
    world.settle()
    assert ending.terminal_condition(world.status) == (already or "Succeeded"), "a verdict is never taken back"
    for what in history:
        happen(world, what)
        made = world.operate()
        assert not made.create, "a finished job creates nothing"
        assert ending.terminal_condition(world.status) == (already or "Succeeded"), "a verdict is never taken back"


def test_a_worker_that_does_not_leave_is_deleted_at_its_deadline():
    world = World()
    world.settle()
    world.turn_stubborn(world.pods["job-3"])
    world.fields["replicas"] = 3
    world.operate()
    world.fields["replicas"] = 4
    made = world.operate()
    assert world.draining == {"job-3"}, "a worker that was asked to leave stays asked, even if it is desired again"
    assert not made.create or made.create == (4,)
    made = world.operate()
    assert not made.delete
    world.now += timedelta(seconds=60)
    assert [d.why for d in world.operate().delete] == ["drain deadline passed"]
    world.operate()
    assert not world.status.restarts.infrastructure, "a worker that the operator deleted is not lost"


def test_no_status_is_written_because_time_passes():
    world = World()
    world.settle()
    for _ in range(5):
        world.now += timedelta(hours=1)
        assert world.operate().status is None


def test_the_drain_deadline_is_unchanged_if_the_operator_is_replaced():
    world = World()
    world.settle()
    world.turn_stubborn(world.pods["job-3"])
    world.fields["replicas"] = 3
    world.operate()
    world.operate()
    asked = world.now
    world.now += timedelta(seconds=50)
    happen(world, "restart_operator")
    assert not world.operate().delete
    assert world.status.leaving == [Leaving(since=asked.isoformat(), workers=["job-3"])]
    world.now += timedelta(seconds=10)
    assert [d.why for d in world.operate().delete] == ["drain deadline passed"]
    world.kubelet()
    world.operate()
    assert not world.status.leaving, "a gone worker is removed from the status"


def test_the_clock_of_a_drain_begins_when_etcd_shows_that_the_worker_was_asked():
    world = World()
    world.settle()
    world.fields["replicas"] = 3
    before = world.records
    assert world.operate().target.leaving == ("job-3",)
    world.records = before  # the operator was cut off from etcd before it could write the target
    world.now += timedelta(seconds=600)
    assert not world.operate().delete
    assert not world.status.leaving
    world.operate()
    assert world.status.leaving == [Leaving(since=world.now.isoformat(), workers=["job-3"])]


def test_no_worker_is_created_or_asked_to_leave_while_scripts_end():
    world = World()
    world.settle()
    world.end("job-3", Termination(outcome=Outcome.FINISHED, step=9))
    world.fields["replicas"] = 1
    made = world.operate()
    assert (made.create, made.delete, world.draining) == ((), (), frozenset()), "rank 0 may still save"
    for name in ("job-1", "job-2"):
        world.end(name, Termination(outcome=Outcome.FINISHED, step=9))
    world.lose(world.pods["job-0"], "killed")
    assert world.operate().create == (4,), "rank 0's worker was lost: a new one completes the job"


def test_an_ordinal_is_not_used_again_if_the_job_was_suspended_meanwhile():
    world = World()
    world.settle()
    for suspend in (True, False):
        world.fields["suspend"] = suspend
        world.settle()
    assert {p.ordinal for p in world.live()} == {4, 5, 6, 7}


def test_no_worker_is_touched_if_etcd_has_lost_its_data():
    world = World()
    world.settle()
    before = dict(world.pods)
    world.pods = {n: dataclasses.replace(p, ready=False, went_unready=True) for n, p in before.items()}
    world.wipe_etcd()
    made = world.operate()
    assert not made.delete, "an empty etcd does not mean lost workers"
    again = Target(min=1, max=MAX, desired=MAX, reason="Start", above=world.status.generation.number)
    assert made.target == again, "the target is published again"
    assert not world.status.restarts.infrastructure
