"""One rank that trains a sharded model under elastrain and another one by plain FSDP2 over gloo, in turns.

Both variants live in one process, as in ``train``, but have a model each: FSDP2 binds parameters to one mesh. So the
control compares plain FSDP2 with itself. elastrain's votes are timed beside the blocks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import elastrain
from bench_harness import workload
from bench_steady.case import ENV_CASE, ENV_DIRECTORY, WARM_UP_STEPS, Case, Variant
from bench_steady.train import MANY, Plain, Steps, data, measure


class Ours:
    """Under elastrain, without checkpoints and audit log."""

    def __init__(self, job: elastrain.Job, case: Case) -> None:
        self._job = job
        self.votes: list[float] = []
        """Seconds of each vote, in order."""
        net, self._optimizer = workload.build_sharded(job.mesh)
        self._model = job.wrap(net, optimizer=self._optimizer)
        self._time_votes(self._model)
        loader = job.dataloader(data(case), global_batch_size=workload.GLOBAL_BATCH)
        self._steps = cast("Generator[Any, None, None]", job.steps(loader, steps=MANY))

    def _time_votes(self, model: Any) -> None:
        vote = model.vote

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            summed = vote(*arguments)
            self.votes.append(time.perf_counter() - began)
            return summed

        model.vote = timed

    def run(self, steps: int) -> None:
        for _ in range(steps):
            inputs, labels = next(self._steps)
            self._optimizer.zero_grad()
            self._job.backward(workload.loss(self._model, inputs, labels))
            self._optimizer.step()

    def end(self) -> None:
        """Commit the last step."""
        self._steps.close()


def plain_mesh(case: Case) -> DeviceMesh:
    """As a script without elastrain makes it: all ranks, or groups that replicate each other."""
    if case.nproc in {1, case.ranks}:
        return init_device_mesh("cpu", (case.ranks,))
    return init_device_mesh("cpu", (case.ranks // case.nproc, case.nproc), mesh_dim_names=("replicate", "shard"))


def main() -> None:
    case = Case.model_validate_json(os.environ[ENV_CASE])
    directory = Path(os.environ[ENV_DIRECTORY])
    with elastrain.join() as job:
        ours = Ours(job, case)
        while job.world_size < case.ranks or job.step < WARM_UP_STEPS:
            ours.run(1)
        store = dist.FileStore(str(directory / "plain-group"), case.ranks)
        dist.init_process_group("gloo", store=store, rank=job.rank, world_size=case.ranks)
        mesh = plain_mesh(case)
        variants: dict[Variant, Steps] = {"elastrain": ours}
        for variant in (case.subject, case.baseline):
            if variant not in variants:
                variants[variant] = Plain(case, job.rank, *workload.build_sharded(mesh))
                variants[variant].run(WARM_UP_STEPS)
        ours.votes.clear()
        before, place = job.step, (job.rank, job.world_size)
        measure(case, job.rank, variants, directory)
        done, expected = job.step - before, 2 * case.quads * case.block if case.subject == "elastrain" else 0
        if done != expected or (job.rank, job.world_size) != place:
            raise SystemExit(f"disturbed: {done} steps committed, expected {expected}, at {place} all the time")
        (directory / f"votes-{job.rank}.json").write_text(json.dumps(ours.votes))
        ours.end()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
