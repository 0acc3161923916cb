"""``elastrain preflight``: is this node fit to train? Looked at before a worker does, in an init container of its pod.

Checks, in this order: are the accelerators there, does each multiply matrices correctly, how fast is its memory, how
large is ``/dev/shm``, and, if asked for, does an all-reduce with other nodes work (:mod:`elastrain.nodecheck`). The
judgement is a table on stdout, one line in the termination log for the operator, and an exit code that names the first
check that failed (``names.PREFLIGHT_EXITS``).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastrain.api import names

SHM = Path("/dev/shm")  # noqa: S108 - the place that POSIX shared memory has
MATRIX = 512
"""Rows and columns. Of small whole numbers: sums stay below 2**24, so that they are exact in every format that
accelerators multiply float32 in, TF32 included, and one wrong bit shows."""
BUFFER = {"cpu": 64 * 2**20, "": 512 * 2**20}
"""Bytes copied to measure bandwidth, by device type ('' : any other): beyond caches, and there on every accelerator."""
COPIES = 5
_EXITS = {check: code for code, check in names.PREFLIGHT_EXITS.items()}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table."""

    kind: str
    """A value of ``names.PREFLIGHT_EXITS``."""
    device: str
    ok: bool
    found: str
    """What was found, and where it is not ``ok`` what was wanted."""
    word: str = ""
    """What the table says instead of ``ok``: of what judges nobody."""


def run(
    accelerators: int,
    min_bandwidth: float | None,
    timeout: float,
    log: Path | None = None,
    *,
    pairs_wait: float | None = None,
) -> int:
    """Check this machine, print the table, and return the exit code: 0 if it is fit.

    ``accelerators``: how many there must be; 0: the CPU is what trains. ``min_bandwidth``: GB/s (1e9 bytes read or
    written), None: not judged. After ``timeout`` seconds the process ends at once, with its own exit code: a device
    that hangs cannot be asked to stop. ``log``: file for the one line that says what failed. ``pairs_wait``: seconds to
    wait for other workers' checks, None: pairs are not measured; a node that is unfit by itself never meets others.
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
    """A device that raises has failed the check; the driver's words are what a person needs."""
    try:
        return check(device)
    except RuntimeError as error:
        return Check(kind, str(device), False, " ".join(str(error).split())[:300])


def _compute(torch: Any, device: Any) -> Check:
    """A product of whole numbers on the device against the same in 64-bit integers on the CPU."""
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (MATRIX, MATRIX), generator=made) for _ in range(2))
    wanted = a @ b
    got = (a.float().to(device) @ b.float().to(device)).cpu().to(torch.int64)
    wrong = int((got != wanted).sum())
    return Check("compute", str(device), wrong == 0, f"{wrong} of {wanted.numel()} values wrong" if wrong else "exact")


def _bandwidth(torch: Any, device: Any, least: float | None) -> Check:
    """Median of a few copies within the device's memory; each byte is read once and written once."""
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
    rate = 2 * size / statistics.median(seconds[1:]) / 1e9  # the first one touches the pages
    wanted = f", at least {least:g} wanted" if least is not None and rate < least else ""
    return Check("bandwidth", str(device), not wanted, f"{rate:.1f} GB/s{wanted}")


def _pairs(accelerators: int, wait: float) -> list[Check]:
    """What the pairs with other nodes say. Nothing that is unknown is a failure."""
    import torch
    import torch.distributed as dist

    from elastrain.nodecheck.enter import measured

    nccl = accelerators > 0 and torch.cuda.is_available() and dist.is_nccl_available()
    verdict = measured(os.environ, "nccl" if nccl else "gloo", wait)
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
    return [*lines, Check("pairs", "all", not verdict.sick, verdict.sick or "nothing against this node")]


def shared_memory(path: Path) -> Check:
    """Whether ``path`` can be written, and how large it is."""
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
    """End the process if the body takes longer. By ``_exit``: a driver that hangs would hold up anything politer."""

    def end() -> None:
        words = f"not done within {seconds:g} s: a device or its driver hangs"
        _print(f"FAILED  time           all        {words}")
        _note(log, words)
        os._exit(_EXITS["time"])

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _note(log: Path | None, words: str) -> None:
    """For the operator. A log that cannot be written costs it the words, not the judgement: the exit code has that."""
    if log is not None:
        with contextlib.suppress(OSError):
            log.write_text(words[:2000])


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the table is this command's output
