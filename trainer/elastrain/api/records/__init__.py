"""The records in etcd. Each docstring names the record's writer and readers.

Records are small JSON documents. A newer writer and an older reader share a job during an upgrade: readers ignore
unknown fields, keep unknown words of an enum as they are, and do without fields that are only shown and cannot be read.
Any other record that cannot be read is unreadable, and its readers decide nothing from it.
"""

from elastrain.api.records.ending import Closed, Outcome, Termination
from elastrain.api.records.generation import Ended, Generation, GenerationMember, Leader, Roster
from elastrain.api.records.member import UNREADABLE, Health, Member, PartOfState, Phase
from elastrain.api.records.progress import PHASES, CheckpointState, Progress, Rescale, Resumed, in_words
from elastrain.api.records.target import Issued, Target

__all__ = [
    "PHASES",
    "UNREADABLE",
    "CheckpointState",
    "Closed",
    "Ended",
    "Generation",
    "GenerationMember",
    "Health",
    "Issued",
    "Leader",
    "Member",
    "Outcome",
    "PartOfState",
    "Phase",
    "Progress",
    "Rescale",
    "Resumed",
    "Roster",
    "Target",
    "Termination",
    "in_words",
]
