"""``elastrain preflight``: checks whether this node can train, in an init container of a worker's pod.

The checks, in order: presence of the accelerators, correct matrix products, memory bandwidth, size of ``/dev/shm`` and,
if requested, an all-reduce with other nodes (:mod:`elastrain_pairs`). The result is a table on stdout, one line in
the termination log for the operator, and an exit code that names the first failed check (``names.PREFLIGHT_EXITS``).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastrain import guests, threads
from elastrain.api import names

SHM = Path("/dev/shm")  # noqa: S108 - the place that POSIX shared memory has
MATRIX = 512
"""Rows and columns of a matrix of small whole numbers. Sums stay below 2**24, so that they are exact in every float32
format of accelerators, TF32 included, and one wrong bit shows."""
BUFFER = {"cpu": 64 * 2**20, "": 512 * 2**20}
"""Bytes copied to measure bandwidth, by device type ('': any other): larger than caches, and available on every
accelerator."""
COPIES = 5
_EXITS = {check: code for code, check in names.PREFLIGHT_EXITS.items()}


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    kind: str
    """A value of ``names.PREFLIGHT_EXITS``."""
    device: str
    ok: bool
    found: str
    """The measurement and, for a failed check, the requirement."""
    word: str = ""
    """The table's text in place of ``ok``, for a row without a judgement."""


def run(
    accelerators: int,
    min_bandwidth: float | None,
    timeout: float,
    log: Path | None = None,
    *,
    pairs_wait: float | None = None,
) -> int:
    """Check this machine, print the table, and return the exit code: 0 if all checks pass.

    ``accelerators``: required number; 0: train on the CPU. ``min_bandwidth``: GB/s (1e9 bytes read or written), None:
    no limit. After ``timeout`` seconds the process ends with its own exit code, since a hanging device cannot be
    interrupted. ``log``: file for one line with the failed checks. ``pairs_wait``: seconds to wait for other workers'
    checks, None: skip the pairs; a node that fails its own checks skips them too.
    """
    with _limit(timeout, log):
        checks = list(_checks(accelerators, min_bandwidth))
    if pairs_wait is not None and all(c.ok for c in checks):
        checks += _pairs(accelerators, pairs_wait)
    failed = [c for c in checks if not c.ok]
    for check in checks:
        _print(f"{(check.word or 'ok') if check.ok else 'FAILED':7} {check.kind:14} {check.device:10} {check.found}")
    if not failed:
        return 0
    _note(log, "; ".join(f"{c.kind} {c.device}: {c.found}" for c in failed))
    return _EXITS[failed[0].kind]


def _checks(accelerators: int, min_bandwidth: float | None) -> Iterator[Check]:
    import torch

    devices = _devices(torch)
    if accelerators:
        enough = len(devices) >= accelerators
        yield Check("accelerator", "all", enough, f"{len(devices)} visible" + ("" if enough else f" of {accelerators}"))
    for device in devices[:accelerators] or ([] if accelerators else [torch.device("cpu")]):
        yield _guarded("compute", device, lambda d: _compute(torch, d))
        yield _guarded("bandwidth", device, lambda d: _bandwidth(torch, d, min_bandwidth))
    yield shared_memory(SHM)


def _devices(torch: Any) -> list[Any]:
    """All accelerators that torch can use here."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [torch.device(kind.type, i) for i in range(torch.accelerator.device_count())] if kind else []


def _guarded(kind: str, device: Any, check: Callable[[Any], Check]) -> Check:
    """A check whose device raises has failed, with the driver's message."""
    try:
        return check(device)
    except RuntimeError as error:
        return Check(kind, str(device), False, " ".join(str(error).split())[:300])


def _compute(torch: Any, device: Any) -> Check:
    """Compares a product of whole numbers on the device with 64-bit integers on the CPU."""
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (MATRIX, MATRIX), generator=made) for _ in range(2))
    wanted = a @ b
    got = (a.float().to(device) @ b.float().to(device)).cpu().to(torch.int64)
    wrong = int((got != wanted).sum())
    return Check("compute", str(device), wrong == 0, f"{wrong} of {wanted.numel()} values wrong" if wrong else "exact")


def _bandwidth(torch: Any, device: Any, least: float | None) -> Check:
    """Median rate of a few copies within the device's memory; each byte is read once and written once."""
    size = BUFFER.get(device.type, BUFFER[""])
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        start = time.perf_counter()
        target.copy_(source)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        seconds.append(time.perf_counter() - start)
    rate = 2 * size / statistics.median(seconds[1:]) / 1e9  # the first copy touches the pages
    wanted = f", at least {least:g} required" if least is not None and rate < least else ""
    return Check("bandwidth", str(device), not wanted, f"{rate:.1f} GB/s{wanted}")


def _pairs(accelerators: int, wait: float) -> list[Check]:
    """The result of the pairs with other nodes. An unknown result is not a failure."""
    import torch
    import torch.distributed as dist

    nccl = accelerators > 0 and torch.cuda.is_available() and dist.is_nccl_available()
    verdict = guests.load("elastrain_pairs.enter").measured(os.environ, "nccl" if nccl else "gloo", wait)
    lines = [
        Check(
            "pair",
            node,
            True,
            f"{r.latency * 1000:.2f} ms, {r.rate:.2f} GB/s" if r.ok else r.why,
            "" if r.ok else "bad",
        )
        for node, r in verdict.reports
    ]
    if verdict.unknown:
        return [*lines, Check("pairs", "all", True, verdict.unknown, "unknown")]
    return [*lines, Check("pairs", "all", not verdict.sick, verdict.sick or "no fault found")]


def shared_memory(path: Path) -> Check:
    """Whether ``path`` is writable, and its size."""
    probe = path / f"elastrain-preflight-{os.getpid()}"
    try:
        probe.write_bytes(b"\0" * 2**20)
        size = os.statvfs(path)
    except OSError as error:
        return Check("shared memory", str(path), False, f"cannot be written: {error.strerror}")
    finally:
        probe.unlink(missing_ok=True)
    return Check("shared memory", str(path), True, f"{size.f_blocks * size.f_frsize / 2**20:.0f} MiB")


@contextlib.contextmanager
def _limit(seconds: float, log: Path | None) -> Iterator[None]:
    """End the process if the body exceeds ``seconds``, by ``_exit``: a hanging driver would block an orderly exit."""

    def end() -> None:
        text = f"not done within {seconds:g} s: a device or its driver hangs"
        _print(f"FAILED  time           all        {text}")
        _note(log, text)
        os._exit(_EXITS["time"])

    timer = threads.start_timer(seconds, end)
    try:
        yield
    finally:
        timer.cancel()


def _note(log: Path | None, text: str) -> None:
    """Write the line for the operator. If the log is unwritable, the exit code still carries the judgement."""
    if log is not None:
        with contextlib.suppress(OSError):
            log.write_text(text[:2000])


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the table is this command's output
