"""The process group of a dimension of ``job.mesh``: it lasts as long as the process, and what carries it is exchanged.

FSDP, DTensor and code of the script call any collective of it. Each is carried by what connects the ranks in the
generation in force (:mod:`elastrain.elastic.strategies.sharding.fsdp`): a stock process group of torch, or elastrain's
own connections. A mesh, and all that holds it, therefore goes on while ranks come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from elastrain.elastic.comm.transport import completed
from elastrain.elastic.torch_private import pytree, work_of

GATHERS = (
    "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced", "all_gather_single_coalesced",
    "allgather", "allgather_coalesced", "gather",
)  # fmt: skip
"""Each rank gives a part. torch has two names for some collectives, by version."""
SCATTERS = (
    "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "reduce_scatter",
)  # fmt: skip
SUMS = ("allreduce", "allreduce_coalesced")
_OTHERS = (
    "alltoall", "alltoall_base", "all_to_all_single", "barrier", "broadcast", "recv", "recv_anysource", "reduce",
    "scatter", "send",
)  # fmt: skip

_SETUP = "before job.wrap(): ranks are not connected before the first step"


class Serves(Protocol):
    """What carries collectives out."""

    def run(self, group: InnerGroup, name: str, arguments: Sequence[Any]) -> Any:
        """The collective of this ``name``, with ``arguments`` as of ``ProcessGroup``; returns torch's ``Work``."""


class InnerGroup(dist.ProcessGroup):
    """torch calls the methods by their names, from Python and from C++."""

    def __init__(self, name: str, rank: int, size: int) -> None:
        """``name``: of the dimension."""
        super().__init__(rank, size)
        self.name, self._rank, self._size = name, rank, size
        self.serves: Serves | None = None
        """Set by ``job.wrap()``."""

    def getBackendName(self) -> str:
        return "elastrain"

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    getSize, getRank = size, rank

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Raises ``RuntimeError`` before ``job.wrap()``, except for the broadcast of ``parallelize_module``: the state
        of all ranks begins as that of the first of them."""
        if self.serves is not None:
            return self.serves.run(self, name, arguments)
        if name != "broadcast":
            raise RuntimeError(f"a collective over job.mesh['{self.name}'] {_SETUP}")
        return done(arguments)


def _method(name: str) -> Callable[..., Any]:
    def method(self: InnerGroup, *arguments: Any) -> Any:
        return self.call(name, arguments)

    return method


for _name in (*GATHERS, *SCATTERS, *SUMS, *_OTHERS):
    setattr(InnerGroup, _name, _method(_name))


def done(arguments: Sequence[Any]) -> Any:
    """The ``Work`` of a collective whose results are there."""
    return work_of(completed(next(iter(tensors_of(arguments)), torch.empty(0))))


def stand_in(name: str, arguments: Sequence[Any]) -> Any:
    """Fill the results of a collective that a loss has ended; returns its ``Work``.

    With this rank's part for each one, so that code which looks at the loss sees values of the size of parameters; or
    with zeros: what memory held could be a NaN.
    """
    if name not in ("send", "broadcast", "barrier"):
        mine = tensors_of(arguments[1:2]) if name in GATHERS else []
        for number, out in enumerate(outs := tensors_of(arguments[:1])):
            own = mine[number if len(mine) == len(outs) else 0] if mine else None
            if own is None or not own.numel() or out.numel() % own.numel():
                out.zero_()
            else:
                out.view(-1, own.numel()).copy_(own.flatten().clone())
    return done(arguments)


def tensors_of(arguments: Sequence[Any]) -> list[torch.Tensor]:
    """All tensors of nested lists."""
    return [leaf for leaf in pytree.tree_leaves(list(arguments)) if isinstance(leaf, torch.Tensor)]
