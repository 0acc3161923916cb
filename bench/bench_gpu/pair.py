"""One of two ranks that share a card, as a program: what forming and aborting a communicator costs and leaves behind.

Rank 0 writes the figures of each task, as JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a program of its own, started by path

import torch
import torch.distributed as dist

from bench_gpu.report import ENV_DRY, Figures, NotPossible
from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.stock import nccl
from elastrain.elastic.comm.stock.watchdog import Mates
from elastrain.elastic.comm.transport import wait_for

CYCLES = 20
LEAKED_MIB, LEAKED = 64.0, 10
"""Growth of device memory, of threads and of descriptors over all cycles above which they count as leaked."""
PATIENCE = 30.0


class Pair:
    """This rank and its peer."""

    def __init__(self, rank: int, port: int, *, dry: bool) -> None:
        self.rank, self.dry = rank, dry
        self.device = torch.device("cpu") if dry else torch.device("cuda", 0)
        self._store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
        self._number = 0

    def form(self) -> nccl.Nccl:
        """A communicator of both."""
        self._number += 1
        store = nccl.IdStore(self._number, self.rank, self.gather)
        return nccl.form(store, self.rank, 2, self.device, mates=Mates({}), called_off=lambda: False)

    def gather(self, mine: bytes) -> list[bytes]:
        """``mine`` of both, by rank; each call meets the same call of the peer."""
        self._number += 1
        self._store.set(f"{self._number}/{self.rank}", mine)
        return [self._store.get(f"{self._number}/{rank}") for rank in (0, 1)]

    def sum(self, communicator: nccl.Nccl) -> float:
        """Of a one on each rank: 2."""
        one = torch.ones(1 << 16, device=self.device)
        communicator.sum(one, Label()).wait()
        wait_for(self.device)
        return float(one[-1].item())


def abort(pair: Pair) -> Figures:
    """A kernel waits for a peer that never comes: how long an abort takes to free it, and whether the device works."""
    communicator = pair.form()
    assert pair.sum(communicator) == 2.0, "the sum is wrong"
    pair.gather(b"summed")
    figures: Figures = {}
    if pair.rank == 0:
        buffer = torch.ones(1 << 20, device=pair.device)
        waiting = communicator.sum(buffer, Label())
        aborted_at = [0.0]

        def cut() -> None:
            time.sleep(0.5)
            aborted_at[0] = time.monotonic()
            communicator.abort("the peer does not come")

        threading.Thread(target=cut).start()
        waiting.wait()
        wait_for(pair.device)
        figures["abort ms"] = (time.monotonic() - aborted_at[0]) * 1e3
        assert aborted_at[0], "the sum has ended without its peer"
    pair.gather(b"aborted")
    communicator.close()
    product = torch.eye(256, device=pair.device) @ torch.ones(256, 256, device=pair.device)
    assert product.sum().item() == 256**2, "the device computes wrongly after the abort"
    began = time.monotonic()
    again = pair.form()
    figures["form again ms"] = (time.monotonic() - began) * 1e3
    assert pair.sum(again) == 2.0, "the sum after an abort is wrong"
    pair.gather(b"summed again")
    again.abort("the end")
    again.close()
    return figures


def cycles(pair: Pair) -> Figures:
    """Form, sum, abort: what each cycle leaves behind."""
    before, seconds = _held(pair), 0.0
    count = 4 if pair.dry else CYCLES
    for cycle in range(count + 2):
        if cycle == 2:
            before = _held(pair)
        began = time.monotonic()
        communicator = pair.form()
        seconds += time.monotonic() - began if cycle >= 2 else 0.0
        assert pair.sum(communicator) == 2.0, f"the sum of cycle {cycle} is wrong"
        pair.gather(b"summed")
        communicator.abort("a cycle")
        communicator.close()
    grown = {name: value - before[name] for name, value in _held(pair).items()}
    figures: Figures = {"cycles": float(count), "form ms": seconds / count * 1e3, **grown}
    assert pair.dry or (grown["MiB"] <= LEAKED_MIB and max(grown["threads"], grown["descriptors"]) <= LEAKED), figures
    return figures


def full(pair: Pair) -> Figures:
    """Form while the caching allocator of both ranks holds 98 % of the card."""
    if pair.dry:
        raise NotPossible("the CPU has no caching allocator")
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(pair.device)
    pair.gather(b"measured")
    block = torch.empty(int(free * 0.98 / 2), dtype=torch.uint8, device=pair.device)
    del block  # into the cache
    pair.gather(b"filled")
    left = torch.cuda.mem_get_info(pair.device)[0]
    began = time.monotonic()
    communicator = pair.form()
    seconds = time.monotonic() - began
    assert pair.sum(communicator) == 2.0, "the sum is wrong"
    pair.gather(b"summed")
    communicator.abort("the end")
    communicator.close()
    return {"free before MiB": left / 2**20, "form ms": seconds * 1e3}


TASKS: dict[str, Callable[[Pair], Figures]] = {"abort": abort, "cycles": cycles, "full": full}


def _held(pair: Pair) -> dict[str, float]:
    free = torch.cuda.mem_get_info(pair.device)[0] if not pair.dry else 0
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return {"MiB": -free / 2**20, "threads": float(threading.active_count()), "descriptors": float(descriptors)}


def main() -> None:
    rank, port, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dry = ENV_DRY in os.environ
    if dry:
        from bench_gpu import stand_in

        stand_in.install()
    else:
        torch.cuda.set_device(0)
    pair = Pair(rank, port, dry=dry)
    for name, task in TASKS.items():
        line: dict[str, object] = {"task": name}
        try:
            line["figures"] = task(pair)
        except NotPossible as e:
            line["not possible"] = str(e)
        if rank == 0:
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    pair.gather(b"end")
    os._exit(0)  # threads of the stand-in may wait


if __name__ == "__main__":
    main()
