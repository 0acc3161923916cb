"""Key names of a job's records in etcd."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

ROOT = "/elastrain/"


@dataclass(frozen=True)
class JobKeys:
    """Key names of one job; ``uid`` distinguishes it from an earlier job of the same name.

    Names are made once: each event of a watch is compared with most of them.
    """

    namespace: str
    job: str
    uid: str

    @cached_property
    def prefix(self) -> str:
        return f"{ROOT}{self.namespace}/{self.job}/{self.uid}/"

    @cached_property
    def target(self) -> str:
        """Written by the operator (or the local runner) only."""
        return self.prefix + "target"

    @cached_property
    def owner(self) -> str:
        """Written by the operator: its cluster's name. Only that cluster's operator deletes the records of the job."""
        return self.prefix + "owner"

    @cached_property
    def generation(self) -> str:
        """Written by the leader, by compare-and-swap on the key's mod_revision."""
        return self.prefix + "generation"

    @cached_property
    def leader(self) -> str:
        """Held by the leading member under its lease; a vacant key is taken by compare-and-swap."""
        return self.generation + "/leader"

    @cached_property
    def ended(self) -> str:
        """Written by the leader: broken generations that no later generation replaces yet."""
        return self.generation + "/ended"

    @cached_property
    def rosters(self) -> str:
        """Prefix of the members of the last few generations, in parts."""
        return self.prefix + "roster/"

    def roster(self, number: int, part: int = 0) -> str:
        """Written with generation ``number``, in the same transaction. Sorts by number."""
        return f"{self.rosters}{number:010d}/{part:03d}"

    @cached_property
    def progress(self) -> str:
        """Written by rank 0's agent, at most once a second."""
        return self.prefix + "progress"

    @cached_property
    def closed(self) -> str:
        """Written once, by the first stock torchrun agent that ends the job."""
        return self.prefix + "closed"

    @cached_property
    def issued(self) -> str:
        """Written by the operator: the credentials that the workers use for etcd."""
        return self.prefix + "issued"

    @cached_property
    def members(self) -> str:
        """Prefix of the member keys."""
        return self.prefix + "members/"

    def member(self, member_id: str) -> str:
        """Written by that member's agent, bound to its lease."""
        return self.members + member_id

    @cached_property
    def pairs(self) -> str:
        """Prefix of the records of pre-flight checks that measure pairs of nodes (:mod:`elastrain_pairs`)."""
        return self.prefix + "pairs/"

    def pairs_participant(self, participant_id: str) -> str:
        """Written by that participant, bound to its lease."""
        return self.pairs + "participants/" + participant_id

    def pairs_group(self, leader_id: str) -> str:
        """Written by the participant that leads the group."""
        return self.pairs + "groups/" + leader_id

    @classmethod
    def of(cls, key: str) -> JobKeys | None:
        """The job that ``key`` belongs to, or None if it is not a key of a job."""
        parts = key.removeprefix(ROOT).split("/")
        if not key.startswith(ROOT) or len(parts) < 4 or not all(parts[:3]):
            return None
        return cls(*parts[:3])
