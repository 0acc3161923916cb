"""Executing plans: the order of writes, and the state after a refusal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import pytest

from elastrain.api.records import Target
from elastrain.etcd import EtcdConfig, EtcdDenied, EtcdUnavailable
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import Deletion, DisruptionBudget, EndedMember, JobEvent, JobRef, RefusalKind, Still
from elastrain_operator.job.executor import Executor
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.job.statuses import status_patch
from elastrain_operator.kube.answers import NO_ANSWER, ApiError, unreachable
from elastrain_operator.metrics import process as metrics
from elastrain_operator.pod.manifest import owner
from elastrain_resource.job import Condition, JobStatus, LastRescale, ProgressStatus

JOB = JobRef("ns", "job", "uid", 1)
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))
TARGET = Target(min=1, max=4, desired=2)
EVERYTHING = Plan(
    status=JobStatus(phase="Running"),
    target=TARGET,
    create=(0, 1),
    delete=(Deletion("job-9", "uid-9", "drained"),),
    delete_job=True,
    events=(JobEvent("Scaling", "from 1 to 2"),),
)


class World:
    """API server and etcd that record writes; ``errors`` are raised once by the call of that name."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.pods: dict[str, dict] = {}
        self.versions: list[str | None] = []
        self.issued = False

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.errors:
            raise self.errors.pop(call)

    async def list_pages(self, *_):
        yield [], ""

    async def patch_status(self, namespace, name, status, version=None):
        self._note("status")
        self.versions.append(version)
        return "8"

    async def put_target(self, keys, target):
        self._note("target")

    def record(self, job, event):
        self._note(f"event {event.reason}")

    async def create_pod(self, namespace, manifest):
        name = manifest["metadata"]["name"]
        self._note(f"create {name}")
        if name in self.pods:
            raise ApiError("create", 409, "AlreadyExists", f'pods "{name}" already exists')
        stamp = datetime.now(UTC).isoformat()
        meta = {**manifest["metadata"], "uid": f"uid-{name}", "creationTimestamp": stamp}
        self.pods[name] = {**manifest, "metadata": meta}
        return self.pods[name]

    async def try_pod(self, namespace, manifest):
        self._note(f"try {manifest['metadata']['name']}")
        return manifest

    async def get_pod(self, namespace, name):
        return self.pods.get(name)

    async def delete_pod(self, namespace, name, uid, version=None):
        self._note(f"delete {name}" if version is None else f"delete {name} at {version}")

    async def delete_job(self, namespace, name, uid):
        self._note("delete job")

    async def keep(self, job, *, creating=False, live=False):
        self._note("keep creating" if creating else "keep live")
        await asyncio.sleep(0)

    def has_issued(self, job):
        return self.issued


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def execute(world, make_spec):
    def run(
        plan: Plan, state: LoopState | None = None, logins: World | None = None, job: JobRef = JOB, **spec
    ) -> LoopState:
        state = state or LoopState()
        asyncio.run(Executor(world, world, CONFIG, world, logins).execute(job, make_spec(**spec), plan, state))
        return state

    return run


def test_the_record_is_written_before_the_actions(world, execute):
    state = execute(EVERYTHING)
    assert world.calls[:2] == ["status", "event Scaling"]
    made = {"create job-0", "create job-1", "event WorkersCreated"}
    assert set(world.calls[2:-1]) == {*made, "target", "delete job-9"}
    assert world.calls.index("target") < world.calls.index("delete job-9"), "a leaving worker reads it before"
    assert world.calls[-1] == "delete job"
    assert state.status == EVERYTHING.status
    assert {pod.name for pod, _ in state.created.values()} == {"job-0", "job-1"}


def test_no_pod_waits_for_the_target_or_for_a_secret_that_its_job_has(world, execute):
    world.issued = True
    world.errors["target"] = EtcdUnavailable("etcd:2379", "write", "down")
    with pytest.raises(EtcdUnavailable):
        execute(EVERYTHING, logins=world)
    assert {"create job-0", "create job-1", "keep creating"} <= set(world.calls)
    assert "delete job-9" not in world.calls
    assert world.calls.index("create job-0") < world.calls.index("keep creating")


