"""Before other workers leave for a job, the API server admits one of its pods in a dry run; and the workers that a job
keeps Pending for an autoscaler."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import builders
from elastrain.api.records import Member, Target
from elastrain.etcd import EtcdConfig
from elastrain_operator.allocation.snapshot import Obstacle, Share
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import Coordination, JobRef, Observed, Refusal, RefusalKind, Trouble
from elastrain_operator.job.executor import Executor
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.kube.answers import ApiError
from elastrain_operator.pod.admitted import LASTS, Admitted
from elastrain_operator.pod.template import version
from elastrain_resource.job import JobStatus
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("ns", "job", "uid", 1)
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))
WAITS = Share(0, "WaitingForCapacity", "waits: 2 workers must start together", probe=True)
SECURITY = Refusal(RefusalKind.ADMISSION_DENIED, "violates PodSecurity", NOW, 2, 1)
pod = workers_at(NOW, age=0.0, node="n{}")


def planned(spec, state: LoopState | None = None, *, pods=(), share: Share = WAITS, status: JobStatus | None = None):
    seen = Observed(JOB, tuple(pods), Coordination(), share=share)
    return plan(spec, status or JobStatus(), seen, NOW, state or LoopState())


def test_a_job_for_which_others_would_leave_is_admitted_in_a_dry_run_first(make_spec):
    spec = make_spec(minReplicas=2)
    first = planned(spec)
    assert (first.probe, first.create, first.claims.job.admitted) == (0, (), False)
    after = planned(spec, LoopState(admitted=Admitted(version(spec.template), NOW)))
    assert (after.probe, after.claims.job.admitted) == (None, True)


def test_a_refused_job_is_tried_again_later_and_claims_so(make_spec):
    spec = make_spec(minReplicas=2)
    state = LoopState(refusal=SECURITY, admitted=Admitted(version(spec.template), NOW))
    made = planned(spec, state)
    assert made.probe is None, "it waits"
    assert made.requeue_after == 5.0
    assert (made.claims.job.admitted, made.claims.job.refused) == (False, NOW)
    assert made.claims.obstacle == Obstacle("AdmissionDenied", "violates PodSecurity", refused=True)
    (ready,) = [c for c in made.status.conditions if c.type == "PodsReady"]
    assert (ready.status, ready.reason) == ("False", "AdmissionDenied")
    later = LoopState(refusal=replace(SECURITY, at=NOW - timedelta(seconds=5)))
    assert planned(spec, later).probe == 0


@pytest.mark.parametrize("kind", [RefusalKind.WEBHOOK_FAILED, RefusalKind.BUSY])
def test_a_refusal_that_passes_is_not_about_the_job(kind, make_spec):
    spec = make_spec(minReplicas=2)
    state = LoopState(refusal=replace(SECURITY, kind=kind), admitted=Admitted(version(spec.template), NOW))
    claims = planned(spec, state).claims
    assert (claims.job.admitted, claims.job.refused) == (True, None)
    assert claims.obstacle == Obstacle(kind.value, "violates PodSecurity"), "it is named if the grant expires by it"


def test_claims_name_the_schedulers_obstacle(make_spec):
    stuck = pod(0, started=False, node="", trouble=Trouble("Unschedulable", "pod job-0: 0/3 nodes are available"))
    claims = planned(make_spec(), pods=[stuck], share=Share(1, "AtMax", "")).claims
    assert (claims.job.hindered, claims.job.admitted) == (True, True)
    assert claims.obstacle == Obstacle("Unschedulable", "pod job-0: 0/3 nodes are available")
    other = replace(claims, obstacle=Obstacle("Unschedulable", "pod job-0: 0/4 nodes are available"))
    assert not other.differs(claims), "the scheduler's figures cause no allocation"


# ---- workers for an autoscaler to see --------------------------------------------------------------------------------
def training(desired: int) -> Coordination:
    members = (Member(id="job-0", worker="job-0", address="a", generation=1),)
    return Coordination(Target(min=1, max=4, desired=desired, reason="Start"), members, builders.generation(1, "job-0"))


def test_a_worker_is_created_beyond_the_size_and_counts_neither_as_missing_nor_as_late(make_spec):
    spec, share = make_spec(pendingDeadlineSeconds=60), Share(1, "NoRoom", "not grown", pending=1)
    status = JobStatus(desired_replicas=1, next_ordinal=1)
    first = plan(spec, status, Observed(JOB, (pod(0),), training(1), share=share), NOW)
    assert (first.create, first.target) == ((1,), None)
    signal = pod(1, age=100.0, started=False, node="", trouble=Trouble("Unschedulable", "pod job-1: no node"))
    seen = Observed(JOB, (pod(0, age=200.0), signal), training(1), share=share)
    second = plan(spec, first.status, seen, NOW)
    assert (second.create, second.delete) == ((), ())
    assert second.status is None, "one worker trains, as before"
    assert {c.type: c.status for c in first.status.conditions}["PodsReady"] == "True"


def test_the_worker_is_withdrawn_once_room_is_promised_to_others(make_spec):
    signal = pod(1, started=False, node="")
    seen = Observed(JOB, (pod(0), signal), training(1), share=Share(1, "NoRoom", "not grown"))
    made = plan(make_spec(), JobStatus(desired_replicas=1, next_ordinal=2), seen, NOW)
    assert [d.pod for d in made.delete] == ["job-1"]


# ---- the dry run -----------------------------------------------------------------------------------------------------
class Kube:
    def __init__(self, error: ApiError | None = None, answer: dict | None = None) -> None:
        self.error, self.answer = error, answer
        self.tried: list[str] = []

    def record(self, job, event):
        raise AssertionError("a dry run causes no event")

    async def try_pod(self, namespace, manifest):
        self.tried.append(manifest["metadata"]["name"])
        if self.error:
            raise self.error
        return self.answer or manifest


def probe(spec, kube: Kube, state: LoopState | None = None) -> LoopState:
    state = state or LoopState()
    asyncio.run(Executor(kube, kube, CONFIG, kube).execute(JOB, spec, Plan(probe=3), state))
    return state


def test_an_admitted_pod_ends_an_earlier_refusal(make_spec):
    spec, kube = make_spec(), Kube()
    state = probe(spec, kube, LoopState(refusal=SECURITY))
    assert (kube.tried, state.admitted.version, state.refusal) == (["job-3"], version(spec.template), None)
    assert (state.created, state.open_ordinals) == ({}, ()), "no pod exists"


def test_a_refused_pod_is_a_refusal_like_any_other(make_spec):
    state = probe(make_spec(), Kube(ApiError("admit", 403, "Forbidden", "no")), LoopState(refusal=SECURITY))
    assert (state.refusal.attempts, state.refusal.generation, state.admitted) == (3, 1, None)


def test_a_webhook_without_dry_runs_leaves_the_test_to_the_first_pod(make_spec):
    error = ApiError("admit", 400, "BadRequest", 'admission webhook "w" does not support dry run')
    spec = make_spec()
    state = probe(spec, Kube(error))
    assert (state.refusal, state.admitted.version, state.admitted.shape) == (None, version(spec.template), None)


def test_a_denial_that_quotes_such_words_is_a_denial(make_spec):
    error = ApiError("admit", 400, "BadRequest", 'admission webhook "w" denied the request: does not support dry run')
    state = probe(make_spec(), Kube(error))
    assert (state.refusal.kind, state.admitted) == (RefusalKind.ADMISSION_DENIED, None)


def test_an_unreachable_api_server_is_no_answer(make_spec):
    with pytest.raises(ApiError, match="down"):
        probe(make_spec(), Kube(ApiError("admit", 0, "Unreachable", "down")))


# ---- the books -------------------------------------------------------------------------------------------------------
def changed(manifest: dict, **spec) -> dict:
    """The pod after admission."""
    return {**manifest, "spec": {**manifest["spec"], **spec}}


class Changing(Kube):
    """An API server whose admission changes pods."""

    def __init__(self, **spec) -> None:
        super().__init__()
        self.spec = spec

    async def try_pod(self, namespace, manifest):
        return changed(await super().try_pod(namespace, manifest), **self.spec)


def test_a_job_is_counted_as_its_pods_were_admitted_and_not_as_its_template_says(make_spec):
    spec = make_spec(minReplicas=2)
    tolerations = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}]
    kube = Changing(overhead={"cpu": "2"}, nodeSelector={"pool": "b"}, priority=7, tolerations=tolerations)
    state = probe(spec, kube)
    claims = planned(spec, state).claims
    assert dict(claims.job.kind.demand)["cpu"] == 2000, "with the overhead of its RuntimeClass"
    assert claims.job.kind.place.selector == (("pool", "b"),)
    assert dict(claims.charge.amounts)["requests.cpu"] == 2000
    assert claims.priority == 7
    assert claims.job.altered == ("cpu 0 → 2 (with overhead)", "nodeSelector pool=b"), (
        "default tolerations open no node"
    )


def test_constraints_that_admission_adds_are_named_as_unknown_to_the_allocator(make_spec):
    spec = make_spec(minReplicas=2)
    job = planned(
        spec, probe(spec, Changing(schedulingGates=[{"name": "team/later"}], schedulerName="other"))
    ).claims.job
    assert job.unknown == ("scheduling gates", "scheduler")
    assert job.altered == ("schedulerName default-scheduler → other", "scheduling gates")


def test_an_answer_outlives_the_exclusions_at_its_time_and_keeps_the_templates_own(make_spec):
    own = {"key": "metadata.name", "operator": "NotIn", "values": ["own"]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [own]}]}}
    template = make_spec().template
    body = {**template["spec"], "affinity": {"nodeAffinity": required}}
    spec, state = make_spec(minReplicas=2, template={"spec": body}), LoopState()
    kube = Kube()
    asyncio.run(Executor(kube, kube, CONFIG, kube).execute(JOB, spec, Plan(probe=3, keep_off=("sick",)), state))
    place = planned(spec, state).claims.job.kind.place
    assert [r.values for term in place.terms for r in term] == [("own",)]


def test_pods_of_the_present_template_that_exist_outweigh_an_answer(make_spec):
    spec = make_spec()
    real = replace(pod(0, template=version(spec.template)), demand=(("cpu", 3000), ("pods", 1)))
    old = replace(pod(1, template="older"), demand=(("cpu", 9000), ("pods", 1)))
    claims = planned(spec, pods=[real, old], share=Share(2, "AtMax", "")).claims
    assert claims.job.kind.demand == (("cpu", 3000), ("pods", 1))


def test_an_answer_is_asked_for_again_after_a_while_and_its_shape_is_kept_until_then(make_spec):
    spec = make_spec(minReplicas=2)
    state = probe(spec, Changing(overhead={"cpu": "2"}))
    state.admitted = replace(state.admitted, at=NOW - LASTS)
    made = planned(spec, state)
    assert (made.probe, made.claims.job.admitted) == (0, False), "nobody leaves by an old answer"
    assert dict(made.claims.job.kind.demand)["cpu"] == 2000


def test_an_answer_about_another_template_does_not_count(make_spec):
    spec = make_spec(minReplicas=2)
    state = probe(spec, Changing(overhead={"cpu": "2"}))
    state.admitted = replace(state.admitted, version="older")
    assert "cpu" not in dict(planned(spec, state).claims.job.kind.demand)
