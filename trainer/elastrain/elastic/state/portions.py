"""State that travels over several steps, some parameters in each, while all ranks train.

A state that is sent whole (:mod:`elastrain.elastic.state.transfer`) holds up the step in which it travels, if that
takes longer than the step. But torch's optimizers treat every parameter independently. A joiner can keep the parameters
that it has received up to date, by the same update from the same gradients as all other ranks, while the rest is on its
way::

    opening    all values but the large tensors, at the switch
    a step     as many *portions* as there is time for: a parameter with its optimizer state, as it is between two
               updates. Then the senders stop, and every optimizer makes its step: the joiner's, on the parameters that
               it has
    closing    when the joiner has asked for it: the opening again, for the values that it could not keep up to date,
               and samples of the large tensors, which show that it kept those up to date

The joiner is a learner meanwhile (:mod:`elastrain.elastic.strategies.learner`). On a connection, each step is some
portions or the closing, followed by ``END``. A sender is done after its last portion; the first one waits for ``ASK``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from elastrain.elastic.state import transfer
from elastrain.elastic.state.capture import HIDDEN, Stateful, capture, is_dense
from elastrain.elastic.state.slices import StateSlice
from elastrain.elastic.state.transfer import tensors_of

MIN_BYTES = 256 * 2**20
"""A state whose large tensors have fewer bytes is sent whole: that takes a fraction of a second."""
SAMPLES = 64
"""Elements of each large tensor that are compared at the end."""
SLACK_ULPS = 64
"""Allowed difference, in units of the largest one's last place: different machines round differently."""

PORTION, CLOSING, END, ASK = b"P", b"C", b"E", b"A"
INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class Portion:
    """A large tensor of the model, with its optimizer state."""

    parameter: torch.nn.Parameter | None
    """None if no optimizer changes the tensor."""
    tensors: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)


def steps_each_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer updates each parameter independently of all others.

    True for torch's own optimizers except LBFGS; unknown, and so False, for all others.
    """
    own = type(optimizer).__module__.startswith("torch.optim.")  # a subclass of one of them has another module
    return own and not isinstance(optimizer, torch.optim.LBFGS)


def may_travel_in_portions(tracked: Mapping[str, Stateful]) -> bool:
    """Whether a joiner could keep these objects up to date while their state is on its way."""
    return all(steps_each_alone(o) for o in optimizers(tracked))


def cut(tracked: Mapping[str, Stateful]) -> list[Portion] | None:
    """The large tensors of the tracked objects, in the same order on each rank.

    None if a large tensor is neither a tensor of the model nor the optimizer state of one.
    """
    parameters: dict[int, torch.nn.Parameter] = {}
    kept: dict[int, tuple[torch.Tensor, ...]] = {}
    for optimizer in optimizers(tracked):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.data_ptr() in parameters:
                return None  # two optimizers update it
            values = [value for _, value in sorted(optimizer.state.get(p, {}).items())]
            if not all(value is None or isinstance(value, torch.Tensor) for value in values):
                return None
            parameters[p.data_ptr()] = p
            kept[p.data_ptr()] = tuple(value.detach() for value in values if value is not None)
    states = capture(tracked)
    portions: dict[int, Portion] = {}
    for tensor in tensors_of([states["model"], states.get(f"model{HIDDEN}")]):
        at = tensor.data_ptr()
        if tensor.nbytes >= transfer.SMALL_BYTES and at not in portions:
            portions[at] = Portion(parameters.get(at), (tensor, *kept.get(at, ())))
    parts = [t for portion in portions.values() for t in portion.tensors]
    if not all(is_dense(t) for t in parts):
        return None  # they could not arrive in their place
    covered = {t.data_ptr() for t in parts}
    large = (t for t in tensors_of(states) if t.nbytes >= transfer.SMALL_BYTES)
    return list(portions.values()) if all(t.data_ptr() in covered for t in large) else None


def slices_of(portions: Sequence[Portion]) -> list[StateSlice]:
    """Each portion as a slice of the state."""
    return [StateSlice(number, 0, portion.nbytes) for number, portion in enumerate(portions)]


def optimizers(tracked: Mapping[str, Stateful]) -> Iterator[torch.optim.Optimizer]:
    """The tracked objects that are optimizers."""
    return (o for o in tracked.values() if isinstance(o, torch.optim.Optimizer))


def samples(portions: Sequence[Portion]) -> list[torch.Tensor]:
    """Some elements of each large tensor, on the host."""
    large = [t for portion in portions for t in portion.tensors if t.nbytes >= transfer.SMALL_BYTES]
    return [t.as_strided((t.numel(),), (1,))[:: max(1, t.numel() // SAMPLES)].cpu() for t in large]


def alike(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    """Whether samples differ by rounding at most. Pure."""
    return len(mine) == len(theirs) and all(_alike(a, b) for a, b in zip(mine, theirs, strict=True))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    same: bool = torch.equal(a, b)
    if same or not a.is_floating_point():
        return same
    largest = b.double().abs().max()
    off = (a.double() - b.double()).abs().max()
    within: bool = off.item() <= SLACK_ULPS * torch.finfo(a.dtype).eps * largest.item()
    return within