def test_first_pods_of_a_job_come_after_their_credentials(world, execute):
    execute(EVERYTHING, logins=world)
    assert world.calls.index("keep creating") < world.calls.index("create job-0")


def test_a_refused_secret_is_reported_beside_the_pods_that_were_created(world, execute):
    world.issued = True
    world.errors["keep creating"] = ApiError("write", 403, "Forbidden", "no")
    state = execute(Plan(create=(0, 1)), logins=world)
    assert state.refusal.kind is RefusalKind.CREDENTIALS
    assert (len(state.created), state.open_ordinals) == (2, ())


@pytest.mark.parametrize(("ready", "calls"), [("True", []), ("Unknown", ["delete job-0 at 7"]), (None, [])])
def test_a_worker_of_a_silent_node_is_deleted_only_if_it_is_still_not_ready(world, execute, ready, calls):
    """Its node may have come back since the watch showed it."""
    if ready:
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        world.pods["job-0"] = {"metadata": {"name": "job-0", "resourceVersion": "7"}, "status": status}
    execute(Plan(delete=(Deletion("job-0", "uid-0", "lost with its node", Still.NOT_READY),)))
    assert world.calls == calls


@pytest.mark.parametrize(
    ("state", "calls"),
    [
        ({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, []),
        ({"terminated": {"startedAt": "2026-01-01T00:00:00Z"}}, []),
        ({"waiting": {"reason": "ContainerCreating"}}, ["delete job-0 at 7"]),
    ],
)
def test_a_worker_that_never_started_is_deleted_only_if_it_has_not_started_by_now(world, execute, state, calls):
    """It may have started since it was seen, long ago if it has lost its labels."""
    meta = {"name": "job-0", "resourceVersion": "7"}
    status = {"containerStatuses": [{"name": "trainer", "state": state}]}
    world.pods["job-0"] = {"metadata": meta, "spec": {"containers": [{"name": "trainer"}]}, "status": status}
    execute(Plan(delete=(Deletion("job-0", "uid-0", "never started", Still.NOT_STARTED),)))
    assert world.calls == calls


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("status", ApiError("write", 0, "", "down")),
        ("status", ApiError("write", 409, "Conflict", "the object has been modified")),
    ],
)
def test_no_action_follows_if_the_record_could_not_be_written(world, execute, call, error):
    world.errors[call] = error
    with pytest.raises(type(error)):
        execute(EVERYTHING)
    assert world.calls[-1] == call


def test_ordinals_are_kept_for_their_pods_if_their_creation_fails(world, execute):
    world.errors["create job-0"] = ApiError("create", 0, "Unreachable", "down")
    state = LoopState()
    with pytest.raises(ApiError):
        execute(EVERYTHING, state)
    assert state.open_ordinals == EVERYTHING.create, "else each attempt during an outage uses up further numbers"
    execute(EVERYTHING, state)
    assert state.open_ordinals == ()


def test_start_is_one_event(world, execute):
    plan = Plan(target=TARGET, create=(0,), events=(JobEvent("TargetSet", "2 workers desired"),))
    execute(plan)
    assert world.calls == ["event TargetSet", "create job-0", "target"]


def test_status_is_written_only_if_the_job_is_unchanged(world, execute):
    state = execute(Plan(status=JobStatus(phase="Running")), LoopState(version="7"))
    execute(Plan(status=JobStatus(phase="Suspended")), state)
    assert world.versions == ["7", "8"]


def test_pods_are_deleted_although_the_creation_of_others_fails(world, execute):
    world.errors["create job-0"] = ApiError("create", 0, "Unreachable", "connection refused")
    with pytest.raises(ApiError):
        execute(Plan(create=(0,), delete=(Deletion("job-9", "uid-9", "drained"),)))
    assert "delete job-9" in world.calls, "its room is free for others"


