"""The health checks that docs/cluster.md has for Argo CD and Flux, over every state of a job: Argo's in Lua 5.1, whose
dialect Argo CD runs, Flux's in the CEL of an API server."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastrain.api import names
from elastrain.api.records import Outcome, Progress, Termination
from elastrain_resource.job import JobStatus
from elastrain_resource.schema.crd import crd
from job_world import JobWorld, template

pytestmark = pytest.mark.apiserver
PAGE = Path(__file__).parents[3] / "docs/cluster.md"
SCRIPT_FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom")
KILLED = Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled")


# ---- the states ------------------------------------------------------------------------------------------------------
def world(**spec: Any) -> JobWorld:
    return JobWorld(**{"minReplicas": 1, "replicas": 2, "maxReplicas": 4, "backoffLimit": 0, **spec})


def starting() -> JobWorld:
    job = world()
    job.operate()
    return job


def training(**spec: Any) -> JobWorld:
    job = world(**spec)
    job.settle()
    return job


def draining() -> JobWorld:
    job = training()
    job.fields["replicas"] = 1
    job.operate()
    job.operate()
    assert job.draining
    return job


def growing() -> JobWorld:
    job = training()
    job.fields["replicas"] = 4
    job.operate()
    job.operate()
    return job


def suspending() -> JobWorld:
    job = training(protectState=False)
    job.fields["suspend"] = True
    job.operate()
    job.operate()
    assert job.live()
    return job


def suspended() -> JobWorld:
    job = suspending()
    job.settle()
    return job


def without_etcd() -> JobWorld:
    job = training()
    job.reachable = False
    job.operate()
    return job


def after(ending: Termination) -> JobWorld:
    job = training()
    job.end("job-0", ending)
    job.operate()
    job.operate()
    return job


def finished() -> JobWorld:
    job = training()
    done = Progress(generation=1, world_size=2, members=2, step=9, finished=True)
    job.records = dataclasses.replace(job.records, progress=done)
    job.settle()
    return job


STATES: dict[str, tuple[Callable[[], JobWorld], str, str]] = {
    "starts": (starting, "Progressing", "in progress"),
    "trains": (training, "Healthy", "current"),
    "trains elastically": (lambda: training(replicas=None), "Healthy", "current"),
    "is drained": (draining, "Progressing", "in progress"),
    "grows": (growing, "Progressing", "in progress"),
    "is being suspended": (suspending, "Progressing", "in progress"),
    "is suspended": (suspended, "Suspended", "current"),
    "has lost a worker": (lambda: after(KILLED), "Progressing", "in progress"),
    "trains without etcd": (without_etcd, "Progressing", "in progress"),
    "has failed": (lambda: after(SCRIPT_FAILED), "Degraded", "failed"),
    "has finished": (finished, "Healthy", "current"),
}
each_state = pytest.mark.parametrize("state", STATES)


def body(status: JobStatus | None, generation: int = 1) -> dict[str, Any]:
    spec = {"maxReplicas": 4, "template": template()}
    found = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": spec}
    if status is not None:
        found["status"] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**found, "metadata": {"name": "job", "generation": generation}}


def shown(language: str, start: str) -> Any:
    """The example of the page that begins so."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [b for b in blocks if b.startswith(start)]
    return yaml.safe_load(block)


# ---- Argo CD ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def argo() -> Callable[[dict[str, Any]], tuple[str, str]]:
    """``argo(job)``: health and message."""
    lua = pytest.importorskip("lupa.lua51", reason="lupa is not installed: pip install 'elastrain[dev]'")
    ((key, script),) = shown("yaml", "resource.customizations").items()
    assert key == f"resource.customizations.health.{names.GROUP}_{names.KIND}"
    runtime = lua.LuaRuntime(unpack_returned_tuples=True)
    check = runtime.eval(f"function(obj) {script} end")

    def run(job: dict[str, Any]) -> tuple[str, str]:
        health = check(runtime.table_from(job, recursive=True))
        return health["status"], health["message"]

    return run


@each_state
def test_argo_shows_the_state_of_a_job_and_why(argo, state):
    make, expected, _ = STATES[state]
    job = make()
    health, message = argo(body(job.status))
    assert health == expected, job.status
    assert message in {c.message for c in job.status.conditions}


@pytest.mark.parametrize("status", [None, JobStatus()], ids=["no status", "empty status"])
def test_argo_waits_for_a_job_that_was_not_observed(argo, status):
    assert argo(body(status)) == ("Progressing", "not observed yet")


@each_state
def test_argo_believes_no_status_of_an_earlier_spec(argo, state):
    assert argo(body(STATES[state][0]().status, generation=2)) == ("Progressing", "not observed yet")


# ---- Flux ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def flux(apiserver) -> Iterator[Callable[[dict[str, Any]], str]]:
    """``flux(job)``: what its checks say, in Flux's order: failed first."""
    (check,) = shown("yaml", "healthCheckExprs")["healthCheckExprs"]
    assert (check["apiVersion"], check["kind"]) == (names.API_VERSION, names.KIND)
    definition = copy.deepcopy(crd())
    definition["metadata"] = {"name": "healthchecks.test.elastrain.dev"}
    definition["spec"]["group"] = "test.elastrain.dev"
    definition["spec"]["names"] = {"kind": "HealthCheck", "plural": "healthchecks", "singular": "healthcheck"}
    (version,) = definition["spec"]["versions"]
    version.pop("subresources")
    version.pop("additionalPrinterColumns", None)
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"] = {"status": schema["properties"]["status"]}
    schema.pop("required", None)
    rules = {name: check[name].replace("status.conditions", "self.status.conditions") for name in ("failed", "current")}
    schema["x-kubernetes-validations"] = [{"rule": f"!({r})", "message": f"<{name}>"} for name, r in rules.items()]
    made = apiserver.kubectl("apply", "--server-side", "-f", "-", document=definition)
    assert made.returncode == 0, made.stderr
    apiserver.kubectl("wait", "--for=condition=Established", f"crd/{definition['metadata']['name']}", "--timeout=30s")

    def run(job: dict[str, Any]) -> str:
        made = {"apiVersion": f"test.elastrain.dev/{names.VERSION}", "kind": "HealthCheck", "metadata": {"name": "job"}}
        made["status"] = job["status"]
        answer = apiserver.kubectl("create", "--dry-run=server", "-f", "-", document=made)
        assert answer.returncode == 0 or "<" in answer.stderr, answer.stderr
        return next((name for name in ("failed", "current") if f"<{name}>" in answer.stderr), "in progress")

    yield run
    apiserver.kubectl("delete", f"crd/{definition['metadata']['name']}", "--wait=false")


@each_state
def test_flux_knows_the_state_of_a_job(flux, state):
    make, _, expected = STATES[state]
    job = make()
    assert flux(body(job.status)) == expected, job.status
