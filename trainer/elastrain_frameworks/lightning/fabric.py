"""Lightning Fabric on an elastic job, rescaled in process: needs ``elastrain[lightning]``.

::

    with elastrain.join() as job:
        fabric = Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(job))
        model, optimizer = fabric.setup(net, optimizer)
        loader = job.dataloader(dataset, global_batch_size=64)
        for batch in job.steps(loader, epochs=10):
            loss = ...
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

In Fabric the script owns the loop, so the job can provide it. Lightning's Trainer counts each execution of a step and
fetches the next batch before the present step ends.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import SingleDeviceStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import nn
from torch.distributed.tensor import DTensor

from elastrain.elastic.contract import Call
from elastrain.elastic.job import Job
from elastrain_frameworks.arrives import track_next
from elastrain_frameworks.files import FilesOfScript
from elastrain_frameworks.held import track_prepared
from elastrain_frameworks.lightning.loggers import of_job
from elastrain_frameworks.own_loop import HasOwnLoop
from elastrain_frameworks.refusals import SUMS, refused


class RankOfJob:
    """Of a strategy of Lightning: the rank that the present generation gives to this process."""

    _job: Job

    @property
    def is_global_zero(self) -> bool:
        """Whether this process has rank 0 of the present generation."""
        return self._job.rank == 0

    @property
    def global_rank(self) -> int:
        """This process's rank in the present generation."""
        return self._job.rank

    @global_rank.setter
    def global_rank(self, rank: int) -> None:
        """Ignored: Lightning sets the rank of a single process; the generation determines the rank here."""


class ElasticStrategy(HasOwnLoop, RankOfJob, SingleDeviceStrategy):
    """One rank of ``job`` on this process's device. Batches come from ``job.dataloader`` and ``job.steps``, not from
    ``fabric.setup_dataloaders``.

    Each loop body calls ``fabric.backward(loss)``; Fabric itself refuses ``loss.backward()``.
    """

    own_loop = "fabric"

    def __init__(self, job: Job, device: torch.device | str = "cpu", **options: Any) -> None:
        """``options``: ``precision``, ``accelerator``, ``checkpoint_io`` of Fabric's strategies."""
        super().__init__(device=device, **options)
        self._job = job
        self._optimizers = self._others = 0
        self._tracked_scaler = False
        self._files = FilesOfScript(job)
        self._found_loggers = False

    @property
    def world_size(self) -> int:
        """Number of ranks in the present generation."""
        return self._job.world_size

    @world_size.setter
    def world_size(self, size: int) -> None:
        """Ignored, as a :attr:`global_rank`."""

    # -- one step ------------------------------------------------------------------------------------------------------
    def setup_module(self, module: nn.Module) -> nn.Module:
        """Wrap the module, or track it if it does not train. The scale of a precision with loss scaling is tracked."""
        if self._scaler is not None and not self._tracked_scaler:
            self._job.track(scaler=self._scaler)
            self._tracked_scaler = True
        self._follow_loggers()
        if any(p.requires_grad for p in module.parameters()):
            return self._job.wrap(module)
        track_prepared(self._job, self._others, module)
        self._others += 1
        return module

    def _follow_loggers(self) -> None:
        """The loggers of the Fabric that calls, which Lightning does not give to a strategy."""
        frame: Any = sys._getframe()
        while frame is not None and not isinstance(fabric := frame.f_locals.get("self"), Fabric):
            frame = frame.f_back
        if self._found_loggers or frame is None:
            return
        self._found_loggers = True
        self._files.log_with(*of_job(fabric.loggers))
        for logger in fabric.loggers:
            logger.acts = self._files.acts

    def save_checkpoint(
        self, path: Any, state: dict[str, Any], storage_options: Any = None, filter: Any = None
    ) -> None:
        """All ranks call it, behind the backward of a step or between loops. Rank 0 writes; a new one, if it is lost
        before it has ended."""
        self._files.save("fabric.save()", super().save_checkpoint, path, state, storage_options, filter)

    @property
    def _scaler(self) -> Any:
        """Of ``precision="16-mixed"``; None with others."""
        return getattr(self.precision, "scaler", None)

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Set up and track the optimizer: the first as ``optimizer``, the second as ``optimizer1``, and so on."""
        track_next(self._job, "optimizer", self._optimizers, optimizer)
        self._optimizers += 1
        return optimizer

    def backward(self, tensor: torch.Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Compute and average the gradients of the loss; ``kwargs`` are those of :meth:`elastrain.Job.backward`.

        Raises ``ValueError`` for positional arguments, which are the gradients of a tensor that is no loss.
        """
        if args:
            raise ValueError("fabric.backward(loss): takes only the loss, and the options of job.backward by name")
        rank_zero_only.rank = self._job.rank  # by which Fabric's loggers choose who writes
        self._files.before_backward()
        self._job.backward(tensor if self._scaler is None else self._scaler.scale(tensor), **kwargs)
        self._files.after_backward()

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        max_norm: float | int,
        norm_type: float | int = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Any:
        """Of the gradient of ``optimizer``'s parameters over the global batch; None, without an effect, before a step's
        last micro-batch.

        Raises ``RuntimeError`` if ``error_if_nonfinite`` is set and the norm is not finite, and ``ValueError`` if the
        optimizer has no parameter of the module.
        """
        if not self._clips(module, optimizer):
            return None
        if any(isinstance(p, DTensor) for p in module.parameters()):  # this rank has a part of each gradient
            norm = self._job.clip_grad_norm_(float(max_norm), float(norm_type))
            if error_if_nonfinite and norm is not None and self._job.committed and not norm.isfinite():
                raise RuntimeError(f"the norm of the gradient is {norm.item()}")
            return norm
        finite = error_if_nonfinite and self._job.committed
        return super().clip_gradients_norm(module, optimizer, max_norm, norm_type, finite)

    def clip_gradients_value(self, module: nn.Module, optimizer: torch.optim.Optimizer, clip_val: float | int) -> None:
        """Of ``optimizer``'s parameters over the global batch, on a step's last micro-batch only. Raises as
        :meth:`clip_gradients_norm`."""
        if self._clips(module, optimizer):
            super().clip_gradients_value(module, optimizer, clip_val)

    def _clips(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
        clipped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if clipped.isdisjoint(map(id, module.parameters())):
            raise ValueError("fabric.clip_gradients(module, optimizer): the optimizer has no parameter of the module")
        return self._job.acts(Call.CLIP, "fabric.clip_gradients()")

    # -- collectives ---------------------------------------------------------------------------------------------------
    all_reduce = refused("fabric.all_reduce()", SUMS)
    all_gather = refused("fabric.all_gather()", SUMS)
    broadcast = refused("fabric.broadcast()", "state that all ranks need belongs in job.track(...)")
