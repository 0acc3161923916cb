"""The votes of all ranks for a step, over real connections: each reads the same sums."""

import pytest
import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.vote import Vote, cast


def test_all_ranks_read_the_same_sums(connect, each) -> None:
    def rank(c: Communicator) -> Summed:
        values = {"loss": 1.0 + c.rank, "compute": 2.0, "stop": c.rank == 1, "save": c.rank}
        return cast(c, lambda: Vote({1, 2 + c.rank}, **values, riders={"of_model": [c.rank, 10.0], "of_batch": [7.0]}))

    for number, summed in enumerate(each(rank, connect(3))):
        assert [summed.sums[i] for i in (control.LOSS, control.COMPUTE, control.STOP, control.SAVE)] == [6, 6, 1, 3]
        assert (summed.of_model, summed.of_batch, summed.replicas) == ([3, 30], [21], [])
        assert summed.agreed(0) == 1, f"rank {number}: the only proposal that all are connected to"


def test_counts_and_numbers_of_replicas_are_exact(pair, each) -> None:
    count, replica = 2**51 + 1, 2**63 - 2
    for summed in each(lambda c: cast(c, lambda: Vote((), count=count, replica=replica + c.rank)), pair):
        assert summed.sums[control.COUNT] == 2 * count
        assert summed.replicas == [replica, replica + 1]


def test_a_rank_reads_its_values_when_its_sums_have_ended(pair, each) -> None:
    def rank(c: Communicator) -> list[str]:
        order, ended = [], c.await_sums
        c.await_sums = lambda: order.append("the sums have ended") or ended()
        c.sum_bucket(torch.ones(3)).wait()
        cast(c, lambda: order.append("votes") or Vote(()))
        return order

    assert each(rank, pair) == [["the sums have ended", "votes"]] * 2


def test_the_sum_is_void_if_a_peer_was_lost(pair) -> None:
    one, other = pair
    other.abort("lost")
    cast(one, lambda: Vote(()))
    assert one.broken


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_values_of_one_step_never_reach_the_next(connect, each, ranks) -> None:
    def rank(c: Communicator) -> list[float]:
        return [cast(c, lambda n=n: Vote((), loss=n)).sums[control.LOSS] for n in (1.0, 2.0)]

    assert each(rank, connect(ranks)) == [[ranks, 2.0 * ranks]] * ranks
