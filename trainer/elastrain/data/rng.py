"""Randomness that depends on the position of the data, not on the process that computes it.

The default generators of torch (CPU, and CUDA once it is in use), numpy and ``random`` are seeded from a key before
each micro-batch and before each sample of a data set that draws. The key is a function of the job's seed and a counter:

- for a micro-batch, the position of its first sample in the whole sequence of steps (one key for its loop body, and
  another one for collating it);
- for a sample, its position in that sequence, so that a sample drawn twice in an epoch is augmented in two ways;
- for what is no part of a sum over the ranks, such as noise in an update, the step (:mod:`elastrain.data.draws`).

A repeated step therefore sees the same numbers, and a sample is augmented alike on every worker and rank. Outside, the
user's own streams continue as if nothing had been drawn.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache, partial
from typing import Self

import numpy as np
import torch

from elastrain.data.order import Order, Slice

_LOW = 2**32 - 1
_PROBED = 0x9C30_5B1F_E2A7_648D
"""A seed that no data set is likely to use."""


class Keys:
    """64-bit keys for a counter. Their low halves alone are distinct for any 2**32 consecutive counters.

    The low half matters: torch's CPU generator uses only that half of its seed, and numpy's generator receives no more.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        """Another ``seed`` or ``purpose`` gives an unrelated sequence of keys."""
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
    """A context whose draws and seeds leave no trace outside. A nested use does nothing.

    numpy's generator is exchanged instead of copied, which takes 1 µs instead of 80. (This drops the second number of a
    pair of ``numpy.random.normal`` that is cached outside.)
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
    """Detects draws from the default generators, and seeds of them, inside of it.

    Use it inside :class:`Kept`: it seeds the generators with a number of its own. Their next numbers are known then,
    and drawing one is much cheaper than comparing states: Python's is a tuple of 625 numbers.
    """

    QUESTIONS = 2
    """Number of calls of :meth:`drawn` allowed inside."""

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
        """Whether a number was drawn until now. After True the probe cannot be used again."""
        return (
            self._inner.random_raw() != self._twin.random_raw()  # both have been in the same state until now
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
    """The keys of one job's data order."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.kept = Kept()
        """The context for code that is seeded by them in the training process."""
        self._keys = lru_cache(maxsize=256)(partial(Keys, order.seed))

    def seed(self, purpose: str, counter: int) -> None:
        """Seed for ``purpose``, by a counter of its own."""
        seed_all(self._keys(purpose)(counter))

    def seed_body(self, step: int, part: Slice, after: tuple[int, int] | None = None) -> None:
        """Seed for the loop body on micro-batch ``part`` of ``step``.

        ``after``: for the rest of it after so many backwards, and so many updates since the last of them.
        """
        purpose = "step" if after is None else "step/{}/{}".format(*after)
        self.seed(purpose, step * self.order.global_batch_size + part.start)

    def seed_sample(self, position: int) -> None:
        """Seed for loading the sample at ``position`` in the sequence of steps."""
        self.seed("sample", position)

    def seed_collate(self, position: int) -> None:
        """Seed for collating the micro-batch whose first sample is at ``position`` in the sequence of steps."""
        self.seed("collate", position)
