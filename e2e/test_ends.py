"""A job is finished when its script is: what rank 0 does after training is done, whatever happens to rank 0's pod."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.commands import eventually, kubectl
from harness.example import digits
from harness.jobs import RESCALE, START, Audit, Job

Submit = Callable[[dict[str, Any]], Job]
STEPS = 40
TRAIN = f"""
import os, time
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
net = nn.Linear(6, 3)
with elastrain.join() as job:
    model = job.wrap(net, optimizer=(optimizer := torch.optim.SGD(net.parameters(), lr=0.1)))
    for x, y in job.steps(job.dataloader(data, global_batch_size=12, seed=3), steps={STEPS}):
        job.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    if job.rank == 0:
        open(f"/checkpoints/saves-{{os.environ['ELASTRAIN_WORKER']}}", "w").close()
        while not os.path.exists("/checkpoints/may-end"):
            time.sleep(0.05)
        torch.save({{"step": job.step, "model": net.state_dict()}}, "/checkpoints/model.tmp")
        os.rename("/checkpoints/model.tmp", "/checkpoints/model.pt")
"""


def saving(folder: Path) -> list[str]:
    """The workers whose rank 0 has begun to save, in no order."""
    return [file.name.removeprefix("saves-") for file in folder.glob("saves-*")]


def test_the_model_is_written_from_the_final_state_if_the_pod_of_rank_0_is_lost_while_it_saves(submit: Submit) -> None:
    both = {"minReplicas": 2, "replicas": 2}  # one worker alone would train so few steps before the other has started
    job = submit(digits("ends", command=["python", "-c", TRAIN], successPolicy="RankZero", **both))
    folder = job.volume / "checkpoints"
    eventually("rank 0 saves", lambda: saving(folder), START, job.summary)
    (first,) = saving(folder)
    assert not job.holds("Succeeded"), "the job is finished before its script"

    kubectl("delete", "pod", "-n", job.namespace, first, "--grace-period=0", "--force")
    eventually("another worker's rank 0 saves", lambda: len(saving(folder)) == 2, RESCALE, job.summary)
    assert not (folder / "model.pt").exists()
    (folder / "may-end").touch()

    job.wait_success()
    assert (folder / "model.pt").stat().st_size > 0
    assert job.status["step"] == STEPS
    audit = Audit.of(job)
    assert (audit["steps"], audit["lost"], audit["repeated"], audit["redone"]) == (STEPS, 0, 0, 0)
