"""Agents as real processes that log in to an etcd with TLS and users, each with its job's own credentials."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trustme

from elastrain.api import names
from elastrain.api.records import Generation, Progress, Target
from elastrain.etcd import EtcdClient, EtcdUnavailable
from elastrain_operator.users import EtcdUsers


@pytest.fixture
def server(secure_etcd_factory):
    """An etcd that forgets a token after a second without use."""
    return secure_etcd_factory("--auth-token-ttl", "1")


@pytest.fixture
def root(server):
    with EtcdClient(server.root, timeout=2.0) as client:
        yield client


def test_a_job_trains_through_expired_tokens_and_replaced_certificates(server, root, start, job_keys, eventually):
    """It causes no restart of an agent, no lost member and no new generation."""
    EtcdUsers(root).ensure("job", "secret", job_keys.prefix)
    root.put(job_keys.target, Target(min=2, max=2, desired=2).encode())
    job = server.config("job", "secret").to_environment()
    agents = [start(name, where=job, **{names.ENV_LEASE_TTL: 4}) for name in "ab"]

    def step() -> int:
        """The step in the agents' record; -1 while etcd does not answer."""
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
    assert [agent.process.poll() for agent in agents] == [None, None]


def test_another_job_s_credentials_are_refused_by_name(server, root, start, job_keys):
    EtcdUsers(root).ensure("other", "secret", "/elastrain/test/other/")
    root.put(job_keys.target, Target(min=1, max=1, desired=1).encode())
    code, last = start("a", where=server.config("other", "secret").to_environment()).ends()
    assert code == names.EXIT_INFRASTRUCTURE
    assert last.reason == "EtcdDenied"
    assert "does not allow user 'other'" in last.message
