"""The keys that a member watches: all of its job if it leads or the job is small, else the shared ones and its own.

Pure. A job is small if it can never have more than :data:`elastrain.api.records.roster.INLINE` members.
"""

from __future__ import annotations

from elastrain.api.keys import JobKeys
from elastrain.etcd import Range


def everything(keys: JobKeys) -> tuple[Range, ...]:
    """The leader's scope: one range, so that all records are read at one revision."""
    return (Range.prefix(keys.prefix),)


def own_part(keys: JobKeys, member_id: str) -> tuple[Range, ...]:
    """The scope of all other members: without the records of other members.

    ``closed``, ``generation`` and the keys below it are neighbours, so one watch covers them. The member's own key is
    watched for deletions only. Progress is written every second and read once, for the number of committed steps.
    """
    return (
        Range(keys.closed, end=keys.generation + "0"),
        Range(keys.target),
        Range(keys.member(member_id), deletes_only=True),
        Range(keys.progress, listed_only=True),
    )
