"""The disruption budget of a job, and whether its checkpoints outlive its workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from elastrain.api.records import CheckpointState, Member, Progress, Rescale, Resumed
from elastrain_operator.facts import (
    UNSCHEDULABLE,
    Coordination,
    DisruptionBudget,
    JobRef,
    Observed,
    Trouble,
    WorkerCount,
    WorkerSet,
)
from elastrain_operator.job import objects, plan
from elastrain_operator.job.state import BUDGET, MARKS, SET, LoopState
from elastrain_operator.kube.client import ApiError
from elastrain_operator.pod import workerset
from elastrain_operator.pod.manifest import owner
from elastrain_operator.policy.size import protection
from elastrain_operator.policy.size.protection import disruption_budget
from elastrain_resource import durability
from elastrain_resource.job import GenerationStatus, JobStatus
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("ns", "job", "0123456789abcdef", 1)
pod = workers_at(NOW, node="n{}")
NONE = DisruptionBudget()


def mounted(**source: object) -> dict:
    """A template with a volume of this source at /c."""
    trainer = {"name": "trainer", "image": "t:1", "command": ["python"]}
    mounts = [{"name": "c", "mountPath": "/c"}, {"name": "scratch", "mountPath": "/c/scratch"}]
    volumes = [{"name": "c", **source}, {"name": "scratch", "emptyDir": {}}]
    return {"spec": {"containers": [{**trainer, "volumeMounts": mounts}], "volumes": volumes}}


def trained(*ordinals: int, saved: int = 0, error: str = "") -> Coordination:
    """These workers have committed steps together."""
    ids = [f"job-{n}" for n in ordinals]
    rescale = Rescale(generation=1, from_size=0, to_size=len(ids), reason="Start", step=0, pause_seconds=1)
    return Coordination(
        generation=builders.generation(1, *ids),
        members=tuple(Member(id=i, worker=i, address="a", generation=1) for i in ids),
        progress=Progress(
            generation=1,
            world_size=len(ids),
            members=len(ids),
            step=5,
            rescales=(rescale,),
            checkpoint=CheckpointState(step=saved, path="/c", error=error) if saved or error else None,
        ),
    )


# ---- the decision ----------------------------------------------------------------------------------------------------
def test_budget_names_the_holders_and_no_joiner(make_spec):
    pods = [pod(0), pod(1), pod(2, ready=False, started=False)]
    assert disruption_budget(make_spec(), pods, trained(0, 1)) == DisruptionBudget((0, 1))


def test_budget_stays_as_it_is_if_the_holders_are_unknown(make_spec):
    assert disruption_budget(make_spec(), [pod(0)], None) is None


def test_only_worker_is_protected_until_a_checkpoint_that_outlives_it_is_written(make_spec):
    saves = {"checkpoint": {"path": "/c/job"}, "template": mounted(persistentVolumeClaim={"claimName": "c"})}
    pods = [pod(0)]
    assert disruption_budget(make_spec(**saves), pods, trained(0)) == DisruptionBudget((0,))
    assert disruption_budget(make_spec(**saves), pods, trained(0, saved=4)) == NONE
    assert disruption_budget(make_spec(**saves), pods, trained(0, saved=4, error="disk full")) == DisruptionBudget((0,))
    short_lived = {**saves, "template": mounted(emptyDir={})}
    assert disruption_budget(make_spec(**short_lived), pods, trained(0, saved=4)) == DisruptionBudget((0,))


def test_one_of_several_holders_stays_though_checkpoints_are_written(make_spec):
    saves = make_spec(checkpoint={"path": "/c"}, template=mounted(nfs={"server": "s", "path": "/"}))
    assert disruption_budget(saves, [pod(0), pod(1)], trained(0, 1, saved=4)) == DisruptionBudget((0, 1))


def test_state_that_may_be_lost_has_no_budget(make_spec):
    assert disruption_budget(make_spec(protectState=False), [pod(0), pod(1)], trained(0, 1)) == NONE


# ---- when it is written ----------------------------------------------------------------------------------------------
def planned(spec, records: Coordination | None, before: DisruptionBudget | None, **status) -> DisruptionBudget | None:
    seen = Observed(JOB, pods=(pod(0), pod(1)), coordination=records)
    return plan.plan(spec, JobStatus(**status), seen, NOW, LoopState(budget=before)).budget


def test_budget_is_written_if_it_changes(make_spec):
    trains = {"generation": GenerationStatus(number=1, size=2, reason="Start")}
    spec, both = make_spec(replicas=2), DisruptionBudget((0, 1))
    assert planned(spec, trained(0, 1), before=None, **trains) == both, "a new operator knows of none"
    assert planned(spec, trained(0, 1), before=both, **trains) is None
    assert planned(spec, trained(0, 1), before=DisruptionBudget((0,)), **trains) == both
    assert planned(spec, None, before=both, **trains) is None, "etcd is away"
    assert planned(spec, Coordination(), before=both, **trains) is None, "etcd has lost its data"
    assert planned(spec, Coordination(), before=None) is None, "a job that has not trained costs no request"


class Api:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.of_users, self.asked, self.down = [], [], False

    async def apply(self, path, manifest):
        self.calls.append(f"apply {path.rpartition('/')[2]}")
        if self.down:
            raise ApiError("apply", 403, "Forbidden", "no")
        return "uid"

    async def remove(self, path, what):
        self.calls.append(f"delete {path.rpartition('/')[2]}")

    async def list_pages(self, path, what, query):
        assert query == {"labelSelector": "!elastrain.dev/job-uid"}, "the operator's own are none of the user's"
        yield self.of_users, ""

    async def uids(self, path, what, query):
        self.asked.append(query["labelSelector"].removeprefix(f"elastrain.dev/job-uid={JOB.uid},"))
        return self.asked[-1] == "app=job"


def test_failed_write_stops_nothing_and_is_repeated_after_a_minute(monkeypatch):
    api, state, now = Api(), LoopState(), [NOW]
    monkeypatch.setattr(objects.clock, "now", lambda: now[0])
    api.down = True
    asyncio.run(objects.write_budget(api, JOB, DisruptionBudget((0,)), state))
    asyncio.run(objects.write_budget(api, JOB, DisruptionBudget((0,)), state))
    assert (api.calls, state.budget) == (["apply job-state-01234567"], None)
    api.down, now[0] = False, NOW + objects.RETRY
    asyncio.run(objects.write_budget(api, JOB, DisruptionBudget((0,)), state))
    asyncio.run(objects.write_budget(api, JOB, NONE, state))
    assert api.calls[1:] == ["apply job-state-01234567", "delete job-state-01234567"]
    assert state.budget == NONE


def test_a_budget_of_the_user_s_own_replaces_the_operator_s(monkeypatch):
    api, state, now = Api(), LoopState(), [NOW]
    monkeypatch.setattr(objects.clock, "now", lambda: now[0])
    few = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a", "b"]}]}
    selectors = [None, few, {"matchLabels": {"app": "job"}}]
    api.of_users = [{"metadata": {"name": f"own-{n}"}, "spec": {"selector": s}} for n, s in enumerate(selectors)]
    asyncio.run(objects.write_budget(api, JOB, DisruptionBudget((0,)), state))
    assert (api.calls, api.asked) == (["delete job-state-01234567"], ["app notin (a,b)", "app=job"])
    assert "own-2 selects its workers, and replaces the operator's" in state.unwritten[objects.BUDGET]
    api.of_users, now[0] = [], NOW + objects.RETRY
    asyncio.run(objects.write_budget(api, JOB, DisruptionBudget((0,)), state))
    assert (api.calls[1:], state.unwritten) == (["apply job-state-01234567"], {})


# ---- the number of workers, for budgets of users ---------------------------------------------------------------------
NO_ROOM = Trouble(UNSCHEDULABLE, "0/1 nodes are available")


@pytest.mark.parametrize(
    ("wanted", "pods", "coming", "number"),
    [
        (3, [pod(0), pod(1), pod(2)], 0, 3),
        (2, [pod(0), pod(1), pod(2)], 0, 2),
        (3, [], 3, 3),
        (3, [pod(0), pod(1), pod(2, terminating=True)], 0, 3),
        (3, [pod(0), pod(1), pod(2, terminating=True)], 1, 3),
        (4, [pod(0), pod(1), pod(2, node="", trouble=NO_ROOM)], 0, 2),
        (4, [pod(0), pod(1), pod(2, over=True)], 0, 2),
        (4, [pod(0), pod(1), pod(9)], 0, 2),
        (0, [pod(0)], 0, 0),
    ],
    ids=[
        "train",
        "shrink",
        "start",
        "one is evicted",
        "one is replaced",
        "no room",
        "one ended",
        "silent",
        "suspended",
    ],
)
def test_number_of_workers_is_of_those_that_there_are_or_come(wanted, pods, coming, number):
    assert protection.expected(wanted, pods, {"job-9"}, coming) == number


@given(
    st.integers(0, 6),
    st.lists(
        st.sampled_from([{}, {"terminating": True}, {"node": "", "trouble": NO_ROOM}, {"over": True}]), max_size=6
    ),
    st.integers(0, 6),
)
def test_a_job_whose_workers_all_run_can_lose_one_to_a_drain(wanted, kinds, coming):
    """For `maxUnavailable: 1`: no drain waits for a worker that no node has room for."""
    pods = [pod(n, **kind) for n, kind in enumerate(kinds)]
    number = protection.expected(wanted, pods, (), coming)
    running = [p for p in pods if p.node and not (p.over or p.terminating)]
    assert number <= wanted
    if running and wanted and not coming and not any(p.terminating for p in pods):
        assert len(running) - (number - 1) >= 1


def counted(spec, pods, state, **status) -> WorkerCount | None:
    seen = Observed(JOB, pods=pods, coordination=trained(*(p.ordinal for p in pods)) if pods else Coordination())
    return plan.plan(spec, JobStatus(**status), seen, NOW, state).workers


def test_set_of_workers_is_written_before_the_first_pod_and_only_if_its_number_changes(make_spec):
    spec, two = make_spec(maxReplicas=2), (pod(0), pod(1))
    assert counted(spec, (), LoopState()) == WorkerCount(2)
    assert counted(spec, two, LoopState(workers=WorkerSet("u", 2))) is None
    assert counted(spec, two, LoopState(workers=WorkerSet("u", 1))) == WorkerCount(2)
    assert counted(spec, two, LoopState(workers=WorkerSet("u", 3))) == WorkerCount(2), "a pod leaves"
    stuck, three = (*two, pod(2, node="", trouble=NO_ROOM)), make_spec(maxReplicas=3)
    assert counted(three, stuck, LoopState(workers=WorkerSet("u", 3))) == WorkerCount(2, two[0]), "else none changes"
    assert counted(make_spec(maxReplicas=2, suspend=True), two, LoopState(workers=WorkerSet("u", 2))) is None


def test_pods_have_the_job_as_controller_until_the_set_can_be_written():
    made = {"metadata": {"name": "job-0", "ownerReferences": [owner(JOB)]}}
    by_set = workerset.controlled(made, JOB, "set-uid")["metadata"]["ownerReferences"]
    assert [(o["kind"], o["controller"], o["uid"]) for o in by_set] == [
        ("ElasticTrainingJob", False, JOB.uid),
        ("WorkerSet", True, "set-uid"),
    ]
    api, state = Api(), LoopState()
    api.down = True
    asyncio.run(objects.write_workers(api, JOB, WorkerCount(2), state))
    assert (state.workers, list(state.unwritten)) == (None, [SET])


def test_a_new_operator_writes_only_sets_that_differ_from_what_it_lists_once():
    class Listed(Api):
        async def list_pages(self, path, what, query):
            self.calls.append(f"list {path}")
            sets = [(JOB.name, JOB.uid, 2), ("other", "89abcdef", 3)]
            names_of = {"namespace": JOB.namespace}
            yield (
                [
                    {"metadata": {**names_of, "name": f"{j}-{u[:8]}", "uid": j}, "spec": {"replicas": n}}
                    for j, u, n in sets
                ],
                "",
            )

    api, states = Listed(), (LoopState(), LoopState())
    sets = objects.WorkerSets(api, everywhere=True)
    asyncio.run(sets.keep(JOB, WorkerCount(2), states[0]))
    asyncio.run(sets.keep(JobRef(JOB.namespace, "other", "89abcdef"), WorkerCount(2), states[1]))
    assert [state.workers for state in states] == [WorkerSet(JOB.name, 2), WorkerSet("uid", 2)]
    assert api.calls == ["list /apis/elastrain.dev/v1alpha1/workersets", "apply other-89abcdef"]


# ---- checkpoints that last -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "template", "words"),
    [
        ("/c", mounted(persistentVolumeClaim={"claimName": "c"}), ""),
        ("/c/job", mounted(hostPath={"path": "/lustre"}), ""),
        ("/c/scratch/job", mounted(persistentVolumeClaim={"claimName": "c"}), "volume scratch of type emptyDir"),
        ("/c", mounted(emptyDir={}), "volume c of type emptyDir"),
        ("/c", mounted(ephemeral={}), "volume c of type ephemeral"),
        ("/checkpoints", mounted(nfs={}), "no volumeMount of container trainer"),
        ("/cc", mounted(nfs={}), "no volumeMount of container trainer"),
        ("./c", mounted(nfs={}), "no volumeMount of container trainer"),
        ("s3://bucket/job", mounted(emptyDir={}), ""),
        ("gs://bucket/job", mounted(emptyDir={}), ""),
        ("file:///c/job", mounted(emptyDir={}), "volume c of type emptyDir"),
        ("file:///c/job", mounted(nfs={}), ""),
        ("memory://job", mounted(nfs={}), "ends with its process"),
    ],
)
def test_checkpoints_last_if_their_path_is_on_a_volume_that_lasts(make_spec, path, template, words):
    found = durability.problem(make_spec(checkpoint={"path": path}, template=template))
    assert words in found
    assert bool(found) is bool(words)


def test_invalid_template_is_not_judged(make_spec):
    trainer = {"name": "trainer", "image": "t", "command": ["x"], "volumeMounts": [{"name": "c"}]}
    template = {"spec": {"containers": [trainer]}}
    assert not durability.problem(make_spec(checkpoint={"path": "/c"}, template=template))


@pytest.mark.parametrize(("error", "reason"), [("", "NotDurable"), ("the disk is full", "SaveFailed")])
def test_condition_says_that_checkpoints_do_not_last_unless_the_last_save_failed(make_spec, error, reason):
    spec = make_spec(checkpoint={"path": "/c"}, template=mounted(emptyDir={}))
    seen = Observed(JOB, pods=(pod(0),), coordination=trained(0, saved=4, error=error))
    status = plan.plan(spec, JobStatus(), seen, NOW).status
    found = next(c for c in status.conditions if c.type == "CheckpointHealthy")
    assert (found.status, found.reason) == ("False", reason)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (CheckpointState(step=4, path="/c/4", archive_error="copying step 4: refused"), ("False", "CopyFailed")),
        (CheckpointState(resumed=Resumed(step=5, tier="memory", path="/dev/shm/x")), ("True", "Resumed")),
        (CheckpointState(step=4, path="/c/4"), ("True", "Saved")),
        (CheckpointState(), ("Unknown", "NoneYet")),
    ],
)
def test_condition_says_what_training_resumed_from_and_which_copy_failed(make_spec, state, outcome):
    spec = make_spec(checkpoint={"path": "s3://bucket/c"})
    known = trained(0)
    seen = replace(known, progress=known.progress.model_copy(update={"checkpoint": state}))
    planned = plan.plan(spec, JobStatus(), Observed(JOB, pods=(pod(0),), coordination=seen), NOW)
    found = next(c for c in planned.status.conditions if c.type == "CheckpointHealthy")
    assert (found.status, found.reason) == outcome
    events = [e.reason for e in planned.events]
    assert ("Resumed" in events) is (found.reason == "Resumed")
    assert ("CopyFailed" in events) is (found.reason == "CopyFailed")


# ---- a budget that cannot be written ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("unwritten", "status", "reason"),
    [
        ({BUDGET: "exceeded quota"}, "False", "WriteRefused"),
        ({MARKS: "denied by a policy"}, "False", "WriteRefused"),
        ({BUDGET: "exceeded quota", MARKS: "denied by a policy"}, "False", "WriteRefused"),
        ({SET: "denied by a policy"}, "False", "WriteRefused"),
        ({}, None, None),
    ],
    ids=["budget", "annotations", "both", "set of workers", "neither"],
)
def test_refused_protection_is_a_condition_and_an_event_with_the_api_server_s_words(
    make_spec, unwritten, status, reason
):
    seen = Observed(JOB, pods=(pod(0), pod(1)), coordination=trained(0, 1))
    made = plan.plan(make_spec(maxReplicas=2), JobStatus(), seen, NOW, LoopState(unwritten=dict(unwritten)))
    found = next((c for c in made.status.conditions if c.type == "StateProtected"), None)
    assert (found and found.status, found and found.reason) == (status, reason)
    assert not unwritten or next(iter(unwritten.values())) in found.message
    assert [e.reason for e in made.events if e.reason == reason] == ([reason] if reason else [])
    again = plan.plan(make_spec(maxReplicas=2), made.status, seen, NOW, LoopState()).status
    last = next((c for c in (again or made.status).conditions if c.type == "StateProtected"), None)
    assert (last and last.status) == ("True" if unwritten else None), "it is True once they are written"


@pytest.mark.parametrize("code", [403, 422, 500])
def test_refusal_is_kept_until_the_write_succeeds(code):
    errors = [ApiError("apply", code, "Forbidden", "exceeded quota: none")]

    class Answering(Api):
        async def apply(self, path, manifest):
            if errors:
                raise errors.pop()

    state = LoopState()
    asyncio.run(objects.write_budget(Answering(), JOB, DisruptionBudget((0,)), state))
    assert "exceeded quota: none" in state.unwritten[BUDGET]
    state.retries.clear()
    asyncio.run(objects.write_budget(Answering(), JOB, DisruptionBudget((0,)), state))
    assert not state.unwritten
