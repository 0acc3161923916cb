"""Which member probes which after failed collectives."""

import pytest

from elastrain.api.records import Leader
from elastrain.rendezvous.suspicion import whom_to_probe


@pytest.fixture
def asked(job):
    """Workers that ``worker`` would probe now; ``a`` leads."""

    def by(worker: str) -> list[str]:
        leader = job.seen("a").record
        leads = Leader(member=leader.id, worker="a", address="a", agent_port=1)
        silent = whom_to_probe(job.view(job.seen(worker).id), job.seen(worker).record, leads)
        return [s.id.partition(".")[0] for s in silent]

    return by


@pytest.fixture
def trio(job):
    job.train("a", "b", "c")
    for worker in "abc":
        job.set(worker, agent_port=1)
    return job


def test_no_member_is_probed_in_a_healthy_generation(trio, asked):
    assert asked("a") == asked("b") == []


def test_the_leader_probes_members_that_did_not_report_the_failure(trio, asked):
    trio.fail("b")
    assert asked("a") == ["c"]


def test_other_members_probe_only_the_leader(trio, asked):
    trio.fail("b", "c")
    assert asked("b") == ["a"]


def test_the_dead_is_found_if_it_died_while_a_newer_generation_was_proposed(trio, asked):
    trio.join("d")
    trio.set("d", agent_port=1)
    trio.run()
    assert trio.workers() == ["a", "b", "c", "d"]
    trio.fail("a", "b")  # in the generation that is still in force
    assert asked("a") == ["c", "d"]


def test_no_member_is_probed_for_a_generation_that_all_have_left(trio, asked):
    trio.fail("a", "b", "c")
    trio.run()
    trio.pass_time(trio.timing.doubt)
    trio.run()
    assert trio.base.number == 2
    trio.adopt()
    assert asked("a") == []
