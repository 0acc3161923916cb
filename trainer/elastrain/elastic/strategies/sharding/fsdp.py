"""The collectives of a sharded model, over the generation in force.

Those inside a group (of FSDP, of DTensor, of the script over ``job.mesh``) go by :class:`InnerGroup`: over a stock
process group of torch (:mod:`elastrain.elastic.comm.stock.groups`), or over elastrain's own connections. FSDP's
all-reduce hook adds the sums of the groups, always over elastrain's own.

None raises in a loop body because of a peer: an exception would leave FSDP in the middle of a forward. After a loss
they fill with stand-ins, the rest of the loop body computes on those, and the step is discarded. A layer that is
computed again in the backward (activation checkpoints) may then branch in another way than in the forward, and raise:
such an error ends the backward of a step that is discarded anyway
(:func:`elastrain.elastic.torch_private.end_backward`).

*After the vote* the step counts, and what a stand-in reaches (an optimizer with collectives of its own) is an update
that is wrong on this rank. Its state is then void (:attr:`ShardedComm.void`): it receives that of another group. A loss
elsewhere ends no collective of that time: the group is broken when the update is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from elastrain import threads
from elastrain.elastic import torch_private
from elastrain.elastic.comm.backend import Backend
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.peer import GroupLost, PeerLost
from elastrain.elastic.comm.stock import groups as stock
from elastrain.elastic.comm.stock.groups import StockGroup
from elastrain.elastic.comm.subgroup import Subgroup
from elastrain.elastic.comm.transport import first_line
from elastrain.elastic.strategies.sharding.inner_group import GATHERS, SCATTERS, SUMS, InnerGroup, done, stand_in

UPDATE_SECONDS = 10.0
"""Bound of an update whose generation has broken, until its collectives are ended: a mate may be frozen."""

_OUTSIDE = (
    "a forward of a sharded model needs all ranks of its group, which run equally many in the loop body and in "
    "job.evaluate(loader, fn): call the model there (docs/sharded.md)"
)
_STOCK = "set ELASTRAIN_BACKEND=gloo in the template's env (docs/sharded.md)"
_NOT_OVER_TCP = (
    "a collective over job.mesh outside of loop bodies and of job.evaluate(), or after the last job.backward() of a "
    f"step: elastrain's own connections carry none. Run forwards before it, clip by job.clip_grad_norm_(), or {_STOCK}"
)
_ONLY_SUMS = f"job.mesh: elastrain's own connections only gather, and add sums: leave loss_parallel() out, or {_STOCK}"


class Ranks(NamedTuple):
    """Of the generation, by place; this rank among each."""

    inner: Mapping[str, Sequence[int]]
    """Those of its group over each dimension of the mesh."""
    twins: Callable[[Sequence[str]], Sequence[int]]
    """Those of all groups whose places differ at most along these dimensions; along none: that hold the same shard."""


class _Carrier(Protocol):
    """Connects the ranks of a dimension. Raises :class:`PeerLost` or ``GenerationBroken``."""

    def run(self, name: str, arguments: Sequence[Any]) -> Any: ...

    def abort(self, cause: str) -> None: ...

    def close(self) -> None: ...


class ShardedComm:
    """What carries the collectives of a model in the generation in force. Lasts as long as the model."""

    def __init__(
        self,
        serves: Callable[[], bool],
        groups: Sequence[InnerGroup],
        around_sums: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """``serves()``: whether all ranks run forwards now. ``groups``: of the mesh. ``around_sums``: over the groups
        of ranks, whose ranks may be slower."""
        self._serves, self._around_sums = serves, around_sums
        self._communicator: Communicator | None = None
        self._carriers: dict[str, _Carrier] = {}
        self._twins: dict[tuple[str, ...], Subgroup] = {}
        """Over which gradients are summed, by the dimensions that the sum includes."""
        self._sums: set[tuple[str, ...]] = {()}
        self._lock = threading.Lock()
        self._broken = ""
        """Why the group's collectives give no results any more."""
        self._voted = False
        self.void = ""
        """Why this rank's state is not that of the step which counts; empty: it is."""
        for group in groups:
            group.serves = self

    @property
    def groups(self) -> int:
        """Groups of the generation in force; 1 outside of any."""
        return self._twins[()].size if self._twins else 1

    def enter(self, communicator: Communicator, ranks: Ranks, device: torch.device) -> None:
        """From now on over ``communicator``. Raises ``GenerationBroken``."""
        self._communicator, self._broken = communicator, ""
        self.begin()
        self._twins = {names: Subgroup(communicator, ranks.twins(names)) for names in sorted(self._sums)}
        with communicator.guard():
            for name, among in ranks.inner.items():
                self._carriers[name] = _carrier(communicator, among, device)
        communicator.ends_with(partial(self._ends, communicator))

    def leave(self) -> None:
        """Over nothing: collectives give stand-ins."""
        if self._communicator is not None:
            self._break(self._communicator, "this rank is in no generation")
        carriers, self._carriers = self._carriers, {}
        self._communicator, self._twins = None, {}
        if closing := [carrier for carrier in carriers.values() if isinstance(carrier, _Stock)]:
            # Not a daemon thread: returning from C++ into an interpreter that shuts down would abort the process.
            threads.start(lambda: [each.close() for each in closing], name="elastrain-close-group", daemon=False)

    def begin(self) -> None:
        """A step, or an evaluation, begins."""
        with self._lock:
            self._voted, self.void = False, ""
        if (communicator := self._communicator) is not None and (cause := communicator.over) is not None:
            self._break(communicator, cause)

    def vote(self) -> None:
        """This rank votes for the step of the loop body that runs."""
        with self._lock:
            self._voted = True

    def sums_over(self, names: tuple[str, ...]) -> Callable[[torch.Tensor], None]:
        """FSDP's hook: add the gradients of all groups, and along the dimensions ``names`` of each, in place."""
        self._sums.add(names)

        def add(tensor: torch.Tensor) -> None:
            twins = self._twins.get(names)
            if twins is not None and self._communicator is not None and self._communicator.broken is None:
                with suppress(GenerationBroken), self._around_sums():
                    twins.all_reduce(tensor)
                    return
            tensor.zero_()

        return add

    def run(self, group: InnerGroup, name: str, arguments: Sequence[Any]) -> Any:
        """As of :class:`Serves`. Raises ``RuntimeError`` for what the carrier cannot do, and :class:`GroupLost`."""
        inside, carrier, communicator = self._serves(), self._carriers.get(group.name), self._communicator
        if not inside and carrier is None:
            raise RuntimeError(_OUTSIDE)
        if isinstance(carrier, _Own) and (not inside or self._voted):
            raise RuntimeError(_NOT_OVER_TCP)
        cause = self._broken or "this rank has left its generation"
        if carrier is not None and communicator is not None and not self._broken:
            try:
                return carrier.run(name, arguments)
            except (PeerLost, GenerationBroken) as e:
                cause = first_line(e)
                self._lost(communicator, cause)
        if not inside:
            raise GroupLost(f"a rank of this group was lost in a collective outside of loop bodies: {cause}")
        if self._voted:
            self.void = self.void or f"a rank of the group was lost in the update of the step: {cause}"
        return stand_in(name, arguments)

    def check_forward(self) -> None:
        """Raises ``RuntimeError`` where the other ranks run no forward."""
        if not self._serves():
            raise RuntimeError(_OUTSIDE)

    def _lost(self, communicator: Communicator, cause: str) -> None:
        """A mate is lost: the other groups are freed at once, and this one forms anew in the next generation."""
        self._break(communicator, cause)
        communicator.abort(f"a rank of this group is lost: {cause}")

    def _ends(self, communicator: Communicator, cause: str) -> None:
        """The generation ends. Any thread."""
        with self._lock:
            at_once = not self._voted
        if at_once:
            self._break(communicator, cause)
        elif self._serves():
            threads.start_timer(UPDATE_SECONDS, self._break, communicator, cause)

    def _break(self, communicator: Communicator, cause: str) -> None:
        if self._communicator is communicator:
            self._broken = self._broken or cause
            for carrier in list(self._carriers.values()):
                carrier.abort(cause)


