"""Alarms of etcd, by which it refuses the writes of all clients, and what the member's own pod does about them.

An alarm NOSPACE stays in force after its cause has gone, until it is disarmed (etcd.io, "Space quota"). Each member's
pod handles the alarms that name this member, or none of the members. An alarm CORRUPT needs a person.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import Enum

import structlog

from elastrain.etcd import EtcdClient, EtcdError
from elastrain_etcd.maintenance import Alarm, AlarmKind, EtcdMaintenance, MemberStatus

HIGH = 0.9
"""Part of the quota above which the database must be made smaller before writes can be allowed again."""
DEFRAGMENT_EVERY = 300.0
"""Seconds between two defragmentations: the member serves nothing meanwhile."""

log = structlog.get_logger(__name__)


class AlarmAct(Enum):
    """What a member's pod does about an alarm."""

    LEAVE = "leave"
    DISARM = "disarm"
    DEFRAGMENT = "defragment"


def decide(
    alarm: Alarm, member: MemberStatus, members: Collection[int], quota: int, *, since_defragmented: float
) -> AlarmAct:
    """``members``: all ids. ``quota``: bytes. ``since_defragmented``: seconds since this pod's last defragmentation.
    Pure."""
    if alarm.kind is not AlarmKind.NOSPACE or (alarm.member != member.member and alarm.member in members):
        return AlarmAct.LEAVE
    if member.size <= HIGH * quota:
        return AlarmAct.DISARM
    return AlarmAct.DEFRAGMENT if since_defragmented >= DEFRAGMENT_EVERY else AlarmAct.LEAVE


class Alarms:
    """Looks at the alarms of the member in this pod."""

    def __init__(self, client: EtcdClient, quota: int) -> None:
        self._etcd, self._quota = EtcdMaintenance(client), quota
        self._defragmented = -DEFRAGMENT_EVERY
        self._known: set[Alarm] = set()

    def look(self) -> None:
        """Act on each alarm once. Without an answer of etcd it does nothing."""
        try:
            alarms = self._etcd.alarms()
            for alarm in alarms:
                self._handle(alarm)
        except EtcdError as error:
            log.warning("alarms of etcd are not handled", error=str(error))
            return
        self._known &= set(alarms)

    def _handle(self, alarm: Alarm) -> None:
        member, members = self._etcd.status(), self._etcd.members()
        since = time.monotonic() - self._defragmented
        act = decide(alarm, member, members, self._quota, since_defragmented=since)
        if alarm not in self._known:
            self._known.add(alarm)
            log.error("etcd refuses writes", alarm=alarm.kind, member=f"{alarm.member:x}", bytes=member.size)
        if act is AlarmAct.DEFRAGMENT:
            self._defragmented = time.monotonic()
            log.info("defragmenting", bytes=member.size, quota=self._quota)
            self._etcd.defragment()
        elif act is AlarmAct.DISARM:
            self._etcd.disarm(alarm)
            log.info("disarmed", alarm=alarm.kind, member=f"{alarm.member:x}", bytes=member.size, quota=self._quota)
