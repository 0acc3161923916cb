"""The contract of all transports of gradients: the same tests for TCP, for a stand-in of NCCL, and (in
``test_on_gpu.py``) for the real NCCL."""

import os
import threading
import time
from collections import defaultdict
from enum import Enum
from types import SimpleNamespace

import pytest
import torch

from conditions import eventually
from elastrain.elastic.comm import communicator as communicator_module
from elastrain.elastic.comm import mesh
from elastrain.elastic.comm.backend import Backend, Offer
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.comm.stock import devices, nccl
from elastrain.elastic.comm.transport import CalledOff
from elastrain.elastic.commit.vote import Vote, cast
from elastrain.elastic.strategies.learner import Learner

PATIENCE = 30.0


class State(Enum):
    SUCCESS = 0
    REMOTE_ERROR = 1


# A stand-in for NCCL on machines without a GPU: ranks are threads, and a device is a queue of work.
#
# It has the properties of NCCL that the runtime must handle: sums are only queued, and their futures are done at once;
# a queued sum waits for its peers forever, even after their loss; an abort lets the queue continue with garbage in the
# buffers; an initialisation cannot be called off; and the kernel of an aborted rank may tell its peers that it has sent
# what it has not: their sums then end with what the memory held, and without an error.


class Machine:
    """All devices and their connections."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rooms: dict[bytes, dict[int, Device]] = defaultdict(dict)
        self.opened: list[Device] = []
        self.asked = 0
        """Initialisations that were begun."""
        self.refuses: str | None = None
        self.publishes = False
        """Whether aborted kernels tell their peers that they have sent their data."""
        self.of_thread: dict[int, Device] = {}
        self.silent: set[int] = set()
        """Ranks whose initialisation never comes back, until they are taken out."""

    def open_device(self, store, rank: int, world_size: int, _device) -> "Device":
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
        if self.refuses is not None:
            raise RuntimeError(self.refuses)
        if rank == 0:
            name = f"room {len(self.rooms)}".encode()
            store.set("0", name)
        else:
            name = store.get("0")
        store.set("torch's own diagnostics", b"")
        backend = Device(self, rank, world_size)
        with self.changed:
            self.opened.append(backend)
            room = self.rooms[name]
            room[rank] = backend
            backend.peers = room
            self.changed.notify_all()
            ready = self.changed.wait_for(lambda: len(room) == world_size and rank not in self.silent, PATIENCE)
            assert ready, "never connected"
        return backend


class Device:
    """Replaces ``ProcessGroupNCCL``."""

    def __init__(self, machine: Machine, rank: int, world_size: int) -> None:
        self.machine, self.rank, self.world_size = machine, rank, world_size
        self.peers: dict[int, Device] = {}
        self.queue: list[torch.Tensor] = []
        self.brought: list[torch.Tensor] = []
        self.memory: dict[int, torch.Tensor] = {}
        """The last sum of each size."""
        self.aborted = self.shut = False
        self.state = State.SUCCESS
        self.stubborn = False

    # -- as torch has it ---------------------------------------------------------------------------------------------
    def allreduce(self, buffers: list[torch.Tensor]) -> "Device":
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted")
        with self.machine.changed:
            self.machine.of_thread[threading.get_ident()] = self
            self.queue.append(buffers[0])
            self.brought.append(buffers[0].clone())
            self.machine.changed.notify_all()
        return self

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result([self.queue[-1]])
        return future

    def abort(self) -> None:
        with self.machine.changed:
            self.aborted = True
            self.machine.changed.notify_all()

    def shutdown(self) -> None:
        with self.machine.changed:
            self.shut = True
            self.machine.changed.notify_all()
            together = lambda: all(p.shut or p.aborted for p in self.peers.values())  # noqa: E731
            assert self.machine.changed.wait_for(together, PATIENCE)

    def get_error(self) -> State:
        return self.state

    # -- the device --------------------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Wait, as for an event at the end of the queue."""
        with self.machine.changed:
            for number, buffer in enumerate(self.queue):
                done = self.machine.changed.wait_for(lambda n=number: self.ends(n), PATIENCE)
                assert done, "the device waits for a peer that is gone"
                if self.aborted:
                    buffer.fill_(float("nan"))
                elif not self.complete(number):
                    buffer.copy_(self.memory.get(len(buffer), torch.zeros_like(buffer)))
                else:
                    buffer.copy_(sum(p.brought[number] for p in self.peers.values()))
                    self.memory[len(buffer)] = buffer.clone()
            self.queue = []
            self.brought = self.brought if not self.aborted else []

    def complete(self, number: int) -> bool:
        return all(len(p.brought) > number for p in self.peers.values())

    def ends(self, number: int) -> bool:
        misled = self.machine.publishes and any(p.aborted for p in self.peers.values())
        return self.aborted or misled or self.complete(number)


