"""State on its way between ranks in one round, with all ranks as threads of the test: real sockets."""

import contextlib
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.comm import channel
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.reshard import snapshots
from elastrain.elastic.state import digest, portions, transfer
from elastrain.elastic.state.portions import Transfer
from elastrain.elastic.state.receiver import StateReceiver
from elastrain.elastic.state.sender import StateSender

TREE = {
    "weights": torch.randn(7, 11, dtype=torch.float64),
    "half": torch.randn(5).bfloat16(),
    "mask": torch.tensor([True, False]),
    "scalar": torch.tensor(3.0),
    "empty": torch.empty(0),
    "transposed": torch.arange(1200).reshape(30, 40).T,
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": torch.arange(100)[::3],
    "large": torch.randn(999),
    "nested": {0: [1, "two", None, (3.0, torch.tensor([4]))]},
}


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(transfer, "PIECE_BYTES", 400)
    monkeypatch.setattr(transfer, "SMALL_BYTES", 200)


def move(c: Communicator, tree: Any, sources: list[int], receivers: list[int], mine: Any = None) -> Any:
    """Take part in sending ``tree`` from ``sources`` to ``receivers``; returns the tree that this rank has received."""
    if c.rank in receivers:
        return StateReceiver(mine, c, Transfer(sources, receivers)).complete()
    if c.rank in sources:
        StateSender(tree, c, Transfer(sources, receivers)).pause()
        if c.broken is not None:
            raise GenerationBroken(c.generation, c.broken)
    return None


@pytest.mark.parametrize(("sources", "receivers"), [([0], [1]), ([0], [1, 2]), ([0, 2], [1]), ([1, 2], [0, 3])])
def test_state_arrives_equal_for_any_sources_and_receivers(sources, receivers, small_pieces, connect, each) -> None:
    ranks = connect(4)
    received = each(lambda c: move(c, TREE, sources, receivers), ranks)
    for rank, got in enumerate(received):
        if rank in receivers:
            assert_same(got, TREE)
            assert got["nested"].keys() == {0}
            assert got["channels last"].stride() == TREE["channels last"].stride()
        else:
            assert got is None


def assert_same(a: object, b: object) -> None:
    for x, y in zip(torch.utils._pytree.tree_leaves(a), torch.utils._pytree.tree_leaves(b), strict=True):
        assert torch.equal(x, y) and x.dtype == y.dtype if isinstance(y, torch.Tensor) else x == y


def test_state_arrives_in_the_receivers_own_tensors_if_they_fit_and_may_be_used(pair, each, small_pieces) -> None:
    fits, other_type = torch.zeros(999), torch.zeros(500)
    theirs = {"fits": torch.randn(999), "other type": torch.randn(500).double(), "new": torch.ones(3)}
    mine = {"fits": fits, "other type": other_type}
    received = each(lambda c: move(c, theirs, [0], [1], mine), pair)[1]
    assert_same(received, theirs)
    assert received["fits"].data_ptr() == fits.data_ptr()
    assert not other_type.any()


def test_generation_is_broken_if_a_piece_arrives_damaged(pair, each, monkeypatch, small_pieces) -> None:
    of_bytes = digest.of_bytes
    receiving = threading.local()
    monkeypatch.setattr(digest, "of_bytes", lambda data: of_bytes(data) ^ getattr(receiving, "damaged", 0))

    def exchange(c: Communicator) -> str | None:
        receiving.damaged = c.rank
        try:
            move(c, TREE, [0], [1])
        except GenerationBroken as e:
            return e.cause
        return None

    assert each(exchange, pair)[1] == "state from rank 0 arrived damaged: checksums differ"


