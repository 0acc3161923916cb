"""Which leases the operator ends: only with the kubelet's proof that the worker's processes have ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

import builders
from elastrain.api import names
from elastrain.api.records import Member
from elastrain_operator.facts import Coordination, EndedMember, JobRef, Observed
from elastrain_operator.job import plan as plans
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import LoopState
from elastrain_operator.pod import manifest
from elastrain_operator.policy.losses.counting import ended_members
from elastrain_operator.watch import parse
from elastrain_operator.watch.pods import WorkerPods
from elastrain_resource.job import JobStatus
from loop_world import CONFIG

NOW = datetime(2030, 1, 1, tzinfo=UTC)
STAMP = "2030-01-01T00:00:00Z"
RUNNING = {"running": {"startedAt": STAMP}}
KILLED = {"terminated": {"exitCode": 137, "reason": "Error", "startedAt": STAMP, "finishedAt": STAMP}}
UNLOCATED = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
WAITING = {"waiting": {"reason": "ContainerCreating"}}
RESTARTS = {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}
RESTARTS_ALL = {"restartPolicyRules": [{"action": "RestartAllContainers"}]}


def status(name: str, state, **more):
    return {"name": name, "state": state, **more}


def body(*states, phase="Running", inits=(), containers=None, policy="Never", uid="uid-1", **meta):
    """The pod of worker ``job-1``; its containers are ``trainer`` and ``sidecar``."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "job", "uid": "uid", "controller": True}
    return {
        "metadata": {"name": "job-1", "namespace": "ns", "uid": uid, "ownerReferences": [owner], **meta},
        "spec": {"restartPolicy": policy, "containers": containers or [{"name": "trainer"}, {"name": "sidecar"}]},
        "status": {"phase": phase, "containerStatuses": list(states), "initContainerStatuses": list(inits)},
    }  # fmt: skip


def member(worker: str = "job-1", pod: str = "uid-1", number: int = 1) -> Member:
    return Member(id=f"{worker}.{number}", worker=worker, pod=pod, address="a")


def etcd(*members: Member) -> Coordination:
    return Coordination(
        members=members,
        leases={m.id: lease for lease, m in enumerate(members, start=71)},
        generation=builders.generation(1, *(m.id for m in members)) if members else None,
    )


TRAINER_DEAD = status("trainer", KILLED)
PROOF = {
    "the trainer container has ended": body(TRAINER_DEAD, status("sidecar", RUNNING)),
    "the pod has failed": body(TRAINER_DEAD, phase="Failed"),
    "the pod has succeeded": body(status("trainer", {"terminated": {"exitCode": 0}}), phase="Succeeded"),
    "it is being deleted": body(TRAINER_DEAD, deletionTimestamp=STAMP),
    "it could restart, but its pod has ended": body(
        TRAINER_DEAD, phase="Failed", containers=[{"name": "trainer", **RESTARTS}]
    ),
}
NO_PROOF = {
    "it runs": body(status("trainer", RUNNING)),
    "a sidecar has ended": body(status("trainer", RUNNING), status("sidecar", KILLED)),
    "only an init container has ended": body(status("trainer", WAITING), inits=[status("preflight", KILLED)]),
    "it has been started again in its place": body(
        status("trainer", RUNNING, restartCount=1, lastState=KILLED, containerID="containerd://new")
    ),
    "it may be started again in its place": body(TRAINER_DEAD, containers=[{"name": "trainer", **RESTARTS}]),
    "it may be started again by the pod's policy": body(TRAINER_DEAD, policy="Always"),
    "it may be started again by its own policy": body(
        TRAINER_DEAD, containers=[{"name": "trainer", "restartPolicy": "OnFailure"}]
    ),
    "a sidecar's rule may start it again": body(
        TRAINER_DEAD, containers=[{"name": "trainer"}, {"name": "sidecar", **RESTARTS_ALL}]
    ),
    "the pod has failed by the garbage collector of a lost node": body(status("trainer", RUNNING), phase="Failed"),
    "the pod has failed without any status of containers": body(phase="Failed"),
    "the kubelet has not found it": body(status("trainer", UNLOCATED), phase="Failed"),
    "its node is silent": body(status("trainer", RUNNING), deletionTimestamp=STAMP),
}


def found(raw, *members: Member) -> tuple[str, ...]:
    pod = parse.pod(raw, NOW)
    return tuple(m.id for m in ended_members([pod], etcd(*members)))


