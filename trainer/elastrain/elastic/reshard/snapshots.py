"""Copies of this rank's shard, and of another rank's, in host memory: what remains of a rank that is lost.

Every few steps each rank copies its shard, and sends the copy to its *partner* beside the steps that follow. It
receives that of its *predecessor* (:mod:`elastrain.elastic.reshard.restore`). A snapshot *counts* when every rank has
both parts; ranks learn it from the sum of the next vote. Two are kept: the newest that counts, and the one on its way.
What is the same in both to the bit, such as frozen weights, they share: it is neither copied nor sent again, if the
partner names the same snapshot as the one that it holds.

No step is committed that would leave more than ``most`` steps without a snapshot: a rank that waits for its copies
does not vote before they have come (:meth:`Snapshots.pending`).
"""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
import torch

from elastrain import threads
from elastrain.elastic.comm import channel
from elastrain.elastic.comm.channel import Purpose
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.reshard.remesh import ShardedTensor
from elastrain.elastic.reshard.restore import NOTHING, Copy, ShardRef
from elastrain.elastic.state import capture, digest, transfer
from elastrain.elastic.state.parts import bounds
from elastrain.elastic.state.transfer import Stage

log = structlog.get_logger(__name__)

TIME_SHARE = 0.5
"""Part of the time until the next snapshot over which a copy is sent: it takes no more bandwidth than it needs. The
first of a generation is sent at full speed."""


def send_seconds(every: int, step_seconds: float | None, *, covered: bool) -> float:
    """Over how many seconds a snapshot is sent; 0: at full speed. Pure.

    ``every``: steps until the next one. ``step_seconds``: expected time of a step; None: not known. ``covered``:
    whether a snapshot of the present generation counts. Until then a lost rank takes all ranks back to the checkpoint.
    """
    return TIME_SHARE * every * (step_seconds or 0.0) if covered else 0.0


_NAME = struct.Struct(">4q")
"""A copy (:data:`Copy`), and the shard."""
_NO_NAME = _NAME.pack(*NOTHING.copy, NOTHING.shard)


@dataclass(slots=True)
class Snapshot:
    """The state of one step, on this rank."""

    held: ShardRef
    rest: Any
    """The tree of what is not sharded."""
    own: list[torch.Tensor] = field(default_factory=list)
    """This rank's rows of each sharded tensor, in their order; on the host."""
    theirs: list[torch.Tensor] = field(default_factory=list)
    """The predecessor's."""
    complete: bool = False

    def name(self, *, of_predecessor: bool) -> bytes:
        """On the wire: of which shard of which state it holds the rows, its own or those of its predecessor."""
        return _NAME.pack(*self.held.copy, self.held.predecessor if of_predecessor else self.held.shard)

    def rows(self, number: int, shard: int) -> torch.Tensor:
        """Of a tensor. ``shard``: of this rank, or of its predecessor."""
        return (self.own if shard == self.held.shard else self.theirs)[number]


@dataclass(slots=True)
class _Ring:
    """This rank's connections to its partner and its predecessor in one generation."""

    communicator: Communicator
    outgoing: Any
    """To the partner."""
    incoming: Any
    predecessor: int
    """Its rank."""
    shard: int
    """That the predecessor holds."""
    copying: list[threads.Thread] = field(default_factory=list)
    failed: bool = False
    closing: bool = False
    """Whether all ranks leave the generation: connections may end."""

    @contextmanager
    def ends_by_errors(self) -> Iterator[None]:
        """A lost peer ends the generation, unless that is over already. Any other error is this rank's own failure."""
        try:
            yield
        except (PeerLost, GenerationBroken) as e:
            self.failed = True
            if not self.closing and self.communicator.over is None:
                self.communicator.abort(f"a snapshot did not arrive: {e}")
        except BaseException as e:
            self.failed = True
            self.communicator.fail_here(e)


