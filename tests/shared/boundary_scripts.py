"""Training scripts for the matrix of step boundaries, one for each thing that a script does there.

All train the same small model in float64 for 12 steps, of which an epoch has 3. What a script does at a boundary leaves
a trace in the tracked state: it changes the learning rate and is noted, so that doing it twice, or not at all, shows in
the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from elastrain.elastic.job import Job
from threaded_world import RankThread

EPOCH, EPOCHS = 3, 4
STEPS = EPOCH * EPOCHS

_generator = torch.Generator().manual_seed(1)
INPUTS = torch.randn(30, 6, dtype=torch.float64, generator=_generator)
LABELS = torch.randint(0, 3, (30,), generator=_generator)
TRAIN, TEST = TensorDataset(INPUTS, LABELS), TensorDataset(INPUTS[:17], LABELS[:17])


class Notes:
    """What has happened, as a part of the state."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = list(state["values"])


DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16,
    torch.bool,
)  # fmt: skip


class Moments(nn.Module):
    """Counts its forwards in training, in buffers of every kind: equal on all ranks."""

    def __init__(self, elements: int) -> None:
        """``elements``: of the largest buffer."""
        super().__init__()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("another", torch.zeros(2))
        self.register_buffer("seldom", torch.zeros(2))
        self.register_buffer("history", torch.zeros(5))
        self.register_buffer("large", torch.zeros(elements))
        for dtype in DTYPES:
            self.register_buffer(f"of_{str(dtype)[6:]}", torch.zeros(2, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        self.forwards += 1
        self.hidden += 1
        self.another = self.another + 1  # another tensor in its place
        self.large += 1
        if self.forwards % 4 == 0:  # not in the warm-up
            self.seldom += 1
        self.history = torch.cat([self.history[1:], self.forwards.reshape(1).float()])
        for dtype in DTYPES:
            getattr(self, f"of_{str(dtype)[6:]}").copy_((self.forwards % 5).to(dtype))
        return x


class Training:
    """Model, optimizer and data of one rank, and the body of its loop."""

    def __init__(self, job: Job, me: RankThread, *, statistics: nn.Module | None = None, **options: Any) -> None:
        """``statistics``: a layer whose buffers forward changes. ``options``: of the loader."""
        layers = [nn.Linear(6, 16), statistics or nn.Identity(), nn.Tanh(), nn.Linear(16, 3)]
        self.job, self.me = job, me
        self.net = nn.Sequential(*layers)
        for layer in layers:
            if layer is not statistics:
                layer.double()
        with torch.no_grad():  # not from the generator: ranks are threads of one process
            for i, p in enumerate(self.net.parameters()):
                p.copy_(torch.linspace(-1, 1, p.numel(), dtype=torch.float64).reshape(p.shape) * (i + 1) / 5)
        for layer in (layers[3], self.net) if job._session.welcome.settings.shards != 1 else ():
            fully_shard(layer, mesh=job.mesh)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.model = job.wrap(self.net, optimizer=self.optimizer)
        self.notes = Notes()
        job.track(notes=self.notes)
        self.loader = job.dataloader(TRAIN, global_batch_size=10, seed=3, **options)

    def train(self, after: Callable[[], object] = lambda: None, **bound: int) -> None:
        for x, y in self.job.steps(self.loader, **bound):
            self.me.body()
            self.optimizer.zero_grad()
            self.job.backward(nn.functional.cross_entropy(self.model(x), y))
            self.optimizer.step()
            after()

    def note(self, what: str) -> None:
        """Something happens that changes the state."""
        self.me.at(what)
        self.notes.values.append((what, self.job.step))
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.97

    def evaluate(self) -> None:
        sums = self.job.evaluate(DataLoader(TEST, batch_size=4), self._metrics)
        self.notes.values.append(("evaluated", self.job.step, round(sums["loss"], 9), sums["seen"]))
        for group in self.optimizer.param_groups:
            group["lr"] *= 1 - sums["loss"] / 20

    def call(self) -> None:
        """Exchange values of all ranks."""
        steps = self.job.all_gather_object(self.job.step)
        total = self.job.all_reduce(1.0, "mean")
        self.note(f"called {set(steps) == {self.job.step}} {total}")

    def _metrics(self, batch: Any) -> dict[str, Any]:
        self.me.at("batch")
        x, y = batch
        return {"loss": (nn.functional.cross_entropy(self.net(x), y), len(y)), "seen": len(y)}

    def end(self) -> dict[str, Any]:
        named = [*self.net.named_parameters(), *self.net.named_buffers()]
        state = {n: (v.to_local() if isinstance(v, DTensor) else v).detach().clone() for n, v in named}
        return {
            "state": state,
            "notes": self.notes.values,
            "step": self.job.step,
            "lr": self.optimizer.param_groups[0]["lr"],
        }


def nothing(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    t.train(epochs=EPOCHS)
    return t.end()


def every_empty(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    job.every(1, lambda: None)
    t.train(epochs=EPOCHS)
    return t.end()


def every_notes(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    job.every(1, lambda: t.note("pause"))
    t.train(epochs=EPOCHS)
    return t.end()


def every_calls(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    job.every(3, t.call)
    t.train(epochs=EPOCHS)
    return t.end()


def every_two(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    job.every(1, lambda: t.note("pause"))
    job.every(3, t.evaluate)
    t.train(epochs=EPOCHS)
    return t.end()


def every_younger(job: Job, me: RankThread) -> dict[str, Any]:
    """A function is added between two loops."""
    t = Training(job, me)
    job.every(1, lambda: t.note("pause"))
    for epoch in range(EPOCHS):
        if epoch == 1:
            job.every(1, lambda: t.note("younger"))
        t.train(epochs=epoch + 1)
    return t.end()


def evaluation_after_a_loop(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    for epoch in job.epochs(t.loader, EPOCHS):
        t.train(epochs=epoch + 1)
        t.evaluate()
    return t.end()


def loops_by_epoch(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    for epoch in range(EPOCHS):
        t.train(epochs=epoch + 1)
        t.note("epoch")
    return t.end()


def track_between_loops(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    for epoch in range(EPOCHS):
        t.train(epochs=epoch + 1)
        more = Notes()
        more.values.append(epoch)
        job.track(**{f"more{epoch}": more})
    return t.end()


def loops_of_one_step(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    for step in range(STEPS):
        t.train(steps=step + 1)
        t.note("step")
    return t.end()


def several_loops(job: Job, me: RankThread) -> dict[str, Any]:
    """Of different lengths, with pauses, and nothing between them."""
    t = Training(job, me)
    job.every(2, lambda: t.note("pause"))
    for end in (1, 3, 4, 9, STEPS):
        t.train(steps=end)
    return t.end()


def micro_batches(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me, micro_batch_size=2)
    job.every(3, lambda: t.note("pause"))
    t.train(epochs=EPOCHS)
    return t.end()


def kept_gradients(job: Job, me: RankThread) -> dict[str, Any]:
    """The optimizer is applied to the gradients of two steps."""
    t = Training(job, me)
    for x, y in job.steps(t.loader, epochs=EPOCHS):
        me.body()
        job.backward(nn.functional.cross_entropy(t.model(x), y) / 2)
        if (job.step + 1) % 2 == 0:
            t.optimizer.step()
            t.optimizer.zero_grad()
    return t.end()


def on_commit(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me)
    job.on_commit(lambda: t.note("commit"))
    job.every(3, lambda: t.note("pause"))
    t.train(epochs=EPOCHS)
    return t.end()


def stopped(job: Job, me: RankThread) -> dict[str, Any]:
    """Training ends early, in the middle of an epoch, at a pause."""
    t = Training(job, me)
    job.every(2, lambda: t.note("pause"))
    job.on_commit(lambda: job.stop() if job.step == 5 else None)
    t.train(epochs=EPOCHS)
    t.evaluate()
    return t.end()


def break_of_all(job: Job, me: RankThread) -> dict[str, Any]:
    """All ranks leave the loop by ``break`` after the same step; another loop follows."""
    t = Training(job, me)
    job.every(3, lambda: t.note("pause"))
    for x, y in job.steps(t.loader, epochs=EPOCHS):
        me.body()
        t.optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(t.model(x), y))
        t.optimizer.step()
        if job.synchronised and job.step >= 5:
            break
    t.note("broke")
    t.train(epochs=EPOCHS)
    return t.end()


def statistics(job: Job, me: RankThread) -> dict[str, Any]:
    t = Training(job, me, statistics=Moments(16))
    job.every(3, lambda: t.note("pause"))
    t.train(epochs=EPOCHS)
    return t.end()


def large_statistics(job: Job, me: RankThread) -> dict[str, Any]:
    """They cannot be sent beside a step."""
    t = Training(job, me, statistics=Moments(100_000))
    job.every(3, lambda: t.note("pause"))
    t.train(epochs=EPOCHS)
    return t.end()


LAST = {"stopped": 6}
"""The last step of a script, if it is not ``STEPS``."""
SCRIPTS = (
    nothing,
    every_empty,
    every_notes,
    every_calls,
    every_two,
    every_younger,
    evaluation_after_a_loop,
    loops_by_epoch,
    track_between_loops,
    loops_of_one_step,
    several_loops,
    micro_batches,
    kept_gradients,
    on_commit,
    stopped,
    break_of_all,
    statistics,
    large_statistics,
)
