"""Agents as real processes that log in to an etcd with TLS and users, each with its job's own credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from elastrain.api import names
from elastrain.api.records import Generation, Progress, Target, Termination
from elastrain.etcd import EtcdClient, EtcdUnavailable, EtcdUsers

FAKE_RANK = Path(__file__).parents[2] / "shared" / "fake_rank.py"


@pytest.fixture
def server(secure_etcd_factory):
    """Forgets a token that was not used for a second."""
    return secure_etcd_factory("--auth-token-ttl", "1")


@pytest.fixture
def root(server):
    with EtcdClient(server.root, timeout=2.0) as client:
        yield client


@pytest.fixture
def start(server, root, job_keys, tmp_path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``start("a", user="job")``: an agent of the job, logged in as that user."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, user: str) -> subprocess.Popen[bytes]:
        directory = tmp_path / name
        directory.mkdir()
        environment = {
            **os.environ,
            **server.config(user, "secret").to_environment(),
            names.ENV_NAMESPACE: job_keys.namespace,
            names.ENV_JOB: job_keys.job,
            names.ENV_JOB_UID: job_keys.uid,
            names.ENV_WORKER: name,
            names.ENV_ADDRESS: "127.0.0.1",
            names.ENV_LEASE_TTL: "4",
            names.ENV_TERMINATION_LOG: str(directory / "termination.json"),
            names.ENV_FORK_RANKS: "off",  # there is no torch to be imported
            "FAKE_RANK_TRAIL": str(directory),
        }
        command = [sys.executable, "-m", "elastrain", "agent", "--", sys.executable, str(FAKE_RANK)]
        processes.append(subprocess.Popen(command, env=environment))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_job_trains_through_expired_tokens_and_replaced_certificates(server, root, start, job_keys, eventually):
    """No agent is started again, no member lost and no generation formed for it."""
    EtcdUsers(root).ensure("job", "secret", job_keys.prefix)
    root.put(job_keys.target, Target(min=2, max=2, desired=2).encode())
    agents = [start("a", "job"), start("b", "job")]

    def step() -> int:
        """As the agents have written it; -1 while etcd does not tell."""
        with suppress(EtcdUnavailable):
            kv = root.get(job_keys.progress)
            return Progress.decode(kv.value).step if kv else -1
        return -1

    def state() -> tuple[int, list[str]]:
        generation = Generation.decode(root.get(job_keys.generation).value)
        return generation.number, [kv.key for kv in root.get_prefix(job_keys.members)[0]]

    eventually(lambda: step() > 0, within=30.0, what="both to train")
    before, reached = state(), step()
    other = trustme.CA()
    server.trust(server.authority, other)
    server.show(other)
    server.kill()
    server.start()
    server.trust(other)
    eventually(lambda: step() > reached + 200, within=30.0, what="progress, which is written with the new certificate")
    assert state() == before
    assert [agent.poll() for agent in agents] == [None, None]


def test_a_job_s_credentials_are_refused_by_name_if_they_are_another_s(root, start, job_keys, tmp_path):
    EtcdUsers(root).ensure("other", "secret", "/elastrain/test/other/")
    root.put(job_keys.target, Target(min=1, max=1, desired=1).encode())
    assert start("a", "other").wait(30) == names.EXIT_INFRASTRUCTURE
    last = Termination.decode((tmp_path / "a" / "termination.json").read_bytes())
    assert last.reason == "EtcdDenied"
    assert "does not allow user 'other'" in last.message
