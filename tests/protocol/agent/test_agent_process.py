"""Agents as real processes, with a real etcd and ranks that speak the protocol without torch (``fake_rank.py``)."""

from __future__ import annotations

import os
import signal

import pytest

from elastrain.api import names
from elastrain.api.records import Generation, Outcome, Progress, Target
from elastrain.etcd import EtcdClient, EtcdConfig


@pytest.fixture
def wanted(client, job_keys):
    """Write the target."""

    def wanted(desired: int, **fields) -> None:
        client.put(job_keys.target, Target(min=1, max=8, desired=desired, **fields).encode())

    return wanted


def record(client: EtcdClient, key: str, kind):
    kv = client.get(key)
    return None if kv is None else kind.decode(kv.value)


def test_members_train_together_and_one_drains_at_a_signal(start, wanted, client, job_keys, eventually):
    wanted(2)
    a, b = start("a"), start("b")
    eventually(lambda: a.in_generation(1, 2) and b.in_generation(1, 2), what="both in one generation")
    eventually(lambda: client.get(job_keys.progress), what="the first step")
    a.process.send_signal(signal.SIGTERM)
    code, last = a.ends()
    assert (code, last.outcome) == (0, Outcome.DRAINED)
    assert a.trail("adopted")[-1]["step"] == last.step
    eventually(lambda: b.in_generation(2, 1), what="b to train alone")
    assert not b.trail("abort"), "a leave is not a loss"
    assert len({n["pid"] for n in b.trail()}) == 1


def test_the_target_drains_a_worker(start, wanted, eventually):
    wanted(2)
    a, b = start("a"), start("b")
    eventually(lambda: a.in_generation(1, 2) and b.in_generation(1, 2))
    wanted(1, leaving=("a",), reason="Drain")
    assert a.ends()[1].outcome is Outcome.DRAINED
    eventually(lambda: b.in_generation(2, 1))


def test_a_killed_rank_restarts_in_place_and_its_peers_are_notified(start, wanted, eventually):
    wanted(2)
    a, b = start("a"), start("b")
    eventually(lambda: a.in_generation(1, 2) and b.in_generation(1, 2))
    os.kill(a.rank_pid(), signal.SIGKILL)
    eventually(lambda: len(a.trail("welcome")) == 2, what="the rank to start again")
    first, second = (n["member"] for n in a.trail("welcome"))
    assert first != second, "a restarted rank is a new member"
    assert a.process.poll() is None
    eventually(lambda: a.in_generation(2, 2) and b.in_generation(2, 2), what="both together again")
    # Whichever it sees first: a's report that the generation is broken, or the end of a's member key.
    assert b.trail("abort")[0]["reason"].startswith("worker a ")
    assert len({n["pid"] for n in b.trail()}) == 1


def test_peers_continue_if_an_agent_is_killed(start, wanted, eventually):
    wanted(2)
    a, b = start("a"), start("b")
    eventually(lambda: a.in_generation(1, 2) and b.in_generation(1, 2))
    a.process.kill()
    eventually(lambda: b.in_generation(2, 1), what="b to go on alone after a's lease")
    assert [n["generation"] for n in b.trail("abort")] == [1]


def test_the_termination_record_has_the_scripts_exception(start, wanted):
    wanted(1)
    code, last = start("a", FAKE_RANK_FAIL="raise").ends()
    assert (code, last.outcome, last.reason, last.rank) == (1, Outcome.FAILED, "ScriptFailed", 0)
    assert last.message.startswith("ValueError: the batch is empty (")
    assert "Traceback" in last.log_tail


def test_the_job_is_finished_if_rank_0_is_and_later_agents_start_nothing(start, wanted, client, job_keys):
    wanted(1)
    code, last = start("a", FAKE_RANK_STEPS=20).ends()
    assert (code, last.outcome, last.step) == (0, Outcome.FINISHED, 20)
    progress = record(client, job_keys.progress, Progress)
    assert (progress.finished, progress.step) == (True, 20)
    late = start("late")
    assert late.ends()[1].outcome is Outcome.FINISHED
    assert not late.trail()


def test_all_ranks_of_a_worker_join_with_their_global_ranks(start, wanted, client, job_keys, eventually):
    wanted(1)
    a = start("a", ELASTRAIN_NPROC_PER_NODE=3)
    eventually(lambda: len(a.trail("adopted")) == 3, what="three ranks to adopt")
    assert sorted(n["rank"] for n in a.trail("adopted")) == [0, 1, 2]
    assert record(client, job_keys.generation, Generation).world_size == 3


