"""From the run that parts, and the entry in which it does, to the kind of fault and its paragraph in the docs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastrain_verify.compare import Bounds, Parting, not_put_back, not_received
from elastrain_verify.history import BATCH, History
from elastrain_verify.runs import Kind, Run

PAGE = "docs/verify.md"
PAGE_OF_PARTS = "docs/numerics.md"


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault."""

    name: str
    """For ``--json``."""
    title: str
    about: str
    anchor: str
    """Of the paragraph in :data:`PAGE`."""

    @property
    def paragraph(self) -> str:
        return f"{PAGE}#{self.anchor}"


NOT_REPEATABLE = Fault(
    "not repeatable",
    "the script is not repeatable",
    "Two runs in plain torch, from the same seeds, differ. Seed each generator that the script makes, and sort what "
    "comes from sets and folders.",
    "the-script-is-not-repeatable",
)
DATA = Fault(
    "data",
    "other data than plain torch's",
    "The same samples are other ones than torch's DataLoader gives. The data set draws from a generator of its own, "
    "counts its calls, or has a state that a worker does not reach.",
    "other-data",
)
NOT_PUT_BACK = Fault(
    "not put back",
    "tracked state is not put back",
    "The loop body runs again, and begins with another value than at its first execution. elastrain puts tracked state "
    "back: if load_state_dict() of the object takes all that state_dict() gives, report this as a fault of elastrain.",
    "a-fault-of-elastrain",
)
NOT_RECEIVED = Fault(
    "not received",
    "tracked state does not arrive",
    "A process has joined, and its first loop body begins with another value than that of its peers. elastrain sends "
    "and saves tracked state: if load_state_dict() of the object takes all that state_dict() gives, report this as a "
    "fault of elastrain.",
    "a-fault-of-elastrain",
)
OF_ELASTRAIN = Fault(
    "of elastrain",
    "elastrain trains another model",
    "One worker has run each loop body once, on the same data as plain torch. If the script neither asks for its "
    "process nor for the time, report this as a fault of elastrain.",
    "a-fault-of-elastrain",
)
OF_A_GRADIENT = Fault(
    "gradient of a part",
    "code within the backward sees a part of the batch",
    "The losses are equal and this gradient is not: a hook of a tensor, or an autograd function, has computed with the "
    "gradient of its rank's part. Change p.grad between job.backward() and optimizer.step() instead.",
    "from-two-workers-on",
)
EACH_PART = Fault(
    "each micro-batch",
    "changed once for each micro-batch",
    "The loop body changes this in each micro-batch, and the number of these depends on the number of workers. Change "
    "it once for each step: if job.committed: …",
    "from-two-workers-on",
)
ONE_RANK = Fault(
    "one rank",
    "kept or decided on one rank",
    "Each rank computes a part of the batch. The loop body keeps a value of its part, or decides by it, by job.rank or "
    "by job.world_size, and training depends on it.",
    "from-two-workers-on",
)
OF_A_PART = Fault(
    "of a part",
    "decided or computed over a part of the batch",
    "Each rank computes a part of the batch. The loss is not the mean over the samples of the part: it depends on how "
    "the batch is cut, so another number of workers trains another model.",
    "from-two-workers-on",
)
OF_ADAPTER = Fault(
    "adapter",
    "the framework's own loop trains another model",
    "The script with elastrain's adapter is equal to the adapter in plain torch, but not to the framework's own loop: "
    "the adapter does something else with an option or a method of the script.",
    "another-loop-than-the-frameworks",
)
NOT_TRAVELLING = Fault(
    "does not travel",
    "state that does not reach a joiner, or code that ran once",
    "A worker that joins receives what is wrapped and tracked. It has not run the code that changed something else at "
    "an earlier step.",
    "from-a-joiner-on",
)
DISCARDED = Fault(
    "discarded body",
    "effects of a discarded loop body",
    "A loop body has run that no step counts: the warm-up of a joiner, or one whose step was discarded with a lost "
    "worker. What is wrapped and tracked was put back. An untracked value or file, on which the entry depends, was "
    "not: change it under 'if job.committed:' or in job.on_commit(), or track it.",
    "after-a-loss",
)
NOT_SAVED = Fault(
    "not saved",
    "state that is in no checkpoint",
    "A checkpoint contains what is wrapped and tracked. New processes begin with the script's initial values of "
    "everything else.",
    "at-a-resume",
)
OTHER_FILES = Fault(
    "other files",
    "another result beside the steps",
    "All steps are equal to the reference, but a file is another one: each rank writes it, or what only one rank has. "
    "Write it on one rank: 'if job.rank == 0:' after the loop, 'if job.committed and job.rank == 0:' within it.",
    "other-files",
)
NO_REFERENCE = Fault(
    "no reference",
    "not judged: the script does not run in plain torch",
    "",
    "no-reference",
)
FAILS = Fault("fails", "the job fails", "", "the-job-fails")

