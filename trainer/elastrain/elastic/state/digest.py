"""Short numbers by which ranks compare values without sending them."""

from __future__ import annotations

import torch
import xxhash


def of_value(value: object) -> int:
    """A positive 63-bit number for ``repr(value)``; 0 stands for "none"."""
    return 1 + xxhash.xxh3_64_intdigest(repr(value).encode()) % (2**63 - 2)


def of_bytes(data: torch.Tensor) -> int:
    """63 bits of XXH3 (https://xxhash.com) over a flat uint8 tensor on the CPU; as fast as memory."""
    return xxhash.xxh3_64_intdigest(data.numpy()) >> 1


def of_tensor(tensor: torch.Tensor) -> int:
    """The same over the values of a strided tensor on any device, in their logical order."""
    data = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return of_bytes(data.reshape(-1).view(torch.uint8))
