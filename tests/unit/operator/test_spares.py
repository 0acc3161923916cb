"""Warm spares: their number, which stand by, and that no worker waits for them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from budgets import examples
from elastrain.api.job import GenerationStatus, JobSpec, JobStatus, SparesStatus
from elastrain.api.records import Member, Outcome, Phase, Target, Termination
from elastrain.etcd import EtcdConfig
from elastrain_operator.allocation.model import Share
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.model import Coordination, Ending, JobRef, Observed, Plan, Pod
from elastrain_operator.plan import plan
from elastrain_operator.pod import manifest
from elastrain_operator.policy.report import accelerator_seconds
from elastrain_operator.policy.size import rollout, spares, victims
from workers import workers_at

JOB = JobRef("default", "job", "uid", 1)
START = datetime(2030, 1, 1, tzinfo=UTC)
FORCE = GenerationStatus(number=1, size=3, reason="Start")
LOST = Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled")
DRAINED = Termination(outcome=Outcome.DRAINED)


def template(image: str = "a") -> dict:
    return {"spec": {"containers": [{"name": "trainer", "image": image, "command": ["python", "train.py"]}]}}


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
    assert spares.wanted(spec(**fields), desired, 4, generation, given_share) == expected


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
    assert spares.standing_by(seen) == expected


def test_status_has_the_ready_spares_and_keeps_them_while_etcd_is_unknown():
    told = spares.status(spec(warmSpares=2), None, 2, frozenset({"job-3"}))
    assert told == SparesStatus(ready=1, desired=2)
    assert spares.status(spec(warmSpares=2), told, 2, None) == told
    assert spares.status(spec(warmSpares=0), told, 0, frozenset()) is None


# ---- who leaves -----------------------------------------------------------------------------------------------------
pod = workers_at(START, age=0.0, node="n")


def test_training_workers_leave_at_a_shrink_before_spares():
    workers = [pod(i) for i in range(4)]
    chosen = victims.choose(workers, 2, 1, records(3, ready=1), None, spares=1)
    assert [p.name for p in chosen] == ["job-2"], (
        "the members keep their generation: a spare's leave would shrink nothing"
    )


def test_the_spare_leaves_if_its_room_is_needed_elsewhere():
    workers = [pod(i) for i in range(4)]
    chosen = victims.choose(workers, 3, 1, records(3, ready=1), share(release=frozenset({"job-3"})), spares=0)
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
    place = accelerator_seconds.Place(frozenset({"job-0", "job-1"}), "training", frozenset({"job-2"}))
    usage = accelerator_seconds.account(None, pods, place, None, START)
    later = accelerator_seconds.account(usage, pods, None, None, START + timedelta(seconds=10))
    assert (later.training, later.spare, later.waiting) == (20, 10, 0)
    assert accelerator_seconds.continued(later, START + timedelta(seconds=20)).spare == 20, (
        "an outage of etcd changes nothing"
    )


# ---- a whole life ---------------------------------------------------------------------------------------------------
class World:
    """API server, kubelet and agents as plain values. The members admit a ready worker if one is missing, as the leader
    does; ``operate`` checks the invariants."""

    def __init__(self, **fields) -> None:
        self.fields, self.image = {"minReplicas": 1, "replicas": 3, "warmSpares": 1, **fields}, "a"
        self.now = START
        self.status, self.pods, self.records = JobStatus(), {}, Coordination()

    @property
    def spec(self) -> JobSpec:
        return spec(self.image, **self.fields)

    def live(self) -> list[Pod]:
        return [p for p in self.pods.values() if not p.ending]

    def training(self) -> set[str]:
        placed = {m.worker for m in self.records.generation.members} if self.records.generation else set()
        return placed & {p.name for p in self.live()}

    def operate(self) -> Plan:
        seen = Observed(JOB, tuple(sorted(self.pods.values(), key=lambda p: p.ordinal)), self.records)
        made = plan(self.spec, self.status, seen, self.now)
        self.status = made.status or self.status
        leaving = {w for entry in self.status.leaving for w in entry.workers}
        staying = [p for p in self.live() if p.name not in leaving]
        most = self.spec.desired_replicas + (self.spec.warm_spares if self.training() else 0)
        assert len(staying) + len(made.create) <= max(most, len(staying)) + self.spec.max_unavailable, "few pods more"
        if made.target:
            self.records = dataclasses.replace(self.records, target=made.target)
        version = rollout.version(self.spec.template)
        for ordinal in made.create:
            self.pods[f"job-{ordinal}"] = Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, self.now, template=version)
        for deletion in made.delete:
            assert deletion.pod not in self.training() - leaving, "no training worker is deleted without being asked"
            del self.pods[deletion.pod]
        return made

    def kubelet(self) -> None:
        for p in list(self.live()):
            self.pods[p.name] = dataclasses.replace(p, started=True, ready=True, bound=p.bound or self.now)

    def agents(self) -> None:
        target = self.records.target
        if target is None:
            return
        started = [p.name for p in sorted(self.live(), key=lambda p: p.ordinal) if p.started]
        able = [n for n in started if n not in target.leaving] if target.desired else []
        stayers = [n for n in able if n in self.training()]
        wanted = stayers + [n for n in able if n not in stayers][: max(target.desired - len(stayers), 0)]
        newest = self.records.generation
        number = newest.number if newest else 0
        placed = [m.worker for m in newest.members] if newest else []
        if sorted(wanted) != sorted(placed) and (len(wanted) >= target.min or not target.desired):
            number += 1
            newest = builders.generation(number, *wanted)
        inside = {m.worker for m in newest.members} if newest else set()
        members = tuple(
            Member(id=n, worker=n, address="a", phase=Phase.READY, generation=number if n in inside else 0)
            for n in able
        )
        self.records = dataclasses.replace(self.records, generation=newest, members=members)
        for name in set(started) - set(able):
            self.end(name, DRAINED)

    def end(self, name: str, record: Termination) -> None:
        ending = Ending(self.now, record, record.exit_code)
        self.pods[name] = dataclasses.replace(self.pods[name], ending=ending, over=True, ready=False)
        members = tuple(m for m in self.records.members if m.worker != name)
        self.records = dataclasses.replace(self.records, members=members)

    def settle(self) -> None:
        for _ in range(120):
            before = (self.status, dict(self.pods), self.records)
            self.kubelet()
            self.agents()
            made = self.operate()
            if before == (self.status, self.pods, self.records) and made.requeue_after is None:
                return
            self.now += timedelta(seconds=min(made.requeue_after or 1, 400))
        raise AssertionError("the world comes to rest")

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


def test_spares_leave_at_a_suspension_and_return_after_it(world):
    world.fields["suspend"] = True
    assert world.settled() == (0, 0, SparesStatus(ready=0, desired=0))
    world.fields["suspend"] = False
    assert world.settled() == (3, 4, SparesStatus(ready=1, desired=1))


def test_spares_leave_if_none_are_requested(world):
    before = world.training()
    world.fields["warmSpares"] = 0
    assert world.settled() == (3, 3, None)
    assert world.training() == before, "no worker was touched"


def test_a_changed_template_replaces_spares_before_any_worker_that_trains(world):
    before, world.image = world.training(), "b"
    made = world.operate()
    assert not made.create
    assert [e.workers for e in world.status.leaving] == [["job-3"]], "the spare leaves first"
    while not world.training() - before:
        world.kubelet()
        world.agents()
        world.operate()
        world.now += timedelta(seconds=1)
    assert len(world.training()) == 3, "a new spare replaces an old worker: no worker is missing meanwhile"
    assert world.settled() == (3, 4, SparesStatus(ready=1, desired=1))
    assert {p.template for p in world.live()} == {rollout.version(template("b"))}


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
                running = sorted((p for p in world.live() if p.started), key=lambda p: p.ordinal)
                if running:
                    world.end(running[which % len(running)].name, LOST)
            case (str(field), value):
                world.fields[field] = value
    world.settle()
    wanted = 0 if world.spec.suspend else world.spec.desired_replicas
    more = world.spec.warm_spares if wanted else 0
    assert (len(world.training()), len(world.live())) == (wanted, wanted + more)
    assert world.status.spares == (SparesStatus(ready=more, desired=more) if world.spec.warm_spares else None)
    assert {p.template for p in world.live()} <= {rollout.version(world.spec.template)}, "the roll-out has ended"
    assert world.status.replicas == wanted
