"""What a member's pod does about an alarm of etcd."""

from __future__ import annotations

import pytest

from elastrain_etcd.alarms import AlarmAct, decide
from elastrain_etcd.maintenance import Alarm, AlarmKind, MemberStatus

QUOTA, OWN, OTHER = 1000, 1, 2


def act(member: int = OWN, kind: AlarmKind = AlarmKind.NOSPACE, size: int = 100, since: float = 1e9) -> AlarmAct:
    status = MemberStatus(OWN, size)
    return decide(Alarm(member, kind), status, {OWN, OTHER}, QUOTA, since_defragmented=since)


@pytest.mark.parametrize(("size", "since", "expected"), [
    (100, 1e9, AlarmAct.DISARM),
    (900, 1e9, AlarmAct.DISARM),
    (901, 1e9, AlarmAct.DEFRAGMENT),
    (901, 10.0, AlarmAct.LEAVE),
])  # fmt: skip
def test_an_alarm_of_this_member_is_disarmed_once_its_database_is_small_enough(
    size: int, since: float, expected: AlarmAct
) -> None:
    assert act(size=size, since=since) is expected


def test_an_alarm_of_another_member_is_left_to_its_own_pod() -> None:
    assert act(member=OTHER) is AlarmAct.LEAVE


def test_an_alarm_that_names_none_of_the_members_is_disarmed() -> None:
    assert act(member=7) is AlarmAct.DISARM


@pytest.mark.parametrize("member", [OWN, OTHER, 7])
def test_an_alarm_of_damaged_data_is_left_to_a_person(member: int) -> None:
    assert act(member=member, kind=AlarmKind.CORRUPT) is AlarmAct.LEAVE
