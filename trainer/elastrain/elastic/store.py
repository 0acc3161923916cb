"""The TCP stores through which the ranks of a generation find each other."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from elastrain.api.records import Generation

_STORE_TIMEOUT = timedelta(seconds=30)
"""Bound of every single store operation."""


def serve(address: str) -> dist.TCPStore:
    """Serve a store on a free port of all interfaces for as long as the returned object lives.

    A member keeps one for its whole life and publishes the port: the address is known before any generation that
    uses it, so nobody has to agree on a port in the middle of a rescale.
    """
    # torch binds to all interfaces; the host name is only what this process itself connects to.
    return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)


def connect(generation: Generation, timeout: timedelta = _STORE_TIMEOUT) -> dist.Store:
    """A client of the generation's store that sees only this generation's keys.

    Each generation gets a connection of its own, so that a slow connect of one never holds up another.
    Raises ``ValueError`` for an empty generation and torch's ``DistNetworkError`` when the store cannot be reached.
    """
    at = generation.store
    if at is None:
        raise ValueError(f"generation {generation.number} is empty and has no store")
    store = dist.TCPStore(at[0], at[1], is_master=False, wait_for_workers=False, timeout=timeout)
    return dist.PrefixStore(f"generation/{generation.number}", store)
