"""Groups of workers that hold one copy of a model together: a generation has whole groups only. Pure.

A worker's group and its place there belong to its identity: the operator gives them to the pod, and the shards that its
ranks hold follow from the place. Where each worker has whole copies, it is a group by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from elastrain.jobstate import RegisteredMember

Group = tuple[RegisteredMember, ...]
"""By place; a whole group has a member at each."""


def of(inside: Iterable[RegisteredMember], others: Iterable[RegisteredMember] = ()) -> list[Group]:
    """The whole groups of these members, in the order of their first ones.

    If two members claim one place, one of ``inside`` keeps it; of ``others`` the later one has it, since the former may
    be dead without its lease having expired.
    """
    groups: dict[Hashable, dict[int, RegisteredMember]] = {}
    kept = set()
    for m in inside:
        kept.add(groups.setdefault(_key(m), {}).setdefault(m.record.place, m).id)
    for m in others:
        places = groups.setdefault(_key(m), {})
        if (before := places.get(m.record.place)) is None or before.id not in kept:
            places[m.record.place] = m
    whole = (g for g in groups.values() if len(g) == next(iter(g.values())).record.group_size)
    return [tuple(g[place] for place in sorted(g)) for g in whole]


def arrange(
    inside: Sequence[RegisteredMember],
    others: Sequence[RegisteredMember],
    trains: Sequence[Sequence[RegisteredMember]],
    holders: Sequence[RegisteredMember],
) -> list[Group]:
    """The groups that the next generation can have: of members that stay in the newest one (``inside``), and of others.

    ``trains``: the groups of that one, without members that do not stay; ``holders``: those of all these members that
    hold the newest state. Workers train with those of their own group. Two exceptions: if no whole group holds the
    state, and workers of several groups do between them, these train together; and a group that trains stays as it is
    until all its workers can return to their own groups.
    """
    found = of(inside, others)
    if not _ids(inside) <= _ids(m for g in found for m in g):
        kept = [tuple(g) for g in trains if g and len(g) == g[0].record.group_size]
        found = [*kept, *_rest(inside, others, kept)]
    held = _ids(holders)
    if not cover(m for g in found for m in g if m.id in held) and cover(holders):
        by_place = {m.record.place: m for m in reversed(holders)}
        first = tuple(by_place[place] for place in sorted(by_place))
        found = [first, *_rest(inside, others, [first])]
    return found


def _rest(
    inside: Iterable[RegisteredMember], others: Iterable[RegisteredMember], taken: Iterable[Group]
) -> list[Group]:
    ids = _ids(m for group in taken for m in group)
    return of((m for m in inside if m.id not in ids), (m for m in others if m.id not in ids))


def _ids(members: Iterable[RegisteredMember]) -> set[str]:
    return {m.id for m in members}


def whole(members: Iterable[RegisteredMember]) -> Group:
    """The members of whole groups, group by group, in each by place."""
    return tuple(m for group in of(members) for m in group)


def cover(members: Iterable[RegisteredMember]) -> bool:
    """Whether these members have every place of a group among them, in one group or in several: together they can hold
    the whole state."""
    places = {m.record.place: m.record.group_size for m in members}
    return bool(places) and len(places) == max(places.values())


def _key(member: RegisteredMember) -> Hashable:
    return member.record.group if member.record.group_size > 1 else member.id
