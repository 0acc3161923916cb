"""The handler under torch's contract, several agents in one process; test_torchrun.py has real torchrun processes."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from elastrain.api.keys import JobKeys
from elastrain.api.records import Target

rendezvous = pytest.importorskip("torch.distributed.elastic.rendezvous.api")
registry = pytest.importorskip("torch.distributed.elastic.rendezvous.registry")


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def agent(etcd, run_id, monkeypatch):
    """``agent("a", nnodes=(1, 2), **rdzv_conf)``: a handler made as by torchrun, by the entry point's name."""
    handlers = []

    def make(worker: str, nnodes: tuple[int, int] = (1, 2), endpoint: str = "", **conf: object):
        monkeypatch.setenv("ELASTRAIN_WORKER", worker)
        settings = {"lease_ttl": "2", "settle": "0.3", "join_timeout": "20", "timeout": 900, **conf}
        parameters = rendezvous.RendezvousParameters(
            "etcd-v3", endpoint or etcd.endpoint, run_id, *nnodes, local_addr="127.0.0.1", **settings
        )
        handlers.append(registry.get_rendezvous_handler(parameters))
        return handlers[-1]

    yield make
    for handler in handlers:
        handler._leave()


@pytest.fixture
def side():
    """Runs a blocking call of another agent."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def meet(side, *agents) -> list[Future]:
    return [f.result(30) for f in [side(a.next_rendezvous) for a in agents]]


def test_agents_meet_at_the_store_of_rank_0(agent, side):
    a, b = agent("a", (2, 2)), agent("b", (2, 2))
    infos = meet(side, a, b)
    assert sorted(i.rank for i in infos) == [0, 1]
    assert {i.world_size for i in infos} == {2}
    assert a.use_agent_store
    assert len({(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}) == 1
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert a.num_nodes_waiting() == b.num_nodes_waiting() == 0


def test_a_new_round_has_a_fresh_store_if_rank_0_stays(agent, side, eventually):
    a = agent("a")
    (alone,) = meet(side, a)
    alone.store.set("stale", "1")
    b = agent("b")
    waiting = side(b.next_rendezvous)
    eventually(lambda: a.num_nodes_waiting() == 1, what="the waiting agent to be seen")
    both = a.next_rendezvous()
    assert (both.rank, both.world_size, waiting.result(20).rank) == (0, 2, 1)
    old, new = alone.bootstrap_store_info, both.bootstrap_store_info
    assert new.master_port != old.master_port
    assert not both.store.check(["stale"])


def test_survivors_restart_if_an_agent_is_gone(agent, side, eventually):
    a, b = agent("a"), agent("b")
    meet(side, a, b)
    first, second = (a, b) if a._member.view.leader == a._member.id else (b, a)
    first._leave()  # as its exit handler does
    eventually(lambda: second.num_nodes_waiting() > 0, what="the loss to be seen")
    info = second.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert second.num_nodes_waiting() == 0


def test_no_node_waits_if_the_job_is_full(agent, side):
    a, b = agent("a", (1, 2)), agent("b", (1, 2))
    meet(side, a, b)
    spare = agent("spare", (1, 2), join_timeout="2")
    failed = side(spare.next_rendezvous)
    with pytest.raises(rendezvous.RendezvousTimeoutError, match=r"waited 2 s \(join_timeout\) for a generation"):
        failed.result(20)
    assert a.num_nodes_waiting() == 0
    spare.shutdown()
    assert not a.is_closed(), "a spare must not end the job"


def test_a_finished_job_is_closed_and_a_left_one_is_not(agent, side, eventually):
    a, b = agent("a", (2, 2)), agent("b", (2, 2))
    meet(side, a, b)
    assert not a.is_closed()
    assert a.shutdown()
    eventually(b.is_closed, what="the end to be seen")
    assert b.num_nodes_waiting() == 0
    late = agent("late", (1, 2))
    with pytest.raises(rendezvous.RendezvousClosedError, match="choose another --rdzv-id"):
        side(late.next_rendezvous).result(20)


def test_the_operators_target_wins(agent, side, client, run_id):
    keys = JobKeys("default", run_id, "torchrun")
    client.put(keys.target, Target(min=1, max=1, desired=1, reason="Operator").encode())
    (info,) = meet(side, agent("a", (3, 8)))
    assert info.world_size == 1


def test_an_agent_ends_quietly_if_the_target_asks_it_to_leave(agent, side, client, run_id, eventually):
    a, b = agent("a"), agent("b")
    meet(side, a, b)
    keys = JobKeys("default", run_id, "torchrun")
    client.put(keys.target, Target(min=1, max=2, desired=1, leaving=("b",)).encode())
    eventually(lambda: a.num_nodes_waiting() and b.num_nodes_waiting(), what="both to restart")
    going = side(b.next_rendezvous)
    assert a.next_rendezvous().world_size == 1
    with pytest.raises(SystemExit) as exit_:
        going.result(20)
    assert exit_.value.code == 0


def test_min_nodes_are_waited_for(agent, side):
    with pytest.raises(rendezvous.RendezvousTimeoutError, match=r"1 agents are ready \(a\), at least 2 are needed"):
        side(agent("a", (2, 2), join_timeout="1").next_rendezvous).result(20)


def test_unreachable_etcd_is_named(agent, side):
    lost = agent("a", endpoint="127.0.0.1:1", connect_timeout="0.5")
    with pytest.raises(rendezvous.RendezvousConnectionError, match=r"etcd at 127\.0\.0\.1:1 is unavailable"):
        side(lost.next_rendezvous).result(20)


def test_wrong_credentials_are_named_at_once(guarded, agent, side):
    server, config = guarded
    stranger = config("stranger")
    conf = {"username": stranger.username, "password_file": str(stranger.password_file)}
    denied = agent("a", endpoint=server.endpoint, **conf)
    with pytest.raises(rendezvous.RendezvousConnectionError, match=f"etcd at {server.endpoint} .*'stranger' to log in"):
        side(denied.next_rendezvous).result(20)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"lease_tll": "3"}, "'lease_tll' is not an option of etcd-v3; there are: namespace"),
        ({"lease_ttl": "x"}, "lease_ttl='x' must be a number"),
        ({"lease_ttl": "1"}, "lease_ttl=1 must be at least 2"),
        ({"ca": "/nowhere"}, "CA: '/nowhere' is not a file"),
        ({"namespace": "a/b"}, "must not contain '/'"),
    ],
)
def test_a_wrong_option_is_named(agent, conf, message):
    with pytest.raises(ValueError, match=message):
        agent("a", **conf)


def test_threads_end_with_the_handler(agent, side, eventually):
    a = agent("a", (1, 1))
    meet(side, a)
    a.shutdown()
    names = {"membership", "etcd-watch", "etcd-lease"}
    eventually(lambda: not any(t.name in names and t.is_alive() for t in threading.enumerate()), what="threads to end")


def test_etcd_and_job_default_to_those_of_the_worker(etcd, run_id, monkeypatch):
    monkeypatch.setenv("ELASTRAIN_ETCD_ENDPOINTS", etcd.endpoint)
    monkeypatch.setenv("ELASTRAIN_JOB", run_id)
    handler = registry.get_rendezvous_handler(rendezvous.RendezvousParameters("etcd-v3", "", "none", 1, 1))
    assert handler.get_run_id() == run_id
    handler.next_rendezvous()
    handler._leave()


def test_the_remedy_is_named_if_no_etcd_endpoint_is_given(monkeypatch):
    monkeypatch.delenv("ELASTRAIN_ETCD_ENDPOINTS", raising=False)
    with pytest.raises(ValueError, match="--rdzv-endpoint=HOST:PORT: give etcd's address"):
        registry.get_rendezvous_handler(rendezvous.RendezvousParameters("etcd-v3", "", "none", 1, 1))