def _carrier(communicator: Communicator, ranks: Sequence[int], device: torch.device) -> _Carrier:
    kind = communicator.choice.inner
    if kind is Backend.TCP:
        return _Own(Subgroup(communicator, ranks))
    return _Stock(stock.form(communicator, ranks, device, kind), communicator, device)


class _Own:
    """elastrain's connections, which the generation ends."""

    def __init__(self, ranks: Subgroup) -> None:
        self._ranks = ranks

    def run(self, name: str, arguments: Sequence[Any]) -> Any:
        outs, *others = ([each] if isinstance(each, torch.Tensor) else each for each in arguments)
        if name in SUMS and _adds(others[0]):
            for tensor in outs:
                self._ranks.all_reduce(tensor)
        elif name in GATHERS[:4]:
            for out, mine in zip(outs, others[0], strict=True):
                self._ranks.all_gather(out, mine)
        elif name in SCATTERS[:4] and _adds(others[1]):
            for out, parts in zip(outs, others[0], strict=True):
                self._ranks.reduce_scatter(out, parts)
        else:
            raise RuntimeError(f"{name} over {_ONLY_SUMS}")
        return done(arguments)

    def abort(self, cause: str) -> None:
        pass

    def close(self) -> None:
        pass


def _adds(options: Any) -> bool:
    return bool(options.reduceOp == dist.ReduceOp.SUM)


