"""Keyed permutations and random numbers of which any run can be computed alone, in memory of that run.

A permutation is a Feistel network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains",
2002): a position is written as two digits, and each round adds a keyed hash of one digit to the other. Positions
outside of the length are sent through the network again until they fall inside.

The bases of the digits are about the root of the length, so that fewer than three of ``sqrt(length)`` positions fall
outside. One base is even: additions modulo odd numbers are even permutations only. With 12 rounds, short lengths show a
bias in some ten thousand permutations; with 16 and more none was found. 24 is the number that Mitchell et al. chose for
shuffling by such functions ("Bandwidth-optimal random shuffling for GPUs", 2021).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import isqrt

import numpy as np

VERSION = 1
"""Of the numbers that this module computes: raised with each change of them, since ranks and checkpoints compare it."""
ROUNDS = 24
LONGEST = 2**62
"""Positions are 64-bit numbers, and digits 32-bit ones."""

_HASH = np.uint64(0x9E37_79B9_7F4A_7C15), np.uint64(0xD6E8_FEB8_6659_FD93)
_HALF = np.uint64(32)


def _philox(*words: object, counter: int = 0) -> np.random.Philox:
    """Philox is counter-based: key and counter are its whole state, on every machine and in every version of numpy."""
    key = hashlib.blake2b("/".join(map(str, words)).encode(), digest_size=16).digest()
    return np.random.Philox(key=np.frombuffer(key, "<u8"), counter=counter)


class Permutation:
    """A permutation of ``range(length)``, keyed by ``words`` (seed, purpose, epoch, …)."""

    def __init__(self, length: int, *words: object) -> None:
        """Raises ``ValueError`` for a length out of range."""
        if not 1 <= length <= LONGEST:
            raise ValueError(f"length: {length}: must be between 1 and {LONGEST}")
        root = isqrt(length - 1) + 1
        self._length = length
        self._bases = root + root % 2, -(-length // (root + root % 2))
        self._keys: np.ndarray = _philox(length, *words).random_raw(ROUNDS)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The values at ``positions``, integers of any shape (n,), each in ``range(length)``. Returns int64 (n,)."""
        values = self._network(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._length)
        while outside.size:
            values[outside] = self._network(values[outside])
            outside = outside[values[outside] >= self._length]
        return values.astype(np.int64)

    def _network(self, positions: np.ndarray) -> np.ndarray:
        left_base, right_base = (np.uint64(base) for base in self._bases)
        left, right = np.divmod(positions, right_base)
        base, other = left_base, right_base
        for key in self._keys:
            digit = right ^ key
            digit *= _HASH[0]
            digit ^= digit >> _HALF
            digit *= _HASH[1]
            digit >>= _HALF
            digit *= base
            digit >>= _HALF  # now below the base
            digit += left
            digit -= base * (digit >= base)
            left, right = right, digit
            base, other = other, base
        values: np.ndarray = left * right_base + right  # an even number of rounds: both digits are in their places
        return values


@lru_cache(maxsize=64)
def permutation(length: int, *words: object) -> Permutation:
    """As :class:`Permutation`; its keys are computed once."""
    return Permutation(length, *words)


def uniform(start: int, stop: int, *words: object) -> np.ndarray:
    """Numbers ``start`` to ``stop`` of a keyed endless sequence, uniform in [0, 1): float64, shape (stop - start,)."""
    block = start // 4  # Philox makes four numbers at each value of its counter
    raw = _philox(*words, counter=block).random_raw(stop - 4 * block)[start - 4 * block :]
    numbers: np.ndarray = (raw >> np.uint64(11)) * 2.0**-53
    return numbers