@pytest.mark.parametrize("evidence", PROOF)
def test_the_lease_ends_if_the_kubelet_has_seen_the_end_of_the_trainer(evidence):
    assert found(PROOF[evidence], member(), member("job-2", "uid-2")) == ("job-1.1",)


@pytest.mark.parametrize("evidence", NO_PROOF)
def test_no_lease_ends_without_proof_that_no_process_lives(evidence):
    assert found(NO_PROOF[evidence], member()) == ()


@pytest.mark.parametrize(
    "other",
    [
        member(pod="uid-9"),  # a pod that took the name over
        member(pod=""),  # an image that is older than the field
        member(worker="job-3"),  # another worker that names this pod
    ],
)
def test_a_member_keeps_its_lease_if_it_is_not_of_the_ended_pod(other):
    assert found(PROOF["the pod has failed"], other) == ()


def test_all_registrations_of_an_ended_pod_lose_their_leases():
    assert found(PROOF["the pod has failed"], member(number=1), member(number=2)) == ("job-1.1", "job-1.2")


def test_nothing_ends_if_membership_is_unknown_or_the_lease_is():
    pod = parse.pod(PROOF["the pod has failed"], NOW)
    assert ended_members([pod], None) == ()
    assert ended_members([pod], Coordination(members=(member(),))) == ()


def gone_pods(*seen, last) -> list:
    """What remains of a pod after its deletion, whose ``last`` version the watch may show."""
    gone = []
    pods = WorkerPods(None, (), lambda job, pod, is_gone: gone.append(pod) if is_gone else None)
    (watch,) = pods._watches.values()
    for raw in seen:
        watch._put("default/job-1", pods._read(raw))
    if last is not None:
        watch._put("default/job-1", pods._read(last))
    pods._forget("uid-1")
    return gone


@pytest.mark.parametrize(
    ("last", "ends"), [(PROOF["the pod has failed"], True), (NO_PROOF["it runs"], False), (None, False)]
)
def test_a_pod_that_is_gone_is_proof_only_by_its_last_report(last, ends, make_spec):
    (gone,) = gone_pods(NO_PROOF["it runs"], last=last)
    state = LoopState(disappeared={gone.uid: gone})
    seen = Observed(JobRef("ns", "job", "uid", 1), (), etcd(member()))
    made = plan(make_spec(replicas=2), JobStatus(next_ordinal=2), seen, NOW, state)
    assert made.ended == ((EndedMember("job-1.1", 71),) if ends else ())


@pytest.mark.parametrize("whose", ["spec breaks a rule", "job is being deleted"])
def test_the_lease_ends_also_if_nothing_else_is_planned(whose):
    """Survivors train on, and wait for the lost member as others do."""
    pod = parse.pod(PROOF["the pod has failed"], NOW)
    seen = Observed(JobRef("ns", "job", "uid", 1), (), etcd(member()))
    for observed, state in ((replace(seen, pods=(pod,)), LoopState()), (seen, LoopState(disappeared={pod.uid: pod}))):
        if whose == "spec breaks a rule":
            made = plans.refuse(JobStatus(), observed, "spec.minReplicas: 9: too many", NOW, state)
        else:
            made = plans.deleted(JobStatus(), observed, ("example.com/hold",), NOW, state)
        assert made.ended == (EndedMember("job-1.1", 71),)


def test_a_plan_ends_the_lease_and_replaces_the_worker(make_spec):
    pod = parse.pod(PROOF["the pod has failed"], NOW)
    seen = Observed(JobRef("ns", "job", "uid", 1), (pod,), etcd(member()))
    made = plan(make_spec(replicas=1), JobStatus(next_ordinal=2), seen, NOW)
    assert made.ended == (EndedMember("job-1.1", 71),)
    assert made.status.restarts.infrastructure == 1


def test_a_rendered_pod_gives_proof_and_its_agent_knows_its_uid(make_spec):
    made = manifest.pod(JobRef("ns", "job", "uid"), make_spec(), 1, CONFIG)
    assert found({**body(TRAINER_DEAD), "spec": made["spec"]}, member()) == ("job-1.1",)
    environment = {e["name"]: e.get("valueFrom") for e in made["spec"]["containers"][0]["env"]}
    assert environment[names.ENV_POD_UID] == {"fieldRef": {"fieldPath": "metadata.uid"}}
