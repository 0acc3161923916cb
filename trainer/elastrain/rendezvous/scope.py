"""What a member watches of its job: all of it if it leads or the job is small, else what concerns everybody and itself.

Pure. A job is small if it can never have more than :data:`elastrain.api.roster.INLINE` members.
"""

from __future__ import annotations

from elastrain.api.keys import JobKeys
from elastrain.etcd import Range


def everything(keys: JobKeys) -> tuple[Range, ...]:
    """The leader's: one range, so that all records are seen as they were at one revision."""
    return (Range.prefix(keys.prefix),)


def own_part(keys: JobKeys, member_id: str) -> tuple[Range, ...]:
    """Everybody else's. What others say about themselves is not in it.

    ``closed``, ``generation`` and the keys below that one are neighbours, so one watch does for them. The own key is
    watched for its loss only. Progress is written every second and read once: it tells how far training has come.
    """
    return (
        Range(keys.closed, end=keys.generation + "0"),
        Range(keys.target),
        Range(keys.member(member_id), deletes_only=True),
        Range(keys.progress, listed_only=True),
    )
