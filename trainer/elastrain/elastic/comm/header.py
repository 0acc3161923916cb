"""The header of each sum: what a rank sums, in which step. A rank that does something else than its peers shows.

Without it, a rank that leaves its loop one step early would pair its barrier with the gradients of the others: sizes
differ, all ranks take the generation for broken, and form the next one, without end. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum

_FORMAT = struct.Struct("!QqqQ")
HEADER_BYTES = _FORMAT.size


CHANGE_TOGETHER = (
    "all ranks must change which parameters train, and their groups, before the same step: between loops, or in the "
    "loop body by job.step"
)


class RanksDiverged(RuntimeError):
    """Ranks of one generation do different things: no further generation can mend it, and the job has to fail."""


class Kind(IntEnum):
    """The purpose of a sum."""

    @property
    def call(self) -> str:
        """The script's call; empty: it is none."""
        return _CALLS.get(self, "")

    FORM = 0
    """Connecting."""
    ENTRY = 1
    """Comparing the committed steps, on entry of a generation."""
    GRADIENTS = 2
    CONTROL = 3
    """The votes for a step (:mod:`elastrain.elastic.commit.vote`), and what the ranks agree on before its sums."""
    NORM = 5
    """Statistics of a SyncBatchNorm."""
    BARRIER = 6
    """After the training loop."""
    FAREWELL = 7
    """Before the connections of a generation close."""
    TRAINED = 8
    """Agreeing on other parameters that train (:mod:`elastrain.elastic.state.trained`)."""
    REDUCE = 9
    """``job.all_reduce()``."""
    GATHER = 10
    """``job.all_gather_object()``."""
    EVALUATE = 11
    """A round of ``job.evaluate()``."""
    END = 12
    """After the script."""
    RESHARD = 13
    """Moving shards of the state to other ranks (:mod:`elastrain.elastic.reshard`)."""
    BUFFERS = 14
    """The models' buffers behind a step with learners."""
    REPLICAS = 15
    """Comparing replicas (:mod:`elastrain.elastic.replicas`)."""


_OUTSIDE_OF_STEPS = (Kind.FORM, Kind.ENTRY, Kind.FAREWELL, Kind.RESHARD)
"""Sums for which ranks may have committed different numbers of steps."""
_CALLS = {
    Kind.REDUCE: "job.all_reduce()",
    Kind.GATHER: "job.all_gather_object()",
    Kind.EVALUATE: "job.evaluate()",
}
_BETWEEN_LOOPS = (Kind.BARRIER, *_CALLS, Kind.END)


@dataclass(frozen=True, slots=True)
class Label:
    """The purpose of a sum, as its caller states it."""

    kind: Kind = Kind.GRADIENTS
    step: int = 0
    """Committed steps."""


@dataclass(frozen=True, slots=True)
class Header:
    """What travels before the data of a sum."""

    sequence: int
    """Number of the sum in its generation."""
    kind: int
    step: int
    nbytes: int
    """Size of this rank's tensors."""

    @classmethod
    def decode(cls, raw: bytes | bytearray) -> Header:
        return cls(*_FORMAT.unpack(raw))


def encode(sequence: int, kind: int, step: int, nbytes: int) -> bytes:
    """The fields of a :class:`Header`, as they travel."""
    return _FORMAT.pack(sequence, kind, step, nbytes)


def difference(rank: int, mine: Header, peer: int, theirs: Header) -> str | None:
    """How this ``rank`` and ``peer`` differ in what they do; None if they do the same. The same text on both ranks."""
    same_step = mine.step == theirs.step or mine.kind in _OUTSIDE_OF_STEPS
    if same_step and (mine.sequence, mine.kind, mine.nbytes) == (theirs.sequence, theirs.kind, theirs.nbytes):
        return None
    telling = (*_BETWEEN_LOOPS, Kind.TRAINED)
    if mine.kind in _CALLS or theirs.kind in _CALLS:  # the first step of a loop begins by a comparison
        mine, theirs = (
            replace(h, kind=Kind.GRADIENTS, nbytes=0) if h.kind == Kind.TRAINED else h for h in (mine, theirs)
        )
    pairs = sorted([(rank, mine), (peer, theirs)], key=lambda pair: (pair[1].kind not in telling, pair[0]))
    (one, first), (other, second) = pairs
    numbered = _doing(first) == _doing(second)
    what = f"rank {one} {_doing(first, numbered=numbered)} while rank {other} {_doing(second, numbered=numbered)}"
    # One of two ranks that compute no step together may have left its loop, by a callback of a framework or a break.
    left = "" if numbered or second.kind != Kind.GRADIENTS else "; a loop ends on all ranks by job.stop()"
    if first.kind in _CALLS or second.kind in _CALLS:
        return f"{what}: all ranks must make the same calls in the same order: not only 'if job.rank == 0'{left}"
    if {Kind.BARRIER, Kind.END} & {first.kind, second.kind}:
        return f"{what}: all ranks must run the same number of steps: leave the loop by job.stop()"
    if Kind.TRAINED in (first.kind, second.kind):
        return f"{what}: {CHANGE_TOGETHER}{left}"
    return f"{what}: all ranks must run the same steps of the same models, with the same backwards"


def left_early(rank: int, step: int, peer: int, theirs: Header) -> str | None:
    """The difference if ``peer`` waits for this ``rank`` in a sum that this rank has no part in, as it computes a step.

    The peer is not in the loop, or trains other parameters from this step on.

    ``step``: committed steps of this rank.
    """
    if theirs.kind not in (*_BETWEEN_LOOPS, Kind.TRAINED) or theirs.step > step:
        return None
    return difference(rank, Header(theirs.sequence, Kind.GRADIENTS, step, 0), peer, theirs)


def _doing(header: Header, *, numbered: bool = False) -> str:
    step, size = header.step + 1, f"{header.nbytes} bytes"
    doing = {
        Kind.FORM: "connects to its peers",
        Kind.ENTRY: "enters the generation",
        Kind.GRADIENTS: f"computes step {step}" + (f" ({size} of gradients)" if header.nbytes else ""),
        Kind.CONTROL: f"sums the control vector of step {step}",
        Kind.NORM: f"computes step {step} (statistics of a SyncBatchNorm, {size})",
        Kind.BARRIER: f"left its loop after step {header.step}",
        Kind.END: f"ends its script after step {header.step}",
        **{kind: f"calls {call} after step {header.step}" for kind, call in _CALLS.items()},
        Kind.FAREWELL: "leaves the generation",
        Kind.RESHARD: f"moves shards of the state ({size})",
        Kind.BUFFERS: f"computes step {step} (buffers for a joiner)",
        Kind.REPLICAS: f"compares replicas of the state of step {header.step}",
        Kind.TRAINED: f"changes its data, the parameters that train, or their groups, before step {step}",
    }.get(header.kind, f"sums {size} of kind {header.kind}")  # type: ignore[call-overload]
    return f"{doing} (sum {header.sequence} of the generation)" if numbered else doing
