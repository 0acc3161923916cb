""":class:`Job`: the interface for training scripts. :mod:`elastrain.elastic.loop` executes the steps."""

from __future__ import annotations

import atexit
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from elastrain.data.audit import AuditLog
from elastrain.data.draws import begin
from elastrain.data.loader import ElasticLoader
from elastrain.data.options import order_of
from elastrain.elastic import reduction, torch_probes
from elastrain.elastic.arguments import checked
from elastrain.elastic.assemble import world_for
from elastrain.elastic.batching import ScriptsBatch
from elastrain.elastic.body.evaluation import Batches, Evaluation
from elastrain.elastic.body.untracked import Untracked
from elastrain.elastic.checkpoint import CheckpointKeeper, KeptState, levels_of
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.contract import BODY, Call, Phase
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import Session
from elastrain.elastic.loop import Drained, Loop
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.tracked import Tracker, Variables
from elastrain.elastic.strategies.scheduled import Schedule, Scheduled
from elastrain.elastic.strategies.strategy import ElasticModule, Strategy
from elastrain.elastic.values import JobValues
from elastrain.hints import add_hint

__all__ = ["Drained", "Job"]


class Job(JobValues):
    """One rank's handle of the job, made by :func:`elastrain.join`. Not thread-safe.

    A script calls it in this order: :attr:`device` (and :attr:`mesh` for a sharded model), :meth:`wrap`, :meth:`track`,
    :meth:`dataloader`; then :meth:`steps` with :meth:`backward`; then :meth:`evaluate`. All ranks make the same calls.
    """

    def __init__(
        self,
        session: Session,
        strategy: Strategy,
        heartbeat: Heartbeat,
        device: torch.device | None = None,
        batch: ScriptsBatch | None = None,
    ) -> None:
        self._device, self._entered, batch = device or torch.device("cpu"), False, batch or ScriptsBatch()
        self._session, self._strategy = session, strategy
        self.at_exit: Callable[[Callable[[], None]], object] = atexit.register
        self._tracked: dict[str, Stateful] = {}
        settings = session.welcome.settings
        keeper = CheckpointKeeper(levels_of(settings.checkpoint), KeptState.of(os.environ, settings.shards))
        self._world = world_for(session, strategy, self._tracked, keeper, batch)
        self._audit = AuditLog.of_environment(settings.audit_dir)
        self._loop = Loop(session, strategy, heartbeat, self._world, self._audit, batch=batch)
        longer = None if batch.small is None else batch
        self._untracked = Untracked(self._tracked, lambda: self._loop.phase in BODY)
        loop, update, changes = self._loop, self._loop.draws.update, self._loop.leaves.gated
        self._tracker = Tracker(
            self._tracked, loop.contract, loop.step_with, longer, loop.bodies.updates, update=update, changes=changes
        )

    # -- set-up ------------------------------------------------------------------------------------------------------
    @checked
    def wrap(
        self,
        module: nn.Module,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        name: str | None = None,
        **ddp_options: Any,
    ) -> ElasticModule:
        """A model to train, used in place of ``DistributedDataParallel(module, **ddp_options)``; also tracked.

        ``optimizer``: tracked, as by ``job.track(optimizer=optimizer)``. A job may have several models, each with an
        optimizer of its own or none. ``name``: of the model in the state of the job; default: "model", then "model2"
        and so on, in the order of the calls. Its optimizer is "optimizer", "optimizer2" …, or "<name>_optimizer".
        Raises ``ValueError`` for a model without parameters to train, or that is sharded (FSDP), in DDP or wrapped
        already, for a name that is taken, and for options that the numerics, or several models, exclude.
        """
        self._loop.contract.acts(Call.SET_UP, "job.wrap()")
        key, of_optimizer = self._tracker.names_of_model(module, name)
        torch_probes.check(self._strategy.needs)
        model = self._strategy.wrap(module, ddp_options)
        self._world.model = self._strategy.whole()
        model.in_body = lambda: self._loop.phase in BODY
        self._tracker.add_model(key, module)
        model.register_forward_pre_hook(lambda *_: self._loop.draws.samples())
        if optimizer is not None:
            self.track(**{of_optimizer: optimizer})
        return model

    @checked
    def track(self, **objects: Any) -> None:
        """Make optimizers, schedulers, scalers or metrics part of the state that joiners and checkpoints receive.

        Each needs ``state_dict()`` and ``load_state_dict()``. ``step()``, ``unscale_()`` and ``update()`` of a scaler,
        and the updates of an average of the weights (``AveragedModel``, timm's ``ModelEma``) do nothing in a step that
        is not committed, so the loop body needs no ``if``. Raises ``TypeError`` or ``ValueError`` naming the argument.
        """
        self._loop.contract.acts(Call.SET_UP, "job.track()")
        self._tracker.track(objects)

    @checked
    def variables(self, **values: Any) -> Variables:
        """Values that the script changes between loops, such as ``best=0.0, bad=0``: tracked, and read as attributes.

        Joiners and checkpoints receive them. All ranks set them to the same values: between loops, or behind the
        backward of a loop body, once for each committed step. Called once. Raises ``ValueError``
        on a second call, ``TypeError`` without a value.
        """
        if "variables" in self._tracked:
            raise ValueError("job.variables(): call it once, with all values")
        made = Variables(values, lambda name: self._loop.contract.acts(Call.SET, name))
        self.track(variables=made)
        return made

    @checked
    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` after the loop body, exactly once for each committed step that this rank took part in.

        That includes a step whose result this rank received from a peer, because its own collective failed at the end.
        """
        self._loop.on_commit(callback)

    @checked
    def dataloader(
        self,
        dataset: Any,
        *,
        global_batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        drop_last: bool = False,
        micro_batch_size: int | None = None,
        micro_batches: int | None = None,
        randomness: Literal["keyed", "own"] = "keyed",
        accept_change: bool = False,
        **loader_options: Any,
    ) -> ElasticLoader:
        """Batches in an order that depends on (seed, step) only.

        ``dataset``: map-style, or an :class:`elastrain.data.ElasticIterable`. ``global_batch_size``: samples of one
        optimizer step over all ranks, at any world size. ``shuffle``: default: True for map-style data; a stream keeps
        its own order. ``sampler``: an :class:`elastrain.data.Sampler`, or one of torch's. ``batch_sampler``: an
        :class:`elastrain.data.BatchSampler`, or an iterable of batches; they are global ones and may differ in size.
        ``drop_last``: leave an epoch's last, smaller batch out. ``micro_batch_size``: largest number of samples per
        loop body; the body runs once for each micro-batch, and gradients add up. ``micro_batches``: for
        ``numerics="bitwise"``, the number of micro-batches of each global batch. ``randomness``: "keyed" seeds the
        default generators by (seed, step, micro-batch) for the loop body up to its backward, by (seed, step) for the
        update, and by seed and position for each sample; "own" leaves them alone. ``accept_change``: a job whose
        checkpoint was saved with other data, batch or seed goes on at its step in the new order; otherwise that is an
        error. ``loader_options``: ``num_workers``, ``collate_fn``, ``pin_memory``,
        ``prefetch_factor``, ``timeout``, ``worker_init_fn``, ``multiprocessing_context`` as of
        ``torch.utils.data.DataLoader``. Raises ``ValueError`` or ``TypeError`` naming the argument.
        """
        order = partial(
            order_of,
            dataset,
            global_batch_size=global_batch_size,
            seed=seed,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            micro_batch_size=micro_batch_size,
            micro_batches=micro_batches,
            even=self._strategy.votes,
            accept_change=accept_change,
        )
        loader = ElasticLoader(dataset, order, keyed=randomness == "keyed", **loader_options)
        self._strategy.check(loader.order)
        return loader

    # -- the loop ----------------------------------------------------------------------------------------------------
    @checked
    def steps(
        self,
        loader: ElasticLoader,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        several_backwards: bool = False,
        warm_up: Callable[[Any], object] | None = None,
    ) -> Iterator[Any]:
        """Yield this rank's batch of every step, or its micro-batches, up to ``epochs`` or ``steps`` of the whole job.

        The loop body can run without committing a step in two cases: a step that was not committed is repeated, and the
        first body of a process that joins a running job is a warm-up. A later call with a higher bound continues where
        this one stopped. ``several_backwards``: the body may call :meth:`backward` several times, though the first one
        does not do so; otherwise the first one shows it. ``warm_up``: for a framework's loop, which has to know where
        it begins: ``warm_up(batch)`` runs the body of a warm-up, and the first item is None, when this rank is in a
        generation and no body runs yet; :attr:`step` is its position. Raises :class:`Drained` if it has to leave,
        ``ValueError`` for missing bounds and for a tracked optimizer of parameters outside of the models,
        ``RuntimeError`` before :meth:`wrap`.
        """
        if not self._entered:
            raise RuntimeError("job.steps(): the job ends with its block: with elastrain.join() as job: …")
        if self._world.model is None:
            raise RuntimeError("job.steps(): call model = job.wrap(model) first")
        self._world.state.known.check()
        self._tracker.check_parameters(self._world.model)
        self._untracked.watch(sharded=self._strategy.votes)
        at = None if self._world.joins else self._world.step
        order = loader.begin_loop(at or 0, partial(self._world.position.behind, step=at, epochs=epochs))
        self._strategy.check(order)
        total = order.end_of(epochs) if epochs is not None else steps or 0
        yield from self._loop.run(loader, total, several_backwards=several_backwards, warm_up=warm_up)

    def commit(self, bodies: Iterator[Any]) -> None:
        """End the loop body that runs, without beginning the next one; ``bodies``: the iterator of :meth:`steps`.

        For a framework's loop, which does something after a step's end and before the next batch. On return the step is
        committed, or discarded, or a peer's later state is here: :attr:`step` tells. The next item of ``bodies`` begins
        the next body. Other ranks may be in theirs. Raises ``RuntimeError`` before the last :meth:`backward` of a step,
        and :class:`Drained`.
        """
        self._loop.contract.acts(Call.COMMIT)
        self._loop.between.asked = True
        next(bodies, None)

    @checked
    def epochs(self, loader: ElasticLoader, epochs: int) -> Iterator[int]:
        """``range(epochs)`` without the epochs that the job has completed before this process joined it.

        For scripts with a loop over epochs around ``job.steps(loader, epochs=epoch + 1)``: code after the inner loop
        (an evaluation, a schedule) runs once for each epoch in which this process takes part. Raises ``ValueError`` for
        data without a length.
        """
        for epoch in self._world.position.epochs(loader.order, epochs):
            begin(loader.randomness, "epoch", epoch)
            yield epoch

    @checked
    def every(self, steps: int, function: Callable[[], None]) -> None:
        """Call ``function()`` in a pause of the loop after every ``steps``-th committed step, on all ranks.

        There it may evaluate, and do all that code after a loop may do; it counts as such code. Functions are called in
        the order in which they were given. Raises ``ValueError`` for less than 1 step.
        """
        self._loop.every(steps, function)

    @checked
    def at(self, step: int, change: Callable[[], None]) -> None:
        """Call ``change()`` once in each process, before its first step behind ``step`` committed ones or more.

        For what a script changes at a step: an option of its loss, a rate, the parameters that train. A process that
        joins or resumes later makes the change too: before it loads the state, whose tracked objects have it already.
        So ``change`` sets values, and does not add to them. It may do what a loop body may do before its backward; its
        random numbers are the same on all ranks. Changes of one step run in the order of the calls.
        """
        self._loop.at(step, change)

    # -- all ranks, between loops --------------------------------------------------------------------------------------
    def all_reduce(self, value: Any, op: Literal["sum", "mean", "min", "max"] = "sum") -> Any:
        """``value`` of all ranks as one, on every rank; called after a loop, or in a function of :meth:`every`.

        ``value``: a number, or a dense tensor of the same shape and type on all ranks; it is not changed. Returns the
        like; the operation is made in float64 or int64, with the same bits on all ranks. After a loss the remaining
        ranks make the call again, with what they passed. The values of a lost rank are lost: sums over a data set that
        must be exact belong to :meth:`evaluate`. All ranks make the same calls in the same order; otherwise the job
        fails and names the ranks. Raises ``TypeError`` or ``ValueError`` naming the argument, and :class:`Drained`.
        """
        self._loop.contract.acts(Call.MEET, "job.all_reduce()")
        mine = reduction.encode(value, op)
        return reduction.reduce(self._loop.between.exchange(Kind.REDUCE, mine), value)

    def all_gather_object(self, value: Any) -> list[Any]:
        """``value`` of every rank, by rank: anything that can be pickled, up to 16 MiB. As :meth:`all_reduce`."""
        self._loop.contract.acts(Call.MEET, "job.all_gather_object()")
        rows = self._loop.between.exchange(Kind.GATHER, pickle.dumps(value))
        return [pickle.loads(row) for row in rows]  # noqa: S301 - from ranks of the same job

    @checked
    def evaluate(self, loader: Any, fn: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
        """Sums of what ``fn(batch)`` returns over all batches of ``loader``, each computed by one rank.

        Called after a loop, or in a function of :meth:`every`. ``loader``: a ``torch.utils.data.DataLoader`` without
        shuffling or sampler, or of :meth:`dataloader`. ``fn``: returns a dict; a number or tensor is summed over the
        batches, a pair (value, weight) gives the mean of the values by weight. It runs without gradients, the tracked
        models in ``eval()`` mode, and its random numbers depend on the batch only. Returns a dict: numbers, and CPU
        tensors in float64 or int64.

        The sums are made in the order of the batches, and so do not depend on the number of ranks. If a worker is lost
        or leaves, the others continue with the batches that have no result. Raises ``TypeError`` or ``ValueError``
        naming the argument, and :class:`Drained`.
        """
        self._loop.contract.acts(Call.MEET, "job.evaluate()")
        modules = [obj for obj in (self._world.model, *self._tracked.values()) if isinstance(obj, nn.Module)]
        one = Evaluation(Batches(loader), fn, modules, together=self._strategy.votes, around=self._strategy.evaluation)
        return one.first() if self._loop.phase is Phase.PASSED else one.run(self._loop.between)

    def stop(self) -> None:
        """End training early, on all ranks at the same step: :meth:`steps` ends, and does not begin again.

        One rank calls it, or several. The request travels with the gradients. A call before the last :meth:`backward`
        of a step ends training with this step; a later one (also in :meth:`on_commit`) ends it with the next. A job
        that is resumed from a later checkpoint stays ended. If the only rank that asked is lost, training may go on.
        """
        self._loop.stop()

    @checked
    def backward(
        self, loss: torch.Tensor | Schedule, *, count: int | torch.Tensor | None = None, retain_graph: bool = False
    ) -> torch.Tensor:
        """``loss.backward()``, with gradients averaged exactly over the global batch.

        ``loss``: scalar, the *mean* over the samples of this rank's (micro-)batch; with ``count`` the *sum* over that
        many tokens (or pixels, pairs …), and gradients become those of the mean over all tokens of the global batch.
        ``count``: from 0; a tensor of a GPU makes the host wait for it. If a global batch has no tokens, gradients and
        :attr:`loss` are 0. ``retain_graph``: as of ``Tensor.backward``. A loop body may call it several times, with
        steps of optimizers in between, unless it runs on micro-batches.

        With a mesh, ``loss`` may be a function ``schedule(weight)`` that runs the forwards and backwards itself, as the
        schedule of a pipeline does, with all losses times ``weight``. It returns the mean loss, or None on a rank that
        has none.

        Returns the mean loss over the global batch, a scalar on the CPU, equal on all ranks; where the step is not
        complete, or does not count, the given loss without its graph. A lost peer raises nothing here: the step is not
        committed, and is repeated. Raises ``RuntimeError`` outside of the loop, on a second call for a micro-batch, if
        the loss does not depend on all parameters of the only model, and on all ranks if only some calls of a step have
        a count; ``TypeError`` or ``ValueError`` for a count that is none.
        """
        whole = None if count is None else reduction.whole(count)
        if isinstance(loss, torch.Tensor):
            return self._loop.backward(loss, self._tracker.unscaled(loss), whole, retain_graph=retain_graph)
        if not self._strategy.votes:
            raise TypeError(
                "job.backward(function): must be the loss, a tensor of one number; a function that runs the backward "
                "itself is for spec.parallelism"
            )
        scheduled = Scheduled(loss)
        return self._loop.backward(scheduled, scheduled.value, whole, retain_graph=retain_graph)

    def add(self, **numbers: float) -> None:
        """Add to numbers that are summed over the global batch of this step, as counts of tokens or of right answers.

        Called in a loop body before its :meth:`backward`, on each micro-batch; the sums travel with the gradients.
        After the last backward of a step that counts, :attr:`sums` has them, on all ranks. The bodies of a process add
        to the names of its first one. Raises ``ValueError`` for another name, ``RuntimeError`` elsewhere.
        """
        self._loop.contract.acts(Call.ADD)
        assert self._loop.step is not None
        self._loop.sums.add(numbers, self._loop.step)

    @checked
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor | None:
        """Scale the gradients of the wrapped model so that their norm is at most ``max_norm``.

        Call it between :meth:`backward` and the optimizer's step. Returns the ``norm_type`` norm of the gradient of the
        mean over the global batch, a scalar that is equal on all ranks. Before a step's last micro-batch it does
        nothing and returns None.
        """
        if self._world.model is None or not self._loop.contract.acts(Call.CLIP):
            return None
        return self._world.model.clip_gradients(max_norm, norm_type)

    @checked
    def fit(
        self,
        step_fn: Callable[[Any], torch.Tensor],
        loader: ElasticLoader,
        *,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> None:
        """Run the whole loop: backward on ``step_fn(batch)``, then ``step()`` of all tracked optimizers and schedulers.

        ``step_fn`` returns the mean loss, a scalar. The rest as of :meth:`steps`.
        """
        stepped = [o for o in self._tracked.values() if callable(getattr(o, "step", None))]
        optimizers = [o for o in stepped if isinstance(o, torch.optim.Optimizer)]
        others = [o for o in stepped if not isinstance(o, torch.optim.Optimizer)]
        for batch in self.steps(loader, epochs=epochs, steps=steps):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            self.backward(step_fn(batch))
            for obj in (*optimizers, *others):
                obj.step()

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        holds = False
        if error is not None:
            add_hint(error)
        try:
            self._loop.finish() if error is None else self._loop.fails(error)
            holds = error is None and self._loop.end.may_hold
        finally:
            self._untracked.close()
            self._loop.close()
            (self._session.part if holds else self._session.close)()
            self._world.close()
        if holds:
            self.at_exit(self._loop.end.hold)