def test_one_pod_is_tried_if_the_api_server_refuses_the_template(world, execute):
    world.errors["create job-0"] = ApiError("create", 422, "Invalid", "spec.containers[0].image: Required value")
    state = execute(Plan(create=(0, 1, 2)))
    assert world.calls == ["create job-0"]
    assert (state.refusal.kind, state.refusal.attempts, state.open_ordinals) == ("TemplateInvalid", 1, (0, 1, 2))
    assert "image: Required value" in state.refusal.message

    world.errors["create job-0"] = ApiError(
        "create", 403, "Forbidden", 'pods "job-0" is forbidden: exceeded quota: gpus', {"kind": "pods", "name": "job-0"}
    )
    execute(Plan(create=(0,)), state)
    assert (state.refusal.kind, state.refusal.attempts, state.open_ordinals) == ("QuotaExceeded", 2, (0, 1, 2))

    execute(Plan(create=(0,)), state)
    assert (state.refusal, state.open_ordinals) == (None, (1, 2))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiError("create secret ns/job-etcd-uid", 403, "Forbidden", "not allowed"), RefusalKind.CREDENTIALS),
        (EtcdDenied("etcd:2379", "root", "add a user", "permission denied"), "EtcdDenied"),
    ],
)
def test_no_pod_is_created_if_it_could_not_log_in_to_etcd(world, execute, error, reason):
    world.errors["keep creating"] = error
    state = execute(Plan(create=(0, 1)), logins=world)
    assert world.calls == ["keep creating"]
    assert (state.refusal.kind, state.refusal.message, state.open_ordinals) == (reason, str(error), (0, 1))
    execute(Plan(create=(0, 1)), state, logins=world)
    assert state.refusal is None


@pytest.mark.parametrize("error", [ApiError("x", 503, "", "busy"), EtcdUnavailable("etcd:2379", "add a user", "down")])
def test_creation_is_retried_with_the_same_ordinals_if_credentials_are_not_available_yet(world, execute, error):
    world.errors["keep creating"] = error
    state = LoopState()
    with pytest.raises(type(error)):
        execute(Plan(create=(0, 1)), state, logins=world)
    assert (world.calls, state.refusal, state.open_ordinals) == (["keep creating"], None, (0, 1))


def test_a_pod_of_an_earlier_creation_counts_as_created_if_its_response_was_lost(world, execute):
    execute(Plan(create=(0,)))
    state = execute(Plan(create=(0,)))
    assert (state.refusal, state.open_ordinals) == (None, ())
    assert len(state.created) == 1


@pytest.mark.parametrize("owners", [[], [owner(JobRef(JOB.namespace, JOB.name, "an-earlier-job"))]])
def test_ordinal_is_used_up_if_its_name_belongs_to_another_object(world, execute, owners):
    meta = {"name": "job-0", "namespace": JOB.namespace, "uid": "x", "ownerReferences": owners}
    world.pods["job-0"] = {"metadata": meta}
    state = execute(Plan(create=(0,)))
    assert (state.refusal.kind, state.open_ordinals) == (RefusalKind.NAME_TAKEN, ())


def test_others_of_the_pass_are_created_if_the_first_name_is_taken(world, execute):
    world.pods["job-0"] = {"metadata": {"name": "job-0", "namespace": JOB.namespace, "uid": "x"}}
    state = execute(Plan(create=(0, 1, 2)))
    assert {pod.name for pod, _ in state.created.values()} == {"job-1", "job-2"}


