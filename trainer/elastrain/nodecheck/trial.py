"""One all-reduce between two nodes, in a process of its own: what hangs in a driver can only be killed.

``python -m elastrain.nodecheck.trial HOST PORT RANK ADDRESS BACKEND``: the rank 0 serves a store at PORT of HOST,
the other
one comes there. Prints ``{"latency": seconds, "rate": GB/s}``; anything that goes wrong ends it with an exit code and
the reason as the last line of stderr.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

CONNECT = timedelta(seconds=30)
"""Bound of each step of meeting the partner and of each all-reduce."""
SMALL, LARGE = 1, {"gloo": 4 * 2**20, "nccl": 32 * 2**20}
"""float32 values: of the latency's buffer, and of the rate's by backend (16 and 128 MiB)."""
TRIALS = {SMALL: 20}
_LARGE_TRIALS = 4


def measure(host: str, port: int, rank: int, address: str, backend: str) -> dict[str, float]:
    """Latency in seconds and rate in GB/s of the fastest trial each: what else the machine does only slows it down.

    Raises ``RuntimeError`` if the partner does not come, a sum does not come, or it is wrong.
    """
    import torch
    import torch.distributed as dist

    store = dist.TCPStore(host, port, 2, rank == 0, CONNECT, wait_for_workers=False)
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    group: Any
    if backend == "nccl":
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2, timeout=CONNECT, device_id=device)
        group = dist.group.WORLD
    else:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = CONNECT
        group = dist.ProcessGroupGloo(store, rank, 2, options)

    def fastest(values: int) -> float:
        return min(_once(torch, group, device, rank, values) for _ in range(TRIALS.get(values, _LARGE_TRIALS)))

    latency, size = fastest(SMALL), LARGE[backend]
    found = {"latency": latency, "rate": size * 4 / fastest(size) / 1e9}
    # Whoever serves the store stays until both are done with it.
    store.set(f"done/{rank}", "")
    store.wait([f"done/{1 - rank}"], CONNECT)
    return found


def _once(torch: Any, group: Any, device: Any, rank: int, values: int) -> float:
    buffer = torch.full((values,), float(rank + 1), device=device)
    wait = _waiter(torch, device)
    wait()
    start = time.perf_counter()
    group.allreduce([buffer]).wait()
    wait()
    seconds = time.perf_counter() - start
    wrong = int((buffer != 3.0).sum())
    if wrong:
        raise RuntimeError(f"{wrong} of {values} sums are wrong")
    return seconds


def _waiter(torch: Any, device: Any) -> Callable[[], None]:
    return (lambda: None) if device.type == "cpu" else (lambda: torch.accelerator.synchronize(device))


if __name__ == "__main__":
    try:
        host_, port_, rank_, address_, backend_ = sys.argv[1:]
        found_ = measure(host_, int(port_), int(rank_), address_, backend_)
    except RuntimeError as error:
        sys.exit(" ".join(str(error).split())[:300])
    print(json.dumps(found_), flush=True)  # noqa: T201 - this command's output
