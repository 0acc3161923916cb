"""One all-reduce between two nodes, in its own process: a hanging driver can only be killed.

``python -m elastrain_pairs.trial HOST PORT RANK ADDRESS BACKEND``: rank 0 serves a store at PORT of HOST, and the
other rank connects to it. Prints ``{"latency": seconds, "rate": GB/s}``. An error ends the process with an exit code
and the reason as the last line of stderr.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

CONNECT = timedelta(seconds=30)
"""Seconds for each step of the connection and for each all-reduce."""
SMALL, LARGE = 1, {"gloo": 4 * 2**20, "nccl": 32 * 2**20}
"""Numbers of float32 values: for the latency, and for the rate by backend (16 and 128 MiB)."""
TRIALS = {SMALL: 20}
_LARGE_TRIALS = 4


def measure(host: str, port: int, rank: int, address: str, backend: str) -> dict[str, float]:
    """Latency in seconds and rate in GB/s, each of the fastest trial, which the machine's other load disturbs least.

    Raises ``RuntimeError`` if the partner or a sum does not arrive in time, or a sum is wrong.
    """
    import torch
    import torch.distributed as dist

    from elastrain.elastic.torch_private import gloo_options

    store = dist.TCPStore(host, port, 2, rank == 0, CONNECT, wait_for_workers=False)
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    group: Any
    if backend == "nccl":
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2, timeout=CONNECT, device_id=device)
        group = dist.group.WORLD
    else:
        options = gloo_options([dist.ProcessGroupGloo.create_device(hostname=address)], CONNECT)
        group = dist.ProcessGroupGloo(store, rank, 2, options)

    def fastest(values: int) -> float:
        return min(_once(torch, group, device, rank, values) for _ in range(TRIALS.get(values, _LARGE_TRIALS)))

    latency, size = fastest(SMALL), LARGE[backend]
    found = {"latency": latency, "rate": size * 4 / fastest(size) / 1e9}
    _part(store, rank)
    return found


def _part(store: Any, rank: int) -> None:
    """Leave together: rank 1 once rank 0 has all sums, and rank 0, which serves the store, after rank 1's last word.

    That word needs no answer, so that no rank reads from a store whose process ends.
    """
    if rank == 0:
        store.set("summed", "")
        store.wait(["left"], CONNECT)
    else:
        store.wait(["summed"], CONNECT)
        store.set("left", "")


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
