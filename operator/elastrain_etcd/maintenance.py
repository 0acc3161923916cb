"""The state of one member of etcd: its size, and the alarms by which etcd refuses writes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elastrain.etcd import EtcdClient
from elastrain.etcd.protocol import messages

DEFRAGMENT_SECONDS = 60.0
"""For which a member may rewrite its database; it serves nothing meanwhile. 512 MiB take seconds."""


class AlarmKind(StrEnum):
    """Why etcd refuses writes. The name is etcd's."""

    NOSPACE = "NOSPACE"
    CORRUPT = "CORRUPT"


_NUMBERS = {AlarmKind.NOSPACE: 1, AlarmKind.CORRUPT: 2}
"""In etcd's protocol (``AlarmType`` of rpc.proto)."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm, in force until it is disarmed. The whole cluster of etcd heeds the alarm of any member."""

    member: int
    """Id of the member that it names. Any number can be there: etcd does not compare it with its members."""
    kind: AlarmKind


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member's account of itself."""

    member: int
    """Its id."""
    size: int
    """Bytes of its database's file, by which etcd judges the quota. A defragmentation removes free pages from it."""


class EtcdMaintenance:
    """Calls of etcd's maintenance API. Each may raise ``EtcdUnavailable``, ``EtcdDenied`` or ``EtcdError``.

    The gateway of the chart's etcd does not pass them on: they are for clients in etcd's own pod.
    """

    def __init__(self, client: EtcdClient) -> None:
        """``client``: of one member only, since most calls are about the member that answers."""
        self._client = client

    def status(self) -> MemberStatus:
        """Of the answering member."""
        answer = self._call("Status", messages.StatusRequest(), "ask for its status")
        return MemberStatus(int(answer.header.member_id), int(answer.dbSize))

    def members(self) -> frozenset[int]:
        """The ids of all members of this etcd."""
        request = messages.MemberListRequest()
        answer = self._client.wire.unary(
            "cluster", "MemberList", request, timeout=self._client.timeout, what="list members"
        )
        return frozenset(int(member.ID) for member in answer.members)

    def alarms(self) -> list[Alarm]:
        """All alarms in force."""
        request = messages.AlarmRequest(action=messages.AlarmRequest.GET)
        answer = self._call("Alarm", request, "list alarms")
        kinds = {number: kind for kind, number in _NUMBERS.items()}
        return [Alarm(int(a.memberID), kinds[a.alarm]) for a in answer.alarms if a.alarm in kinds]

    def disarm(self, alarm: Alarm) -> None:
        """End an alarm."""
        action, number = messages.AlarmRequest.DEACTIVATE, _NUMBERS[alarm.kind]
        request = messages.AlarmRequest(action=action, memberID=alarm.member, alarm=number)
        self._call("Alarm", request, f"disarm the alarm {alarm.kind}")

    def defragment(self) -> None:
        """Rewrite the answering member's database without its free pages; it serves nothing meanwhile."""
        self._call("Defragment", messages.DefragmentRequest(), "defragment", timeout=DEFRAGMENT_SECONDS)

    def _call(self, method: str, request: Any, what: str, *, timeout: float = 0.0) -> Any:
        bound = timeout or self._client.timeout
        return self._client.wire.unary("maintenance", method, request, timeout=bound, what=what)
