"""State that does not lie in the host's memory. (The tests call the memory of some tensors a device's.)"""

from typing import Any

import pytest
import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.state import digest, transfer
from elastrain.elastic.state.portions import Transfer
from elastrain.elastic.state.receiver import StateReceiver
from elastrain.elastic.state.sender import StateSender
from elastrain.elastic.state.transfer import Stage

TREE = {
    "weights": torch.randn(37, 11, dtype=torch.float64),
    "transposed": torch.arange(1200).reshape(30, 40).T,
    "small": torch.ones(3),
    "large": torch.randn(999),
}


@pytest.fixture
def elsewhere(monkeypatch) -> list[int]:
    """No tensor is on the host; yields the sizes of the page-locked buffers."""
    made: list[int] = []

    def page_locked(size: int, _device: torch.device) -> torch.Tensor:
        made.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(digest, "on_host", lambda _tensor: False)
    monkeypatch.setattr(transfer, "page_locked", page_locked)
    monkeypatch.setattr(transfer, "PIECE_BYTES", 400)
    monkeypatch.setattr(transfer, "SMALL_BYTES", 200)
    return made


@pytest.mark.parametrize("reuse", [True, False])
def test_state_of_a_device_arrives_in_place_through_one_piece_per_connection(reuse, elsewhere, pair, each) -> None:
    mine = {name: torch.zeros_like(value) for name, value in TREE.items()}

    def rank(c: Communicator) -> Any:
        if c.rank == 1:
            return StateReceiver(mine if reuse else None, c, Transfer([0], [1])).complete()
        return StateSender(TREE, c, Transfer([0], [1])).pause()

    received = each(rank, pair)[1]
    for name, value in TREE.items():
        assert torch.equal(received[name], value), name
        assert (received[name].data_ptr() == mine[name].data_ptr()) == reuse
    assert elsewhere
    assert set(elsewhere) == {400}
    assert len(elsewhere) <= 3, "one for the sender's connection, one for the receiver's pieces, one for packed tensors"


def test_tensors_of_the_host_are_used_as_they_are() -> None:
    stage, piece = Stage(8), torch.arange(8, dtype=torch.uint8)
    assert stage.to_host(piece) is piece
    assert stage.begin(piece) is piece
    stage.finish(piece, piece)
    assert stage._buffer is None


def test_sizes_of_pieces_may_differ_from_one_to_the_next(elsewhere) -> None:
    stage = Stage(8)
    for size in (8, 3, 8):
        piece, home = torch.randint(255, (size,), dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
        received = stage.begin(home)
        received.copy_(stage.to_host(piece.clone()) if size == 3 else piece)
        stage.finish(received, home)
        assert torch.equal(home, piece)
    assert elsewhere == [8]


def test_buffers_are_allocated_before_a_generation_may_include_the_rank(elsewhere) -> None:
    """Later its device may wait for other ranks, and an allocation for the device."""
    transfer.reserve(torch.device("cpu"))
    assert elsewhere == []
    transfer.reserve(torch.device("meta"))
    assert elsewhere == [transfer.PIECE_BYTES] * transfer.RESERVED
