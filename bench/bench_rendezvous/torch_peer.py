"""torch's own rendezvous: so many ``DynamicRendezvousHandler`` over one c10d store, in threads of this process.

    python -m bench_rendezvous.torch_peer MEMBERS

Prints the seconds until ``next_rendezvous()`` has returned to all. It is ended from outside when it takes too long. A
torch that can delay after a failed write (2.15) does so.
"""

from __future__ import annotations

import inspect
import os
import resource
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench_rendezvous.report import PeerRun

BACKOFF_SECONDS = 1.0
"""``cas_backoff_max_seconds``: 0 by default, which was the only way before."""
START_SECONDS = 30.0
"""For importing torch, beyond the bound."""


def measure(members: int, bound: float, python: Path) -> PeerRun:
    """In a process of its own, ended after ``bound`` seconds. ``python``: of an environment with torch."""
    from bench_rendezvous.report import PeerRun  # the process that is measured has torch only

    command = [str(python), "-m", "bench_rendezvous.torch_peer", str(members), str(bound)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    before, seconds = _cpu_of_children(), None
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=bound + START_SECONDS, check=True
        )
        seconds = float(answer.stdout.split()[-1])
    except subprocess.TimeoutExpired:
        pass  # it was ended, and has taken longer than the bound
    cpu = round(_cpu_of_children() - before, 2)
    within = seconds is not None and seconds <= bound
    return PeerRun(members=members, seconds=seconds if within else None, bound=bound, cpu=cpu)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(members: int, bound: float) -> float:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = RendezvousTimeout(join=timedelta(seconds=10 * bound), last_call=timedelta(seconds=1))
    create = DynamicRendezvousHandler.from_backend
    delays = "cas_backoff_max_seconds" in inspect.signature(create).parameters
    options: dict[str, float] = {"cas_backoff_max_seconds": BACKOFF_SECONDS} if delays else {}
    start, done = threading.Barrier(members + 1), threading.Semaphore(0)

    def join() -> None:
        store = TCPStore("127.0.0.1", server.port, is_master=False)
        backend = C10dRendezvousBackend(store, "bench")
        handler = create("bench", store, backend, members, members, "127.0.0.1", timeout, **options)
        start.wait()
        handler.next_rendezvous()
        done.release()

    for _ in range(members):
        threading.Thread(target=join, daemon=True).start()
    start.wait()
    began = time.monotonic()
    for _ in range(members):
        if not done.acquire(timeout=max(0.0, began + bound - time.monotonic())):
            return float("inf")
    return time.monotonic() - began


if __name__ == "__main__":
    print(main(int(sys.argv[1]), float(sys.argv[2])), flush=True)
    os._exit(0)  # handlers keep threads
