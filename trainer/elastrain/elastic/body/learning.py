"""The loop bodies of a learner: their samples, the outputs of the model in them, and where the gradients come from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Slice
from elastrain.data.share import Share
from elastrain.data.spans import Spans
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.encoding import decode, encode
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.world import World
from elastrain.elastic.state import transfer
from elastrain.elastic.undo.leaves import Leaves


class Learning:
    """For the training thread."""

    def __init__(self, world: World, heartbeat: Heartbeat) -> None:
        self.warm_share = Share(0, 1)
        """Of step 0, computed in the warm-up."""
        self._world, self._heartbeat = world, heartbeat

    def parts(self, loader: ElasticLoader, share: Share, spans: Spans) -> tuple[Slice, ...]:
        """The micro-batches of ``share`` in the next step. A learner's is a stand-in: none of its samples counts."""
        if self._world.receiving:  # the batch of the warm-up, whose outputs its loop body sees
            parts = loader.begin(loader.order.first_step, self.warm_share, spans.single)
        else:
            parts = loader.begin(self._world.step, self._world.place.share if share.learner else share, spans)
        self._world.state.data.begin_step(loader.order, self._world.step)
        return (parts[0].stand_in(),) if share.learner else parts

    def outputs(self) -> AbstractContextManager[object]:
        """Around a loop body: while a part of the model is missing, its outputs are those of the warm-up."""
        learner = self._world.model.learner if self._world.model is not None else None
        if learner is None:
            return nullcontext()
        if self._world.receiving:
            return learner.outputs.replayed()
        learner.outputs.forget()
        return nullcontext()

    def gradients(self) -> None:
        """Take the gradients of the other ranks, which have computed the whole batch.

        The loss of the loop body is ignored; for its forward's changes to buffers: :meth:`share_buffers`.
        """
        assert self._world.wrapped.learner is not None
        self._heartbeat.waits()
        self._world.wrapped.learner.finish()

    def share_buffers(self, communicator: Communicator, leaves: Leaves) -> bool:
        """The first rank that has computed a step with learners gives them its models' buffers, as of the step's end.

        On all ranks, once the gradients are there. Returns whether this rank's own are those of the step.
        """
        share = self._world.share
        mine = encode(leaves.sent(), "model") if share.part == 0 and not share.learner else b""
        try:
            rows = communicator.all_gather_bytes(mine, Kind.BUFFERS)
        except GenerationBroken:
            return not share.learner
        if share.learner:
            leaves.take(decode(next(filter(None, rows))))
        return True


def knows_bodies(world: World, changing: Mapping[str, torch.Tensor]) -> None:
    """The first body of this process has ended, and has changed these buffers of the models. Raises as of
    :meth:`Strategy.check_warm_up`."""
    world.strategy.check_warm_up([*changing])
    world.state.replicas.leave_out(changing.values())
    # Buffers that forward changes can be sent while training goes on only if they are small, and so copied before.
    small = all(buffer.nbytes < transfer.SMALL_BYTES for buffer in changing.values())
    world.overlaps_transfer = world.wrapped.learner is not None and small
