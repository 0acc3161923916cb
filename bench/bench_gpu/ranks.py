"""Three ranks on one card: they grow, lose a rank by SIGKILL and one by SIGSTOP, shrink, and end with the same bits."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import torch

from bench_gpu.report import ENV_DRY, Figures, NotPossible
from bench_harness.played_ranks import Rank, Starter, World
from elastrain.api import messages as m
from elastrain.elastic.comm.backend import SHARED_NCCL

SCRIPT = Path(__file__).with_name("train_ranks.py")
STEPS = 400
SHARED = {
    "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
}  # fmt: skip
"""So that the kernels of all ranks fit on the card at once, and no memory of the card is mapped by another rank."""


def environment(name: str, *, dry: bool) -> dict[str, str]:
    """The variables of a rank that shares its card with others. Raises :class:`NotPossible`."""
    path = {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])}
    if dry:
        return {**path, ENV_DRY: "1"}
    if not torch.distributed.is_nccl_available():
        raise NotPossible("this build of torch has no NCCL")
    if tuple(torch.cuda.nccl.version()) >= SHARED_NCCL:
        return {**path, **SHARED, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return {**path, **SHARED, "NCCL_HOSTID": name}


def three(folder: Path, starter: Starter, *, dry: bool) -> Figures:
    """Run the scenario. Raises ``AssertionError`` naming what has not happened."""
    world = World(folder, starter)
    figures: Figures = {}
    try:
        for name in "abcd":
            world.start(name, epochs=STEPS, script=SCRIPT, **environment(name, dry=dry))  # type: ignore[arg-type]
        world.ready("a", "b", "c", "d")
        _change(world, "a", "b")
        figures["grow s"] = _change(world, "a", "b", "c")
        world.ranks["c"].kill()
        world.wait("the survivors see the loss", lambda: _saw(world, "a", "b"))
        figures["kill s"] = _change(world, "a", "b")
        _change(world, "a", "b", "d")
        number = world.number
        world.ranks["b"].kill(signal.SIGSTOP)
        time.sleep(0.5)  # the others wait for it in their sums
        for name in "ad":
            world.ranks[name].send(m.Abort(generation=number, reason="its rank is stopped"))
        figures["stop s"] = _change(world, "a", "d")
        world.ranks["b"].kill()
        figures["shrink s"] = _change(world, "a")
        _change(world, "a", "d", ready=False)
        (folder / "run-free").touch()
        world.wait("a and d finish", lambda: all(world.ranks[n].process.poll() == 0 for n in "ad"))
        ends = [torch.load(folder / f"final-{world.ranks[n].process.pid}.pt") for n in "ad"]
        assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0]), "the parameters differ at the end"
        figures["sums by"] = _transports(world.ranks["a"])
        assert "nccl" in str(figures["sums by"]), f"NCCL was not used: {figures['sums by']}"
    finally:
        for rank in world.ranks.values():
            rank.stop()
    return figures


def _change(world: World, *names: str, ready: bool = True) -> float:
    """Seconds until rank 0 has committed steps in a generation of these ranks."""
    if ready:
        world.ready(*names)
    began = time.monotonic()
    world.propose(*names)
    world.adopted(*names)
    seconds = time.monotonic() - began
    world.progressed(names[0], 1)
    return seconds


def _saw(world: World, *names: str) -> bool:
    return all(world.ranks[n].has("broken", generation=world.number) for n in names)


def _transports(rank: Rank) -> str:
    """What has summed the gradients of each generation, by the log of the rank."""
    text = rank.log.read_text()
    found = re.findall(r'"?sums_by"?[=:] ?"?(?:\x1b\[\d+m)*(\w+)', text)
    return ", ".join(dict.fromkeys(found)) or text[-500:]
