"""One rank that trains the same model under elastrain and without it, in turns, and writes the time of each block.

Both variants live in one process and train the same parameters with the same optimizer: they share the machine, its
caches, its disturbances and the placement of their memory. (With a model each, plain DDP differed from itself by 2 %.)
Each has its own data loader and, over more than one rank, its own buckets and a gloo group. A DDP ignores a backward
that did not begin with its own forward.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import elastrain
from bench_harness import workload
from bench_steady.case import ENV_CASE, ENV_DIRECTORY, WARM_UP_STEPS, Block, Case, Variant, order

MANY = 10**9
EPOCHS_IN_ONE = 256


class Steps(Protocol):
    """One variant."""

    def run(self, steps: int) -> None:
        """Train so many steps."""


class Ours:
    """Under elastrain, without checkpoints and audit log."""

    def __init__(self, job: elastrain.Job, case: Case) -> None:
        self._job = job
        self.net, self.optimizer = build(case)
        self._model = job.wrap(self.net)
        job.track(optimizer=self.optimizer)
        loader = job.dataloader(data(case), global_batch_size=workload.GLOBAL_BATCH)
        self._steps = cast("Generator[Any, None, None]", job.steps(loader, steps=MANY))
        self._kept = case.kept

    def run(self, steps: int) -> None:
        self._job._loop.leaves.note()  # what the other variant trains is no change of the script's own
        for _ in range(steps):
            inputs, labels = next(self._steps)
            if self._job.step % self._kept == 0:
                self.optimizer.zero_grad()
            self._job.backward(workload.loss(self._model, inputs, labels))
            if (self._job.step + 1) % self._kept == 0:
                self.optimizer.step()

    def end(self) -> None:
        """Commit the last step."""
        self._steps.close()


class Plain:
    """As in a script without elastrain: a ``DataLoader`` with a ``DistributedSampler``, and DDP or no wrapper."""

    def __init__(self, case: Case, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer``: tracked by elastrain; here torch's own methods are called on it."""
        self._model = model
        self._zero_grad = functools.partial(torch.optim.Adam.zero_grad, optimizer)
        self._step = functools.partial(torch.optim.Adam.step, optimizer)
        self._batches = self._endless(case, rank)
        self._done, self._kept = 0, case.kept

    @staticmethod
    def _endless(case: Case, rank: int) -> Iterator[Any]:
        of = data(case)
        sampler = DistributedSampler(of, num_replicas=case.ranks, rank=rank)
        loader = DataLoader(of, batch_size=workload.GLOBAL_BATCH // case.ranks, sampler=sampler)
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    def run(self, steps: int) -> None:
        for _ in range(steps):
            inputs, labels = next(self._batches)
            if self._done % self._kept == 0:
                self._zero_grad()
            workload.loss(self._model, inputs, labels).backward()
            self._done += 1
            if self._done % self._kept == 0:
                self._step()


def build(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of the workload with its optimizer."""
    if case.workload == "perceptron":
        return workload.build()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, workload.CLASSES))
    model.to(workload.device())
    return model, torch.optim.Adam(model.parameters(), lr=1e-4)


def plain_model(variant: Variant, net: nn.Module) -> nn.Module:
    """``net`` as a script without elastrain trains it."""
    return net if variant == "bare" else DistributedDataParallel(net, gradient_as_bucket_view=variant == "views")


def data(case: Case) -> Dataset[Any]:
    """Its data, the same for both variants."""
    if case.workload == "perceptron":
        return Repeated(workload.data())
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(workload.SAMPLES, 32, generator=generator)
    return Repeated(TensorDataset(inputs, torch.randint(0, workload.CLASSES, (workload.SAMPLES,), generator=generator)))


class Repeated(Dataset[Any]):
    """A data set many times over, so that the end of an epoch is as rare as in a real job."""

    def __init__(self, once: TensorDataset) -> None:
        self._once = once

    def __len__(self) -> int:
        return EPOCHS_IN_ONE * len(self._once)

    def __getitem__(self, index: int) -> Any:
        return self._once[index % len(self._once)]


def main() -> None:
    case = Case.model_validate_json(os.environ[ENV_CASE])
    directory = Path(os.environ[ENV_DIRECTORY])
    with elastrain.join() as job:
        ours = Ours(job, case)
        while job.world_size < case.ranks or job.step < WARM_UP_STEPS:
            ours.run(1)
        store = dist.FileStore(str(directory / "plain-group"), case.ranks)
        dist.init_process_group("gloo", store=store, rank=job.rank, world_size=case.ranks)
        variants: dict[Variant, Steps] = {"elastrain": ours}
        for variant in (case.subject, case.baseline):
            if variant not in variants:
                variants[variant] = Plain(case, job.rank, plain_model(variant, ours.net), ours.optimizer)
                variants[variant].run(WARM_UP_STEPS)
        before, place = job.step, (job.rank, job.world_size)
        measure(case, job.rank, variants, directory)
        done, expected = job.step - before, 2 * case.quads * case.block if case.subject == "elastrain" else 0
        if done != expected or (job.rank, job.world_size) != place:
            raise SystemExit(f"disturbed: {done} steps committed, expected {expected}, at {place} all the time")
        ours.end()
        dist.destroy_process_group()


def measure(case: Case, rank: int, variants: Mapping[Variant, Steps], directory: Path) -> None:
    """All blocks, written to ``blocks-RANK.jsonl`` at the end: a write in between would disturb."""
    blocks = []
    for number, variant in enumerate(order(case)):
        dist.barrier()  # both variants' blocks begin together on all ranks
        wall, cpu = time.perf_counter(), time.process_time()
        variants[variant].run(case.block)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        blocks.append(Block(rank=rank, number=number, variant=variant, steps=case.block, wall=wall, cpu=cpu))
        if number == 0:
            (directory / f"began-{rank}").touch()
    (directory / f"blocks-{rank}.jsonl").write_text("".join(b.model_dump_json() + "\n" for b in blocks))


if __name__ == "__main__":
    main()
