"""Which updates of tracked objects a loop body has made: whether a committed step was applied when its body was left.

A body that ends normally commits its step, whatever it has called. One that is left before (``break``, ``return``, an
exception) commits it only if its update was made: peers count the step by the sum of the gradients, and would else go
on with another model than this rank.
"""

from __future__ import annotations

import dis
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from types import FrameType


class Applied(Enum):
    """How much of a step's update is in the state of this rank."""

    NOTHING = auto()
    """The state is that of the step before."""
    PARTLY = auto()
    """It is that of no step."""
    WHOLLY = auto()


@dataclass(frozen=True, slots=True)
class Update:
    """A call that changes a tracked object."""

    of: int
    """The object, by its ``id``."""
    call: str
    steps: bool
    """Whether it is the update of the parameters by an optimizer, and not one that goes with it."""


class Updates:
    """Of one rank's script. For the training thread."""

    def __init__(self) -> None:
        self._usual = Counter[Update]()
        """Those of the last body that has ended normally."""
        self._called, self._done = Counter[Update](), Counter[Update]()
        self._depth = 0

    def begin(self) -> None:
        """A loop body begins."""
        self._called, self._done = Counter(), Counter()

    def end(self) -> None:
        """It has ended normally."""
        self._usual = self._called

    @contextmanager
    def of(self, update: Update, *, acts: bool) -> Iterator[None]:
        """Around a call. ``acts``: it is not skipped. Calls within it, as of an optimizer by a scaler, are its part."""
        if not self._depth:
            self._called[update] += 1
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if acts and not self._depth:
            self._done[update] += 1

    def applied(self, *, finished: bool) -> Applied:
        """Of the body that was left. ``finished``: the script has left it where it meant to, by ``break``."""
        return applied(self._called, self._done, self._usual, finished=finished)


def applied(called: Counter[Update], done: Counter[Update], usual: Counter[Update], *, finished: bool) -> Applied:
    """How much of its update a body has made that was left. ``called``: the updates that it has begun, ``done``: ended;
    ``usual``: those of a body that ends normally. ``finished``: as of :meth:`Updates.applied`. Pure.

    An optimizer's update is the least. After an exception all updates have to be there that a body makes: a scheduler's
    may follow the optimizer's. A script that makes its updates itself shows none; only its ``break`` tells.
    """
    if called - done:
        return Applied.PARTLY  # an exception within an update
    if not usual and not done:
        return Applied.WHOLLY if finished else Applied.PARTLY
    if not done:
        return Applied.NOTHING
    if finished:
        return Applied.WHOLLY if any(update.steps for update in done) else Applied.PARTLY
    return Applied.PARTLY if usual - done else Applied.WHOLLY


_ENDS = ("POP_TOP", "POP_ITER")
"""The instructions by which ``break`` and ``return`` drop the iterator of their loop."""
_CLOSED = ("YIELD_VALUE", "RESUME", "RERAISE", "CLEANUP_THROW")
"""Those at which a generator is that is closed from outside."""


def left_by_break(frame: FrameType | None) -> bool:
    """Whether the loop over a generator has ended by ``break`` or ``return``, and not by an exception.

    ``frame``: the caller of the generator, which is being closed. Python tells a generator only that it is closed; the
    instruction at which the loop's frame is shows why. False if that is not known.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR and _instruction(frame) in _CLOSED:
        frame = frame.f_back  # a generator around the job's, as tqdm's
    return frame is not None and _instruction(frame) in _ENDS


def _instruction(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]
