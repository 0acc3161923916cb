"""Collectives over a few of a generation's ranks, with the ranks as threads of the test: real sockets."""

import contextlib

import pytest
import torch

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.subgroup import Subgroup
from played_card import OnCard

GROUPS = ((0, 1), (2, 3))


def of(ranks: tuple[tuple[int, int], ...], c: Communicator) -> Subgroup:
    return Subgroup(c, next(r for r in ranks if c.rank in r))


def test_a_gather_has_the_parts_of_the_own_group_by_place(connect, each) -> None:
    def gather(c: Communicator) -> list[float]:
        out = torch.empty(6)
        out.view(2, 3)[c.rank % 2] = float(c.rank)
        of(GROUPS, c).all_gather(out, out.view(2, 3)[c.rank % 2])  # in place, as FSDP does
        return out.tolist()

    first, second = [0.0] * 3 + [1.0] * 3, [2.0] * 3 + [3.0] * 3
    assert each(gather, connect(4)) == [first, first, second, second]


def test_a_scatter_has_the_sum_of_the_own_parts(connect, each) -> None:
    def scatter(c: Communicator) -> list[float]:
        out = torch.empty(2)
        of(GROUPS, c).reduce_scatter(out, torch.arange(4.0) + 10 * c.rank)
        return out.tolist()

    assert each(scatter, connect(4)) == [[10.0, 12.0], [14.0, 16.0], [50.0, 52.0], [54.0, 56.0]]


@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7)])
def test_a_sum_over_twins_has_the_same_bits_on_all_of_them(connect, each, shape) -> None:
    parts = [torch.randn(shape, generator=torch.Generator().manual_seed(r)) for r in range(6)]

    def add(c: Communicator) -> torch.Tensor:
        tensor = parts[c.rank].clone()
        Subgroup(c, range(c.rank % 2, 6, 2)).all_reduce(tensor)
        return tensor

    sums = each(add, connect(6))
    for shard in range(2):
        expected = parts[shard] + parts[shard + 2] + parts[shard + 4]
        assert all(torch.equal(sums[r], expected) for r in range(shard, 6, 2))


def test_a_matrix_arrives_whole_if_no_socket_holds_it(pair, each) -> None:
    """A view of its rows would take a partial write's bytes for rows."""

    def gather(c: Communicator) -> bool:
        mine = torch.full((1024, 4096), float(c.rank))
        out = torch.empty(2, 1024, 4096)
        with c.exchange(mine.nbytes) as mesh:
            mesh.send(1 - c.rank, mine)
            mesh.receive(1 - c.rank, out[1 - c.rank])
            mesh.run()
        return bool((out[1 - c.rank] == 1 - c.rank).all())

    assert each(gather, pair) == [True, True]


def test_tensors_of_a_device_travel_through_page_locked_memory_and_the_host_waits_once_for_each(
    card, pair, each
) -> None:
    def collect(c: Communicator) -> list[torch.Tensor]:
        group = Subgroup(c, (0, 1))
        total, whole, mine = (torch.full((size,), float(c.rank)).as_subclass(OnCard) for size in (5, 6, 2))
        group.all_reduce(total)
        group.all_gather(whole, whole.view(2, 3)[c.rank])
        group.reduce_scatter(mine, torch.arange(4.0).as_subclass(OnCard))
        return [total, whole, mine]

    found = each(collect, pair)
    assert card.asked.count("wait") == 2 * 3
    assert card.done < card.queued, "the copies back are queued"
    card.run()
    for rank in range(2):
        total, whole, mine = (tensor.tolist() for tensor in found[rank])
        assert (total, whole, mine) == ([1.0] * 5, [0.0] * 3 + [1.0] * 3, [[0.0, 2.0], [4.0, 6.0]][rank])
    assert len(card.page_locked) == 2 * 4, "a sum and a gather need one piece of memory each, a scatter two"


def test_all_ranks_of_a_subgroup_fail_if_one_is_lost(connect, each) -> None:
    def gather(c: Communicator) -> str:
        if c.rank == 1:
            c.abort("lost")
        try:
            of(GROUPS, c).all_gather(torch.empty(2), torch.zeros(1))
        except GenerationBroken:
            return "broken"
        return "done"

    assert each(gather, connect(4)) == ["broken", "broken", "done", "done"]


def test_ranks_that_make_different_collectives_are_named(connect, each) -> None:
    def call(c: Communicator) -> str | None:
        group = of(GROUPS, c)
        with contextlib.suppress(GenerationBroken):
            if c.rank:
                group.all_gather(torch.empty(4), torch.zeros(2))
            else:
                group.reduce_scatter(torch.empty(4), torch.zeros(8))
        return c.diverged

    first, second, *others = each(call, connect(4))
    assert "rank 0 computes step 1 (16 bytes of gradients" in (first or second or "")
    assert others == [None, None]
