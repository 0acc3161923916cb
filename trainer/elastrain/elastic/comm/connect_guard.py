"""A bound on what waits for peers in a way that nobody can interrupt, but that ends when its connections do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.05


@contextmanager
def wanted(called_off: Callable[[], bool], abort: Callable[[str], None], within: float) -> Iterator[None]:
    """``abort(cause)``, in another thread, when the block is not wanted any more, or takes longer than ``within``
    seconds: a silent peer would never end it.
    """
    over = threading.Event()

    def watch() -> None:
        end = time.monotonic() + within
        while not over.wait(_LOOK_SECONDS):
            if called_off():
                abort("nobody needs these connections any more")
            elif time.monotonic() > end:
                abort(f"not every peer has connected within {within:g} s")
            else:
                continue
            break

    threading.Thread(target=watch, name="elastrain-wanted", daemon=True).start()
    try:
        yield
    finally:
        over.set()
