"""``elastrain.join()`` and the :class:`Job` it returns: the training loop as a script sees it.

The order of things in one step::

    loop body starts     the batch of this rank's part of the global batch job.backward(loss)   gradients are summed
    over the generation; with them travels who is ready for the next generation optimizer.step()     applied, unless the
    collective failed: then this and every tracked step() does nothing loop body ends       the step is committed (or
    discarded, and the same step comes again) boundary             a switch that was agreed, or a new generation after a
    loss, happens here and nowhere else
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
import torch
from torch import nn
from torch.utils.data import Dataset

from elastrain.api import names
from elastrain.api.job import CheckpointSpec
from elastrain.api.messages import Finished, Left
from elastrain.checkpoint import CheckpointVolume
from elastrain.data.audit import AuditLog
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order, Slice
from elastrain.elastic import control
from elastrain.elastic.gate import track
from elastrain.elastic.heartbeat import Heartbeat
from elastrain.elastic.module import ElasticModule
from elastrain.elastic.session import ExitRequested, Session
from elastrain.elastic.state import Stateful
from elastrain.elastic.world import World

log = structlog.get_logger(__name__)


class Drained(SystemExit):
    """Raised out of the training loop when this worker leaves the job: the script ends here, with code 0.

    It is a ``SystemExit`` so that code after the loop, which may write the final model, runs only where training has
    really ended. ``finally`` blocks and context managers run as usual.
    """


def join() -> Job:
    """Join the job that this process was started for; used as ``with elastrain.join() as job:``.

    Returns as soon as the agent has answered; the first iteration of :meth:`Job.steps` waits for a generation, so that
    the others train on while this rank imports and builds. Raises ``RuntimeError`` if no agent started this process.
    """
    path = os.environ.get(names.ENV_AGENT_SOCKET)
    if not path:
        raise RuntimeError(
            f"elastrain.join(): ${names.ENV_AGENT_SOCKET} is not set, so no agent started this process. "
            "Run the script by 'elastrain run job.yaml', or on a cluster by 'kubectl apply -f job.yaml'."
        )
    heartbeat = Heartbeat.of_environment()
    return Job(Session(path, int(os.environ.get(names.ENV_LOCAL_RANK, "0"))), heartbeat)


@dataclass(slots=True)
class _Step:
    """The step that is being computed."""

    number: int
    part: Slice
    place: tuple[int, int, int]
    """Generation, rank and world size that it is computed in."""
    warm_up: bool = False
    backward_done: bool = False
    ok: bool = False
    """Gradients are complete on this rank: the step will be committed at the end of the loop body."""
    agreed: int | None = None
    """Generation that all ranks switch to after this step."""
    loss: float = 0.0
    """Mean loss over the global batch."""


class Job:
    """One rank's handle of the job. Made by :func:`join`; not thread-safe."""

    def __init__(self, session: Session, heartbeat: Heartbeat) -> None:
        self._session = session
        self._heartbeat = heartbeat
        self._model: ElasticModule | None = None
        self._tracked: dict[str, Stateful] = {}
        self._order: Order | None = None
        self._total: int | None = None
        self._step: _Step | None = None
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
        return self._world.place[1]

    @property
    def world_size(self) -> int:
        """Ranks of the generation in force; 1 before the first."""
        return self._world.place[2]

    @property
    def step(self) -> int:
        """Committed optimizer steps."""
        return self._world.step

    @property
    def epoch(self) -> int:
        """Epoch of the step that is being computed, from 0."""
        return self._step.part.epoch if self._step else 0

    @property
    def committed(self) -> bool:
        """True in the loop body after :meth:`backward` if this execution of the step counts: log metrics under it."""
        return self._step is not None and self._step.ok

    @property
    def loss(self) -> float | None:
        """Mean loss over the global batch of the last committed step."""
        return self._world.loss

    # -- set-up ------------------------------------------------------------------------------------------------------
    def wrap(self, module: nn.Module, **ddp_options: Any) -> ElasticModule:
        """The model to train, used in place of ``DistributedDataParallel(module, **ddp_options)``; also tracked.

        Once per job: several networks go into one ``nn.Module``. Raises ``RuntimeError`` on a second call,
        ``ValueError`` for a model without parameters to train.
        """
        if self._model is not None:
            raise RuntimeError("job.wrap() was called twice; put several networks into one nn.Module")
        self._model = self._world.model = ElasticModule(module, **ddp_options)
        self._tracked["model"] = module
        return self._model

    def track(self, **objects: Any) -> None:
        """Make optimizers, schedulers, scalers, metrics … part of the state that joiners and checkpoints get.

        Each needs ``state_dict()`` and ``load_state_dict()``. A ``step()`` method does nothing in a step that is not
        committed, so the loop body needs no ``if``. Raises ``TypeError``/``ValueError`` naming the argument.
        """
        track(self._tracked, objects, lambda: self.committed)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` after the loop body, exactly once for each committed step that this rank took part in.

        That includes a step whose result this rank got from a peer, because its own collective failed at the end.
        """
        self._on_commit.append(callback)

    def dataloader(
        self,
        dataset: Dataset[Any],
        *,
        global_batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        **loader_options: Any,
    ) -> ElasticLoader:
        """Batches of a map-style data set in an order that depends on (seed, step) only.

        ``global_batch_size``: samples of one optimizer step over all ranks, at any world size. ``loader_options``:
        ``num_workers``, ``collate_fn``, ``pin_memory`` as of ``torch.utils.data.DataLoader``.
        Raises ``ValueError`` naming the argument.
        """
        length = len(dataset)
        order = Order(length, global_batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last)
        return ElasticLoader(dataset, order, **loader_options)

    # -- the loop ----------------------------------------------------------------------------------------------------
    def steps(self, loader: ElasticLoader, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Any]:
        """Yield this rank's batch of every step up to ``epochs`` or ``steps`` (counted over the whole job).

        A batch may come twice in a row (the first one was not committed), and the very first one of a process is a
        warm-up that is never committed. Called again with a higher bound it goes on where it stopped. Leaves by
        :class:`Drained` if this worker is to go. Raises ``ValueError`` for missing bounds.
        """
        if (epochs is None) == (steps is None):
            raise ValueError("job.steps(): give either epochs=... or steps=...")
        if self._model is None:
            raise RuntimeError("job.steps(): call model = job.wrap(model) first")
        self._order = loader.order
        self._total = loader.order.steps_per_epoch * epochs if epochs is not None else steps
        if not self._world.ready:
            yield from self._warm_up(loader)
            self._world.say_ready()
        while True:
            self._settle()
            if self.step >= (self._total or 0):
                self._heartbeat.outside()
                return
            self._heartbeat.body(self._world.place[0], self.world_size)
            batch, part = loader.fetch(self.step, self.rank, self.world_size)
            self._step = _Step(self.step, part, self._world.place)
            try:
                yield batch
            except GeneratorExit:  # the script broke out of the loop; its optimizer may have been applied
                if self._step.ok:
                    self._end_of_body()
                raise
            self._end_of_body()

    def backward(self, loss: torch.Tensor) -> None:
        """``loss.backward()``, with gradients averaged exactly over the global batch.

        ``loss``: scalar, the *mean* over the samples of this rank's batch. Once per step. A lost peer does not raise
        here: the step is then not committed and comes again. Raises ``RuntimeError`` on misuse.
        """
        step, model = self._step, self._model
        if step is None or model is None:
            raise RuntimeError("job.backward(): only inside 'for batch in job.steps(...)'")
        if step.backward_done:
            raise RuntimeError("job.backward(): called twice in one step")
        step.backward_done = True
        if step.warm_up:
            loss.backward()
            return
        communicator = self._world.communicator
        assert communicator is not None
        connected = self._session.connected()
        weighted = loss * step.part.weight
        model.set_control(connected, weighted, self._heartbeat.share())
        self._heartbeat.backward(weighted)
        weighted.backward()
        sums = model.control_sums()
        self._heartbeat.resumed(sums[control.COMPUTE] if communicator.broken is None else 0.0)
        if communicator.broken is None:
            step.ok = True
            step.agreed = control.agreed(sums, communicator.generation, connected)
            step.loss = sums[control.LOSS]

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

    # -- inside ------------------------------------------------------------------------------------------------------
    def _warm_up(self, loader: ElasticLoader) -> Iterator[Any]:
        """One execution of the loop body that leaves nothing behind.

        It makes allocator, threads and kernels ready: without it a joiner's first step would hold up the whole world.
        """
        assert self._model is not None
        module = self._model.module
        buffers = [(b, b.detach().clone()) for b in module.buffers()]
        generators = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        batch, part = loader.fetch(0, 0, max(self._session.expected_world_size(), 1))
        self._step = _Step(0, part, self._world.place, warm_up=True)
        yield batch
        self._step = None
        self._model.detach()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        torch.set_rng_state(generators[0])
        if generators[1]:
            torch.cuda.set_rng_state_all(generators[1])

    def _end_of_body(self) -> None:
        step = self._step
        assert step is not None and self._order is not None
        if not step.backward_done:
            raise RuntimeError("job.steps(): the loop body must call job.backward(loss) once per step")
        self._heartbeat.runtime()
        if not step.ok:
            return  # discarded; _settle() enters the next generation and the same step comes again
        self._heartbeat.committed()
        self._step = None
        self._log(step, "commit")
        self._world.commit(self._order, self._total, step.loss, step.agreed)
        self._tell_committed()

    def _tell_committed(self) -> None:
        for callback in self._on_commit:
            callback()

    def _settle(self) -> None:
        """Be in a healthy generation at a step boundary. Raises :class:`Drained`."""
        unfinished, self._step = self._step, None
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

    def _log(self, step: _Step, kind: str) -> None:
        if self._audit is not None and self._order is not None:
            self._audit.write(kind, step.number, step.part, self._order, step.place)


def _audit_log() -> AuditLog | None:
    directory = os.environ.get(names.ENV_AUDIT_DIR)
    if not directory:
        return None
    worker = os.environ.get(names.ENV_WORKER, "worker")
    return AuditLog(Path(directory), worker, int(os.environ.get(names.ENV_LOCAL_RANK, "0")), os.getpid())
