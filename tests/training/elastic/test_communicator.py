"""The group of one generation, with both ranks as threads of the test: real gloo, real sockets."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from elastrain.api.records import Generation, GenerationMember
from elastrain.elastic.comm import communicator as communicator_module
from elastrain.elastic.comm.backend import Backend, Offer
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.exchange import MeetingStore
from elastrain.elastic.comm.gloo import CONNECT_TIMEOUT
from elastrain.elastic.comm.watchdog import HOST_SECONDS

PATIENCE = 30.0


def test_every_rank_gets_the_values_of_all(pair, each) -> None:
    assert each(lambda c: c.all_gather_ints([c.rank, 7]), pair) == [[[0, 7], [1, 7]]] * 2


def test_a_blocked_collective_ends_at_once_on_both_sides_if_one_rank_aborts(pair) -> None:
    waiting, aborting = pair
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(waiting.barrier)
        time.sleep(0.05)  # let it block; if it has not yet, the abort is met on the way in
        began = time.monotonic()
        aborting.abort("test")
        with pytest.raises(GenerationBroken):
            blocked.result(10)
        assert time.monotonic() - began < 5, "it waited for a timeout"
    assert waiting.broken
    with pytest.raises(GenerationBroken, match="test"):
        aborting.barrier()


def test_own_abort_ends_a_collective_that_waits_for_a_silent_peer(pair) -> None:
    waiting, _silent = pair
    threading.Timer(0.05, waiting.abort, ["member w1 is lost"]).start()
    with pytest.raises(GenerationBroken, match="member w1 is lost"):
        waiting.barrier()


def test_a_failed_bucket_is_left_local_and_the_group_is_broken(pair) -> None:
    waiting, silent = pair
    future = waiting.sum_bucket(torch.ones(4))
    silent.abort("gone")
    future.wait()
    assert waiting.broken


def test_a_collective_that_gloo_does_not_tell_ends_if_the_connection_to_a_peer_does(pair_with_group) -> None:
    class InTheMiddleOfAMessage:  # as Pair::signalException leaves it
        def get_future(self) -> torch.futures.Future[None]:
            return torch.futures.Future()

    waiting, killed = pair_with_group
    future = waiting._gloo.own(InTheMiddleOfAMessage(), "result", on_failure="given up")
    killed.abort("as the kernel does at a kill")
    assert future.wait() == "given up"
    assert waiting.broken == "the connection to a peer has ended"


def test_a_generation_that_waits_for_nothing_is_left_whole_if_a_peer_leaves(pair_with_group) -> None:
    staying, leaving = pair_with_group
    leaving.abort("left")
    time.sleep(2 * HOST_SECONDS)  # that nothing happens can only be seen by waiting
    assert staying.broken is None


def test_a_sum_that_waits_for_a_silent_peer_is_given_up_if_the_generation_is_called_off(pair) -> None:
    waiting, _silent = pair
    threading.Timer(0.05, waiting.call_off, ["member w1 is lost"]).start()
    with pytest.raises(GenerationBroken, match="member w1 is lost"):
        waiting.barrier()


def test_a_generation_whose_group_was_lent_is_aborted_soon_after_it_was_called_off(pair_with_group, eventually) -> None:
    """What uses the group waits for gloo, which knows no other end."""
    told, _ = pair_with_group
    told.lend_group()
    told.call_off("its successor is there")
    eventually(lambda: told.broken == "its successor is there", what="the abort")


def test_a_generation_that_was_called_off_lends_its_group_to_nobody(pair_with_group) -> None:
    told, _ = pair_with_group
    told.call_off("its successor is there")
    told.lend_group()
    assert told.broken == "its successor is there"


def test_a_generation_of_one_member_ends_at_once_if_called_off(meeting_point, each) -> None:
    """Nobody else can have a part in its step, and its place may be given away."""
    place = {"address": "127.0.0.1", "store_port": meeting_point.port}
    alone = GenerationMember(id="m0", worker="w0", rank_offset=0, slots=2, **place)
    g = Generation(number=1, members=(alone,), reason="Test", leader="m0")
    ranks = each(
        lambda r: Communicator(of=g, rank=r, store=MeetingStore(g, r, lambda: False), address="127.0.0.1"), [0, 1]
    )
    ranks[0].sum_bucket(torch.ones(4))
    ranks[0].call_off("etcd has not confirmed the lease")
    assert ranks[0].broken == "etcd has not confirmed the lease"
    for c in ranks:
        c.close()


def test_other_groups_stay_healthy_if_one_is_aborted(connect, each) -> None:
    first, second = connect(2, number=1), connect(2, number=2)
    first[0].abort("test")
    assert each(lambda c: c.all_gather_ints([c.rank]), second) == [[[0], [1]]] * 2


@pytest.mark.parametrize("groups", [(), (0, 1, 2)])
def test_nothing_is_left_open_if_generations_come_and_go(connect, groups) -> None:
    def cycle(number: int) -> tuple[int, int]:
        for c in connect(3, number, groups):
            c.abort("test")
            c.close()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    cycle(1)
    first = cycle(2)
    for number in range(3, 13):
        last = cycle(number)
    # A leak would show once per group, 30 times; torch itself keeps one or the other after a slow connect.
    assert last[0] - first[0] < 10, "file descriptors leak"
    assert last[1] - first[1] < 10, "threads leak"


def test_a_stuck_group_is_let_go_when_its_last_collective_has_ended(pair_with_group, eventually) -> None:
    late: torch.futures.Future[None] = torch.futures.Future()

    class Endless:
        def get_future(self) -> torch.futures.Future[None]:
            return late

    communicator = pair_with_group[0]
    waiting = communicator._gloo.own(Endless(), "result", on_failure="given up")
    communicator.abort("a peer is silent")
    assert waiting.wait() == "given up"
    assert communicator.stuck
    communicator.close()
    assert communicator._gloo.group is not None, "its destructor would wait for the collective"
    late.set_exception(RuntimeError("timed out"))
    eventually(lambda: communicator._gloo.group is None, what="the group to be let go")


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo])
def test_what_is_summed_is_completed_first_whatever_sums_it(pair_with_group, each, layout) -> None:
    def add(c: Communicator) -> float:
        late = torch.zeros(1)
        gradients = torch.ones(2) if layout is torch.strided else torch.ones(2).to_sparse()
        torch.futures.wait_all(c.sum_together(gradients, late, before=lambda: late.fill_(c.rank + 1)))
        return late.item()

    assert each(add, pair_with_group) == [3, 3]


def test_what_nobody_else_adds_to_is_completed_too(connect) -> None:
    (alone,), late = connect(1), torch.zeros(1)
    torch.futures.wait_all(alone.sum_together(late, before=lambda: late.fill_(1)))
    assert late.item() == 1


def test_no_group_is_formed_if_no_rank_has_use_for_it(pair) -> None:
    assert [(c.lend_group(), c.sums_by) for c in pair] == [(None, "tcp")] * 2


def test_all_ranks_form_a_group_if_one_asks_for_it(connect, each) -> None:
    ranks = connect(3, groups=[1])

    def add(c: Communicator) -> float:
        value = torch.tensor([c.rank + 1.0])
        group = c.lend_group()
        assert group is not None
        group.allreduce([value]).wait()
        return value.item()

    assert each(add, ranks) == [6.0] * 3
    assert {c.sums_by for c in ranks} == {"gloo"}


def test_a_generation_cannot_be_formed_if_a_peer_goes_while_the_group_is(connect, monkeypatch) -> None:
    gather = Communicator._gather

    def leave(self: Communicator, mine: bytes) -> list[bytes]:
        if self.rank == 1:
            self.abort("killed")
        return gather(self, mine)

    monkeypatch.setattr(Communicator, "_gather", leave)
    with pytest.raises(RuntimeError, match=r"killed|connection|reset|peer"):
        connect(2, groups=[0, 1])


@pytest.mark.parametrize("ended_by", ["called off", "too long"])
def test_forming_a_group_with_a_silent_peer_ends_if_it_is_not_wanted_or_takes_too_long(
    ended_by: str, generation, each, monkeypatch
) -> None:
    """A node that freezes between its connections and its group; the thread that waits for it would be left behind."""
    frozen, woken, gather = threading.Event(), threading.Event(), Communicator._gather

    def freeze(self: Communicator, mine: bytes) -> list[bytes]:
        if self.rank == 1:
            frozen.set()
            woken.wait(PATIENCE)
        return gather(self, mine)

    g = generation(2)

    def form(rank: int) -> str:
        at = {"of": g, "rank": rank, "store": MeetingStore(g, rank, lambda: False), "address": "127.0.0.1"}
        called_off = lambda: ended_by == "called off" and frozen.is_set()  # noqa: E731
        try:
            Communicator(**at, offer=Offer(Backend.GLOO, group=True), called_off=called_off)
        except GenerationBroken as e:
            return str(e)
        finally:
            woken.set()
        return "formed"

    monkeypatch.setattr(Communicator, "_gather", freeze)
    if ended_by == "too long":
        monkeypatch.setattr(communicator_module, "_LAST_SECONDS", 0.1 - CONNECT_TIMEOUT.total_seconds())
    began = time.monotonic()
    said = each(form, range(2))  # whose watch strikes first ends both
    assert time.monotonic() - began < PATIENCE / 2
    assert ("nobody needs" if ended_by == "called off" else "within 0.1 s") in " ".join(said)
