"""A model of which there is one copy over all ranks: ``shards: all``.

It trains as a group does (:mod:`elastrain.elastic.strategies.sharding.sharded`), but the number of shards is that of
the ranks, and changes with it (:mod:`elastrain.elastic.reshard`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elastrain.api.settings import Transport
from elastrain.api.shape import ONE_RANK, SHARDS, Shape
from elastrain.elastic import torch_private, torch_probes
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.strategies.sharding.sharded import Sharded
from elastrain.elastic.strategies.strategy import ElasticModule

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from elastrain.elastic.reshard.move import Change, Source
    from elastrain.elastic.strategies.sharding.fsdp import Ranks


class FullySharded(Sharded):
    """One group of all ranks."""

    keeps_gradients = False
    needs = (*Sharded.needs, *torch_probes.ONE_COPY)

    def __init__(self, first: Callable[[torch.device], tuple[int, int]], demanded: Transport = "auto") -> None:
        """``first(device)``: number of shards, and this rank's shard, with which the script builds its model.
        ``demanded``: of the settings."""
        super().__init__(ONE_RANK, 0, demanded)
        self._shards = 0
        self._first = first
        self.places: Sequence[int] = ()
        """By rank of the generation: its shard."""
        self.copies: Callable[[], bool] = lambda: False
        """As of :class:`ShardedModule`. Set before :meth:`wrap`."""

    @property
    def placement(self) -> tuple[int, int]:
        """Number of shards, and this rank's; (0, 0): this rank holds none."""
        return self._shards, self._shard

    @property
    def holds(self) -> bool:
        """Whether this rank has a whole shard."""
        return self._shards > 0

    @property
    def grid(self) -> Shape:
        return Shape.flat(self._shards)

    def lose(self) -> None:
        """This rank holds no whole shard any more."""
        self._shards = self._shard = 0

    def mesh(self, device: torch.device) -> DeviceMesh:
        """For ``fully_shard``. Raises as of ``first``."""
        if self._mesh is None:
            self._shards, self._shard = self._first(device)
        return super().mesh(device)

    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        from elastrain.elastic.reshard.remesh import check

        model = super().wrap(module, ddp_options)
        check(module)
        assert self._model is not None
        self._model.copies = self.copies
        return model

    def ranks(self, communicator: Communicator) -> Ranks:
        by_place = sorted(range(communicator.world_size), key=self.places.__getitem__)
        from elastrain.elastic.strategies.sharding.fsdp import Ranks

        return Ranks({SHARDS: by_place}, twins=lambda names: [communicator.rank])

    def move(
        self, change: Change, communicator: Communicator, tracked: Mapping[str, Stateful], source: Source | None = None
    ) -> int:
        """Put the model and its optimizers' state on another placement. Returns the bytes that this rank sent.

        ``source``: of the rows to give; default: the live tensors. Raises ``GenerationBroken``; then this rank has lost
        its state.
        """
        from elastrain.elastic.reshard import move, remesh
        from elastrain.elastic.strategies.sharding.group_mesh import group_mesh

        assert self._model is not None and self._mesh is not None
        old, place = self._mesh, change.places[communicator.rank]
        for module in torch_private.fsdp_modules(self._model.module):
            module.reshard()
        tensors = remesh.sharded_tensors(tracked)
        mesh, groups = (old, self._groups)
        if place is not None:
            mesh, groups = group_mesh(old.device_type, Shape.flat(change.size), place)
        info = torch_private.mesh_info(mesh)
        self.lose()
        sent = move.carry_out(
            change,
            communicator,
            tensors,
            source or (lambda number, tensor, shard: tensor.local),
            lambda tensor, memory: tensor.install(memory, info),
        )
        if place is not None:
            torch_private.replace_mesh(self._model.module, info)
            torch_private.forget_mesh(old)
            self._mesh, self._groups, self._shards, self._shard = mesh, groups, change.size, place
            self._model.serve(groups)
        return sent
