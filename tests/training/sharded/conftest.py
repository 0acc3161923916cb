"""A whole job of a sharded model: real etcd, real agents of two ranks each, which are one group."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.settings import CheckpointSpec, DivergenceSpec, RankSettings, ShareRule, shape_fields
from elastrain.api.shape import SHARDS, Shape
from elastrain_audit.judge import verify
from elastrain_cli.etcd_server import EtcdServer
from elastrain_resource import manifest
from real_job import Job
from sharded_model import SCRIPT
from warm import Warm

RANKS = 2
"""Of a group."""


class ShardedJob(Job):
    """Each worker is one group."""

    nproc = RANKS
    shares = ShareRule.EQUAL

    def start(
        self,
        *workers: str,
        steps: int = 40,
        delay: float = 0.3,
        checkpoint: CheckpointSpec | None = None,
        **options: str,
    ) -> None:
        command = [sys.executable, str(SCRIPT), str(self.folder), str(steps), str(delay)]
        settings = self.settings().model_copy(update={"checkpoint": checkpoint})
        environment = {names.ENV_NPROC: str(self.nproc), "SHARDS": str(settings.shards), **settings.to_environment()}
        super().start(*workers, command=command, **environment, **options)

    def settings(self) -> RankSettings:
        return RankSettings(shards=self.nproc, shares=self.shares)

    def kill_all(self) -> None:
        """Agents and ranks, at once."""
        for worker in self.workers.values():
            worker.signal(signal.SIGKILL)
            worker.process.wait(10)

    def pids(self, worker: str) -> dict[str, int]:
        """Of its ranks' newest processes, by local rank."""
        return self[worker].log("ranks started")[-1]["pids"]

    def kill(self, worker: str, local: int, how: int = signal.SIGKILL) -> None:
        os.kill(self.pids(worker)[str(local)], how)

    def ask(self, what: str, *ranks: tuple[str, int], step: int = 0) -> list[Path]:
        """Have the script of each (worker, local rank) do it (see there), from ``step`` on; the orders as files."""
        paths = [self.folder / f"{worker}.{local}.{what}" for worker, local in ranks]
        for path in paths:
            path.with_suffix(".new").write_text(str(step))
            path.with_suffix(".new").rename(path)
        return paths

    def order(self, what: str, *ranks: tuple[str, int], step: int = 0) -> None:
        """As :meth:`ask`; returns when they have done it."""
        paths = self.ask(what, *ranks, step=step)
        self.wait(f"{ranks} to {what}", lambda: not any(path.exists() for path in paths))

    def run_to_the_end(self, *workers: str) -> None:
        """Let them run freely until all have finished. Nothing is late while steps are committed."""
        (self.folder / "run-free").touch()

        def ended() -> bool:
            return all(self[w].process.poll() is not None for w in workers)

        while not ended():
            step = self.last_step()
            self.wait("all to end, or the next step", lambda step=step: ended() or self.last_step() > step, pause=0.2)
        assert [self[w].ends().outcome for w in workers] == ["finished"] * len(workers), self.story()

    def finish(self, *workers: str) -> dict[str, list[dict]]:
        """Let them run freely to the end; what the ranks of each group have saved, by shard."""
        import torch

        self.run_to_the_end(*workers)
        return {w: [torch.load(self.folder / f"final-{w}-{n}.pt") for n in range(self.nproc)] for w in workers}


class TensorJob(ShardedJob):
    """Each worker is one group, whose ranks compute the inner layer together in twos."""

    tensor = 2

    def start(self, *workers: str, **options: Any) -> None:
        super().start(*workers, **{"TENSOR": str(self.tensor), **options})

    def settings(self) -> RankSettings:
        return RankSettings(shards=self.nproc, tensor=self.tensor)