@pytest.fixture
def machine(monkeypatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(nccl, "open_backend", machine.open_device)
    monkeypatch.setattr(nccl.Nccl, "takes", lambda _self, _tensor: True)
    here = threading.get_ident
    monkeypatch.setattr(devices, "wait_for", lambda _device: machine.of_thread[here()].synchronize())
    return machine


@pytest.fixture(params=["tcp", "nccl"])
def form(request, machine, generation, listeners, each):
    """``form(size, number)``: the communicators of a generation."""
    made: list[Communicator] = []

    def of(world_size: int, number: int = 1, called_off=lambda: False) -> list[Communicator]:
        g = generation(world_size, number)
        errors: list[Exception] = []

        def one(rank: int) -> None:
            offer = Offer(Backend(request.param), card=f"GPU-{rank}", why="the test says so")
            at = {"of": g, "rank": rank, "listener": listeners[rank], "called_off": called_off}
            try:
                ranks[rank] = Communicator(**at, offer=offer, device=torch.device("cpu"))
            except Exception as e:
                errors.append(e)

        ranks: dict[int, Communicator] = {}
        each(one, range(world_size))
        made.extend(ranks.values())
        if errors:
            raise errors[0]  # the cause; another rank may have seen its connections end
        return [ranks[r] for r in range(world_size)]

    yield of
    for c in made:
        c.close()


only_nccl = pytest.mark.parametrize("form", ["nccl"], indirect=True)


def sums(c: Communicator, *values: float) -> list[float]:
    """The sums of ``values`` as the host reads them after waiting for all."""
    buffers = [torch.tensor([v], dtype=torch.float64) for v in values]
    for future in [c.sum_bucket(b) for b in buffers]:
        future.wait()
    c.await_sums()
    return [b.item() for b in buffers]


def kill(c: Communicator) -> None:
    """As the kernel does: all connections end, without a cause."""
    c._channels.shut()


def test_sums_are_those_of_all_ranks_in_order(form, each) -> None:
    for size in (1, 2, 3):
        ranks = form(size, size)
        assert each(lambda c: sums(c, 1.0, c.rank, 5.0), ranks) == [[size, sum(range(size)), 5 * size]] * size
        assert not any(c.broken for c in ranks)


def test_wait_for_a_peer_ends_with_the_recorded_cause_if_the_generation_is_aborted(form) -> None:
    waiting, _silent = form(2)
    threading.Timer(0.05, waiting.abort, ["member w1 is lost"]).start()
    sums(waiting, 1.0)
    assert waiting.broken == "member w1 is lost"


def test_wait_for_a_peer_ends_if_the_peer_is_killed(form) -> None:
    waiting, killed = form(2)
    threading.Timer(0.05, kill, [killed]).start()
    sums(waiting, 1.0)
    assert waiting.broken


def test_the_rest_of_an_abort_never_counts_as_a_sum(form, each) -> None:
    for number in range(5):
        ranks = form(2, number + 1)
        threading.Timer(0.002 * number, ranks[1].abort, ["lost"]).start()

        def train(c: Communicator) -> list[bool]:
            verdicts = []
            while c.broken is None:
                read = sums(c, 1.0, 2.0)
                verdicts.append(read == [2.0, 4.0] or c.broken is not None)
            return verdicts

        assert all(all(verdicts) for verdicts in each(train, ranks))


def vote(c: Communicator, *gradients: float) -> bool:
    """A step with these gradients; whether it counts on this rank."""
    torch.futures.wait_all([c.sum_bucket(torch.tensor([g], dtype=torch.float64)) for g in gradients])
    summed = cast(c, lambda: Vote(()))
    return c.broken is None and summed.sums[0] == c.world_size


def test_the_step_of_a_vote_counts_and_no_other_begins_if_a_generation_is_called_off(form, each, monkeypatch) -> None:
    """The rank that is called off has voted: the other, which is not called off, can commit the step."""
    # On a busy machine no data may move for as long as the product waits.
    monkeypatch.setattr(mesh, "QUIET_SECONDS", 5.0)
    told, other = form(2)

    def train(c: Communicator) -> bool:
        if c is other:
            other.sum_bucket(torch.ones(1, dtype=torch.float64)).wait()
            other.await_sums()
            eventually(lambda: other.mesh.waiting(), what="the other rank has voted")
            told.call_off("its successor is there")
            return cast(other, lambda: Vote(())).sums[0] == 2.0
        return vote(c, 1.0)

    assert each(train, [told, other]) == [True, True]
    assert told.broken is other.broken is None
    assert told.over == "its successor is there"
    told.sum_bucket(torch.ones(1)).wait()
    assert told.broken == "its successor is there"


@only_nccl
def test_the_step_counts_on_no_rank_if_one_is_called_off_before_it_has_voted(form, each, machine) -> None:
    told, other = form(2)

    def train(c: Communicator) -> bool:
        if c is other:
            eventually(lambda: any(d.brought for d in machine.opened), what="the sum has begun on the other rank")
            began = time.monotonic()
            told.call_off("its successor is there")
            assert told.broken == "its successor is there"
            assert time.monotonic() - began < 1.0, "no rank can commit without this rank's vote: nothing is waited for"
        return vote(c, 1.0)

    assert each(train, [told, other]) == [False, False]


@only_nccl
def test_a_learner_waits_for_its_peers_only_if_its_body_loads_a_kernel_behind_their_sums(form, each, machine) -> None:
    """CUDA loads a kernel when the device has no other work."""
    learning, peer = form(2)
    queued = lambda: any(len(device.brought) == 2 for device in machine.opened)  # noqa: E731

    def train(c: Communicator) -> bool:
        if c is peer:
            eventually(queued, what="the learner has queued the sums of the step")
            return vote(c, 1.0, 2.0)
        buckets = [SimpleNamespace(flat=torch.zeros(1, dtype=torch.float64), parameters=(), views=()) for _ in range(2)]
        learner = Learner(lambda: buckets)
        learner.begin(c, receiving=False)
        machine.of_thread[threading.get_ident()].synchronize()
        learner.finish()
        assert [bucket.flat.item() for bucket in buckets] == [1.0, 2.0]
        return cast(c, lambda: Vote(())).sums[0] == 2.0

    assert each(train, [learning, peer]) == [True, True]


@only_nccl
def test_a_step_does_not_count_if_the_kernel_of_an_aborted_peer_has_left_old_data(form, each, machine) -> None:
    """The sums of the rank end, without an error, with those of the step before; it has not seen the abort."""
    misled, aborted = form(2)
    machine.publishes = True
    assert each(lambda c: vote(c, 1.0, 2.0), [misled, aborted]) == [True, True]
    aborted._nccl.abort("the agent has told this rank only")
    aborted._broken = "the agent has told this rank only"

    def train(c: Communicator) -> bool:
        if c is misled:
            return vote(c, 5.0, 6.0)
        eventually(lambda: misled.mesh is None or not misled.devices._running, what="the other rank's sums have ended")
        seen = misled.broken
        aborted.abort("the connections end as well")
        return seen is None and vote(c, 5.0, 6.0)

    assert each(train, [misled, aborted]) == [False, False]


def test_survivors_continue_in_the_next_generation_if_one_broke(form, each) -> None:
    first = form(3, 1)
    kill(first[2])
    each(lambda c: sums(c, 1.0), first[:2])
    each(lambda c: c.close(), first)
    assert each(lambda c: sums(c, 1.0), form(2, 2)) == [[2.0]] * 2


def test_the_next_generation_connects_while_the_present_one_trains(form, each) -> None:
    present = form(2, 1)

    def both(c: Communicator) -> None:
        for _ in range(20):
            assert sums(c, 1.0) == [2.0]

    thread = threading.Thread(target=each, args=(both, present))
    thread.start()
    following = form(2, 2)
    thread.join()
    assert each(lambda c: sums(c, 3.0), following) == [[6.0]] * 2


@only_nccl
def test_ranks_end_it_in_good_order_if_all_leave_a_healthy_generation(form, machine, each) -> None:
    ranks = form(3)
    each(lambda c: sums(c, 1.0), ranks)
    each(lambda c: c.close(together=True), ranks)
    assert [(b.shut, b.aborted) for b in machine.opened] == [(True, False)] * 3


@only_nccl
def test_it_ends_by_an_abort_if_a_rank_does_not_say_farewell(form, machine, monkeypatch) -> None:
    monkeypatch.setattr(communicator_module, "FAREWELL_SECONDS", 0.05)
    leaving, _staying = form(2)
    leaving.close(together=True)
    assert [(b.shut, b.aborted) for b in sorted(machine.opened, key=lambda b: b.rank)] == [
        (False, True),
        (False, False),
    ]


@only_nccl
def test_generation_is_aborted_if_nccl_reports_an_error_of_the_network(form, machine) -> None:
    waiting, _other = form(2)
    next(b for b in machine.opened if b.rank == 0).state = State.REMOTE_ERROR
    sums(waiting, 1.0)
    assert waiting.broken == "NCCL reports remote error"


@only_nccl
def test_initialisation_is_abandoned_and_ended_later_if_it_is_called_off(form, machine, eventually) -> None:
    machine.silent = {0, 1}
    with pytest.raises(CalledOff):
        form(2, called_off=lambda: len(machine.opened) == 2)
    assert not any(b.aborted for b in machine.opened)
    with machine.changed:
        machine.silent = set()
        machine.changed.notify_all()
    eventually(lambda: all(b.aborted for b in machine.opened), what="the threads to end what they have made")


@only_nccl
def test_the_remedy_is_named_if_nccl_cannot_connect(form, machine) -> None:
    machine.refuses = "unhandled system error\nsecond line"
    with pytest.raises(nccl.InitialisationFailed, match=r"NCCL: unhandled system error; set NCCL_DEBUG=INFO .*=tcp"):
        form(2)


@only_nccl
def test_the_remedy_is_named_if_nccl_does_not_return(form, machine, monkeypatch) -> None:
    monkeypatch.setattr(nccl, "CONNECT_SECONDS", nccl.CONNECT_SECONDS / 300)
    machine.silent = {0, 1}
    with pytest.raises(nccl.InitialisationFailed, match=r"not connected 2 ranks .*NCCL_SOCKET_IFNAME .*=tcp"):
        form(2)


def test_tcp_is_used_by_all_if_one_rank_has_no_device(machine, generation, listeners, each) -> None:
    g = generation(2)
    offers = [Offer(Backend.NCCL, "GPU-1"), Offer(Backend.TCP, why="the model is on the CPU")]

    def one(rank: int) -> Communicator:
        return Communicator(of=g, rank=rank, listener=listeners[rank], offer=offers[rank])

    ranks = each(one, range(2))
    assert each(lambda c: sums(c, 1.0), ranks) == [[2.0]] * 2
    assert {c.choice.why for c in ranks} == {"rank 1: the model is on the CPU"}
    assert not machine.opened
    for c in ranks:
        c.close()


def test_torchs_error_handling_is_off_with_a_warning_if_it_was_demanded() -> None:
    environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_ENABLE_MONITORING": "1"}
    assert nccl.settings(environ) == ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    assert environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0", "its aborts would make garbage look like sums"
    assert environ["TORCH_NCCL_ENABLE_MONITORING"] == "1", "harmless variables are the user's choice"
    assert nccl.settings({}) == []
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ


def test_id_is_shared_once_and_what_torch_adds_stays_local() -> None:
    sent: list[bytes] = []

    def give(mine: bytes) -> list[bytes]:
        sent.append(mine)
        return sent

    root, other = nccl.IdStore(3, 0, give), nccl.IdStore(3, 1, lambda mine: [*sent, mine])
    root.set("0", b"\0id\xff")
    root.set("later", "x")
    assert len(sent) == 1
    assert other.get("0") == b"\0id\xff"
    assert not other.check(["later"])
    assert (other.add("n", 2), other.add("n", 3)) == (2, 5)
    assert (other.delete_key("n"), other.delete_key("n")) == (True, False)


def test_values_of_other_ranks_do_not_count_as_rank_0_s() -> None:
    sent: list[bytes] = []
    for rank in (1, 0):  # rank 0's set is its exchange: the others' come before
        store = nccl.IdStore(3, rank, lambda mine: sent.append(mine) or [mine])
        store.set("key", f"of {rank}")
        store.exchange()
    reader = nccl.IdStore(3, 2, lambda _: [sent[1], sent[0]])
    reader.set("own", "of 2")
    assert (reader.get("key"), reader.get("own")) == (b"of 0", b"of 2")


def test_a_broken_generation_raises_where_the_host_waits(form) -> None:
    waiting, _ = form(2)
    waiting.abort("lost")
    with pytest.raises(GenerationBroken, match="lost"):
        waiting.all_gather_ints([0], Kind.BARRIER)


def test_the_wait_ends_with_the_reason_if_a_peer_waits_outside_of_its_loop(form, each) -> None:
    def train_or_leave(c: Communicator) -> str | None:
        if c.rank == 0:
            sums(c, 1.0)
        else:
            with pytest.raises(GenerationBroken):
                c.all_gather_ints([0], Kind.BARRIER)
        return c.diverged

    told = [reason for reason in each(train_or_leave, form(2)) if reason is not None]
    assert told
    assert all(t.startswith("rank 1 left its loop after step 0 while rank 0 computes step 1") for t in told)
