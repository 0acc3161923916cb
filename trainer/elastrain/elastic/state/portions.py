"""The state as portions: what travels at a time, and which rank sends it.

The large tensors of a state travel in *portions*, each of which one rank sends. All else, structure, numbers, strings
and small tensors, is the *opening*, which the first source sends before them.

In one round
    all portions travel in one step, which waits for them. A portion is a piece of a tensor: several ranks can send
    parts of the same one.

In several rounds
    the portions of a large state travel over several steps while all ranks train. That works since torch's optimizers
    treat every parameter independently. A portion is a parameter with its optimizer state, as it is between two
    updates, or a piece of a tensor that none of them updates. A joiner keeps the parameters that it has received up to
    date, by the same update from the same gradients as all other ranks; it is a learner meanwhile
    (:mod:`elastrain.elastic.strategies.learner`). When it has all of them, it asks for the *closing*: the opening
    again, for the values that it could not keep up to date, and samples of the large tensors, which show that it kept
    those up to date.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from elastrain.elastic.encoding.leaves import is_dense, raw_bytes
from elastrain.elastic.state import digest, transfer
from elastrain.elastic.state.capture import HIDDEN, Stateful, capture
from elastrain.elastic.state.transfer import tensors_of

MIN_BYTES = 256 * 2**20
"""A state whose large tensors have fewer bytes travels in one round: that takes a fraction of a second."""
SAMPLES = 64
"""Elements of each large tensor that are compared at the end."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Which ranks send their state to which ones; the same value on all ranks."""

    sources: Sequence[int]
    """Ranks with the newest state. The first one sends the opening and the closing."""
    receivers: Sequence[int]

    def sent_by(self, source: int, receiver: int, portions: int) -> list[int]:
        """The numbers of the portions that ``source`` sends to ``receiver``, of so many. Pure.

        The sources alternate, and each receiver begins with another one.
        """
        first = self.sources.index(source) - self.receivers.index(receiver)
        return list(range(first % len(self.sources), portions, len(self.sources)))


@dataclass(frozen=True, slots=True)
class Portion:
    """Large tensors that travel together."""

    tensors: tuple[torch.Tensor, ...]
    parameter: torch.nn.Parameter | None = None
    """Whose update changes them; None: of no optimizer's, or not known."""

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)


def pieces(tree: Any) -> list[Portion]:
    """The large tensors of ``tree`` for one round: portions of at most ``PIECE_BYTES``, in their memory."""
    large = (raw_bytes(t) for t in tensors_of(tree) if is_large(t))
    return [Portion((piece,)) for data in large for piece in data.split(transfer.PIECE_BYTES)]


def cut(tracked: Mapping[str, Stateful]) -> list[Portion] | None:
    """The large tensors of the tracked objects for several rounds, in the same order on each rank.

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
        if is_large(tensor) and at not in portions:
            portions[at] = Portion((tensor, *kept.get(at, ())), parameters.get(at))
    parts = [t for portion in portions.values() for t in portion.tensors]
    if not all(is_dense(t) for t in parts):
        return None  # they could not arrive in their place
    covered = {t.data_ptr() for t in parts}
    if not all(t.data_ptr() in covered for t in tensors_of(states) if is_large(t)):
        return None
    return [part for portion in portions.values() for part in _divided(portion)]


def _divided(portion: Portion) -> list[Portion]:
    """In pieces, if no optimizer updates it: a step waits for at least one portion, so for less."""
    trains = portion.parameter is not None and (portion.parameter.requires_grad or len(portion.tensors) > 1)
    return [portion] if trains else pieces(portion.tensors)


def may_take_several_rounds(tracked: Mapping[str, Stateful]) -> bool:
    """Whether a joiner could keep these objects up to date while their state is on its way."""
    return all(steps_each_alone(o) for o in optimizers(tracked))


def steps_each_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer updates each parameter independently of all others.

    True for torch's own optimizers except LBFGS; unknown, and so False, for all others.
    """
    own = type(optimizer).__module__.startswith("torch.optim.")  # a subclass of one of them has another module
    return own and not isinstance(optimizer, torch.optim.LBFGS)


def optimizers(tracked: Mapping[str, Stateful]) -> Iterator[torch.optim.Optimizer]:
    """The tracked objects that are optimizers."""
    return (o for o in tracked.values() if isinstance(o, torch.optim.Optimizer))


def is_large(leaf: Any) -> bool:
    """Whether it is a tensor that travels in portions."""
    return isinstance(leaf, torch.Tensor) and leaf.nbytes >= transfer.SMALL_BYTES


def samples(portions: Sequence[Portion]) -> list[int]:
    """Digests of some elements of each large tensor."""
    large = [t for portion in portions for t in portion.tensors if is_large(t)]
    return digest.of_tensors([t.as_strided((t.numel(),), (1,))[:: max(1, t.numel() // SAMPLES)] for t in large])
