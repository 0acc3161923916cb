"""What a move of shards between ranks costs and keeps: every bit, no byte more than the placement demands, little
memory. The ranks are threads of the test, with real sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.reshard import move
from elastrain.elastic.reshard.move import Change, carry_out
from elastrain.elastic.reshard.plan import assign, bounds

DIGEST_BYTES = 8
BUCKET_BYTES = 64 * 1024
SHAPES = [(900, 300), (7,), (300, 300), (1, 40), (2048, 64), *[(64, 64)] * 24, (3, 5), (900, 300)]
"""Of the tensors: of several buckets, smaller than one, and with fewer rows than ranks."""


@dataclass
class Sharded:
    """A tensor of which this rank holds the rows of one shard; the interface of ``ShardedTensor``."""

    whole: torch.Size
    dtype: torch.dtype
    local: torch.Tensor

    @property
    def rows(self) -> int:
        return self.whole[0]

    @property
    def row_bytes(self) -> int:
        return self.whole[1:].numel() * self.dtype.itemsize

    def allocate(self, shards: int) -> torch.Tensor:
        return torch.zeros([bounds(self.rows, shards, 0)[1], *self.whole[1:]], dtype=self.dtype)


class Memory(TorchDispatchMode):
    """Bytes of the storages of all tensors that this thread's operations return, while they live."""

    def __init__(self, held: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in held:
            self._see(tensor)
        self.first = self.peak = self.now

    @property
    def now(self) -> int:
        self._live = {key: (ref, size) for key, (ref, size) in self._live.items() if not ref.expired()}
        return sum(size for _, size in self._live.values())

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._live[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().nbytes():
            self._see(result)
            self.peak = max(self.peak, self.now)
        return result


def bits(rows: int, columns: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bits, also those that are no number."""
    size = torch.Size([rows, *columns]).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return raw.view(dtype).reshape(rows, *columns)


def wholes() -> list[torch.Tensor]:
    kinds = [torch.float32, torch.float64, torch.bfloat16]
    return [bits(s[0], s[1:], kinds[n % 3], n) for n, s in enumerate(SHAPES)]


def shard_of(whole: torch.Tensor, shards: int, shard: int) -> torch.Tensor:
    low, high = bounds(whole.shape[0], shards, shard)
    return whole[low:high].clone()


@dataclass
class Moved:
    """What one rank saw."""

    sent: int
    first: int
    peak: int
    last: int


CHANGES = [
    pytest.param([0, 1, None], 2, (), id="2 to 3"),
    pytest.param([0, 1, 2, None], 3, (), id="3 to 4"),
    pytest.param([0, 1, 2], 3, (1,), id="3 to 2"),
    pytest.param([0, 1, 2, 3], 4, (0, 3), id="4 to 2"),
    pytest.param([0, None, None, None], 1, (), id="1 to 4"),
]
"""By rank its old shard or None for a joiner; the old number of shards; the ranks that leave."""


def change_of(old: Sequence[int | None], shards: int, leavers: Sequence[int]) -> Change:
    stay = [rank for rank in range(len(old)) if rank not in leavers]
    new = dict(zip(stay, assign([old[rank] for rank in stay], shards), strict=True))
    return Change([() if shard is None else (shard,) for shard in old], shards, [new.get(r) for r in range(len(old))])


@pytest.fixture
def run(connect, each, monkeypatch) -> Callable[[Change], tuple[list[Moved], int]]:
    """``run(change)``: each rank's figures, and the bytes that all of them gave to their connections. Fails the test
    if a bit of any tensor is another one afterwards."""
    monkeypatch.setattr(move, "BUCKET_BYTES", BUCKET_BYTES)
    handed: list[int] = []
    send = Mesh.send

    def counted(mesh: Mesh, peer: int, data: torch.Tensor) -> None:
        handed.append(data.nbytes)
        send(mesh, peer, data)

    monkeypatch.setattr(Mesh, "send", counted)

    def carried(change: Change) -> tuple[list[Moved], int]:
        expected = wholes()

        def rank(c: Communicator) -> Moved:
            own, place = change.held[c.rank], change.places[c.rank]
            parts = [shard_of(w, change.shards, own[0]) if own else w[:0].clone() for w in expected]
            tensors = [Sharded(w.shape, w.dtype, part) for w, part in zip(expected, parts, strict=True)]
            del parts

            def install(tensor: Sharded, memory: torch.Tensor) -> None:
                low, high = bounds(tensor.rows, change.size, place)
                tensor.local = memory[: high - low]

            with Memory([t.local for t in tensors]) as memory:
                sent = carry_out(change, c, tensors, lambda _number, t, _shard: t.local, install)
                last = memory.now
            if place is not None:
                for tensor, whole in zip(tensors, expected, strict=True):
                    wanted = shard_of(whole, change.size, place)
                    raw = [x.contiguous().view(-1).view(torch.uint8) for x in (tensor.local, wanted)]
                    assert torch.equal(*raw), "bits have changed"
            return Moved(sent, memory.first, memory.peak, last)

        return each(rank, connect(len(change.held))), sum(handed)

    return carried


@pytest.mark.parametrize(("old", "shards", "leavers"), CHANGES)
def test_no_bit_changes_and_as_few_bytes_travel_as_the_placement_allows(run, old, shards, leavers) -> None:
    change = change_of(old, shards, leavers)
    moved, handed = run(change)
    least = 0
    for whole in wholes():
        for own, place in zip(change.held, change.places, strict=True):
            if place is not None:
                need = set(range(*bounds(whole.shape[0], change.size, place)))
                have = {row for shard in own for row in range(*bounds(whole.shape[0], shards, shard))}
                least += len(need - have) * whole[0].nbytes
    assert sum(m.sent for m in moved) == least
    messages = handed - least
    assert messages % DIGEST_BYTES == 0 and messages < 0.01 * least, "beside the rows only their digests travel"


@pytest.mark.parametrize(("old", "shards", "leavers"), CHANGES)
def test_a_rank_needs_room_for_one_tensor_or_one_bucket_beside_what_it_holds(run, old, shards, leavers) -> None:
    change = change_of(old, shards, leavers)
    largest = max(bounds(w.shape[0], n, 0)[1] * w[0].nbytes for w in wholes() for n in (shards, change.size))
    for rank in run(change)[0]:
        extra = rank.peak - max(rank.first, rank.last)
        assert extra <= largest + BUCKET_BYTES, f"{extra:,} bytes beside {rank.first:,} and {rank.last:,}"
