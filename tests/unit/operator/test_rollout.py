"""A changed template reaches running workers one after the other, and a bad one stops at the first."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.api.records import Generation, GenerationMember, Member, Outcome, Phase, Termination
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination, Observed, Pod, Refusal, RefusalKind, Trouble
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import Plan
from elastrain_operator.pod.template import version
from elastrain_operator.policy.size import rollout
from elastrain_resource.job import JobSpec, JobStatus
from job_world import JOB, JobWorld, template

FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom")
UNSCHEDULABLE = Trouble("Unschedulable", "0/3 nodes are available")


def spec(image: str = "a", **fields) -> JobSpec:
    return JobSpec.model_validate({"maxReplicas": 3, "template": template(image), **fields})


VERSIONS = {image: version(spec(image).template) for image in "abc"}


class World(JobWorld):
    """A cluster with room for some pods, and images that cannot be pulled or whose script fails."""

    def __init__(self, **fields) -> None:
        super().__init__(**{"minReplicas": 2, "maxReplicas": 3, **fields})
        self.room, self.broken, self.failing = 99, set(), set()

    def versions(self) -> list[str]:
        return sorted(next(i for i, v in VERSIONS.items() if v == p.template) for p in self.live())

    def check(self, seen: Observed, made: Plan) -> None:
        spec, trained = self.spec, self.training()
        leavers = self.asked_by(made)
        gone = trained & leavers
        asked = gone - self.draining
        if asked:
            too_many = max(len(trained) - spec.desired_replicas, 0)
            assert len(trained - gone) >= spec.min_replicas, "never below minReplicas"
            assert len(asked) <= spec.max_unavailable + too_many, "never more at a time than maxUnavailable"
        staying = [p for p in self.live() if p.name not in leavers]
        assert len(staying) + len(made.create) <= spec.desired_replicas + spec.max_unavailable, "few pods more"
        for deletion in made.delete:
            assert deletion.pod not in trained - gone, "no training worker is deleted without being asked"

    def started(self, pod: Pod) -> Pod:
        image = next(i for i, v in VERSIONS.items() if v == pod.template)
        if sum(p.started for p in self.live()) >= self.room:
            return dataclasses.replace(pod, trouble=UNSCHEDULABLE)
        if image in self.broken:
            trouble = Trouble("ImagePullFailed", f"pod {pod.name}: image {image}: not found")
            return dataclasses.replace(pod, trouble=trouble)
        return super().started(pod)

    def kubelet(self) -> None:
        super().kubelet()
        for pod in self.running():
            if pod.template in {VERSIONS[image] for image in self.failing}:
                self.end(pod.name, FAILED)

    def up_to_date(self) -> tuple[str, str, str]:
        found = next(c for c in self.status.conditions if c.type == "UpToDate")
        return found.status, found.reason, found.message


@pytest.fixture
def world() -> World:
    made = World()
    made.settle()
    return made


# ---- a good template -------------------------------------------------------------------------------------------------
def test_every_worker_is_replaced_and_the_condition_shows_it(world):
    assert not [c for c in world.status.conditions if c.type == "UpToDate"], "no condition before a change"
    world.image = "b"
    reasons = []
    for _ in range(30):
        world.kubelet()
        world.agents()
        reasons += [n.reason for n in world.operate().events]
    assert world.versions() == ["b", "b", "b"]
    assert world.up_to_date()[:2] == ("True", "AllUpToDate")
    assert (reasons.count("RollingOut"), reasons.count("AllUpToDate")) == (1, 1)


def test_replacement_is_created_and_ready_before_an_old_worker_is_asked_to_leave(world):
    world.image = "b"
    made = world.operate()
    assert (len(made.create), world.draining) == (1, frozenset())
    world.operate()
    assert not world.draining, "it does not run yet"
    assert world.up_to_date()[2].endswith("1 replaced at a time; waiting for job-3 to train")
    world.kubelet()
    world.agents()
    world.operate()
    assert world.draining == {"job-2"}


def test_max_unavailable_workers_are_replaced_at_a_time():
    world = World(minReplicas=1, maxReplicas=4, maxUnavailable=2)
    world.settle()
    world.image = "b"
    assert len(world.operate().create) == 2
    world.settle()
    assert world.versions() == ["b"] * 4


def test_one_old_worker_leaves_if_the_job_shrinks_by_one_in_the_middle_of_a_roll_out():
    now, names = datetime(2030, 1, 1, tzinfo=UTC), [f"job-{n}" for n in range(4)]
    pods = tuple(
        Pod(name, f"uid-{n}", n, now, started=True, ready=True, template=VERSIONS["aabb"[n]])
        for n, name in enumerate(names)
    )
    places = tuple(
        GenerationMember(id=n, worker=n, address="a", store_port=1, rank_offset=i) for i, n in enumerate(names)
    )
    generation = Generation(number=1, members=places, reason="Test", leader="l")
    members = tuple(Member(id=n, worker=n, address="a", phase=Phase.READY, generation=1) for n in names)
    seen = Observed(JOB, pods, Coordination(members=members, generation=generation))
    made = plan(spec("b", maxReplicas=4, replicas=3), JobStatus(next_ordinal=4), seen, now)
    assert made.target.leaving == ("job-1",)


def test_running_workers_keep_their_template_if_max_unavailable_is_zero(world):
    world.fields["maxUnavailable"], world.image = 0, "b"
    world.settle()
    assert world.versions() == ["a", "a", "a"]
    assert world.up_to_date()[:2] == ("False", "NotReplaced")
    world.end("job-0", FAILED)
    world.settle()
    assert world.versions() == ["a", "a", "b"], "a lost worker's replacement is of the present template"


def test_workers_without_a_version_are_not_replaced(world):
    world.pods = {n: dataclasses.replace(p, template="") for n, p in world.pods.items()}
    made = world.operate()
    assert (made.create, world.draining) == ((), frozenset())


# ---- a full cluster --------------------------------------------------------------------------------------------------
def test_an_old_worker_leaves_first_if_the_cluster_has_no_room(world):
    world.room, world.image = 3, "b"
    world.operate()
    world.kubelet()
    world.operate()
    assert not world.draining, "room may become free in a moment"
    world.now += timedelta(seconds=rollout.ROOM_PATIENCE)
    world.operate()
    assert len(world.draining) == 1
    world.settle()
    assert world.versions() == ["b", "b", "b"]


@pytest.mark.parametrize("by", ["quota", "room"])
def test_an_old_worker_leaves_first_if_no_pod_may_be_created_beside_it(world, by):
    world.image = "b"
    if by == "quota":
        world.state.refusal = Refusal(RefusalKind.QUOTA_EXCEEDED, "exceeded quota", world.now, 1, JOB.generation)
    else:
        world.share = Share(3, "AtMax", "all", kept=frozenset(world.pods), places=0)
    assert not world.operate().create
    assert len(world.draining) == 1


def test_no_worker_leaves_first_if_all_are_needed():
    world = World(minReplicas=3)
    world.settle()
    world.room, world.image = 3, "b"
    world.settle()
    assert world.versions().count("a") == 3
    assert world.training() == {"job-0", "job-1", "job-2"}
    status, reason, words = world.up_to_date()
    assert (status, reason) == ("False", "RolloutStopped")
    assert "minReplicas (3) permits no worker to leave" in words


def changed(world: World, *more: Pod, **fields) -> rollout.RolloutInput:
    """The input after a change of ``world`` to image b, with ``more`` workers."""
    workers = (*world.live(), *more)
    made = rollout.RolloutInput(
        workers=workers, pods=workers, version=VERSIONS["b"], desired=3, minimum=1, at_a_time=1, leaving=0,
        refusal=None, members=world.records, share=None, now=world.now + timedelta(seconds=rollout.ROOM_PATIENCE),
    )  # fmt: skip
    return dataclasses.replace(made, **fields)


def newcomer(world: World, ordinal: int, **fields) -> Pod:
    return Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, world.now, template=VERSIONS["b"], **fields)


def test_no_other_worker_leaves_first_while_one_is_missing(world):
    waiting = [newcomer(world, n, trouble=UNSCHEDULABLE) for n in (3, 4)]
    assert len(rollout.rollout(changed(world, waiting[0])).leave) == 1
    del world.pods["job-0"]
    assert rollout.rollout(changed(world, *waiting)).leave == ()


def test_no_other_worker_leaves_or_is_created_while_one_is_leaving(world):
    ready = newcomer(world, 3, started=True, ready=True)
    joins = Member(id=ready.name, worker=ready.name, address="a", phase=Phase.READY)
    members = dataclasses.replace(world.records, members=(*world.records.members, joins))
    assert len(rollout.rollout(changed(world, ready, members=members)).leave) == 1
    assert rollout.rollout(changed(world, ready, members=members, leaving=1)).leave == ()
    assert rollout.rollout(changed(world, leaving=1)).create == 0


def test_a_worker_is_ready_to_join_if_the_torchrun_in_it_is(world):
    new = newcomer(world, 3, started=True, ready=True)
    agent = Member(id=f"{new.name}.0", worker=new.name, address="a", phase=Phase.WARMING)
    members = dataclasses.replace(world.records, members=(*world.records.members, agent))
    assert rollout.rollout(changed(world, new, members=members)).leave == ()
    torchrun = Member(id=f"{new.name}.1", worker=new.name, address="a", phase=Phase.READY)
    members = dataclasses.replace(members, members=(*members.members, torchrun))
    assert len(rollout.rollout(changed(world, new, members=members)).leave) == 1


# ---- a bad template --------------------------------------------------------------------------------------------------
def test_roll_out_stops_with_the_pod_s_message_if_the_new_image_cannot_be_pulled(world):
    world.image, world.broken = "b", {"b"}
    world.settle()
    assert world.versions() == ["a", "a", "a", "b"]
    assert len(world.training()) == 3
    status, reason, words = world.up_to_date()
    assert (status, reason) == ("False", "RolloutStopped")
    assert "ImagePullFailed: pod job-3: image b: not found. Change spec.template, or set it back" in words


def test_roll_out_stops_after_one_failure_if_the_new_script_fails(world):
    world.image, world.failing = "b", {"b"}
    world.settle()
    assert world.versions() == ["a", "a", "a"]
    assert world.status.restarts.user == 1, "backoffLimit is not used up by one bad template"
    assert "ScriptFailed: worker job-3: boom" in world.up_to_date()[2]


def test_roll_out_reports_that_the_api_server_refuses_the_new_template(world):
    world.image = "b"
    world.state.refusal = Refusal(
        RefusalKind.TEMPLATE_INVALID, "spec.template: no such field", world.now, 1, JOB.generation
    )
    world.operate()
    assert not world.draining
    assert "TemplateInvalid: spec.template: no such field" in world.up_to_date()[2]


@pytest.mark.parametrize("after", ["a", "c"])
def test_bad_template_that_is_set_back_or_changed_again_is_forgotten(world, after):
    world.image, world.broken = "b", {"b"}
    world.settle()
    world.image = after
    world.settle()
    assert world.versions() == [after] * 3
    assert world.up_to_date()[:2] == ("True", "AllUpToDate")


def test_newcomer_that_waits_to_join_leaves_if_the_template_is_set_back(world):
    world.image = "b"
    world.operate()
    world.kubelet()
    world.agents()
    world.image = "a"
    world.settle()
    assert world.versions() == ["a", "a", "a"]
    assert {"job-0", "job-1", "job-2"} == world.training(), "no training worker was replaced"


# ---- whatever happens ------------------------------------------------------------------------------------------------
HAPPENINGS = st.one_of(
    st.sampled_from(["operate", "operate", "kubelet", "agents", "agents", "wait"]),
    st.tuples(st.just("image"), st.sampled_from("abc")),
    st.tuples(st.just("room"), st.integers(2, 6)),
    st.tuples(st.just("replicas"), st.integers(2, 4)),
    st.tuples(st.just("broken"), st.sampled_from([set(), {"b"}])),
)


@examples(60)
@given(st.lists(HAPPENINGS, max_size=40))
def test_all_workers_have_the_last_template_in_the_end_and_enough_train_at_all_times(history):
    world = World(maxReplicas=4, minReplicas=2, replicas=3)
    world.settle()
    for what in history:
        match what:
            case "operate" | "kubelet" | "agents":
                getattr(world, what)()
            case "wait":
                world.now += timedelta(seconds=20)
            case ("replicas", int(n)):
                world.fields["replicas"] = n
            case (str(name), value):
                setattr(world, name, value)
    world.broken, world.room = set(), max(world.room, world.spec.desired_replicas)
    world.fields["replicas"] = max(world.spec.desired_replicas, 3)
    world.room = max(world.room, world.spec.desired_replicas)
    world.settle()
    assert world.versions() == [world.image] * world.spec.desired_replicas
    assert world.placed() == {p.name for p in world.live()}


@pytest.mark.parametrize(
    ("silent", "lease", "seconds", "goes_on"),
    [(True, False, 60.0, True), (False, False, 60.0, False), (True, True, 60.0, False), (True, False, 59.0, False)],
)
def test_the_place_of_a_worker_that_does_not_end_is_free_once_it_is_overdue_on_a_silent_node(
    world, silent, lease, seconds, goes_on
):
    """Grace 30 s and 30 s more. Without that proof the roll-out waits, and says for what."""
    world.image = "b"
    while not world.draining:
        world.operate()
        world.kubelet()
        world.agents()
        world.operate()
    (gone,) = world.draining
    world.agents()
    world.pods[gone] = dataclasses.replace(
        world.pods[gone], ending=None, over=False, terminating=True, deleted=world.now, node="n1", node_silent=silent,
        finalizers=("a/b",),
    )  # fmt: skip
    if lease:
        member = Member(id=gone, worker=gone, address="a", phase=Phase.READY)
        world.records = dataclasses.replace(world.records, members=(*world.records.members, member))
    assert world.operate().requeue_after == 60.0
    world.now += timedelta(seconds=seconds)
    made = world.operate()
    assert bool(made.create) is goes_on
    words = f"overdue: pod {gone} on node n1, deleted at 2030-01-01T00:00:"
    assert (words in world.up_to_date()[2]) is (seconds == 60.0)
