"""A finished job's script has finished: rank 0's work after training ends on a rank that holds the final state.

Real workers and ranks (``train_end.py``); the victim is at work after training when it is killed or asked to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml

from conditions import eventually
from elastrain_audit.judge import verify
from elastrain_cli.local.runner import LocalJob
from warm import Warm

SCRIPT = Path(__file__).with_name("train_end.py")
STEPS, PATIENCE = 24, 120.0


class Ending:
    """One job, up to the work of rank 0 after its training."""

    def __init__(self, job: LocalJob, out: Path) -> None:
        self.job, self.out = job, out

    def at_work(self) -> list[str]:
        """Workers that have begun the work, in order; a worker that has begun it twice is named twice."""
        begun = sorted(self.out.glob("saves-*"), key=lambda path: path.stat().st_mtime_ns)
        return [path.name.removeprefix("saves-").rpartition("-")[0] for path in begun]

    def begins(self, times: int = 1) -> str:
        """Wait until rank 0 is at work for the ``times``-th time; its worker."""
        eventually(lambda: len(self.at_work()) >= times, PATIENCE, lambda: f"work begun {times} times\n{self.story()}")
        return self.at_work()[-1]

    def loses(self, worker: str, what: Literal["rank", "agent", "worker"]) -> None:
        self.job.kill_worker(worker, what)

    def holds(self, count: int) -> None:
        """Wait until so many workers hold the final state."""
        eventually(
            lambda: sum(m.phase == "finished" for m in self.job.members().values()) >= count,
            PATIENCE,
            lambda: f"{count} holders\n{self.story()}",
        )

    def finishes(self) -> dict[str, Any]:
        """Let the work end; returns what it saved."""
        (self.out / "run-free").touch()
        status = self.job.wait(timeout=PATIENCE)
        assert (status.phase, self.job.message) == ("Succeeded", ""), self.story()
        assert (self.out / "model.pt").exists(), "the job has finished, and its script has not: there is no model"
        found = verify(self.job.audit_dir)
        assert found.ok, found.problems
        assert found.redone == 0, "steps were trained again while a peer held the state"
        return torch.load(self.out / "model.pt")

    def story(self) -> str:
        return "\n".join(
            f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:]
            for path in sorted(self.job.logs_dir.glob("*"))
        )


@pytest.fixture
def start(tmp_path: Path, warm_agents: Warm) -> Iterator[Callable[..., Ending]]:
    """``start(shape, replicas, **environment)``: a job; ``checkpoint=True``: with checkpoints."""
    jobs: list[LocalJob] = []

    def run(shape: str, replicas: int = 2, *, checkpoint: bool = False, limit: int = 6, **environment: str) -> Ending:
        variables = {"SHAPE": shape, "OMP_NUM_THREADS": "1", **environment}
        container = {
            "name": "trainer",
            "image": "example/trainer:1",
            "command": ["python", str(SCRIPT), str(tmp_path), str(STEPS), "0.01"],
            "env": [{"name": key, "value": value} for key, value in variables.items()],
        }
        # No worker may train the few steps before the others are there.
        spec: dict[str, Any] = {"minReplicas": replicas, "replicas": replicas, "maxReplicas": 4, "backoffLimit": limit}
        if checkpoint:
            spec["checkpoint"] = {"path": str(tmp_path / "checkpoints"), "everySteps": 10}
        document = {
            "apiVersion": "elastrain.dev/v1alpha1",
            "kind": "ElasticTrainingJob",
            "metadata": {"name": "ends"},
            "spec": {**spec, "template": {"spec": {"containers": [container]}}},
        }
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(document))
        jobs.append(LocalJob(path, lease_ttl=2, state_dir=tmp_path / "state"))
        return Ending(jobs[-1].__enter__(), tmp_path)

    yield run
    for job in jobs:
        job.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("shape", "what"), [("inside", "rank"), ("after", "worker")], ids=["inside-rank", "after-worker"]
)
def test_model_is_saved_if_rank_0_is_killed_while_it_saves(start, shape, what) -> None:
    """Code behind the loop, which runs again, begins with the state that the loop has left."""
    ending = start(shape, CHANGES="1")
    victim = ending.begins()
    if shape == "after":
        ending.holds(2)
    ending.loses(victim, what)
    ending.begins(2)
    saved = ending.finishes()
    assert (saved["step"], saved["rate"]) == (STEPS, 0.01 * 0.5)
    first, second = [torch.load(path)["model"] for path in ending.out.glob("state-*")]
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert saved["seen"] == ({"seen": 96} if shape == "inside" else {})


@pytest.mark.nightly
@pytest.mark.parametrize("checkpoint", [False, True], ids=["none", "checkpoints"])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("what", ["rank", "agent", "worker"])
@pytest.mark.parametrize("shape", ["inside", "after"])
def test_model_is_saved_whatever_of_rank_0_is_killed(start, shape, what, replicas, checkpoint) -> None:
    ending = start(shape, replicas, checkpoint=checkpoint)
    ending.loses(ending.begins(), what)
    ending.begins(2)
    assert ending.finishes()["step"] == STEPS


@pytest.mark.nightly
@pytest.mark.parametrize("shape", ["inside", "after"])
def test_model_is_saved_if_the_next_rank_0_is_killed_too(start, shape) -> None:
    ending = start(shape, 3, LOOPS="3")
    ending.loses(ending.begins(), "rank")
    ending.loses(ending.begins(2), "rank")
    ending.begins(3)
    assert ending.finishes()["step"] == STEPS
