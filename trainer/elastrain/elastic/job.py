"""``elastrain.join()`` and the :class:`Job` it returns: the training loop as a script sees it.

The order of things in one step::

    loop body starts     a micro-batch of this rank's part of the global batch; most often there is one, all of it
    job.backward(loss)   with the last micro-batch gradients are summed over the generation, and with them travels who
                         is ready for the next generation
    optimizer.step()     applied after the last micro-batch, unless the collective failed: then this and every tracked
                         step() does nothing
    loop body ends       after the last micro-batch the step is committed, or discarded, and then comes again as a whole
    boundary             a switch that was agreed, or a new generation after a loss, happens here and nowhere else
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import structlog
import torch
from torch import nn

from elastrain.api import names
from elastrain.api.job import CheckpointSpec
from elastrain.api.messages import Finished, Left
from elastrain.checkpoint import CheckpointVolume
from elastrain.data.audit import AuditLog
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order
from elastrain.data.rng import Kept
from elastrain.data.share import Share
from elastrain.data.stream import ElasticIterable, length_of
from elastrain.elastic import control, transfer
from elastrain.elastic.backend import device_of_rank
from elastrain.elastic.bitwise import Bitwise, make_deterministic
from elastrain.elastic.buffers import Buffers
from elastrain.elastic.gate import Gates, gate, track
from elastrain.elastic.gradients import Averaged, Gradients
from elastrain.elastic.heartbeat import Heartbeat
from elastrain.elastic.module import ElasticModule
from elastrain.elastic.session import ExitRequested, Session
from elastrain.elastic.sharded import refuse_sharded
from elastrain.elastic.state import Stateful
from elastrain.elastic.step import Step
from elastrain.elastic.world import World

log = structlog.get_logger(__name__)


class Drained(SystemExit):
    """Raised out of the training loop when this worker leaves the job: the script ends here, with code 0.

    It is a ``SystemExit`` so that code after the loop, which may write the final model, runs only where training has
    really ended. ``finally`` blocks and context managers run as usual.
    """


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
        self._heartbeat = heartbeat
        self._gradients = gradients
        self._gates: Gates = {"step": lambda: self.committed, "zero_grad": self._may_clear}
        self._model: ElasticModule | None = None
        self._tracked: dict[str, Stateful] = {}
        self._order: Order | None = None
        self._total: int | None = None
        self._buffers: Buffers | None = None
        self._streams = Kept()
        self._step: Step | None = None
        self._on_commit: list[Callable[[], None]] = []
        checkpoint = os.environ.get(names.ENV_CHECKPOINT)
        spec = CheckpointSpec.model_validate_json(checkpoint) if checkpoint else None
        volume = CheckpointVolume(Path(spec.path), spec.keep) if spec else None
        self._world = World(session, self._tracked, spec, volume)
        self._audit = _audit_log()

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
        return self._step.parts[0].epoch if self._step else 0

    @property
    def device(self) -> torch.device:
        """Where this rank's model belongs: its CUDA device, by the local rank, or the CPU where there is none."""
        return self._device

    @property
    def committed(self) -> bool:
        """True in the loop body after :meth:`backward` if this execution of the step counts: log metrics under it.

        With several micro-batches: after the last one.
        """
        return self._step is not None and self._step.ok

    @property
    def synchronised(self) -> bool:
        """True in the loop body after :meth:`backward` of the last micro-batch: gradients are those of the whole global
        batch now. Whether the step counts is said by :attr:`committed`.
        """
        return self._step is not None and self._step.complete

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
        if self._model is not None:
            raise RuntimeError("job.wrap() was called twice; put several networks into one nn.Module")
        refuse_sharded(module)
        self._model = self._world.model = self._gradients.wrap(module, ddp_options)
        gate(self._model, {"zero_grad": self._may_clear})
        self._tracked["model"] = module
        if optimizer is not None:
            self.track(optimizer=optimizer)
        return self._model

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
        self._on_commit.append(callback)

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
        if self._model is None:
            raise RuntimeError("job.steps(): call model = job.wrap(model) first")
        if epochs is not None and loader.order.length is None:
            raise ValueError("job.steps(epochs=…): the data set has no length, so its epoch does not end; give steps=…")
        self._gradients.check(loader.order)
        self._order = loader.order
        self._total = loader.order.steps_per_epoch * epochs if epochs is not None else steps
        if not self._world.ready:
            yield from self._warm_up(loader)
            self._world.say_ready()
        while True:
            self._settle()
            if self.step >= (self._total or 0):
                self._world.wait_until_given()
                self._heartbeat.outside()
                return
            yield from self._compute(loader)

    def backward(self, loss: torch.Tensor) -> None:
        """``loss.backward()``, with gradients averaged exactly over the global batch.

        ``loss``: scalar, the *mean* over the samples of this rank's (micro-)batch. Once per batch that the loop yields.
        A lost peer does not raise here: the step is then not committed and comes again. Raises ``RuntimeError`` on
        misuse.
        """
        step = self._step
        if step is None:
            raise RuntimeError("job.backward(): only inside 'for batch in job.steps(...)'")
        if step.done == step.begun:
            raise RuntimeError("job.backward(): called twice for one batch")
        part = step.parts[step.done]
        step.done += 1
        if step.warm_up:
            loss.backward()
            return
        communicator = self._world.communicator
        assert communicator is not None
        connected = self._session.connected()
        sums: list[float] | None
        if step.looks_on:
            sums, connected = self._looked_on()
        else:
            self._heartbeat.backward(loss)
            compute = self._heartbeat.share()
            sums = self._gradients.backward(loss, part, connected, compute, communicator, last=step.complete)
        if sums is not None:
            self._world.wait_until_given()  # before anything changes what joiners are being given
        if sums is None or communicator.broken is not None:
            self._heartbeat.resumed(None)
            return
        self._heartbeat.resumed(sums[control.COMPUTE])
        step.ok = True
        step.agreed = control.agreed(sums, communicator.generation, connected)
        step.loss = sums[control.LOSS]

    def _looked_on(self) -> tuple[list[float], frozenset[int]]:
        """While this rank got its state the others have computed the whole batch: it takes the gradients from them.

        The loss of the loop body is nobody's, and what its forward left in the model's buffers goes.
        """
        assert self._model is not None and self._buffers is not None
        self._heartbeat.looks_on()
        self._buffers.restore()
        return self._model.looked_on()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor | None:
        """Scale the gradients of the wrapped model so that their norm is at most ``max_norm``; call it between
        :meth:`backward` and the optimizer's step.

        Returns the norm of the true gradient, that of the mean over the global batch, equal on all ranks. Before a
        step's last micro-batch there is none yet: it then does nothing and returns None.
        """
        if self._model is None or not self.synchronised:
            return None
        return nn.utils.clip_grad_norm_(self._model.parameters(), max_norm, norm_type)

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
                self._finish()
        finally:
            if self._audit is not None:
                self._audit.close()
            self._session.close()
            self._world.close()

    # -- inside ------------------------------------------------------------------------------------------------------
    def _warm_up(self, loader: ElasticLoader) -> Iterator[Any]:
        """One execution of the loop body that leaves nothing behind.

        It makes allocator, threads and kernels ready: without it a joiner's first step would hold up the whole world.
        """
        assert self._model is not None
        self._buffers = Buffers(self._model.module)
        cut = Share(0, max(self._session.expected_world_size(), 1))
        batch, part = loader.fetch(0, *cut)
        self._step = Step(0, (part,), self._world.place, self._world.share, cut, warm_up=True)
        with self._streams:
            self._enter_body(loader, self._step)
            yield batch
        self._step = None
        self._model.detach()
        self._gradients.check_warm_up(self._buffers.after_warm_up())
        # What forward changes cannot be given away while training goes on, unless it is packed beforehand.
        self._world.gives_in_passing = self._model.can_look_on and self._buffers.largest < transfer.SMALL_BYTES

    def _compute(self, loader: ElasticLoader) -> Iterator[Any]:
        """One execution of a step: all micro-batches of this rank, as far as the generation holds."""
        order, place = loader.order, self._world.place
        step = self._step = Step.of(order, self.step, place, self._world.share)
        at = (step.number, *step.cut)
        assert self._buffers is not None
        self._buffers.save()
        self._gradients.begin(order.leaves(*at) if order.micro_batches else None)
        self._heartbeat.body(place.generation, place.world_size)
        for micro, part in enumerate(step.parts):
            communicator = self._world.communicator
            if communicator is None or communicator.broken is not None:
                return  # discarded; _settle() enters the next generation and the same step comes again
            batch, _ = loader.fetch(*at, micro)
            try:
                # One who looks on runs no backward: its forward must not have DDP expect one, or the gradients of the
                # next micro-batch would be summed over the ranks.
                last = micro == len(step.parts) - 1 and not step.looks_on
                of_gradients = self._gradients.body(part, communicator, last=last)
                with self._streams if loader.randomness else nullcontext(), of_gradients:
                    self._enter_body(loader, step)
                    yield batch
            except GeneratorExit:  # the script broke out of the loop; its optimizer may have been applied
                self._world.wait_until_given()
                if step.ok:
                    self._commit(step)
                raise
            if step.done < step.begun:
                raise RuntimeError("job.steps(): the loop body must call job.backward(loss) once per batch")
        if step.ok:
            self._commit(step)

    def _enter_body(self, loader: ElasticLoader, step: Step) -> None:
        if loader.randomness is not None:
            loader.randomness.seed_body(step.number, step.parts[step.begun])
        step.begun += 1

    def _commit(self, step: Step) -> None:
        assert self._order is not None
        self._heartbeat.runtime()
        self._heartbeat.committed()
        self._step = None
        self._log(step, "commit")
        self._world.commit(self._order, self._total, step.loss, step.agreed)
        self._tell_committed()

    def _may_clear(self) -> bool:
        """Gradients may be cleared before the first micro-batch of a step has added to them, and after the last."""
        return self._step is None or self._step.done == 0 or self._step.complete

    def _tell_committed(self) -> None:
        for callback in self._on_commit:
            callback()

    def _settle(self) -> None:
        """Be in a healthy generation at a step boundary. Raises :class:`Drained`."""
        self._heartbeat.runtime()
        unfinished, self._step = self._step, None
        if unfinished is not None and self._model is not None and self._buffers is not None:
            self._model.zero_grad(set_to_none=True)  # what its micro-batches have added up is void
            self._buffers.restore()
        try:
            self._world.settle()
        except ExitRequested as e:
            log.info("leaving the job", step=self.step, reason=str(e))
            self._session.send(Left(step=self.step))
            raise Drained(0) from None
        if unfinished is not None and unfinished.number < self.step:
            self._log(unfinished, "adopted")
            self._tell_committed()

    def _finish(self) -> None:
        """End together: nobody goes before all have committed the last step, since its state may be needed."""
        try:
            self._world.finish()
        except ExitRequested:
            log.info("the job has finished", step=self.step)
        self._session.send(Finished(step=self.step))

    def _log(self, step: Step, kind: str) -> None:
        if self._audit is not None and self._order is not None:
            indices = tuple(i for part in step.parts for i in part.indices)
            self._audit.write(kind, step.number, indices, self._order, place=step.place, share=step.share)


def _audit_log() -> AuditLog | None:
    directory = os.environ.get(names.ENV_AUDIT_DIR)
    if not directory:
        return None
    worker = os.environ.get(names.ENV_WORKER, "worker")
    return AuditLog(Path(directory), worker, int(os.environ.get(names.ENV_LOCAL_RANK, "0")), os.getpid())
