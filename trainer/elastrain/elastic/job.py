"""``elastrain.join()`` and the :class:`Job` it returns: what a training script sees.

What happens in a step, and in which order, is in :mod:`elastrain.elastic.loop`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from elastrain.api import names
from elastrain.api.job import CheckpointSpec
from elastrain.data.audit import AuditLog
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order
from elastrain.data.stream import ElasticIterable, length_of
from elastrain.elastic.checkpoint import CheckpointVolume
from elastrain.elastic.comm.backend import device_of_rank
from elastrain.elastic.loop import Drained, Loop
from elastrain.elastic.membership.heartbeat import Heartbeat
from elastrain.elastic.membership.session import Session
from elastrain.elastic.membership.world import World
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.tracked import Gates, gate, track
from elastrain.elastic.strategies.bitwise import Bitwise, make_deterministic
from elastrain.elastic.strategies.gradients import Averaged, Gradients
from elastrain.elastic.strategies.replicated import ElasticModule
from elastrain.elastic.strategies.sharded import refuse_sharded

__all__ = ["Drained", "Job", "join"]


def join(*, numerics: Literal["exact", "bitwise"] = "exact") -> Job:
    """Join the job that this process was started for; used as ``with elastrain.join() as job:``.

    ``numerics``: "exact" gives the fixed-size run's model up to the order in which floating-point numbers are added;
    "bitwise" to the bit, at a cost (docs/numerics.md), and has torch choose deterministic algorithms in this process.

    Returns as soon as the agent has answered; the first iteration of :meth:`Job.steps` waits for a generation, so that
    the others train on while this rank imports and builds. Raises ``RuntimeError`` if no agent started this process,
    ``ValueError`` for other ``numerics``.
    """
    if numerics not in ("exact", "bitwise"):
        raise ValueError(f"elastrain.join(numerics={numerics!r}): must be 'exact' or 'bitwise'")
    path = os.environ.get(names.ENV_AGENT_SOCKET)
    if not path:
        raise RuntimeError(
            f"elastrain.join(): ${names.ENV_AGENT_SOCKET} is not set, so no agent started this process. "
            "Run the script by 'elastrain run job.yaml', or on a cluster by 'kubectl apply -f job.yaml'."
        )
    if numerics == "bitwise":
        make_deterministic()
    gradients: Gradients = Bitwise() if numerics == "bitwise" else Averaged()
    heartbeat = Heartbeat.of_environment()
    local_rank = int(os.environ.get(names.ENV_LOCAL_RANK, "0"))
    device = device_of_rank(local_rank)  # before the script can touch another one
    return Job(Session(path, local_rank), gradients, heartbeat, device)


class Job:
    """One rank's handle of the job. Made by :func:`join`; not thread-safe."""

    def __init__(
        self, session: Session, gradients: Gradients, heartbeat: Heartbeat, device: torch.device | None = None
    ) -> None:
        self._device = device or torch.device("cpu")
        self._session = session
        self._gradients = gradients
        self._tracked: dict[str, Stateful] = {}
        checkpoint = os.environ.get(names.ENV_CHECKPOINT)
        spec = CheckpointSpec.model_validate_json(checkpoint) if checkpoint else None
        volume = CheckpointVolume(Path(spec.path), spec.keep) if spec else None
        self._world = World(session, self._tracked, spec, volume)
        self._audit = _audit_log()
        self._loop = Loop(session, gradients, heartbeat, self._world, self._audit)
        self._gates: Gates = {"step": lambda: self.committed, "zero_grad": self._loop.may_clear}

    # -- what a script reads -----------------------------------------------------------------------------------------
    @property
    def rank(self) -> int:
        """Global rank in the generation in force; it changes with the generation. 0 before the first."""
        return self._world.place.rank

    @property
    def world_size(self) -> int:
        """Ranks of the generation in force; 1 before the first."""
        return self._world.place.world_size

    @property
    def step(self) -> int:
        """Committed optimizer steps."""
        return self._world.step

    @property
    def epoch(self) -> int:
        """Epoch of the step that is being computed, from 0."""
        return self._loop.step.parts[0].epoch if self._loop.step else 0

    @property
    def device(self) -> torch.device:
        """Where this rank's model belongs: its CUDA device, by the local rank, or the CPU where there is none."""
        return self._device

    @property
    def committed(self) -> bool:
        """True in the loop body after :meth:`backward` if this execution of the step counts: log metrics under it.

        With several micro-batches: after the last one.
        """
        return self._loop.step is not None and self._loop.step.ok

    @property
    def synchronised(self) -> bool:
        """True in the loop body after :meth:`backward` of the last micro-batch: gradients are those of the whole global
        batch now. Whether the step counts is said by :attr:`committed`.
        """
        return self._loop.step is not None and self._loop.step.complete

    @property
    def loss(self) -> float | None:
        """Mean loss over the global batch of the last committed step."""
        return self._world.loss

    # -- set-up ------------------------------------------------------------------------------------------------------
    def wrap(
        self, module: nn.Module, *, optimizer: torch.optim.Optimizer | None = None, **ddp_options: Any
    ) -> ElasticModule:
        """The model to train, used in place of ``DistributedDataParallel(module, **ddp_options)``; also tracked.

        ``optimizer``: tracked, as by ``job.track(optimizer=optimizer)``. Once per job: several networks go into one
        ``nn.Module``. Raises ``RuntimeError`` on a second call, ``ValueError`` for a model without parameters to train,
        or one that is sharded (FSDP).
        """
        if self._world.model is not None:
            raise RuntimeError("job.wrap() was called twice; put several networks into one nn.Module")
        refuse_sharded(module)
        model = self._world.model = self._gradients.wrap(module, ddp_options)
        gate(model, {"zero_grad": self._loop.may_clear})
        self._tracked["model"] = module
        if optimizer is not None:
            self.track(optimizer=optimizer)
        return model

    def track(self, **objects: Any) -> None:
        """Make optimizers, schedulers, scalers, metrics … part of the state that joiners and checkpoints get.

        Each needs ``state_dict()`` and ``load_state_dict()``. A ``step()`` method does nothing in a step that is not
        committed, ``zero_grad()`` nothing between micro-batches, so the loop body needs no ``if``. Raises
        ``TypeError``/``ValueError`` naming the argument.
        """
        track(self._tracked, objects, self._gates)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` after the loop body, exactly once for each committed step that this rank took part in.

        That includes a step whose result this rank got from a peer, because its own collective failed at the end.
        """
        self._loop.on_commit(callback)

    def dataloader(
        self,
        dataset: Any,
        *,
        global_batch_size: int,
        seed: int = 0,
        shuffle: bool | None = None,
        drop_last: bool = False,
        micro_batch_size: int | None = None,
        micro_batches: int | None = None,
        randomness: Literal["keyed", "own"] = "keyed",
        **loader_options: Any,
    ) -> ElasticLoader:
        """Batches in an order that depends on (seed, step) only.

        ``dataset``: map-style, or an :class:`elastrain.data.ElasticIterable`. ``global_batch_size``: samples of one
        optimizer step over all ranks, at any world size. ``shuffle``: None means yes for map-style data; streams come
        in their own order. ``micro_batch_size``: at most so many samples at a time; the loop body runs once for each
        micro-batch, gradients add up. ``micro_batches``: for ``numerics="bitwise"``, into how many the global batch is
        cut. ``randomness``: "keyed" seeds the default generators by (seed, step, micro-batch) for each loop body and by
        (seed, epoch, index) for each sample; "own" leaves them alone. ``loader_options``: ``num_workers``,
        ``collate_fn``, ``pin_memory``, ``prefetch_factor``, ``timeout``, ``worker_init_fn``,
        ``multiprocessing_context`` as of ``torch.utils.data.DataLoader``.
        Raises ``ValueError`` or ``TypeError`` naming the argument.
        """
        stream = isinstance(dataset, ElasticIterable)
        if stream and shuffle:
            raise ValueError("job.dataloader(shuffle=True): a stream comes in its own order; shuffle inside of it")
        if randomness not in ("keyed", "own"):
            raise ValueError(f"job.dataloader(randomness={randomness!r}): must be 'keyed' or 'own'")
        order = Order(
            length_of(dataset),
            global_batch_size,
            seed=seed,
            shuffle=not stream if shuffle is None else shuffle,
            drop_last=drop_last,
            micro_batch_size=micro_batch_size,
            micro_batches=micro_batches,
        )
        self._gradients.check(order)
        return ElasticLoader(dataset, order, keyed=randomness == "keyed", **loader_options)

    # -- the loop ----------------------------------------------------------------------------------------------------
    def steps(self, loader: ElasticLoader, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Any]:
        """Yield this rank's batch of every step up to ``epochs`` or ``steps`` (counted over the whole job), in
        micro-batches where the loader was told so.

        A step may come twice in a row (the first one was not committed), and the very first batch of a process is a
        warm-up that is never committed. Called again with a higher bound it goes on where it stopped. Leaves by
        :class:`Drained` if this worker is to go. Raises ``ValueError`` for missing bounds.
        """
        if (epochs is None) == (steps is None):
            raise ValueError("job.steps(): give either epochs=... or steps=...")
        if self._world.model is None:
            raise RuntimeError("job.steps(): call model = job.wrap(model) first")
        if epochs is not None and loader.order.length is None:
            raise ValueError("job.steps(epochs=…): the data set has no length, so its epoch does not end; give steps=…")
        self._gradients.check(loader.order)
        total = loader.order.steps_per_epoch * epochs if epochs is not None else steps
        yield from self._loop.run(loader, total or 0)

    def stop(self) -> None:
        """End training early, on all ranks at the same step: :meth:`steps` ends, and begins no more.

        One rank asks, or several. It travels with the gradients, as everything that ranks must agree on: asked for in
        the loop body before the last :meth:`backward` training ends with this step, else (in :meth:`on_commit`, too)
        with the next one. A job that is resumed from a later checkpoint stays ended. What only a rank that is lost has
        asked for may not come to pass.
        """
        self._loop.stop()

    def backward(self, loss: torch.Tensor) -> None:
        """``loss.backward()``, with gradients averaged exactly over the global batch.

        ``loss``: scalar, the *mean* over the samples of this rank's (micro-)batch. Once per batch that the loop yields.
        A lost peer does not raise here: the step is then not committed and comes again. Raises ``RuntimeError`` on
        misuse.
        """
        self._loop.backward(loss)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor | None:
        """Scale the gradients of the wrapped model so that their norm is at most ``max_norm``; call it between
        :meth:`backward` and the optimizer's step.

        Returns the norm of the true gradient, that of the mean over the global batch, equal on all ranks. Before a
        step's last micro-batch there is none yet: it then does nothing and returns None.
        """
        if self._world.model is None or not self.synchronised:
            return None
        return nn.utils.clip_grad_norm_(self._world.model.parameters(), max_norm, norm_type)

    def fit(self, step_fn: Callable[[Any], torch.Tensor], loader: ElasticLoader, **bounds: int) -> None:
        """The loop itself: ``step_fn(batch)`` returns the mean loss; tracked optimizers and schedulers are stepped.

        ``bounds``: ``epochs`` or ``steps`` as of :meth:`steps`.
        """
        stepped = [o for o in self._tracked.values() if callable(getattr(o, "step", None))]
        optimizers = [o for o in stepped if isinstance(o, torch.optim.Optimizer)]
        others = [o for o in stepped if not isinstance(o, torch.optim.Optimizer)]
        for batch in self.steps(loader, **bounds):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            self.backward(step_fn(batch))
            for obj in (*optimizers, *others):
                obj.step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self._loop.finish()
        finally:
            if self._audit is not None:
                self._audit.close()
            self._session.close()
            self._world.close()


def _audit_log() -> AuditLog | None:
    directory = os.environ.get(names.ENV_AUDIT_DIR)
    if not directory:
        return None
    worker = os.environ.get(names.ENV_WORKER, "worker")
    return AuditLog(Path(directory), worker, int(os.environ.get(names.ENV_LOCAL_RANK, "0")), os.getpid())
