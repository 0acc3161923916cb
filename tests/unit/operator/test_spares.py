"""Warm spares: their number, which stand by, and that no worker waits for them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from budgets import examples
from elastrain.api.records import Member, Outcome, Phase, Target, Termination
from elastrain.etcd import EtcdConfig
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import Coordination, Observed
from elastrain_operator.job.state import Plan
from elastrain_operator.pod import manifest
from elastrain_operator.pod.template import version
from elastrain_operator.policy.report import accelerator_seconds
from elastrain_operator.policy.size import leavers, sizes
from elastrain_resource.job import GenerationStatus, JobSpec, SparesStatus
from job_world import JOB, START, JobWorld, template
from workers import workers_at

FORCE = GenerationStatus(number=1, size=3, reason="Start")
LOST = Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled")


def spec(image: str = "a", **fields) -> JobSpec:
    return JobSpec.model_validate({"maxReplicas": 3, "warmSpares": 1, "template": template(image), **fields})


def share(**fields) -> Share:
    return Share(**{"size": 3, "reason": "AtMax", "message": "", **fields})


# ---- how many -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "desired", "generation", "given_share", "expected"),
    [
        ({"warmSpares": 2}, 3, FORCE, None, 2),
        ({"warmSpares": 0}, 3, FORCE, None, 0),
        ({"warmSpares": 2}, 3, None, None, 0),
        ({"warmSpares": 2}, 3, GenerationStatus(number=2, size=0, reason="Suspend"), None, 0),
        ({"warmSpares": 2}, 0, FORCE, None, 0),
        ({"warmSpares": 2}, 3, FORCE, share(spares=1), 1),
        ({"warmSpares": 1}, 3, FORCE, share(spares=2), 1),
        ({"warmSpares": 2}, 3, FORCE, share(size=None), 1),
    ],
    ids=[
        "as many as are asked for", "none are asked for", "not before the job trains", "not while nothing trains",
        "not of a suspended job", "as many as there is room for", "never more than are asked for",
        "those that are there, while the cluster is not known",
    ],
)  # fmt: skip
def test_desired_spares(fields, desired, generation, given_share, expected):
    assert sizes.desired_spares(spec(**fields), desired, 4, generation, given_share) == expected


def records(trains: int, ready: int = 0, warming: int = 0, desired: int = 3) -> Coordination:
    """A generation of the first ``trains`` workers, then some that are ready beyond it, then some that are not yet."""
    phases = [Phase.READY] * (trains + ready) + [Phase.WARMING] * warming
    members = tuple(Member(id=f"job-{i}.x", worker=f"job-{i}", address="a", phase=p) for i, p in enumerate(phases))
    newest = builders.generation(1, *(m.id for m in members[:trains]))
    return Coordination(Target(min=1, max=3, desired=desired, reason="Start"), members, newest)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (records(3, ready=1), {"job-3"}),
        (records(3, warming=1), set()),
        (records(2, ready=1), set()),
        (records(3, ready=1, desired=0), set()),
        (Coordination(), set()),
    ],
    ids=["ready and not needed", "not ready yet", "about to join", "everybody stops", "nothing is known"],
)
def test_a_spare_stands_by_if_it_is_ready_and_the_generation_has_the_desired_size(seen, expected):
    assert sizes.standing_by(seen) == expected


def test_status_has_the_ready_spares_and_keeps_them_while_etcd_is_unknown():
    told = sizes.spares_status(spec(warmSpares=2), None, 2, frozenset({"job-3"}))
    assert told == SparesStatus(ready=1, desired=2)
    assert sizes.spares_status(spec(warmSpares=2), told, 2, None) == told
    assert sizes.spares_status(spec(warmSpares=0), told, 0, frozenset()) is None


# ---- who leaves -----------------------------------------------------------------------------------------------------
pod = workers_at(START, age=0.0, node="n")


def test_training_workers_leave_at_a_shrink_before_spares():
    workers = [pod(i) for i in range(4)]
    chosen = leavers.choose(workers, 2, 1, records(3, ready=1), None, spares=1)
    assert [p.name for p in chosen] == ["job-2"], (
        "the members keep their generation: a spare's leave would shrink nothing"
    )


def test_the_spare_leaves_if_its_room_is_needed_elsewhere():
    workers = [pod(i) for i in range(4)]
    chosen = leavers.choose(workers, 3, 1, records(3, ready=1), share(release=frozenset({"job-3"})), spares=0)
    assert [p.name for p in chosen] == ["job-3"]


# ---- where it runs --------------------------------------------------------------------------------------------------
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))


def test_a_spare_prefers_a_node_without_workers_of_its_job():
    body = manifest.pod(JOB, spec(), 3, CONFIG, ("bad",), stands_by=True)["spec"]["affinity"]
    (preferred,) = body["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert preferred["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"elastrain.dev/job-uid": "uid"}
    assert "nodeAffinity" in body, "excluded nodes are avoided nevertheless"
    ordinary = manifest.pod(JOB, spec(), 2, CONFIG)
    assert "affinity" not in ordinary["spec"], "the scheduler places other workers freely"
    assert manifest.sibling(ordinary, JOB, 3, stands_by=True) == manifest.pod(JOB, spec(), 3, CONFIG, stands_by=True)
    assert "affinity" not in ordinary["spec"], "shared fields are not changed"


def test_the_templates_anti_affinity_takes_precedence_for_a_spare():
    own = template()
    own["spec"]["affinity"] = {"podAntiAffinity": {}}
    body = manifest.pod(JOB, spec(template=own), 3, CONFIG, stands_by=True)["spec"]
    assert body["affinity"] == {"podAntiAffinity": {}}


# ---- what it costs --------------------------------------------------------------------------------------------------
def test_accelerator_seconds_of_a_spare_are_booked_as_such():
    pods = tuple(pod(i, bound=START) for i in range(3))
    place = accelerator_seconds.TrainingWorkers(frozenset({"job-0", "job-1"}), "training", frozenset({"job-2"}))
    usage = accelerator_seconds.account(None, pods, place, None, START)
    later = accelerator_seconds.account(usage, pods, None, None, START + timedelta(seconds=10))
    assert (later.training, later.spare, later.waiting) == (20, 10, 0)
    assert accelerator_seconds.continued(later, START + timedelta(seconds=20)).spare == 20, (
        "an outage of etcd changes nothing"
    )


# ---- a whole life ---------------------------------------------------------------------------------------------------
class World(JobWorld):
    def __init__(self, **fields) -> None:
        super().__init__(**{"minReplicas": 1, "maxReplicas": 3, "replicas": 3, "warmSpares": 1, **fields})

    def check(self, seen: Observed, made: Plan) -> None:
        asked = self.asked_by(made)
        staying = [p for p in self.live() if p.name not in asked]
        most = self.spec.desired_replicas + (self.spec.warm_spares if self.training() else 0)
        assert len(staying) + len(made.create) <= max(most, len(staying)) + self.spec.max_unavailable, "few pods more"
        for deletion in made.delete:
            assert deletion.pod not in self.training() - asked, "no training worker is deleted without being asked"

    def settled(self) -> tuple[int, int, SparesStatus | None]:
        self.settle()
        return len(self.training()), len(self.live()), self.status.spares


@pytest.fixture
def world() -> World:
    made = World()
    made.settle()
    return made


def test_a_spare_is_created_when_the_job_trains_and_is_not_a_replica():
    world = World()
    assert len(world.operate().create) == 3, "the first workers do not wait for a spare"
    world.kubelet()
    world.agents()
    made = world.operate()
    assert (made.create, made.stand_by) == ((3,), (3,))
    assert world.settled() == (3, 4, SparesStatus(ready=1, desired=1))
    assert (world.status.replicas, world.status.desired_replicas, world.status.ready_replicas) == (3, 3, 3)
    assert [c.status for c in world.status.conditions if c.type == "PodsReady"] == ["True"]


def test_a_spare_replaces_a_lost_worker_before_the_operator_reacts(world):
    world.end("job-1", LOST)
    world.agents()
    assert world.training() == {"job-0", "job-2", "job-3"}
    made = world.operate()
    assert (made.create, made.stand_by) == ((4,), (4,)), "the new pod is the spare"
    assert world.settled() == (3, 4, SparesStatus(ready=1, desired=1))


def test_a_spare_joins_if_another_worker_is_desired_and_a_new_one_is_created(world):
    world.fields |= {"maxReplicas": 4, "replicas": 4}
    made = world.operate()
    assert made.target is not None
    assert made.target.desired == 4
    world.agents()
    assert len(world.training()) == 4
    assert world.settled() == (4, 5, SparesStatus(ready=1, desired=1))


def test_a_changed_template_replaces_spares_before_any_worker_that_trains(world):
    before, world.image = world.training(), "b"
    made = world.operate()
    assert not made.create
    assert world.draining == {"job-3"}, "the spare leaves first"
    while not world.training() - before:
        world.kubelet()
        world.agents()
        world.operate()
        world.now += timedelta(seconds=1)
    assert len(world.training()) == 3, "a new spare replaces an old worker: no worker is missing meanwhile"
    assert world.settled() == (3, 4, SparesStatus(ready=1, desired=1))
    assert {p.template for p in world.live()} == {version(template("b"))}


@examples(60)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["operate", "kubelet", "agents", "b", "a"]),
            st.tuples(st.just("warmSpares"), st.integers(0, 3)),
            st.tuples(st.just("replicas"), st.integers(1, 3)),
            st.tuples(st.just("suspend"), st.booleans()),
            st.tuples(st.just("maxUnavailable"), st.integers(1, 3)),
            st.tuples(st.just("lose"), st.integers(0, 5)),
        ),
        max_size=30,
    )
)
def test_workers_and_spares_have_the_desired_numbers_in_the_end_for_any_history(history):
    world = World()
    for what in history:
        match what:
            case "a" | "b":
                world.image = what
            case "operate" | "kubelet" | "agents":
                getattr(world, what)()
            case ("lose", int(which)):
                if running := world.running():
                    world.end(running[which % len(running)].name, LOST)
            case (str(field), value):
                world.fields[field] = value
    world.settle()
    wanted = 0 if world.spec.suspend else world.spec.desired_replicas
    more = world.spec.warm_spares if wanted else 0
    assert (len(world.training()), len(world.live())) == (wanted, wanted + more)
    assert world.status.spares == (SparesStatus(ready=more, desired=more) if world.spec.warm_spares else None)
    assert {p.template for p in world.live()} <= {version(world.spec.template)}, "the roll-out has ended"
    assert world.status.replicas == wanted
