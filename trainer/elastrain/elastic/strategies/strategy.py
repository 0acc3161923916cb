"""The seam between the runtime and a training strategy: how a model's gradients and state are spread over the ranks.

:class:`ElasticModule` is what a script trains; :class:`Strategy` makes it, and runs its backwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

import torch
from torch import nn

from elastrain.api.settings import Transport
from elastrain.api.shape import ONE_RANK
from elastrain.data.order import Order, Slice
from elastrain.elastic.comm.backend import Offer, look, propose
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.strategies.scheduled import Scheduled
from elastrain.elastic.torch_private import foreach_mul_
from elastrain.elastic.torch_probes import EVERY_JOB, Need

if TYPE_CHECKING:
    from elastrain.elastic.strategies.learner import Learner


class Measure(Protocol):
    """Takes gradients of single micro-batches before they are summed over the ranks."""

    open: bool
    """Whether gradients are to be added."""

    def add(self, gradients: Iterable[torch.Tensor]) -> None:
        """Add gradients."""

    def close(self) -> None:
        """What follows belongs to other micro-batches."""


def _copied(module: nn.Module, training: bool) -> ElasticModule:
    copied = ElasticModule.__new__(ElasticModule)
    nn.Module.__init__(copied)
    copied.module, copied.training = module, training
    return copied


class ElasticModule(nn.Module):
    """The model that :meth:`elastrain.Job.wrap` returns; used like ``DistributedDataParallel(module)``.

    ``module`` is the user's model.
    """

    in_body: Callable[[], bool] = staticmethod(lambda: False)
    """Whether a loop body runs: then a forward with gradients is one of training, also in ``eval()`` mode."""
    around_sums: Callable[[], AbstractContextManager[object]] = nullcontext
    """Around sums over replicas in the middle of a backward, which wait for slower ones."""
    warms_up = False
    """Whether the warm-up's loop body runs."""
    may_train_others = True
    """Whether other parameters may train than in the backward before."""
    aside: Mapping[nn.Parameter, torch.Tensor] = {}
    """Gradients that the backward under way adds to, and which the parameters do not have meanwhile."""
    products: tuple[float, float, float] | None = None
    """Of a sharded model, over all gradients before they are scaled: the sums of their squares, of their products with
    those that are kept from a step before, and of the squares of these."""
    copying = 0
    """Ranks that had not received all of the newest snapshot when they voted for the step."""
    learner: Learner | None = None
    """Computes the steps in which this rank is a learner; None if this model cannot have any."""

    def __init__(self, module: nn.Module) -> None:
        """Raises ``ValueError`` if no parameter requires a gradient."""
        super().__init__()
        self.module = module
        if not any(p.requires_grad for p in module.parameters()):
            raise ValueError("job.wrap(model): the model has no parameter that requires a gradient")

    def __getattr__(self, name: str) -> Any:
        """Raises ``AttributeError`` that says where the attribute is, or what takes its place."""
        try:
            return super().__getattr__(name)
        except AttributeError as e:
            instead = ""
            if name in ("no_sync", "require_backward_grad_sync"):
                instead = f": leave {name} out: job.dataloader(micro_batch_size=…) cuts a batch, and sums once"
            elif "module" in vars(self).get("_modules", {}) and hasattr(self.module, name):  # not while it is made
                instead = f": it is the model's: model.module.{name}"
            raise AttributeError(f"the model of job.wrap() has no attribute {name!r}{instead}") from (
                None if instead else e
            )

    def __reduce_ex__(self, _protocol: SupportsIndex) -> Any:
        """A copy, or a pickle, has the model and its mode, and belongs to no job."""
        return _copied, (self.module, self.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the user's model, as its own ``compile`` does."""
        self.module.compile(*args, **kwargs)

    @property
    def void(self) -> str:
        """Why the update of the step that counts is wrong on this rank, whose state is then void; empty: it is not."""
        return ""

    @property
    def device(self) -> torch.device:
        """Device of the first parameter that trains."""
        return next(p for p in self.module.parameters() if p.requires_grad).device

    @property
    def layout(self) -> int:
        """A number for the way the gradients are cut into buckets; 0 if a generation cannot begin with it."""
        return 0

    def offer(self, demanded: Transport) -> Offer:
        """The transport that this rank could use for the gradients. Raises ``ValueError`` if it is not ``demanded``."""
        return propose(look(self.device), demanded)

    def attach(self, communicator: Communicator, *, keep: bool) -> None:
        """Train over ``communicator`` from the next forward on. Local, no collective.

        ``keep``: :attr:`layout` is not 0 and the same on all ranks. All ranks pass the same value.
        """
        self.detach()

    def detach(self) -> None:
        """Train over no communicator."""

    def agree(self, communicator: Communicator) -> None:
        """No rank has received state, so that each has what it has built, or loaded: make what all hold alike the same.

        Raises ``GenerationBroken``.
        """

    def votes(self) -> Sequence[float]:
        """What this rank adds to its vote, once all its gradients of the step are complete. It may wait."""
        return ()

    def check_votes(self, sums: Sequence[float], communicator: Communicator) -> None:
        """All ranks have voted: the ``sums`` of :meth:`votes`. Raises ``RanksDiverged`` on all ranks if their models
        cannot have the same gradients, and ``GenerationBroken``."""

    def check_alike(self, communicator: Communicator) -> None:
        """Replicas are compared: all ranks call it. Raises ``RanksDiverged`` on all ranks if ranks of a replica differ
        in what they hold alike, and ``GenerationBroken``."""

    def take_votes(self, sums: Sequence[float]) -> None:
        """The step counts by these ``sums`` of :meth:`votes`."""

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradients of a backward by ``factor``, after the last micro-batch of a step that counts."""
        if factor == 1.0:
            return
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        with torch.no_grad():
            foreach_mul_(gradients, factor)

    def clip_gradients(self, max_norm: float, norm_type: float) -> torch.Tensor:
        """Scale the gradients of the step so that their norm is at most ``max_norm``; returns the norm before."""
        return nn.utils.clip_grad_norm_(self.module.parameters(), max_norm, norm_type)

    def drop_gradients(self) -> None:
        """Forget all gradients, also those of the micro-batches of a step so far."""
        for p in self.module.parameters():
            p.grad = None

    def recover(self) -> None:
        """An exception has ended a backward of a generation that had broken: the next forward begins anew."""

    def stand_in_gradients(self) -> None:
        """Give zeros to parameters without gradients: code of the script that reads them runs, and nothing counts."""
        for p in self.module.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)


class Strategy(ABC):
    """How the gradients of a step's micro-batches on all ranks become those of the mean over the global batch.

    For the training thread. What most strategies share is the default.
    """

    needs: tuple[Need, ...] = EVERY_JOB
    """Private names of torch that the strategy uses."""
    shape = ONE_RANK
    """Of a replica; empty: each rank is one, or all ranks are one."""
    loss: float | None = None
    """The mean loss over the global batch, if the strategy has summed it itself, in an order of its own; None: the vote
    sums it."""
    keeps_gradients = True
    """Whether gradients may outlive a step (:mod:`elastrain.elastic.state.kept`)."""
    votes = False
    """Whether a rank can hold all its gradients of a step while a peer lacks some: then peers tell a rank that lost
    the result of its last sum whether the step counts. A forward then needs all ranks of a group, which therefore run
    equally many."""

    @abstractmethod
    def check(self, order: Order) -> None:
        """Raises ``ValueError`` naming the argument if the strategy cannot train on data in this order.

        Called for a new loader, and again when the loop begins: then the model is known.
        """

    @abstractmethod
    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        """The model in this strategy's wrapper, for the script. A job may have several models.

        Raises ``ValueError`` for a model or an option that the strategy cannot train.
        """

    @abstractmethod
    def whole(self) -> ElasticModule:
        """All wrapped models as one, for the runtime. Another one after each :meth:`wrap`."""

    @abstractmethod
    def several_backwards(self) -> ElasticModule:
        """From now on :meth:`backward` may be called again after the last micro-batch of a step.

        Returns the new :meth:`whole`. Raises ``ValueError`` if the strategy or an option excludes it.
        """

    def check_warm_up(self, changed_buffers: list[str]) -> None:  # noqa: B027 - each rank has buffers of its own
        """Raises ``RuntimeError`` if a model whose forward changes these buffers cannot be trained."""

    def evaluation(self) -> AbstractContextManager[object]:
        """The context of ``fn`` on a batch of ``job.evaluate()``."""
        return nullcontext()

    @abstractmethod
    def begin_step(self) -> None:
        """A step begins, or begins again after it was discarded."""

    def body(self, part: Slice, communicator: Communicator) -> AbstractContextManager[object]:
        """The context of the loop body on micro-batch ``part``."""
        return nullcontext()

    @abstractmethod
    def backward(
        self,
        loss: torch.Tensor | Scheduled,
        unscaled: torch.Tensor,
        part: Slice,
        communicator: Communicator,
        *,
        last: bool,
        retain_graph: bool = False,
    ) -> None:
        """Compute the gradients of micro-batch ``part``; with the last one, sum them over the ranks.

        Before that the parameters have no gradients outside of this method, so that no code of the script can change
        partial sums; those of steps before are put aside (:mod:`elastrain.elastic.state.kept`). ``loss``: scalar, the
        mean over the micro-batch; of a sharded model perhaps a schedule. ``unscaled``: its value to report, which
        differs from it by the factor of a scaler. With the last one it returns when no sum of the host is under way;
        the gradients are void if the communicator broke meanwhile.
        """


_REPLICATE = "pass the plain module, which every rank holds as a whole"
_WRAPPERS = (
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FSDP"),
    ("torch.distributed.fsdp._fully_shard", "FSDP2 (fully_shard)"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
)


def refuse_sharded(module: nn.Module) -> None:
    """Raises ``ValueError`` naming the layer and the way out, for a model that is sharded or replicated already.

    Its parts would be summed over ranks with other parts, and a lost rank's part would be lost. The check compares the
    modules of classes: importing FSDP for it would delay every start.
    """
    for name, layer in module.named_modules():
        for kind in type(layer).__mro__:
            for origin, called in _WRAPPERS:
                if kind.__module__.startswith(origin):
                    raise ValueError(
                        f"job.wrap(): {name or 'the model'} is wrapped by {called}; {_REPLICATE}, or set "
                        "spec.parallelism.shards and shard it by fully_shard(…, mesh=job.mesh) (docs/sharded.md)"
                    )
    for name, parameter in module.named_parameters():
        if type(parameter.data).__module__.startswith("torch.distributed.tensor"):
            raise ValueError(
                f"job.wrap(): parameter {name} is a DTensor, spread over ranks; {_REPLICATE}, or set "
                "spec.parallelism.shards and shard it by fully_shard(…, mesh=job.mesh) (docs/sharded.md)"
            )
