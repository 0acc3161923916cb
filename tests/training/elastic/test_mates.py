"""Ranks of one worker end their NCCL communicators together: memory that kernels use is not freed."""

import socket
import threading
import time
from typing import Any, ClassVar

import pytest
import torch

from bench_harness.played_ranks import SECRET
from conditions import eventually
from elastrain.api.records import Generation, GenerationMember
from elastrain.elastic.comm.backend import Backend, Offer
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.stock import nccl
from elastrain.elastic.comm.stock import watchdog as module
from elastrain.elastic.comm.stock.watchdog import MATE, Mates, Observation, Watchdog, mates_of


def workers(*slots: int, port: int = 1) -> Generation:
    members, offset = [], 0
    for i, count in enumerate(slots):
        place = {"address": "127.0.0.1", "store_port": port}
        members.append(GenerationMember(id=f"m{i}", worker=f"w{i}", rank_offset=offset, slots=count, **place))
        offset += count
    return Generation(number=1, members=tuple(members), reason="Test", leader="m0", secret=SECRET)


def test_mates_are_the_other_ranks_of_the_worker() -> None:
    assert mates_of(workers(2, 3), 3) == [2, 4]
    assert mates_of(workers(2, 1), 2) == []


def test_agreement_waits_for_all_mates_and_names_those_that_say_nothing() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    here = Mates({rank: mine for rank, (mine, _) in enumerate(pairs)})
    threading.Timer(0.1, pairs[0][1].send, [b"be"]).start()  # has begun, and its kernels have ended
    threading.Timer(0.1, pairs[1][1].close).start()  # was killed
    assert here.agree(0.5) == [2]
    pairs[2][1].close()
    here.close()


def test_the_generation_is_aborted_if_a_mate_gives_it_up_and_not_if_a_mate_closes() -> None:
    (mine, theirs), (other, closing) = socket.socketpair(), socket.socketpair()
    causes: list[str] = []
    idle = lambda now, hung_up_at: Observation(now, None, hung_up_at, None, None)  # noqa: E731 - no sum is awaited
    watch = Watchdog([], [mine, other], idle, abort=causes.append, pass_on=pytest.fail, end_process=pytest.fail)
    closing.close()
    time.sleep(0.1)
    assert causes == []
    Mates({0: theirs}).begin()
    eventually(lambda: causes == [MATE], what="the abort")
    watch.stop()
    for s in (mine, theirs, other):
        s.close()


class Kernel:
    """A communicator of a device: its kernels run until they are ended, its memory is there until it is freed."""

    all: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.runs, self.freed, self.faults = True, False, 0
        Kernel.all.append(self)

    def abort(self) -> None:
        self.runs = False
        self.freed = True
        Kernel.fault()

    @classmethod
    def fault(cls) -> None:
        for kernel in cls.all:
            kernel.faults += kernel.runs and any(k.freed for k in cls.all if k is not kernel)


def revoke(kernel: Kernel, _device: object) -> bool:
    time.sleep(0.05 * Kernel.all.index(kernel))  # one after the other
    kernel.runs = False
    return True


@pytest.mark.parametrize("together", [True, False])
def test_no_memory_is_freed_while_the_kernel_of_a_mate_runs(together, monkeypatch, listeners, each) -> None:
    """``together`` False: the counterexample, without the agreement."""
    monkeypatch.setattr(Kernel, "all", [])
    monkeypatch.setattr(nccl, "open_backend", lambda *_: Kernel())
    monkeypatch.setattr(nccl, "revoke", revoke)
    monkeypatch.setattr(module, "AGREE_SECONDS", 10.0)
    if not together:
        monkeypatch.setattr(Mates, "agree", lambda _self: [])
    g = workers(3, port=listeners[0].port)

    def one(rank: int) -> Communicator:
        offer = Offer(Backend.NCCL, card=f"GPU-{rank}")
        return Communicator(of=g, rank=rank, listener=listeners[rank], offer=offer, device=torch.device("cpu"))

    ranks = each(one, range(3))
    ranks[1].abort("the agent has told this rank only")
    eventually(lambda: all(k.freed for k in Kernel.all), what="all ranks end the communicator")
    each(lambda c: c.close(), ranks)
    assert (sum(k.faults for k in Kernel.all) == 0) == together
