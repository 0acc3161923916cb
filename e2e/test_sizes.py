"""Sizes by measured speed: three real jobs share two nodes, and those that more workers make faster have more GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import release
from harness.commands import eventually, kubectl, run
from harness.example import digits
from harness.jobs import START, Audit, Job, make_folders

pytestmark = [pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(1200, func_only=True)]
Submit = Callable[[dict[str, Any]], Job]
PER_NODE = 4
GPUS = PER_NODE * len(release.WORKER_NODES)
FIXED = {"flat": 0.9, "half": 0.5, "well": 0.0}
"""Seconds of a step that more workers do not shorten, of one second with one worker. In the order of arrival. The sizes
that they have had on one node and on several do not tell a fixed part from the network: they try smaller ones."""
TRIALS = 400
"""Seconds until sizes have settled. A trial waits until its job is as old as 150 of its pauses, and lasts until some
steps are measured."""
AT_REST = {"OthersGainMore", "NotFaster", "NoRoom"}
"""Reasons of ``Grown`` that no time or measurement alone will change."""
TRAIN = """
import os, time
import torch, elastrain
from train import digits, network

fixed = float(os.environ["FIXED_SECONDS"])
torch.manual_seed(0)
train_set, _, _ = digits()
with elastrain.join() as job:
    net = network()
    model = job.wrap(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    job.track(optimizer=optimizer)
    for images, labels in job.steps(job.dataloader(train_set, global_batch_size=64, seed=0), epochs=100_000):
        job.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(fixed + (1 - fixed) * len(images) / 64)  # each rank has its part of the 64 samples
"""


@pytest.fixture
def efficient(installed: None, namespace: str) -> Iterator[None]:
    """More GPUs, and sizes by measured speed; afterwards nodes and release as others want them."""
    try:
        for node in release.WORKER_NODES:
            release.advertise_gpus(node, PER_NODE)
        release.install(capacity={"sharing": "efficient", "hysteresisSeconds": 5})
        yield
    finally:
        kubectl("delete", "etj", "--all", "-n", namespace, "--wait", "--timeout=60s")
        for node in release.WORKER_NODES:
            release.advertise_gpus(node)
        release.install()


def test_sizes_settle_by_the_speeds_that_the_jobs_have_measured(
    efficient: None, submit: Submit, namespace: str
) -> None:
    jobs: dict[str, Job] = {}
    for name, fixed in FIXED.items():
        make_folders(namespace, f"{name}/")
        jobs[name] = submit(manifest(name, fixed))
        jobs[name].wait_condition("Running", timeout=START)
        least = 4 if name == "flat" else 2
        eventually(
            f"{name} has measured {least} workers", lambda j=jobs[name], n=least: max(measured(j), default=0) >= n, 120,
            jobs[name].summary,
        )  # fmt: skip

    def settled() -> bool:
        sizes = trains(jobs)
        used = sum(sizes.values())  # one may be left if the next growth that pays takes two
        at_rest = all(job.condition("Grown").get("reason") in AT_REST for job in jobs.values())
        return at_rest and used >= GPUS - 1 and sizes["flat"] <= 2 <= sizes["half"] <= sizes["well"]

    eventually("GPUs train, most of them where they help most", settled, TRIALS, lambda: told(jobs))
    for job in jobs.values():
        job.wait_steps(20, timeout=90)
    eventually("they still do", settled, TRIALS, lambda: told(jobs))
    sizes = trains(jobs)
    assert sizes["well"] > sizes["flat"]
    for name, job in jobs.items():
        eventually("its size is measured", lambda j=job: trains({"": j})[""] in measured(j), 60, job.summary)
        assert all(seconds >= FIXED[name] for seconds in measured(job).values()), "a step is faster than its fixed part"
        assert job.condition("Grown")["status"] == "False"
        assert "not grown" in run("elastrain", "explain", name, "-n", namespace).stdout
        assert job.status["generation"]["number"] <= 12, f"{name} was resized too often"
    audits = {name: audit(job) for name, job in jobs.items()}
    assert all((a["lost"], a["repeated"], a["redone"]) == (0, 0, 0) for a in audits.values()), audits


def manifest(name: str, fixed: float) -> dict[str, Any]:
    """A job of one to eight workers without ``replicas``: the operator decides on its size."""
    made = digits(name, gpus=1, place=f"{name}/", command=["python", "-c", TRAIN], minReplicas=1, maxReplicas=GPUS)
    del made["spec"]["replicas"]
    trainer = made["spec"]["template"]["spec"]["containers"][0]
    trainer["env"] += [{"name": "FIXED_SECONDS", "value": str(fixed)}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    return made


def trains(jobs: dict[str, Job]) -> dict[str, int]:
    """Workers that train, by job."""
    return {name: int(job.status.get("readyReplicas") or 0) for name, job in jobs.items()}


def measured(job: Job) -> dict[int, float]:
    """Seconds of a step by the sizes that the job has had, the shortest of several placements."""
    found: dict[int, float] = {}
    for size in job.status.get("measuredSizes", []):
        found[size["workers"]] = min(found.get(size["workers"], size["stepSeconds"]), size["stepSeconds"])
    return found


def audit(job: Job) -> dict[str, Any]:
    kubectl("delete", "-n", job.namespace, f"etj/{job.name}", "--wait", "--timeout=60s")
    eventually("all pods are gone", lambda: not job.pods, 60)
    return Audit.of(job, f"{job.name}/")


def told(jobs: dict[str, Job]) -> str:
    return "\n".join(f"{name}: {measured(job)}\n{job.summary()}" for name, job in jobs.items())
