"""What one process can measure of one GPU: NCCL's begin and end, the reading of the sums, the way of state."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elastrain.elastic.comm import digest, nccl
from elastrain.elastic.comm.transport import Reading
from elastrain.elastic.state.staging import Stage
from elastrain.elastic.state.transfer import PIECE_BYTES


def median_ms(action: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def solo(device: torch.device) -> nccl.Nccl:
    """A communicator of one rank."""
    store = nccl.IdStore(0, lambda data: data or b"")
    backend = nccl.open_backend(store, 0, 1, device)
    group = dist.ProcessGroup(store, 0, 1)
    group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)
    return nccl.Nccl(backend, group, store)


def held(device: torch.device) -> dict[str, float]:
    """What a leak would show in."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "python_threads": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "device_mib": (total - free) / 2**20,
    }


def nccl_cycles(device: torch.device, cycles: int) -> dict[str, Any]:
    """Init, sum, end: by abort and in good order, in turns. World size 1: what one card can do."""
    phases: dict[str, list[float]] = {"init": [], "first_sum": [], "sum": [], "abort": [], "finish": []}
    buffer = torch.ones(6_500_000, device=device)  # a bucket of DDP's
    held_after_first: dict[str, float] = {}
    for cycle in range(cycles):
        marks = [time.perf_counter()]

        def mark(marks: list[float] = marks) -> None:
            torch.cuda.synchronize(device)
            marks.append(time.perf_counter())

        communicator = solo(device)
        mark()
        communicator.sum(buffer).wait()
        mark()
        communicator.sum(buffer).wait()
        mark()
        if communicator.error() is not None:
            raise RuntimeError(communicator.error())
        by = ("abort", "finish")[cycle % 2]
        if by == "finish":
            communicator.finish()
        communicator.close()
        mark()
        for phase, a, b in zip(("init", "first_sum", "sum", by), marks, marks[1:], strict=True):
            phases[phase].append(1e3 * (b - a))
        if cycle == 1:
            held_after_first = held(device)
    if not torch.equal(buffer, torch.ones_like(buffer)):
        raise RuntimeError("a sum over one rank has changed the buffer")
    last = held(device)
    return {
        "milliseconds": {name: {"median": statistics.median(v), "max": max(v)} for name, v in phases.items() if v},
        "cycles": cycles,
        "grown_after_the_second": {name: round(last[name] - held_after_first[name], 1) for name in last},
    }


def a_sum_after_an_abort(device: torch.device) -> dict[str, Any]:
    """What the runtime counts on: it raises, as RuntimeError, and the device is as good as before."""
    communicator = solo(device)
    communicator.abort("bench")
    communicator._aborting.join(nccl.CLOSE_SECONDS)  # type: ignore[union-attr]
    buffer, raised = torch.ones(8, device=device), "nothing"
    try:
        communicator.sum(buffer).wait()
    except RuntimeError as e:
        raised = f"{type(e).__name__}: {str(e).splitlines()[0]}"
    communicator.close()
    again = solo(device)
    again.sum(buffer).wait()
    ok = buffer.sum().item() == 8
    again.close()
    return {"raised": raised, "device_works_afterwards": ok}


def reading(device: torch.device) -> dict[str, float]:
    """One event, beside the ``tolist()`` that it replaces; with an idle device, and behind a millisecond of work."""
    values, a = torch.ones(10, device=device), torch.randn(4096, 4096, device=device)
    read = Reading(values)

    def behind(how: Callable[[torch.Tensor], object]) -> Callable[[], object]:
        def run() -> None:
            a @ a
            how(values)

        return run

    actions = {
        "event": lambda: read(values),
        "tolist": values.tolist,
        "event_behind_work": behind(read),
        "tolist_behind_work": behind(torch.Tensor.tolist),
    }
    for action in actions.values():
        action()
    if read(values) != [1.0] * 10:
        raise RuntimeError("wrong numbers read")
    return {name: median_ms(action, 300) for name, action in actions.items()}


def staging(device: torch.device) -> dict[str, float]:
    """GB/s of a piece's way, with and without its checksum."""
    stage = Stage(PIECE_BYTES)
    piece = torch.randint(0, 255, (PIECE_BYTES,), dtype=torch.uint8, device=device)
    home = torch.zeros_like(piece)
    on_host = stage.to_host(piece)
    stage.finish(on_host, home)
    if not torch.equal(piece, home):
        raise RuntimeError("a piece has changed on its way")
    rate = PIECE_BYTES / 1e6
    return {
        "to_host": rate / median_ms(lambda: stage.to_host(piece), 100),
        "to_host_pageable": rate / median_ms(piece.cpu, 100),
        "to_device": rate / median_ms(lambda: stage.finish(on_host, home), 100),
        "checksum": rate / median_ms(lambda: digest.of_bytes(on_host), 100),
    }
