"""A training script of a model that FSDP2 shards, in float64. ``argv``: a folder, steps, the seconds of a loop body.

What a rank does once if the test has left it ``<worker>.<local rank>.<order>``, with a step from which on: it dies in a
forward (``die-in-forward``), before or in a backward (``die-before-backward``, ``die-in-backward``), after it has voted
(``die-in-update``) or as it gives its state (``die-as-source``); its connections end before its vote
(``cut-before-vote``), or after it, so that it misses the result (``cut-after-vote``). It dies in a batch of an
evaluation (``die-in-evaluation``), as it writes its part of a checkpoint (``die-in-save``) or when all parts are there
(``die-before-commit``), or its disk is full (``disk-full``). It dies behind its block (``die-behind-training``).
It stays for ever in a move of shards of which a part is done (``hold-in-move``).

``EVALUATE=n``: it evaluates after each n-th step. ``MICRO``: samples of a micro-batch. ``SLEEP``: seconds that a
sample takes at least. ``SAMPLE``: seconds that a sample takes, as this rank measures it. ``TENSOR=n``: n ranks compute
the inner layer together. ``OWN_MODEL``: each rank builds other parameters. ``EXPERTS``: the inner layer routes samples
to experts, and is computed again in the backward. ``OWN_CALLS``: gradients are clipped, and the whole model is
gathered at the end, by torch's own calls.
"""

import errno
import operator
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.elastic.body import backward
from elastrain.elastic.checkpoint.digests import DigestingWriter
from elastrain.elastic.checkpoint.folder import NewFolder, Pace
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.vote import Vote
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.reshard import move
from elastrain.elastic.state.parts import dims
from elastrain.elastic.state.sender import _Lane

folder, steps, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
worker, local = os.environ.get("ELASTRAIN_WORKER"), os.environ.get("LOCAL_RANK")
torch.set_num_threads(1)
job: elastrain.Job


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, width), nn.Linear(width, 8)
        self.scale = nn.Parameter(torch.ones(1))  # empty on all shards but the first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        die("die-in-forward")
        y = x + self.scale * self.down(torch.tanh(self.up(self.norm(x))))
        if y.requires_grad:
            y.register_hook(lambda _: die("die-in-backward"))
        return y


class Experts(nn.Module):
    """Its forward saves other tensors for each choice of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def routed(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(1)
        choice, y = weights.argmax(1), x
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().flatten()
            if len(rows):
                y = y.index_add(0, rows, expert(x[rows]).tanh() * weights[rows, number, None])
            else:
                y = y + 0 * (expert.weight.sum() + expert.bias.sum())
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.routed, x, use_reentrant=False)


def net(width: int = 13, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    inner = Experts() if "EXPERTS" in os.environ else Layer(width)
    return nn.Sequential(nn.Linear(6, 8), inner, nn.Linear(8, 3)).double()


def data() -> TensorDataset:
    inputs = torch.randn(203, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, torch.randint(0, 3, (203,), generator=torch.Generator().manual_seed(2)))


def ordered(what: str) -> bool:
    order = folder / f"{worker}.{local}.{what}"
    if not order.exists() or job.step < int(order.read_text() or 0):
        return False
    order.unlink()
    return True


def die(where: str) -> None:
    if ordered(where):
        os.kill(os.getpid(), signal.SIGKILL)


def cut_connections() -> None:
    """Around this rank's votes, if ordered."""
    cast = backward.cast

    def cut(communicator: Communicator, own: Callable[[], Vote]) -> Summed:
        if ordered("cut-before-vote"):
            communicator.abort("cut by the test")
        summed = cast(communicator, own)
        if ordered("cut-after-vote"):
            communicator.abort("cut by the test")
        return summed

    backward.cast = cut


def die_as_source() -> None:
    run = _Lane.run

    def run_and_die(lane: _Lane, connection: socket.socket) -> None:
        die("die-as-source")
        run(lane, connection)

    _Lane.run = run_and_die


