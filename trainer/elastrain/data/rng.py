"""Randomness that depends on what is computed, not on who computes it.

The default generators of torch (CPU, and CUDA once it is in use), numpy and ``random`` are seeded from a key before
each micro-batch and before each sample that a data set draws for. The key is a function of the job's seed and of a
counter:

- of a micro-batch, the position of its first sample in the whole sequence of steps (once for its loop body, and once,
  unrelated, for collating it);
- of a sample, epoch and index.

So a step that has to be done again sees the same numbers, and a sample is augmented alike by whichever worker or rank
loads it. Outside, everybody's own streams go on as if nothing had been drawn.
"""

from __future__ import annotations

import hashlib
import random
from typing import Self

import numpy as np
import torch

from elastrain.data.order import Order, Slice

_LOW = 2**32 - 1
_PROBED = 0x9C30_5B1F_E2A7_648D
"""A seed that no data set will happen to use."""


class Keys:
    """64-bit keys for a counter. Their low halves alone are distinct for any 2**32 counters in a row.

    The low half matters because torch's CPU generator uses nothing else of its seed, and numpy's is given no more.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        """Keys of another ``seed`` or ``purpose`` are those of an unrelated sequence."""
        self._salt = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
        self._offset = int.from_bytes(self._salt[:4], "little")

    def __call__(self, counter: int) -> int:
        low = _mix((counter + self._offset) & _LOW)
        high = hashlib.blake2b(counter.to_bytes(16, "little"), key=self._salt, digest_size=4).digest()
        return int.from_bytes(high, "little") << 32 | low


def _mix(x: int) -> int:
    """Bijection of 32-bit numbers that spreads neighbours: A. Appleby's finalizer of MurmurHash3 (public domain)."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _LOW
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _LOW
    return x ^ (x >> 16)


class Kept:
    """A context whose draws and seeds leave no trace outside. Inside itself it does nothing.

    numpy's generator is exchanged rather than copied, which takes 1 us instead of 80. (The second number of a pair of
    ``numpy.random.normal`` that is cached outside is dropped by that.)
    """

    def __init__(self) -> None:
        self._inner = np.random.MT19937(0)
        self._depth = 0

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1:
            self._cpu = torch.default_generator.get_state()
            self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
            self._python = random.getstate()
            self._outer = np.random.get_bit_generator()  # type: ignore[attr-defined]
            np.random.set_bit_generator(self._inner)  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            np.random.set_bit_generator(self._outer)  # type: ignore[attr-defined]
            random.setstate(self._python)
            torch.default_generator.set_state(self._cpu)
            if self._cuda:
                torch.cuda.set_rng_state_all(self._cuda)


class Probe:
    """Finds out whether anything is drawn from the default generators, or seeded, inside of it.

    To be used inside :class:`Kept`: it seeds them with a number of its own. What comes next is known then, and asking
    for it is cheaper by far than to compare states: Python's is a tuple of 625 numbers.
    """

    QUESTIONS = 2
    """So often :meth:`drawn` may be asked inside."""

    def __init__(self) -> None:
        self._inner, self._twin = np.random.MT19937(0), np.random.MT19937(0)
        self._word = torch.zeros((), dtype=torch.int64, device="cpu")
        with Kept():
            self._begin()
            self._expected = [self._next() for _ in range(self.QUESTIONS)]

    def __enter__(self) -> Self:
        self._begin()
        self._left = iter(self._expected)
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._outer = np.random.get_bit_generator()  # type: ignore[attr-defined]
        np.random.set_bit_generator(self._inner)  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        np.random.set_bit_generator(self._outer)  # type: ignore[attr-defined]

    def drawn(self) -> bool:
        """Whether anything was until now. Once it was true the probe is spent."""
        return (
            self._inner.random_raw() != self._twin.random_raw()  # they have been in step until now
            or self._next() != next(self._left)
            or (torch.cuda.is_initialized() and not _equal(torch.cuda.get_rng_state_all(), self._cuda))
        )

    @staticmethod
    def _begin() -> None:
        torch.default_generator.manual_seed(_PROBED)
        random.seed(_PROBED)

    def _next(self) -> tuple[int, int]:
        return random.getrandbits(64), int(self._word.random_())


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def seed_all(key: int) -> None:
    """Seed the default generators. Not by ``torch.manual_seed``, which keeps a stack trace of each call until CUDA is
    initialised.
    """
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)
    np.random.seed(key & _LOW)
    random.seed(key)


class Randomness:
    """The keys of one job's order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.kept = Kept()
        """Around whatever is seeded by them in the training process."""
        self._steps, self._samples = Keys(order.seed, "step"), Keys(order.seed, "sample")
        self._batches = Keys(order.seed, "collate")

    def seed_body(self, step: int, part: Slice) -> None:
        """Seed for the loop body on micro-batch ``part`` of ``step``."""
        seed_all(self._steps(step * self._order.global_batch_size + part.start))

    def seed_sample(self, epoch: int, index: int) -> None:
        """Seed for loading sample ``index`` in ``epoch``."""
        seed_all(self._samples(epoch * (self._order.length or 0) + index))

    def seed_collate(self, position: int) -> None:
        """Seed for collating the micro-batch whose first sample is at ``position`` in the sequence of steps."""
        seed_all(self._batches(position))