def test_a_stubborn_rank_is_killed_if_the_drain_takes_too_long(start, wanted, eventually, tmp_path):
    wanted(1)
    up = tmp_path / "up"
    a = start("a", "sh", "-c", f"trap '' TERM; touch {up}; while :; do sleep 1; done", ELASTRAIN_DRAIN_TIMEOUT=1)
    eventually(up.exists)
    a.process.send_signal(signal.SIGTERM)
    code, last = a.ends()
    assert (code, last.outcome) == (0, Outcome.DRAINED)


def test_a_script_that_never_joins_counts_as_finished_if_it_ends_with_0(start, wanted):
    wanted(1)
    assert start("a", "true").ends()[1].outcome is Outcome.FINISHED


def test_a_missing_command_is_named(start):
    code, last = start("a", "no-such-command").ends()
    assert (code, last.reason) == (127, "Usage")
    assert "'no-such-command'" in last.message


def test_a_missing_setting_is_named(start):
    code, last = start("a", ELASTRAIN_JOB="").ends()
    assert (code, last.reason) == (2, "Usage")
    assert "ELASTRAIN_JOB" in last.message


def test_the_agent_ends_with_the_reason_if_etcd_is_unreachable(start):
    impatient = (
        "import sys; from elastrain.agent import presence, runtime as main; presence.ETCD_SECONDS = 0.5; "
        "sys.exit(main.main(sys.argv[1:]))"
    )
    code, last = start("a", "true", code=impatient, where={names.ENV_ETCD_ENDPOINTS: "127.0.0.1:1"}).ends()
    assert (code, last.reason) == (names.EXIT_INFRASTRUCTURE, "EtcdUnavailable")
    assert "127.0.0.1:1" in last.message


def test_the_agent_ends_at_once_with_the_reason_if_etcd_refuses_its_credentials(guarded, start):
    server, config = guarded
    stranger = config("stranger").to_environment()
    code, last = start("a", "true", where={names.ENV_ETCD_ENDPOINTS: server.endpoint}, **stranger).ends()
    assert (code, last.reason) == (names.EXIT_INFRASTRUCTURE, "EtcdDenied")
    assert "stranger" in last.message and server.endpoint in last.message
    assert "wrong" not in last.message, "the message contains the password"


def test_a_lone_member_stops_at_its_ttl_and_continues_when_etcd_returns(etcd_factory, start, job_keys, eventually):
    etcd = etcd_factory()
    with EtcdClient(EtcdConfig.of(etcd.endpoint)) as client:
        client.put(job_keys.target, Target(min=1, max=1, desired=1).encode())
    a = start("a", where={names.ENV_ETCD_ENDPOINTS: etcd.endpoint})
    eventually(lambda: a.in_generation(1, 1))
    etcd.pause()
    eventually(lambda: a.trail("abort"), what="the lone rank to be stopped")
    assert "lease" in a.trail("abort")[0]["reason"]
    etcd.resume()
    eventually(lambda: a.in_generation(2, 1), within=20, what="the next generation")
    assert len({n["pid"] for n in a.trail()}) == 1


def test_ranks_are_unaffected_if_etcd_restarts(etcd_factory, start, job_keys, eventually):
    etcd = etcd_factory()
    with EtcdClient(EtcdConfig.of(etcd.endpoint)) as client:
        client.put(job_keys.target, Target(min=1, max=2, desired=2).encode())
        a, b = (
            start("a", where={names.ENV_ETCD_ENDPOINTS: etcd.endpoint}),
            start("b", where={names.ENV_ETCD_ENDPOINTS: etcd.endpoint}),
        )
        eventually(lambda: a.in_generation(1, 2) and b.in_generation(1, 2))
        eventually(lambda: client.get(job_keys.progress), what="the first progress record")
        etcd.kill()
        etcd.start()
        step = record(client, job_keys.progress, Progress).step
        eventually(lambda: record(client, job_keys.progress, Progress).step > step + 50, within=20)
    assert [len(w.trail("adopted")) for w in (a, b)] == [1, 1]
    assert not a.trail("abort") + b.trail("abort")
