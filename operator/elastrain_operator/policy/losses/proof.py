"""Which members' leases the operator ends: those of workers whose processes have ended for certain. Pure.

Survivors of a killed worker need not wait then until its lease expires. A lease belongs to one process of an agent, so
ending it never ends the part of a later registration.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastrain_operator.facts import Coordination, EndedMember, Pod


def ended_members(pods: Iterable[Pod], members: Coordination | None) -> tuple[EndedMember, ...]:
    """The members in ``pods`` (also in pods that are gone, as last known) whose processes have ended.

    A member is in a pod if it names the pod's UID; the pod's name alone may be a successor's. ``members`` is None if
    membership is unknown.
    """
    if members is None:
        return ()
    ended = {p.uid: p.name for p in pods if p.processes_ended}
    found = [m for m in members.members if m.pod in ended and m.worker == ended[m.pod]]
    return tuple(EndedMember(m.id, lease) for m in found if (lease := members.leases.get(m.id, 0)))