CONFLICT = ApiError(
    "create", 409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "q"', {"kind": "resourcequotas"}
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CONFLICT, RefusalKind.BUSY),
        (ApiError("create", 503, "", "busy"), RefusalKind.BUSY),
        (ApiError("create", 0, NO_ANSWER, "no answer within 12 s"), RefusalKind.BUSY),
        (
            ApiError("create", 409, "AlreadyExists", 'admission webhook "a" denied the request'),
            RefusalKind.ADMISSION_DENIED,
        ),
    ],
)
def test_ordinal_is_kept_and_the_reason_shown_if_the_api_server_refuses_for_a_while(world, execute, error, kind):
    world.errors["create job-0"] = error
    state = execute(Plan(create=(0, 1)))
    assert (state.refusal.kind, state.open_ordinals) == (kind, (0, 1))
    assert error.message in state.refusal.message


def test_a_closed_connection_is_named_and_the_pod_created_again_later(world, execute):
    world.errors["create job-0"] = unreachable("create", aiohttp.ServerDisconnectedError())
    state = execute(Plan(create=(0,)))
    assert state.refusal.kind is RefusalKind.BUSY
    assert "closed the connection" in state.refusal.message


def test_name_of_a_pod_that_is_gone_again_is_used_once_more(world, execute):
    world.errors["create job-0"] = ApiError("create", 409, "AlreadyExists", 'pods "job-0" already exists')
    state = execute(Plan(create=(0,)))
    assert (state.refusal.kind, state.open_ordinals) == (RefusalKind.BUSY, (0,))


def test_transient_error_is_raised_after_the_rest_was_done(world, execute):
    world.errors["create job-1"] = ApiError("create", 0, "Unreachable", "connection refused")
    state = LoopState()
    with pytest.raises(ApiError, match="connection refused"):
        execute(Plan(create=(0, 1, 2)), state)
    assert {pod.name for pod, _ in state.created.values()} == {"job-0", "job-2"}
    assert state.open_ordinals == (1,)


def test_status_patch_removes_what_is_absent_now():
    patch = status_patch(JobStatus(phase="Pending"))
    assert patch["phase"] == "Pending"
    assert patch["startTime"] is None
    assert patch["conditions"] == []


def test_status_patch_removes_what_is_absent_inside_objects_and_leaves_lists_alone():
    condition = Condition(type="Running", status="True", reason="Training", last_transition_time="t")
    patch = status_patch(JobStatus(progress=ProgressStatus(of=9), conditions=[condition]))
    assert (patch["progress"]["of"], patch["progress"]["eta"]) == (9, None), "an older estimate does not stay"
    assert None not in patch["conditions"][0].values()


def test_status_patch_keeps_no_phase_of_an_earlier_rescale():
    planned = LastRescale(from_=2, to=4, reason="Grow", pause_seconds=0.1, lost_steps=0, phases={"transfer": 0.05})
    phases = status_patch(JobStatus(last_rescale=planned))["lastRescale"]["phases"]
    assert phases == {"detect": None, "decide": None, "connect": None, "transfer": 0.05, "first_step": None}


def test_numbers_that_no_api_server_stores_are_cut():
    """A job's own records may contain any; a status that is refused would stop the job's scaling."""
    patch = status_patch(JobStatus(step=10**30, progress=ProgressStatus(of=-(10**30))))
    assert (patch["step"], patch["progress"]["of"]) == (2**63 - 1, -(2**63))


def test_pod_that_admission_has_renamed_is_deleted_and_reported(world, execute, monkeypatch):
    created = world.create_pod

    async def renamed(namespace, manifest):
        made = await created(namespace, manifest)
        return {**made, "metadata": {**made["metadata"], "name": "x-job-0"}}

    monkeypatch.setattr(world, "create_pod", renamed)
    state = execute(Plan(create=(0, 1)))
    assert world.calls == ["create job-0", "delete x-job-0"], "one shows it, and none is left that no pass would know"
    assert state.refusal.kind is RefusalKind.ADMISSION_DENIED
    assert "x-job-0" in state.refusal.message


# ---- a status that the API server refuses ----------------------------------------------------------------------------
HARMLESS = replace(EVERYTHING, ended=(EndedMember("m", 7),), budget=DisruptionBudget((0,)))