class Snapshots:
    """For the training thread."""

    def __init__(self, most: int) -> None:
        """``most``: steps that are repeated after a loss; 0: no snapshots."""
        self._most, self._every = most, max(1, most // 2)
        self._kept: list[Snapshot] = []
        self._spare: Snapshot | None = None
        """One that is no longer needed: its memory is used again."""
        self._counts = self._taken = self._step = 0
        """Steps: of the newest that counts, of the newest, and the committed ones."""
        self._covered = False
        """Whether a snapshot of the present generation counts."""
        self._ring: _Ring | None = None
        self._hurry = threading.Event()
        """Set while this rank waits for its copies."""

    @property
    def held(self) -> list[ShardRef]:
        """Those that are complete on this rank, at most two."""
        return [snapshot.held for snapshot in self._kept if snapshot.complete]

    def of(self, copy: Copy) -> Snapshot:
        """One of :attr:`held`."""
        return next(s for s in self._kept if s.complete and s.held.copy == copy)

    def enter(
        self,
        communicator: Communicator,
        places: Sequence[int],
        partners: Sequence[int],
        step: int,
        counts: Copy | None,
    ) -> None:
        """A generation begins, with ``step`` committed steps. All ranks call it.

        ``places``, ``partners``: by rank, its shard, and the rank that keeps its copies. ``counts``: the newest
        snapshot that the ranks have as a whole. Raises ``GenerationBroken``.
        """
        self._end()
        self._kept = [s for s in self._kept if s.complete and s.held.copy == counts]
        self._counts, self._step, self._covered = counts[0] if counts else step, step, False
        if not self._most or communicator.world_size == 1:
            return
        partner, predecessor = partners[communicator.rank], partners.index(communicator.rank)
        with communicator.guard():
            outgoing = communicator.connect(partner, Purpose.SNAPSHOT)
            incoming = communicator.accept([predecessor], Purpose.SNAPSHOT)[predecessor]
        self._ring = _Ring(communicator, outgoing, incoming, predecessor, places[predecessor])

    def committed(self, step: int, copying: int) -> bool:
        """A step was committed; ``copying``: ranks that had not yet received a copy when they voted for it.

        Returns whether a snapshot is due: the same on all ranks.
        """
        self._step = step
        if self._ring is None or copying:
            return False
        self._counts, self._covered = self._taken, True
        *older, newest = self._kept
        self._kept, self._spare = [newest], next(iter(older), self._spare)
        return step - self._taken >= self._every

    def take(self, held: ShardRef, tensors: Sequence[ShardedTensor], rest: Any, step_seconds: float | None) -> None:
        """Copy the present state ``held``, and begin to send it. ``rest``: the tree without the sharded tensors.

        ``step_seconds``: expected time of a step; None: not known. All ranks of a generation call it after the same
        steps.
        """
        if (ring := self._ring) is None:
            return
        self._wait(ring)
        self._taken, self._hurry = held.step, threading.Event()
        base = next((s for s in self._kept if self._covered and s.complete and s.held.step == self._counts), None)
        room, self._spare = _Room(self._spare, self._kept), None
        snapshot = Snapshot(replace(held, predecessor=ring.shard), capture.copied(rest, device="cpu"))
        shapes = _shapes(tensors, held.shards, held.shard)
        before = [None] * len(tensors) if base is None or [*map(_shape_of, base.own)] != shapes else base.own
        for tensor, shape, old in zip(tensors, shapes, before, strict=True):
            snapshot.own.append(room.copy_of(tensor.local, shape, old))
        same = [old is copy for old, copy in zip(before, snapshot.own, strict=True)]
        self._kept = [*self._kept, snapshot]
        seconds = send_seconds(self._every, step_seconds, covered=self._covered)
        shapes = _shapes(tensors, held.shards, ring.shard)
        both = (ring, snapshot, base)
        tasks = (self._send, (*both, same, seconds)), (self._receive, (*both, shapes, room))
        ring.copying = [threads.start(f, *a, name="elastrain-snapshot", daemon=False) for f, a in tasks]

    def pending(self) -> bool:
        """Whether this rank's copies of the newest snapshot are on their way; called before each vote.

        Waits for them if the step that is voted for would be one too many. Does not raise: a generation that breaks
        meanwhile is seen by the vote.
        """
        if (ring := self._ring) is None:
            return False
        if self._step + 1 - self._counts > self._most:
            self._wait(ring)
        return any(thread.is_alive() for thread in ring.copying) or ring.failed

    def wait(self) -> None:
        """Return when the copies have come, or cannot come."""
        if self._ring is not None:
            self._wait(self._ring)

    def close(self) -> None:
        """All ranks leave the generation in force, healthy: what is on its way may end."""
        if self._ring is not None:
            self._ring.closing = True

    def _wait(self, ring: _Ring) -> None:
        self._hurry.set()
        for thread in ring.copying:
            thread.join()

    def _end(self) -> None:
        """The connections belong to a generation that is over: what is on its way ends, and does not count."""
        if (ring := self._ring) is None:
            return
        ring.closing = True
        ring.communicator.abort("another generation begins")
        self._wait(ring)
        self._ring = None

    # -- threads -----------------------------------------------------------------------------------------------------
    def _send(
        self, ring: _Ring, snapshot: Snapshot, base: Snapshot | None, same: Sequence[bool], seconds: float
    ) -> None:
        hurry, began, total, sent = self._hurry, time.monotonic(), 0, 0

        def rest(nbytes: int) -> None:
            nonlocal sent
            sent += nbytes
            if (early := began + seconds * sent / max(total, 1) - time.monotonic()) > 0:
                hurry.wait(early)

        with ring.ends_by_errors():
            theirs = channel.receive(ring.outgoing, bytearray(_NAME.size))
            if base is not None and theirs != base.name(of_predecessor=False):
                log.warning("the partner holds another snapshot: all of the shard is sent", step=snapshot.held.step)
                same = [False] * len(same)
            changed = [copy for copy, known in zip(snapshot.own, same, strict=True) if not known]
            total = sum(copy.nbytes for copy in changed)
            ring.outgoing.sendall(snapshot.held.step.to_bytes(8, "big") + bytes(same))
            transfer.send_tensors(changed, ring.outgoing, Stage(transfer.PIECE_BYTES), rest)

    def _receive(
        self, ring: _Ring, snapshot: Snapshot, base: Snapshot | None, shapes: Sequence[Shape], room: _Room
    ) -> None:
        with ring.ends_by_errors():
            ring.incoming.sendall(_NO_NAME if base is None else base.name(of_predecessor=True))
            step = int.from_bytes(channel.receive(ring.incoming, bytearray(8)), "big")
            if step != snapshot.held.step:
                raise RuntimeError(f"a snapshot of step {snapshot.held.step} and one of step {step} meet")
            same = channel.receive(ring.incoming, bytearray(len(shapes)))
            before = base.theirs if base is not None else []
            snapshot.theirs = [before[n] if same[n] else room.of(shape) for n, shape in enumerate(shapes)]
            changed = [copy for copy, known in zip(snapshot.theirs, same, strict=True) if not known]
            stage = Stage(transfer.PIECE_BYTES)
            transfer.receive_tensors(changed, ring.communicator, ring.predecessor, ring.incoming, stage)
            snapshot.complete = True


Shape = tuple[tuple[int, ...], torch.dtype]


class _Room:
    """Memory for copies: that of a snapshot which is no longer needed, without what the kept ones share with it."""

    def __init__(self, unused: Snapshot | None, kept: Sequence[Snapshot]) -> None:
        shared = {id(tensor) for snapshot in kept for tensor in (*snapshot.own, *snapshot.theirs)}
        self._free = defaultdict[Shape, list[torch.Tensor]](list)
        for tensor in (*unused.own, *unused.theirs) if unused is not None else ():
            if id(tensor) not in shared:
                self._free[_shape_of(tensor)].append(tensor)

    def of(self, shape: Shape) -> torch.Tensor:
        free = self._free[shape]
        return free.pop() if free else torch.empty(shape[0], dtype=shape[1])

    def copy_of(self, live: torch.Tensor, shape: Shape, old: torch.Tensor | None) -> torch.Tensor:
        """A copy of ``live``, which is ``old`` if that is the same to the bit."""
        if old is not None and digest.on_host(live) and digest.same_bits(live, old):
            return old
        copy = self.of(shape).copy_(live)
        if old is not None and not digest.on_host(live) and digest.same_bits(copy, old):
            self._free[shape].append(copy)
            return old
        return copy


def _shapes(tensors: Sequence[ShardedTensor], shards: int, shard: int) -> list[Shape]:
    found = []
    for tensor in tensors:
        start, stop = bounds(tensor.rows, shards, shard)
        found.append(((stop - start, *tensor.tensor.shape[1:]), tensor.tensor.dtype))
    return found


def _shape_of(tensor: torch.Tensor) -> Shape:
    return tuple(tensor.shape), tensor.dtype
