"""The TCP stores through which the ranks of a generation find each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from elastrain.api.records import Generation

OPERATION_TIMEOUT = timedelta(seconds=30)
"""Bound of a single operation on a store that answers."""
MEETING_TIMEOUT = 60.0
"""Seconds until a rank gives up on peers that do not come. Those that are lost show sooner, by a newer generation."""
PROTOCOL = 1
"""Version of what ranks say to each other inside a generation (table, header, buckets, control vector).

Ranks of another version do not meet: a job whose image was changed in flight trains on with those that fit.
"""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
"""Seconds between looks at whether all have come; they double."""
_REACH_TIMEOUT = timedelta(seconds=5)
"""Bound of one attempt to connect to a store; torch cannot be called off in it."""


class CalledOff(Exception):
    """The wait was ended by the caller's own wish."""


def serve(address: str) -> dist.TCPStore:
    """Serve a store on a free port of all interfaces for as long as the returned object lives.

    A member keeps one for its whole life and publishes the port: the address is known before any generation that
    uses it, so nobody has to agree on a port in the middle of a rescale.
    """
    # torch binds to all interfaces; the host name is only what this process itself connects to.
    return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=OPERATION_TIMEOUT)


def meet(generation: Generation, called_off: Callable[[], bool]) -> dist.Store:
    """Wait for all ranks of ``generation`` at its store, and return a client that sees only this generation's keys.

    A client of its own for each generation, so that a slow one never holds up another. Everything that may take long
    is waited for here, in pieces: the group that is made next blocks inside torch and cannot be called off.
    Raises :class:`CalledOff`, ``TimeoutError`` naming what was waited for, and torch's network errors
    (``RuntimeError``) when the store breaks off.
    """
    end = time.monotonic() + MEETING_TIMEOUT
    name = f"protocol/{PROTOCOL}/generation/{generation.number}"
    store = dist.PrefixStore(name, _reach(generation, called_off, end))
    if store.add("arrived", 1) == generation.world_size:
        store.set("complete", "1")
    pause = _FIRST_PAUSE
    while not called_off():
        if store.check(["complete"]):
            return store
        if time.monotonic() > end:
            arrived = f"{store.add('arrived', 0)} of {generation.world_size} ranks have come"
            hint = f"within {MEETING_TIMEOUT:g} s; do all workers run the same version of elastrain?"
            raise TimeoutError(f"generation {generation.number}: {arrived} {hint}")
        time.sleep(pause)  # torch's own wait cannot be called off, and prints warnings where it is cut into pieces
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise CalledOff


def _reach(generation: Generation, called_off: Callable[[], bool], end: float) -> dist.TCPStore:
    at = generation.store
    assert at is not None, "an empty generation has no store"
    while not called_off():
        try:
            store = dist.TCPStore(at[0], at[1], is_master=False, wait_for_workers=False, timeout=_REACH_TIMEOUT)
        except dist.DistError as e:
            if time.monotonic() > end:
                host = generation.members[0].worker
                raise TimeoutError(f"generation {generation.number}: no store at {at[0]}:{at[1]} ({host})") from e
        else:
            store.set_timeout(OPERATION_TIMEOUT)
            return store
    raise CalledOff
