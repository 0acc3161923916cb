"""Gangs for other schedulers: the object and the pods' reference to it, by scheduler; when it is written."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from elastrain.etcd import EtcdConfig
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import Coordination, Gang, JobRef, Observed, RefusalKind
from elastrain_operator.job import objects
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import LoopState
from elastrain_operator.kube.answers import ApiError, Refused
from elastrain_operator.pod import gang, manifest
from elastrain_operator.pod.gang import SCHEDULERS
from elastrain_operator.policy.report import conditions as report
from elastrain_resource.job import JobStatus
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("ns", "digits", "0123456789", 1)
NAME = "digits-01234567"
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))
pod = workers_at(NOW, age=0.0, node="n{}")


def template(scheduler: str = "", annotations: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "2", "cpu": "500m", "memory": "1Gi"}
    container = {"name": "trainer", "image": "i", "command": ["x"], "resources": {"limits": limits}}
    chosen = {"schedulerName": scheduler} if scheduler else {}
    meta = {"annotations": annotations or {}, **metadata}
    return {"metadata": meta, "spec": {"containers": [container], "priorityClassName": "high", **chosen}}


RESOURCES = {"cpu": "1500m", "memory": str(3 * 2**30), "nvidia.com/gpu": "6"}
TABLE = {
    "coscheduling": (
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
        {"minMember": 3, "minResources": RESOURCES},
        ("metadata", "labels", "scheduling.x-k8s.io/pod-group", NAME),
    ),
    "volcano": (
        ("scheduling.volcano.sh/v1beta1", "PodGroup"),
        {"minMember": 3, "minResources": RESOURCES, "queue": "team-a", "priorityClassName": "high"},
        ("metadata", "annotations", "scheduling.k8s.io/group-name", NAME),
    ),
    "native": (
        ("scheduling.k8s.io/v1beta1", "PodGroup"),
        {"schedulingPolicy": {"gang": {"minCount": 3}}, "priorityClassName": "high"},
        ("spec", "schedulingGroup", {"podGroupName": NAME}),
    ),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_gang_is_the_minimum_in_the_words_of_its_scheduler(make_spec, scheduler):
    """Workers above ``minReplicas`` are elastic: never a part of the gang's size."""
    api, spec, (*fields, word) = TABLE[scheduler]
    job = make_spec(
        minReplicas=3, maxReplicas=8, template=template(annotations={"scheduling.volcano.sh/queue-name": "team-a"})
    )
    made = SCHEDULERS[scheduler].manifest(JOB, job)
    assert (made["apiVersion"], made["kind"], made["spec"]) == (*api, spec)
    assert made["metadata"]["ownerReferences"] == [manifest.owner(JOB)]
    assert made["metadata"]["name"] == NAME == SCHEDULERS[scheduler].path(JOB).rpartition("/")[2]
    worker = manifest.pod(JOB, job, 5, CONFIG)
    marked = SCHEDULERS[scheduler].mark(worker, JOB)
    found: Any = marked
    for field in fields:
        found = found[field]
    assert found == word
    assert marked["metadata"]["labels"].items() >= worker["metadata"]["labels"].items()
    assert marked["spec"].items() >= worker["spec"].items()
    assert fields[-1] not in worker[fields[0]] or fields[0] == "metadata", "the manifest itself is unchanged"


def test_names_fit_into_a_label():
    assert len(gang.name(JobRef("ns", "j" * 50, "0" * 36))) <= 63


@pytest.mark.parametrize(
    ("scheduler", "of_template", "serves"),
    [
        ("volcano", template("volcano"), True),
        ("volcano", template(), False),
        ("coscheduling", template(), True),
        ("coscheduling", template("gangs"), True),
        ("native", template(), True),
        ("volcano", template("volcano", {"scheduling.k8s.io/group-name": "mine"}), False),
        ("coscheduling", template(labels={"scheduling.x-k8s.io/pod-group": "mine"}), False),
    ],
)
def test_only_jobs_of_that_scheduler_without_a_group_of_their_own_have_one(scheduler, of_template, serves):
    assert SCHEDULERS[scheduler].serves(of_template) is serves


# ---- when it is written ----------------------------------------------------------------------------------------------
class Api:
    def __init__(self, *answers: ApiError | None) -> None:
        self.calls: list[str] = []
        self.answers = list(answers)

    async def apply(self, path, manifest):
        self._answer(f"apply {path.rpartition('/')[2]} {manifest['spec'].get('minMember') or 'x'}")

    async def remove(self, path, what):
        self._answer(f"remove {path.rpartition('/')[2]}")

    def _answer(self, call):
        self.calls.append(call)
        if self.answers and (error := self.answers.pop(0)):
            raise error