OWN = NOT_PUT_BACK, NOT_RECEIVED
"""What elastrain promises of tracked state, and the record of a run shows by itself."""
_BY_RUN = {
    Kind.REFERENCE: FAILS,
    Kind.REPEAT: NOT_REPEATABLE,
    Kind.ONE: OF_ELASTRAIN,
    Kind.SEVERAL: ONE_RANK,
    Kind.GROWTH: NOT_TRAVELLING,
    Kind.LOSS: DISCARDED,
    Kind.DRAIN: ONE_RANK,
    Kind.RESUME: NOT_SAVED,
}


def fault(run: Run, apart: Parting, ranks: int, *, truth: History, found: History, bounds: Bounds) -> Fault:
    """The kind of fault of ``run``, the first that parts from the reference, as its record ``found`` shows it.

    ``apart``: where it parts. ``ranks``: in the end of the run. ``truth``: the record of the reference.
    """
    if apart.of_adapter:
        return OF_ADAPTER
    seen = ((own, first_of(own, truth, found, bounds)) for own in OWN)
    if (own := next((own for own, first in seen if first is not None and first.step < apart.step), None)) is not None:
        return own
    if apart.entry == BATCH and run.kind is not Kind.REPEAT and not run.at:
        return DATA
    if apart.entry.startswith("file "):
        return _of_a_file(run, apart)
    if run.kind is Kind.SEVERAL or apart.of_a_part:
        return _of_ranks(apart, truth.facts)
    # As long as survivors trained alone, all was right: it is the one that took the place.
    travels = run.kind is Kind.LOSS and not apart.ended and apart.world >= ranks
    return NOT_TRAVELLING if travels else _BY_RUN[run.kind]


def first_of(own: Fault, truth: History, found: History, bounds: Bounds) -> Parting | None:
    """The first entry of ``found`` that shows a fault of elastrain's own."""
    return not_put_back(found) if own is NOT_PUT_BACK else not_received(truth, found, bounds)


def _of_a_file(run: Run, apart: Parting) -> Fault:
    if run.kind in (Kind.ONE, Kind.SEVERAL):
        return OTHER_FILES
    if run.kind is Kind.GROWTH:  # the first rank, which writes, is none that has joined
        return DISCARDED
    return NOT_TRAVELLING if run.kind is Kind.LOSS and apart.lacks else _BY_RUN[run.kind]


def _of_ranks(apart: Parting, facts: Mapping[str, Any]) -> Fault:
    if apart.of_bodies or apart.entry in facts.get("of_each_part", ()):
        return EACH_PART
    if apart.entry.endswith(".grad"):  # the losses are equal
        return OF_A_GRADIENT
    return OF_A_PART if apart.of_a_part else ONE_RANK


def advice(parting: Parting) -> str:
    """What to do about this entry; empty if the paragraph of the docs says all."""
    if parting.entry.startswith("untracked "):
        return "The script makes this object and does not track it: give it to job.track()."
    if parting.entry.endswith(".training"):
        return "A model is in train() mode in one run and in eval() mode in the other: set it before the loop."
    return ""
