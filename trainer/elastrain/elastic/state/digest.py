"""Short numbers by which ranks compare values without sending them, and values with each other, where they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
import xxhash

_LARGEST = 2**63 - 2
_ROW = 1 << 12
"""Words whose sum counts with a factor of its own, on a device."""
_MIXED = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd factor (2**64 over the golden ratio), as int64."""
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def of_value(value: object) -> int:
    """A positive 63-bit number for ``repr(value)``; 0 stands for "none"."""
    return 1 + xxhash.xxh3_64_intdigest(repr(value).encode()) % _LARGEST


def of_bytes(data: torch.Tensor) -> int:
    """63 bits of XXH3 (https://xxhash.com) over a flat uint8 tensor on the CPU; as fast as memory."""
    return xxhash.xxh3_64_intdigest(data.numpy()) >> 1


def of_tensors(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The same over the values of each strided tensor, in their logical order. On a device it is made there, by
    :func:`on_device`: 8 bytes travel to the host for each tensor, which waits for them."""
    found: list[int | torch.Tensor] = [of_bytes(_flat(t)) if on_host(t) else on_device(t) for t in tensors]
    if waiting := [number for number in found if isinstance(number, torch.Tensor)]:
        numbers = iter(torch.stack([number.to(waiting[0].device) for number in waiting]).tolist())
        return [next(numbers) % _LARGEST + 1 if isinstance(number, torch.Tensor) else number for number in found]
    return found


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A digest of a tensor's values, as an int64 scalar where it lies: any single flipped bit changes it.

    Sums of 32-bit words, exact in any order; each row of words has a factor of its own, so that rows cannot change
    places unnoticed.
    """
    data = _flat(tensor)
    whole = data.numel() // 4 * 4
    if data.storage_offset() % 4:
        return data.sum(dtype=torch.int64)
    words = data[:whole].view(torch.int32)
    rows = words.numel() // _ROW
    total = words[rows * _ROW :].sum(dtype=torch.int64) + data[whole:].sum(dtype=torch.int64)
    if rows:
        sums = words[: rows * _ROW].view(rows, _ROW).sum(1, dtype=torch.int64)
        total = total + (sums * (torch.arange(1, 2 * rows, 2, device=data.device) * _MIXED)).sum()
    return total


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two strided tensors have the same values to the bit: ``torch.equal`` takes -0.0 for 0.0.

    Reads none if they are the same memory, and on the host ends at the first difference.
    """
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.device != other.device:
        return int(on_device(one)) == int(on_device(other))
    if one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    a, b = _flat(one), _flat(other)
    return bool(_memcmp(a.data_ptr(), b.data_ptr(), len(a)) == 0 if on_host(a) else torch.equal(a, b))


def on_host(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in the host's memory."""
    kind: str = tensor.device.type
    return kind == "cpu"


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, in the logical order of its values."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