class _Stock:
    """A stock process group, which this dimension alone uses."""

    def __init__(self, connected: StockGroup, communicator: Communicator, device: torch.device) -> None:
        self._connected, self._communicator, self._device = connected, communicator, device
        self.abort, self.close = connected.abort, connected.close

    def run(self, name: str, arguments: Sequence[Any]) -> Any:
        """Raises ``RuntimeError`` for a wrong call."""
        collective = getattr(self._connected.group, name)
        if self._device.type == "cuda":
            self._communicator.devices.uses(self._device)
            self._communicator.devices.spins()
        try:
            work = collective(*arguments)
            if self._device.type == "cpu":  # gloo says at the end whether a peer was lost
                work.wait()
                return done(arguments)  # a second wait for a send or a receipt would be for another one
        except RuntimeError as e:
            if self._communicator.over is None and not stock.blames_peer(str(e)):
                raise
            raise PeerLost(stock.cause_in(first_line(e))) from e
        return work


def communicate_by(comm: ShardedComm, model: nn.Module, summed: Callable[[nn.Parameter], tuple[str, ...]]) -> None:
    """Have all FSDP modules of ``model`` sum gradients over the groups by ``comm``, and not divide them.

    ``summed``: the dimensions over which the gradient of a parameter is summed besides. Raises ``ValueError`` naming a
    module that it cannot serve.
    """
    names = {p: name for name, p in model.named_parameters()}
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        over = {p: summed(p) for p in torch_private.sharded_together(module)}
        first = next(iter(over.values()), ())
        if (other := next((p for p in over if over[p] != first), None)) is not None:
            raise ValueError(
                f"job.wrap(): {name or 'the model'}: fully_shard adds all gradients of this module at once; that of "
                f"{names[other]} needs a sum over {over[other] or 'no dimension'}, and others need one over "
                f"{first or 'no dimension'}: call fully_shard(…, mesh=job.mesh['dp_shard']) for its own module first"
            )
        try:
            module.set_all_reduce_hook(comm.sums_over(first))
        except ValueError as e:
            raise ValueError(f"job.wrap(): {name or 'the model'}: {e}") from e
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        module.register_forward_pre_hook(lambda *_: comm.check_forward(), prepend=True)
