"""Checks of several workers meet through a real etcd."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from elastrain.api import names
from elastrain.api.records import Member, Target
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain_cli import preflight
from elastrain_pairs import enter, rounds
from elastrain_pairs.records import Group, Participant
from elastrain_pairs.rounds import Check, Verdict, by_process

SICK_PORT = 666


@pytest.fixture
def checks(etcd, job_keys) -> Iterator:
    """``checks({worker: node}, sick=...)``: their verdicts by worker."""
    clients: list[EtcdClient] = []

    def trial(host: str, port: int, rank: int, address: str) -> dict[str, float]:
        if SICK_PORT in (port, int(address)):
            raise RuntimeError("connection refused")
        return {"latency": 0.001, "rate": 5.0}

    def run(workers: dict[str, str], sick: str = "", wait: float = 20.0, trial=trial) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}

        def one(worker: str, node: str) -> None:
            client = EtcdClient(EtcdConfig.of(etcd.endpoint))
            clients.append(client)
            port = SICK_PORT if worker == sick else 1
            # The address represents the node's network, so that the trial has both ends.
            me = Participant(id=f"{worker}.x", worker=worker, node=node, address=str(port), port=port)
            verdicts[worker] = Check(client, job_keys, me, wait, trial, period=0.05).run()

        threads = [threading.Thread(target=one, args=item) for item in workers.items()]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        return verdicts

    yield run
    for client in clients:
        client.close()


def want(client, keys, desired: int) -> None:
    client.put(keys.target, Target(min=1, max=9, desired=desired).encode())


def test_the_faulty_node_gets_the_verdict_and_the_others_continue(client, job_keys, checks):
    want(client, job_keys, 4)
    verdicts = checks({"w0": "a", "w1": "b", "w2": "c", "w3": "d"}, sick="w2")
    assert {w for w, v in verdicts.items() if v.sick} == {"w2"}
    assert verdicts["w2"].sick.count("(connection refused)") == 2
    assert "3 of 4 nodes passed" in verdicts["w2"].sick
    assert not any(v.unknown for v in verdicts.values())
    assert all(len(v.reports) >= 2 for v in verdicts.values())
    assert client.get_prefix(job_keys.pairs + "participants/")[0] == [], "checks that have ended leave no record"


def test_all_workers_of_a_faulty_node_get_the_verdict(client, job_keys, checks):
    want(client, job_keys, 5)
    verdicts = checks({"w0": "bad", "w1": "b", "w2": "c", "w3": "d"}, sick="w0", wait=1.0)
    assert verdicts["w0"].sick
    groups = [Group.decode(kv.value) for kv in client.get_prefix(job_keys.pairs + "groups/")[0]]
    assert sum(len(h.participants) for h in groups) == 4, "the missing fifth was awaited for the requested time only"


def test_verdict_is_unknown_if_no_sum_came_anywhere(client, job_keys, checks):
    def nothing(*_):
        raise RuntimeError("no sum within 60 s")

    want(client, job_keys, 3)
    verdicts = checks({"w0": "a", "w1": "b", "w2": "c"}, trial=nothing)
    assert not any(v.sick for v in verdicts.values())
    assert {v.unknown for v in verdicts.values()} == {
        "none of 2 pairs completed a sum, and no partner is known to be healthy"
    }
    assert all(r.why == "no sum within 60 s" for v in verdicts.values() for _, r in v.reports)


def test_second_worker_of_a_node_is_judged_by_the_first_one_s_figures(client, job_keys, checks):
    want(client, job_keys, 4)
    verdicts = checks({"w0": "a", "w1": "a", "w2": "b", "w3": "c"})
    assert not any(v.sick or v.unknown for v in verdicts.values())
    assert sorted(len(v.reports) > 0 for v in (verdicts["w0"], verdicts["w1"])) == [False, True]


def test_worker_that_joins_a_training_job_does_not_wait(client, job_keys, checks):
    want(client, job_keys, 2)
    client.put(job_keys.member("w0.y"), Member(id="w0.y", worker="w0", address="a").encode())
    verdicts = checks({"w1": "b"}, wait=600)
    assert verdicts["w1"] == Verdict(unknown="no other node was checked at the same time")


def test_verdict_is_unknown_if_the_leading_check_dies(client, job_keys, checks):
    want(client, job_keys, 2)
    gone = Participant(id="w0.x", worker="w0", node="a", address="1", port=1)
    client.put(job_keys.pairs_group(gone.id), Group(participants=("w0.x", "w1.x")).encode())
    assert checks({"w1": "b"})["w1"].unknown == "the check that led the measurements has gone"


def test_verdict_is_unknown_if_no_group_forms(client, job_keys, checks, monkeypatch):
    monkeypatch.setattr(rounds, "FORM_SECONDS", 0.2)
    older = Participant(id="w0.x", worker="w0", node="a", address="1", port=1)
    client.put(job_keys.pairs_participant(older.id), older.encode())
    assert checks({"w1": "b"}, wait=0.1)["w1"].unknown.startswith("no group formed within")


def test_verdict_is_unknown_if_etcd_is_away(etcd_factory, job_keys):
    server = etcd_factory()
    endpoint = server.endpoint
    server.close()
    with EtcdClient(EtcdConfig.of(endpoint), timeout=0.5) as client:
        me = Participant(id="w0.x", worker="w0", address="1", port=1)
        assert "unavailable" in Check(client, job_keys, me, 60, by_process("gloo")).run().unknown


def test_two_processes_measure_their_sum(warm, tmp_path):
    told = [tmp_path / "0", tmp_path / "1"]
    with enter.reserved("127.0.0.1") as port:
        command = [sys.executable, "-m", "elastrain_pairs.trial", "127.0.0.1", str(port.getsockname()[1])]
        ends = [
            warm.start([*command, str(rank), "127.0.0.1", "gloo"], os.environ, path.open("wb"))
            for rank, path in enumerate(told)
        ]
        assert [end.wait(60) for end in ends] == [0, 0]
    assert all('"latency"' in words and '"rate"' in words for words in (path.read_text() for path in told))


def test_trial_fails_with_a_reason_if_the_partner_does_not_come(monkeypatch):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setattr(rounds, "TRIAL_SECONDS", 1.0)  # it accepts, and sends nothing
        with pytest.raises(RuntimeError, match="no sum within 1 s"):
            by_process("gloo")("127.0.0.1", listening.getsockname()[1], 1, "127.0.0.1")


def test_preflight_refuses_the_node_that_the_pairs_blame(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(preflight, "_checks", lambda *_: iter([preflight.Check("compute", "cpu", True, "exact")]))
    monkeypatch.setattr(enter, "measured", lambda *_: Verdict(sick="all-reduce with b (refused) and c (refused)"))
    assert preflight.run(0, None, 60, tmp_path / "log", pairs_wait=5) == 15
    assert names.PREFLIGHT_EXITS[15] == "pairs"
    assert (tmp_path / "log").read_text() == "pairs all: all-reduce with b (refused) and c (refused)"


def test_preflight_passes_the_node_if_the_verdict_is_unknown(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(preflight, "_checks", lambda *_: iter([preflight.Check("compute", "cpu", True, "exact")]))
    for name in (names.ENV_JOB, names.ENV_ETCD_ENDPOINTS):
        monkeypatch.delenv(name, raising=False)
    assert preflight.run(0, None, 60, tmp_path / "log", pairs_wait=5) == 0
    table = capsys.readouterr().out
    assert "unknown pairs          all        environment of the agent: ELASTRAIN_JOB: Field required" in table
    assert not (tmp_path / "log").exists()