class GroupsOfWorkersJob(ShardedJob):
    """A group has two workers of one rank each: ``a0`` and ``a1`` are group a. The test wants whole groups."""

    nproc = 1

    def want(self, desired: int, **fields: object) -> None:
        super().want(desired * RANKS, **{"min": RANKS, **fields})

    def start(self, *workers: str, **options: object) -> None:
        for worker in workers:
            own = {names.ENV_GROUP: str(ord(worker[0])), names.ENV_PLACE: worker[1]}
            super().start(worker, **own, **options)

    def settings(self) -> RankSettings:
        return RankSettings(shards=RANKS, shares=self.shares)

    def groups(self) -> list[str]:
        """Of the newest generation, in rank order; fails the test if one is not whole."""
        workers = [m.worker for m in self.generation().members]
        assert [w[1] for w in workers] == ["0", "1"] * (len(workers) // RANKS), workers
        return [w[0] for w in workers[::RANKS]]

    def of_groups(self, *groups: str) -> dict[str, list[dict]]:
        """As :meth:`finish`; by group, its shards."""
        ends = self.finish(*(f"{g}{n}" for g in groups for n in range(RANKS)))
        return {g: [ends[f"{g}{n}"][0] for n in range(RANKS)] for g in groups}


class OneCopyJob(ShardedJob):
    """One copy of the model over all ranks; each worker is one of them."""

    nproc = 1
    max_redone_steps = 4

    def settings(self) -> RankSettings:
        return RankSettings(shards="all", max_redone_steps=self.max_redone_steps)

    def redone(self) -> int:
        """Steps that were committed more than once; fails the test if a sample was lost or repeated otherwise."""
        verdict = verify(self.audit)
        assert verdict.ok, verdict.problems
        return verdict.redone

    def parts(self, *workers: str) -> list[dict]:
        """As :meth:`finish`: what the ranks have saved, by shard."""
        ends = [end for ends in self.finish(*workers).values() for end in ends]
        return sorted(ends, key=lambda end: end["place"])


class ShapeJob(ShardedJob):
    """Runs an example. Each worker is one group: two ranks along its dimension, times ``shards``."""

    example, shards = Path(), 1

    def start(
        self,
        *workers: str,
        steps: int = 40,
        delay: float = 0.3,
        checkpoint: CheckpointSpec | None = None,
        every: int = 100,
        **options: str,
    ) -> None:
        script = str(SCRIPT.with_name("train_shape.py"))
        command = [sys.executable, script, str(self.example), str(self.folder), str(steps), str(delay)]
        settings = self.settings().model_copy(
            update={"checkpoint": checkpoint, "divergence": DivergenceSpec(every_steps=every)}
        )
        nproc = str(self.shape.size)
        environment = {names.ENV_NPROC: nproc, names.ENV_BACKEND: "gloo", **settings.to_environment()}
        Job.start(self, *workers, command=command, **environment, **options)

    @property
    def shape(self) -> Shape:
        """Of the example's mesh, whose ``dp_shard`` has one rank, with ``shards`` ranks there."""
        shape = manifest.load(self.example.with_name("job.yaml")).spec.shape
        return Shape(tuple(d._replace(size=self.shards) if d.name == SHARDS else d for d in shape.dimensions))

    def settings(self) -> RankSettings:
        return RankSettings(**shape_fields(self.shape))

    def ends(self, *workers: str) -> list[dict]:
        """What the ranks have saved, by rank, after they have run freely to the end."""
        import torch

        self.run_to_the_end(*workers)
        return [torch.load(self.folder / "out" / f"{rank}.pt") for rank in range(self.shape.size * len(workers))]


def fixture_of(kind: type[ShardedJob]) -> Any:
    @pytest.fixture
    def started(warm: Warm, tmp_path: Path, etcd: EtcdServer, job_keys: JobKeys) -> Iterator[ShardedJob]:
        job = kind(warm, tmp_path, etcd, job_keys)
        yield job
        job.close()
        shutil.rmtree(names.node_memory(job_keys.uid), ignore_errors=True)

    return started


job, one_copy, tensor_job, groups = map(fixture_of, (ShardedJob, OneCopyJob, TensorJob, GroupsOfWorkersJob))
shape_job = fixture_of(ShapeJob)