@pytest.fixture
def spec(make_spec):
    return lambda minimum=2, **more: make_spec(minReplicas=minimum, maxReplicas=8, template=template(), **more)


def keep(api, spec, state, scheduler="coscheduling"):
    return asyncio.run(objects.Gangs(api, scheduler).keep(JOB, spec, state))


def test_group_is_written_before_pods_name_it_and_again_only_if_it_changes(spec):
    api, state = Api(), LoopState()
    known = objects.Gangs(api, "coscheduling")
    assert known.mark({"spec": {}}, JOB, state) == {"spec": {}}
    assert keep(api, spec(), state) is None
    assert keep(api, spec(), state) is None
    assert api.calls == [f"apply {NAME} 2"]
    assert known.mark({"spec": {}}, JOB, state)["metadata"]["labels"] == {gang.COSCHEDULING_LABEL: NAME}
    keep(api, spec(3), state)
    assert api.calls[1:] == [f"apply {NAME} 3"]


def test_object_is_replaced_if_a_field_that_changes_is_immutable(spec):
    api, state = Api(None, ApiError("apply", 422, "Invalid", "field is immutable")), LoopState()
    keep(api, spec(), state, "native")
    assert keep(api, spec(3), state, "native") is None
    assert api.calls == [f"apply {NAME} x", f"apply {NAME} x", f"remove {NAME}", f"apply {NAME} x"]


def test_minimum_of_a_native_gang_changes_in_place(spec):
    api, state = Api(), LoopState()
    keep(api, spec(), state, "native")
    keep(api, spec(3), state, "native")
    assert api.calls == [f"apply {NAME} x"] * 2


def test_pods_are_created_without_a_gang_if_its_api_is_not_served_and_the_job_says_so(spec, monkeypatch):
    now = [NOW]
    monkeypatch.setattr(objects.clock, "now", lambda: now[0])
    api, state = (
        Api(ApiError("apply", 404, "NotFound", "the server could not find the requested resource")),
        LoopState(),
    )
    assert keep(api, spec(), state) is None
    assert objects.Gangs(api, "coscheduling").mark({}, JOB, state) == {}
    (said,) = report.gang_scheduled(state.gang, 2, was_reported=False)
    assert (said.status, said.reason) == ("False", "NotGrouped")
    assert "does not serve PodGroup of scheduling.x-k8s.io/v1alpha1 (gang.scheduler: coscheduling)" in said.message
    keep(api, spec(), state)
    assert len(api.calls) == 1
    now[0] = NOW + objects.RETRY
    keep(api, spec(), state)
    (said,) = report.gang_scheduled(state.gang, 2, was_reported=True)
    assert (said.status, said.reason) == ("True", "Grouped")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ApiError("apply", 403, "Forbidden", "no"), RefusalKind.NOT_PERMITTED),
        (ApiError("apply", 400, "BadRequest", "queue team-b does not exist"), RefusalKind.OTHER),
    ],
)
def test_a_refused_gang_is_a_refusal_of_the_pods(spec, error, kind):
    found = keep(Api(error), spec(), LoopState())
    assert isinstance(found, Refused)
    assert (found.kind, error.message in found.message) == (kind, True)


def test_an_unanswered_write_is_no_answer(spec):
    state = LoopState()
    assert isinstance(keep(Api(ApiError("apply", 503, "", "busy")), spec(), state), ApiError)
    assert state.gang is None


def test_group_is_removed_with_the_last_worker_of_a_suspended_job(make_spec):
    def wanted(*pods, **spec):
        seen = Observed(JOB, pods, Coordination())
        return plan(make_spec(minReplicas=1, **spec), JobStatus(), seen, NOW).gang

    assert wanted()
    assert wanted(pod(0), suspend=True)
    assert not wanted(suspend=True)


def test_a_failed_removal_is_tried_again_and_a_job_of_another_scheduler_costs_nothing(spec, make_spec):
    api, state = Api(ApiError("remove", 503, "", "busy")), LoopState()
    known = objects.Gangs(api, "coscheduling")
    asyncio.run(known.follow(JOB, spec(), state, wanted=False))
    assert state.gang is None
    assert list(state.retries) == ["gang"]
    state.retries.clear()  # a minute later
    asyncio.run(known.follow(JOB, spec(), state, wanted=False))
    asyncio.run(known.follow(JOB, spec(), state, wanted=False))
    assert (api.calls, state.gang) == ([f"remove {NAME}"] * 2, Gang())
    api = Api()
    keep(api, make_spec(template=template()), LoopState(), "volcano")
    assert not api.calls
