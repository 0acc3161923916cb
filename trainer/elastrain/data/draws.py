"""Which random numbers the script draws at each point of its loop: those of its samples, or those of the update.

Two kinds of randomness meet in one loop body. Numbers that belong to samples (dropout, noise on inputs) go into
gradients, which are summed over the ranks: they are keyed by the position of the samples, and so differ between ranks.
Numbers that go into the state without such a sum (noise on complete gradients, in an optimizer's ``step()``, in a
callback) must be the same on all ranks and at any number of them: they are keyed by the step alone.

Each stretch of code begins with a seed of its own. What one draws therefore never moves the numbers of another::

    loop body begins                samples
    job.backward() of the step      update: noise on gradients, optimizer.step(), the rest of the body
    forward of a wrapped model,     samples again, if they follow a backward of the same body
    further backward, closure

Where a body has several backwards, samples follow each ``step()`` of an optimizer but the last: a script may draw noise
for the next forward there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from elastrain.data.order import Slice
from elastrain.data.rng import Randomness


class Draws:
    """Of one rank, for the training thread. With ``randomness="own"`` it changes nothing."""

    def __init__(self) -> None:
        self.announced = False
        """Whether bodies may have more backwards than the first one."""
        self._backwards = 0
        """Backwards of the first loop body; 0: not known yet."""
        self._randomness: Randomness | None = None
        self._part: tuple[int, Slice] | None = None
        """Step and micro-batch of the loop body that runs."""
        self._updates = False
        """Whether the numbers drawn now are those of the update."""
        self._done = 0
        """Backwards of the body that have summed the gradients."""
        self._steps = 0
        """Updates of optimizers since then."""
        self._of_kind = Counter[str]()

    @contextmanager
    def loop(self, randomness: Randomness | None, step: Callable[[], int]) -> Iterator[None]:
        """Around a loop over data with this randomness; None: the script's own. It ends at ``step()``.

        Behind it the script's own streams go on alike on all ranks: a rank that has joined later has not drawn what
        the code before has drawn elsewhere.
        """
        self._randomness = randomness
        try:
            yield
        except GeneratorExit:
            begin(randomness, "after a loop", step())
            raise
        begin(randomness, "after a loop", step())

    def kept(self) -> AbstractContextManager[object]:
        """Around a loop body and the loading of its data: the script's own streams continue behind it."""
        return nullcontext() if self._randomness is None else self._randomness.kept

    @contextmanager
    def body(self, step: int, part: Slice) -> Iterator[None]:
        """Around the loop body on micro-batch ``part`` of ``step``."""
        if self._randomness is None:
            yield
            return
        self._part, self._updates, self._done, self._steps = (step, part), False, 0, 0
        self._seed_samples()
        try:
            yield
        finally:
            self._part, self._backwards = None, self._backwards or self._done

    def knows(self, backwards: int) -> int:
        """How many of a body have summed the gradients, if a body or ``backwards``, of the state, tells; else 0."""
        self._backwards = self._backwards or backwards
        return self._backwards

    def summed(self) -> None:
        """A backward has summed the gradients of the step: the update follows."""
        if self._part is not None:
            self._done, self._steps = self._done + 1, 0
            self._seed_update()

    def samples(self) -> None:
        """A forward, or a further backward, follows."""
        if self._randomness is not None and self._part is not None and self._updates:
            self._updates = False
            self._seed_samples()

    @contextmanager
    def update(self) -> Iterator[None]:
        """Around ``step()`` of an optimizer."""
        if self._part is None or not self._done:
            yield
            return
        self._steps += 1
        if not (self._updates and self._steps == 1):  # the numbers behind a backward are those of its first update
            self._seed_update()
        yield
        self.updated()

    def updated(self) -> None:
        """An optimizer has made its step: noise for another forward may be drawn, if one follows.

        In step 0 no body is known that could show it.
        """
        expected = self._backwards if self._part is not None and self._part[0] else 1
        if self.announced or self._done < expected:
            self.samples()

    def closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """``closure`` of an optimizer, which draws numbers of samples in each evaluation."""

        def evaluated() -> Any:
            self.samples()
            return closure()

        return evaluated

    def of_step(self, kind: str, function: Callable[[], None], step: Callable[[], int]) -> Callable[[], None]:
        """``function`` with numbers of its own in each ``step()``, the same on all ranks.

        The key has its ``kind`` and its number among those; all ranks make the same calls.
        """
        self._of_kind[kind] += 1
        what = f"{kind}/{self._of_kind[kind]}"

        def keyed() -> None:
            if self._randomness is None:
                function()
                return
            with self._randomness.kept:
                self._randomness.seed(what, step())
                function()

        return keyed

    def _seed_samples(self) -> None:
        assert self._randomness is not None and self._part is not None
        self._randomness.seed_body(*self._part, after=(self._done, self._steps) if self._done else None)

    def _seed_update(self) -> None:
        if self._randomness is not None and self._part is not None:
            self._updates = True
            self._randomness.seed(f"update/{self._done}/{self._steps}", self._part[0])


def begin(randomness: Randomness | None, what: str, counter: int) -> int:
    """The script's own streams go on from a key, outside of its loops: the same on all ranks. Returns ``counter``."""
    if randomness is not None:
        randomness.seed(what, counter)
    return counter
