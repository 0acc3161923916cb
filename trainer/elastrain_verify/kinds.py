"""From the run that parts, and the entry in which it does, to the kind of fault and its paragraph in the docs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain_verify.compare import Parting
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
UNGATED = Fault(
    "ungated",
    "an effect that the job does not control",
    "Each process runs its first loop body once more, as a warm-up. The loop body changes something that is neither "
    "wrapped nor tracked, so the change of the warm-up stays.",
    "already-with-one-worker",
)
ONE_RANK = Fault(
    "one rank",
    "kept or decided on one rank",
    "Each rank computes a part of the batch. The loop body keeps a value of its part, or decides by it, and training "
    "depends on it.",
    "from-two-workers-on",
)
KEPT_GRADIENTS = Fault(
    "kept gradients",
    "gradients kept over several steps",
    "Gradients of earlier steps are still in place when the next ones are summed over the ranks.",
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
    "A worker was lost, so the step was discarded and the loop body ran again. The first execution has changed "
    "something that is neither wrapped nor tracked.",
    "after-a-loss",
)
LEAVING = Fault(
    "after a drain",
    "a smaller job trains another model",
    "A worker has left at a step boundary. The remaining ranks depend on something that only this one had.",
    "after-a-drain",
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
    "another result after the loop",
    "All steps are equal to the reference, but the code after the loop writes another result.",
    "other-files",
)
NO_REFERENCE = Fault(
    "no reference",
    "not judged: the script does not run in plain torch",
    "",
    "no-reference",
)
FAILS = Fault("fails", "the job fails", "", "the-job-fails")

_BY_RUN = {
    Kind.REFERENCE: FAILS,
    Kind.REPEAT: NOT_REPEATABLE,
    Kind.ONE: UNGATED,
    Kind.SEVERAL: ONE_RANK,
    Kind.GROWTH: NOT_TRAVELLING,
    Kind.LOSS: DISCARDED,
    Kind.DRAIN: LEAVING,
    Kind.RESUME: NOT_SAVED,
}


def fault(run: Run, parting: Parting, ranks: int) -> Fault:
    """The kind of fault of ``run``, the first that parts from the reference, at ``parting``.

    ``ranks``: in the end of the run.
    """
    if parting.of_adapter:
        return OF_ADAPTER
    if parting.of_a_part:
        return OF_A_PART
    if run.kind is Kind.SEVERAL and parting.entry.endswith(".grad"):
        return KEPT_GRADIENTS
    if run.kind is Kind.LOSS and not parting.ended and parting.world >= ranks:
        return NOT_TRAVELLING  # as long as survivors trained alone, all was right: it is the one that took the place
    return _BY_RUN[run.kind]


def advice(parting: Parting) -> str:
    """What to do about this entry; empty if the paragraph of the docs says all."""
    if parting.entry.startswith("untracked "):
        return "The script makes this object and does not track it: give it to job.track()."
    if parting.entry.endswith(".training"):
        return "A model is in train() mode in one run and in eval() mode in the other: set it before the loop."
    return ""
