"""The values of :class:`elastrain.Job` that scripts read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from elastrain.elastic.body.bodies import Body
from elastrain.elastic.body.untracked import Untracked
from elastrain.elastic.commit.decide import Counts
from elastrain.elastic.contract import Call, Phase
from elastrain.elastic.group.shell import ExitRequested
from elastrain.elastic.group.world import World
from elastrain.elastic.loop import Loop
from elastrain.elastic.strategies.sharding.sharded import Sharded
from elastrain.elastic.strategies.strategy import Strategy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class JobValues:
    """What a rank's script reads of its job. They change at step boundaries only."""

    _world: World
    _loop: Loop
    _strategy: Strategy
    _device: torch.device
    _untracked: Untracked

    @property
    def rank(self) -> int:
        """Global rank in the generation in force; it changes with the generation.

        0 before the first generation; -1 in code between loops that the job has left before this process joined.
        """
        self._untracked.early("rank", self._loop.phase)
        return self._world.place.rank

    @property
    def world_size(self) -> int:
        """Ranks of the generation in force; 1 before the first."""
        self._untracked.early("world_size", self._loop.phase)
        return self._world.place.world_size

    @property
    def step(self) -> int:
        """Committed optimizer steps."""
        return self._world.step

    @property
    def epoch(self) -> int:
        """Epoch of the step that is being computed, from 0; 0 outside of a step."""
        return self._loop.step.parts[0].epoch if self._loop.step else 0

    @property
    def body(self) -> Body | None:
        """Which loop body runs: ``step``, ``execution``, ``micro_batch``, ``warm_up`` and ``samples``.

        None outside of one.

        For adapters. Two bodies with the same ``execution`` are micro-batches of one execution of a step.
        """
        return self._loop.bodies.present

    @property
    def switches(self) -> bool:
        """Whether the ranks have agreed, with this committed step, on another generation to go on in.

        For adapters: a rank that leaves may still run its loop body when the others have left it.
        """
        step = self._loop.step
        return step is not None and isinstance(step.outcome, Counts) and step.outcome.agreed is not None

    @property
    def device(self) -> torch.device:
        """The device for this rank's model: its CUDA device, by the local rank, or the CPU if there is none."""
        return self._device

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks of this rank's group, for ``fully_shard(layer, mesh=job.mesh)``: one dimension, ``dp_shard``.

        With ``spec.parallelism.mesh`` it has the dimensions of that, with ``tensor`` also ``tp``: first
        ``parallelize_module(layer, job.mesh["tp"], plan)``, then ``fully_shard(layer, mesh=job.mesh["dp_shard"])``.
        ``job.mesh.get_group("ep")`` is the group of a dimension. With ``shards: all`` it waits for the first
        generation, and changes with the number of ranks. Raises ``RuntimeError`` in a job without
        ``spec.parallelism.shards``, or whose script has called ``init_process_group``, and :class:`Drained`.
        """
        if not isinstance(self._strategy, Sharded):
            raise RuntimeError(
                "job.mesh: spec.parallelism.shards is 1, so each rank holds the whole model: set shards to the number "
                "of ranks that hold it together, or leave fully_shard out (docs/sharded.md)"
            )
        try:
            return self._strategy.mesh(self._device)
        except ExitRequested as e:
            raise self._loop.drained(str(e)) from None

    @property
    def committed(self) -> bool:
        """True in the loop body after the last :meth:`backward` of a step if this execution of it counts.

        Log metrics only then. With several micro-batches it is False before the last one.
        """
        return self._loop.phase is Phase.COMMITTED

    @property
    def synchronised(self) -> bool:
        """True in the loop body after the last :meth:`backward` of a step: gradients cover the whole global batch.

        :attr:`committed` tells whether the step counts.
        """
        return self._loop.phase in (Phase.WARM_UP, Phase.COMMITTED, Phase.DISCARDED)

    @property
    def loss(self) -> float | None:
        """In a loop body what its last :meth:`backward` returned; else that of the last committed step, or None."""
        return self._loop.loss

    @property
    def sums(self) -> Mapping[str, float]:
        """The sums of :meth:`Job.add` over the global batch of the last step that counts, by name."""
        return self._loop.sums.totals

    @property
    def chooses_batch(self) -> bool:
        """Whether the job has ``spec.batch``: a step then takes as many batches of the script as the ranks choose."""
        return self._loop.batch.small is not None

    @property
    def effective_samples(self) -> float:
        """Progress: the samples of all committed steps, each counted by what it was worth in its batch.

        Without ``spec.batch`` their number. The same on all ranks, and after a resume.
        """
        order = self._world.position.order
        return 0.0 if order is None else order.samples_before(self.step) - self._loop.batch.lost

    def acts(self, call: Call, name: str) -> bool:
        """Whether ``call`` of the contract acts now; for adapters, whose own calls keep to its table.

        ``name``: of the adapter's call, for the error. Raises ``RuntimeError`` with the phase and the way out.
        """
        return self._loop.contract.acts(call, name)
