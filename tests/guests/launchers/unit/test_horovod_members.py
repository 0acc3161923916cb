"""What Horovod's driver is told about its hosts, second by second."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from elastrain_launchers.horovod.members import ANNOUNCE_SECONDS, Members

A, B, C = ("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)


@dataclass
class Driver:
    """The part of Horovod's driver that discovery reads."""

    host_assignments: dict[str, list[str]] = field(default_factory=dict)
    started: bool = True
    """The process with rank 0 can be told of changes."""

    def get_coordinator_info(self):
        return next(iter(self.host_assignments), None)

    def get_worker_client(self, slot):
        return self.started or None


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def members(clock):
    one = Members(2, clock)
    one.driver = Driver({"a": []})
    one.replace({"a": A})
    return one


def polls(members, clock, count):
    """What the driver gets in so many polls, one each second."""
    answers = []
    for _ in range(count):
        answers.append("".join(sorted(members.find_available_hosts_and_slots())))
        clock.now += 1.0
    return answers


def test_hosts_are_the_members_with_their_slots_before_the_driver_runs(clock):
    members = Members(2, clock)
    members.replace({"a": A, "b": B})
    assert members.find_available_hosts_and_slots() == {"a": 2, "b": 2}


def test_a_joiner_is_a_host_at_once_if_rank_0_can_be_told(members, clock):
    members.replace({"a": A, "b": B})
    assert polls(members, clock, 1) == ["ab"]


def test_a_joiner_waits_while_rank_0_starts_and_could_not_be_told(members, clock):
    members.driver.started = False
    members.replace({"a": A, "b": B})
    assert polls(members, clock, 3) == ["a", "a", "a"]
    members.driver.started = True
    assert polls(members, clock, 1) == ["ab"]


def test_a_joiner_is_announced_again_if_the_processes_did_not_follow(members, clock):
    members.replace({"a": A, "b": B})
    seen = polls(members, clock, 12)
    assert seen.count("a") == 2 and seen[0] == "ab"
    first = seen.index("a")
    assert first >= ANNOUNCE_SECONDS and seen[first + 1] == "ab"
    members.driver.host_assignments["b"] = []
    assert set(polls(members, clock, 12)) == {"ab"}


def test_a_leaver_is_announced_again_only_while_its_process_runs(members, clock):
    members.driver.host_assignments["b"] = []
    members.active("b", 0, B)
    seen = polls(members, clock, 12)
    assert seen[0] == "a" and "ab" in seen
    members.active("b", 0, None)
    assert set(polls(members, clock, 12)) == {"a"}, "a host that is gone is never named again"


def test_the_rendezvous_admits_members_and_leavers_only(members):
    members.active("b", 0, B)
    assert members.admits("10.0.0.1") and members.admits("10.0.0.2")
    members.active("b", 0, None)
    assert not members.admits("10.0.0.2")
    assert not members.admits("10.0.0.9")