def disturb_saves() -> None:
    rest, complete, create = Pace.rest, NewFolder.complete, NewFolder.create

    def rest_and_die(pace: Pace) -> None:
        die("die-in-save")
        rest(pace)

    def die_first(folder: NewFolder) -> None:
        die("die-before-commit")
        complete(folder)

    def full(folder: NewFolder, file: str) -> AbstractContextManager[DigestingWriter]:
        if ordered("disk-full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
        return create(folder, file)

    Pace.rest, NewFolder.complete, NewFolder.create = rest_and_die, die_first, full


def hold_in_moves() -> None:
    run, move.BUCKET_BYTES = move._Transfer.run, 512  # so that a move is of several buckets

    def run_and_hold(transfer: move._Transfer, communicator: Communicator) -> int:
        sent = run(transfer, communicator)
        if ordered("hold-in-move"):
            while True:
                signal.pause()
        return sent

    move._Transfer.run = run_and_hold


def measure_as_played() -> None:
    if sample := float(os.environ.get("SAMPLE", "0")):
        parts = operator.attrgetter("_loop.step.parts")
        Heartbeat.spent = property(lambda _: sample * sum(len(part.indices) for part in parts(job)))


def main() -> None:
    global job
    measure_as_played()
    hold_in_moves()
    die_as_source()
    disturb_saves()
    with elastrain.join() as job:
        whole, tensor = os.environ.get("SHARDS") == "1", int(os.environ.get("TENSOR", "1"))
        width = int(os.environ.get("WIDTH", "13" if tensor == 1 else "14"))
        model = net(width, os.getpid() if "OWN_MODEL" in os.environ else 0)
        if tensor > 1:
            gathered = ColwiseParallel(output_layouts=Replicate())
            plan = {"0": gathered, "1.up": ColwiseParallel(), "1.down": RowwiseParallel()}
            parallelize_module(model, job.mesh["tp"], plan, src_data_rank=None)
        for layer in () if whole else (model[1], model):
            fully_shard(layer, mesh=job.mesh["dp_shard"])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model = job.wrap(model, optimizer=optimizer)
        if not whole:
            cut_connections()
        commits: list[int] = []
        norms: list[float] = []
        job.on_commit(lambda: commits.append(job.step))
        own_calls = "OWN_CALLS" in os.environ
        micro, every = os.environ.get("MICRO"), int(os.environ.get("EVALUATE", "0"))
        loader = job.dataloader(data(), global_batch_size=11, seed=3, micro_batch_size=int(micro) if micro else None)
        evaluations: dict[int, dict] = {}

        def measure(batch: list[torch.Tensor]) -> dict[str, Any]:
            die("die-in-evaluation")
            x, y = batch
            return {"loss": (nn.functional.cross_entropy(model(x), y), len(y)), "seen": len(y)}

        def evaluate() -> None:
            sums = job.evaluate(DataLoader(data(), batch_size=9), measure)
            if job.rank >= 0:  # else the others have gone on without this rank
                evaluations[job.step] = sums

        if every:
            job.every(every, evaluate)
        for x, y in job.steps(loader, steps=steps):
            if not (folder / "run-free").exists():
                time.sleep(delay)
            time.sleep(len(x) * float(os.environ.get("SLEEP", "0")))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.register_hook(lambda _: die("die-before-backward"))  # before it gathers parameters again
            job.backward(loss)
            die("die-in-update")
            if own_calls:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3).full_tensor()
            else:
                norm = job.clip_grad_norm_(0.3)
            optimizer.step()
            if job.committed and norm is not None:
                norms.append(norm.item())
    die("die-behind-training")
    full = get_model_state_dict(model.module, options=StateDictOptions(full_state_dict=True)) if own_calls else {}
    local_state = {name: p if whole else p.to_local() for name, p in model.module.state_dict().items()}
    torch.save(
        {
            "place": 0 if whole else job.mesh.get_coordinate()[0],
            "dims": {n: tuple(dim for _, dim in dims(p)) for n, p in model.module.state_dict().items() if not whole},
            "pid": os.getpid(),
            "state": local_state,
            "commits": commits,
            "norms": norms,
            "full": full,
            "evaluations": evaluations,
            "step": job.step,
        },
        folder / f"final-{worker}-{local}.pt",
    )


if __name__ == "__main__":
    main()