@given(
    st.lists(st.integers(0, 300), max_size=40),
    st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),
    st.integers(0, 3),
)
def test_every_byte_travels_once_in_pieces_within_the_bound(sizes, sources, receiver) -> None:
    tree = [torch.full((size,), number % 256, dtype=torch.uint8) for number, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "PIECE_BYTES", 50)
        patch.setattr(transfer, "SMALL_BYTES", 10)
        pieces, packs = portions.pieces(tree), transfer.pack_small(sizes)
    large = [byte for portion in pieces for tensor in portion.tensors for byte in tensor.tolist()]
    small = [number % 256 for pack in packs for number in pack for _ in range(sizes[number])]
    assert sorted(large + small) == sorted(number % 256 for number, size in enumerate(sizes) for _ in range(size))
    assert all(0 < portion.nbytes <= 50 for portion in pieces)
    assert all(0 < sum(sizes[number] for number in pack) <= 50 for pack in packs)
    route = Transfer(sources, range(10, 14))
    sent = [route.sent_by(source, 10 + receiver, len(pieces)) for source in sources]
    assert sorted(n for of_source in sent for n in of_source) == list(range(len(pieces)))
    assert max(map(len, sent)) - min(map(len, sent)) <= 1


@pytest.mark.parametrize(("mine", "sources", "receivers"), [(0, [0], [1]), (1, [0], [1])])
def test_sender_and_receiver_stop_waiting_for_a_silent_peer_if_aborted(pair, mine, sources, receivers) -> None:
    threading.Timer(0.05, pair[mine].abort, ["the peer is silent"]).start()
    with pytest.raises(GenerationBroken, match="the peer is silent"):
        move(pair[mine], TREE, sources, receivers)


@pytest.mark.parametrize("error", [ValueError, KeyError, MemoryError, SystemExit])
@pytest.mark.parametrize("source", [0, 1])
def test_an_error_of_any_kind_in_any_thread_of_a_receiver_is_that_rank_s_and_ends_the_others(
    small_pieces, connect, each, monkeypatch, error, source
) -> None:
    receive_tensors = transfer.receive_tensors

    def fail(tensors: Any, communicator: Communicator, of: int, *others: Any) -> None:
        if of == source:
            raise error("a piece")
        receive_tensors(tensors, communicator, of, *others)

    monkeypatch.setattr(transfer, "receive_tensors", fail)

    def run(c: Communicator) -> BaseException | None:
        with contextlib.suppress(GenerationBroken):  # a source may have sent everything already
            move(c, {"large": torch.ones(9999)}, [0, 1], [2])
            assert c.rank != 2
        return c.failure

    assert [type(failure) for failure in each(run, connect(3))] == [type(None), type(None), error]


def test_a_state_that_cannot_travel_is_refused_by_its_place() -> None:
    with pytest.raises(
        TypeError, match=r"job\.track: the state\['metrics'\]\['lock'\] is a _thread\.lock, which cannot"
    ):
        transfer.header_of({"metrics": {"lock": threading.Lock()}, "weights": torch.ones(3)})


def test_a_header_of_any_announced_length_is_refused_or_costs_what_arrives(pair, each) -> None:
    def receive(c: Communicator) -> None:
        (connection,) = c.accept([1], channel.Purpose.STATE).values()
        transfer.receive_small(None, c, 1, connection)

    def lie(c: Communicator) -> None:
        c.connect(0, channel.Purpose.STATE).sendall((2**62).to_bytes(8, "big"))

    with pytest.raises(GenerationBroken, match=f"state from rank 1 arrived damaged: a header of {2**62} bytes"):
        each(lambda c: (receive, lie)[c.rank](c), pair)


def test_small_tensors_arrive_as_they_were_when_the_transfer_began(pair, each, small_pieces) -> None:
    tree = {"statistics": torch.zeros(5), "large": torch.ones(999), "steps": 7}
    given = threading.Event()

    def exchange(c: Communicator) -> Any:
        if c.rank == 1:
            assert given.wait(10)
            return StateReceiver(None, c, Transfer([0], [1])).complete()
        sender = StateSender(tree, c, Transfer([0], [1]))
        tree["statistics"].fill_(1)  # like a forward that updates running statistics
        tree["steps"] = 8
        given.set()
        sender.pause()
        return None

    assert_same(each(exchange, pair)[1], {"statistics": torch.zeros(5), "large": torch.ones(999), "steps": 7})


@pytest.mark.parametrize("error", [OSError, ValueError, KeyError, MemoryError])
def test_an_error_of_any_kind_ends_a_snapshot_and_its_generation(pair, error) -> None:
    ring = snapshots._Ring(pair[0], outgoing=None, incoming=None, predecessor=1, shard=0)
    with ring.ends_by_errors():
        raise error("a piece")
    assert ring.failed and "a piece" in (pair[0].broken or "")