@pytest.fixture
def refusing(world, monkeypatch):
    """``refusing(code, short=...)``: the API server refuses statuses, and with ``short`` also the short ones; returns
    what it stores."""

    def begin(code: int, *, short: bool) -> list[dict]:
        stored: list[dict] = []

        async def patch_status(namespace, name, status, version=None):
            world.calls.append("short" if len(status) < 10 else "status")
            if len(status) >= 10 or short:
                raise ApiError("write the status", code, "Invalid", "status.step: too large")
            stored.append(status)
            return "9"

        async def write(*_):
            world.calls.append("beside")

        monkeypatch.setattr(world, "patch_status", patch_status)
        monkeypatch.setattr(world, "apply", write, raising=False)
        monkeypatch.setattr(world, "end_leases", write, raising=False)
        return stored

    return begin


@pytest.mark.parametrize("code", [400, 403, 413, 422, 500])
@pytest.mark.parametrize("short", [False, True], ids=["short form stored", "short form refused"])
def test_refused_status_stops_only_what_needs_its_record(world, execute, refusing, code, short):
    refusing(code, short=short)
    counted, state = metrics.STATUSES_REFUSED._value.get(), LoopState()
    with pytest.raises(ApiError):
        execute(HARMLESS, state)
    assert world.calls[:4] == ["beside", "status", "event StatusRefused", "short"], "leases of the dead end first"
    assert set(world.calls[4:]) == {"target", "beside"}, "no pod comes or goes, and the job stays"
    assert metrics.STATUSES_REFUSED._value.get() == counted + 1
    assert not state.open_ordinals
    assert state.status is None


@pytest.mark.parametrize("code", [0, 401, 409, 429, 503])
def test_answer_of_the_moment_stops_the_pass_and_is_no_refusal(world, execute, refusing, code):
    refusing(code, short=True)
    with pytest.raises(ApiError):
        execute(HARMLESS)
    assert world.calls == ["beside", "status"]


@pytest.mark.parametrize("fields", [{"leaving": ("job-1",)}, {"desired": 0}])
def test_nobody_is_asked_to_leave_without_a_record_of_it(world, execute, refusing, fields):
    refusing(422, short=False)
    with pytest.raises(ApiError):
        execute(replace(EVERYTHING, target=TARGET.model_copy(update=fields)))
    assert "target" not in world.calls


def test_no_stored_status_reads_as_if_all_train_and_is_older_than_that(world, execute, refusing):
    stored, state = refusing(422, short=False), LoopState(status=JobStatus(phase="Running", ready_replicas=2))
    since = "2030-01-01T00:00:00+00:00"
    words = {"reason": "AllTrain", "message": "2 of 2 workers train", "lastTransitionTime": since}
    trains = Condition.model_validate({"type": "PodsReady", "status": "True", **words})
    status = JobStatus(phase="Running", ready_replicas=2, step=7, conditions=[trains])
    for ready in (2, 2, 1):
        with pytest.raises(ApiError):
            execute(Plan(status=status.model_copy(update={"ready_replicas": ready})), state)
    assert [s["readyReplicas"] for s in stored] == [2, 1], "written again only if it has changed"
    (condition,) = stored[0]["conditions"]
    assert (condition["status"], condition["reason"]) == ("Unknown", "StatusRefused")
    assert "status.step: too large" in condition["message"]
    assert state.status.conditions[0].reason == "StatusRefused", "the next status is compared with what is stored"
    assert world.calls.count("event StatusRefused") == 1


def test_status_is_whole_again_once_it_is_admitted(world, execute, refusing, monkeypatch):
    state = LoopState()
    with monkeypatch.context() as patched:
        patched.setattr(world, "patch_status", world.patch_status)
        refusing(422, short=False)
        with pytest.raises(ApiError):
            execute(EVERYTHING, state)
    monkeypatch.undo()
    execute(EVERYTHING, state)
    assert (state.short_status, state.status) == ({}, EVERYTHING.status)
