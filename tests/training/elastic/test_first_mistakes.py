"""First mistakes with a script, most of them from public questions about DDP, torchrun, accelerate and torchft.

Each is README's script with a line or two changed. The error names the cause and the way out; the traceback's last
frame of the script is the line marked here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_harness import played_ranks
from elastrain.agent.core.endings import error_line
from warm import Warm

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import elastrain

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
before()
with elastrain.join() as job:
    model = job.wrap(net, optimizer=optimizer)
    made()
    loader = job.dataloader(dataset, global_batch_size=8)
    ready()
    for x, y in job.steps(loader, steps=6):
        begun()
        loss = F.mse_loss(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    over()
"""
HERE = "  # here"
"""Marks the line that the traceback shows."""


def script(*changes: tuple[str, str]) -> str:
    """README's script with ``changes``: a part of a line, and what takes its place."""
    text = SCRIPT
    for old, new in changes:
        assert text.count(old) == 1, old
        indent = re.search(rf"^( *).*{re.escape(old)}", text, re.MULTILINE)[1]  # type: ignore[index]
        text = text.replace(old, new.replace("\n", "\n" + indent))
    return re.sub(r"^ *(before|made|ready|begun|over)\(\)\n", "", text, flags=re.MULTILINE)


DATA, STEPS, LOSS = "job.dataloader(dataset, global_batch_size=8)", "job.steps(loader, steps=6)", "job.backward(loss)"
MISTAKES: dict[str, tuple[str, ...]] = {}
"""By name: the script, and parts of the message."""


def mistake(name: str, *changes: tuple[str, str], says: tuple[str, ...]) -> None:
    MISTAKES[name] = (script(*changes), *says)


# -- what is left of a script for torchrun -----------------------------------------------------------------------------
mistake(
    "init_process_group is left in",
    ("before()", "dist.init_process_group('gloo')  # here"),
    says=("environment variable RANK expected", "leave init_process_group() out"),
)
mistake(
    "init_process_group is left in, within the job",
    ("made()", "dist.init_process_group('gloo')  # here"),
    says=("environment variable RANK expected", "leave init_process_group() out"),
)
mistake("dist.barrier()", ("over()", "dist.barrier()  # here"), says=("no default process group", "leave barrier()"))
mistake("dist.get_rank()", ("begun()", "if dist.get_rank() == 0: pass  # here"), says=("job.rank",))
mistake("dist.all_reduce(loss)", ("optimizer.step()", "dist.all_reduce(loss)  # here"), says=("job.all_reduce()",))
mistake(
    "DistributedDataParallel is left in",
    ("job.wrap(net,", "job.wrap(nn.parallel.DistributedDataParallel(net),  # here\n"),
    says=("job.wrap(net) replaces DistributedDataParallel",),
)
mistake(
    "DistributedSampler is left in",
    ("made()", "sampler = DistributedSampler(dataset)  # here"),
    says=("job.dataloader() DistributedSampler",),
)
mistake(
    "DistributedSampler with a number of ranks is left in",
    (DATA, DATA[:-1] + ", sampler=DistributedSampler(dataset, 2, 0))  # here"),
    says=("cuts the data for a fixed number of ranks", "Leave it out"),
)
mistake("os.environ['RANK']", ("before()", "rank = int(os.environ['RANK'])  # here"), says=("'RANK'", "job.rank"))
mistake("set_epoch of the sampler", ("ready()", "loader.sampler.set_epoch(0)  # here"), says=("leave set_epoch() out",))
mistake("set_epoch of the loader", ("ready()", "loader.set_epoch(0)  # here"), says=("leave set_epoch() out",))
mistake(
    "model.no_sync()",
    ("begun()", "with model.no_sync(): pass  # here"),
    says=("has no attribute 'no_sync'", "micro_batch_size"),
)

# -- the state ---------------------------------------------------------------------------------------------------------
mistake(
    "an object is tracked whose state has a lock",
    ("before()", "import threading\nclass Metrics:\n    def __init__(self): self.lock = threading.Lock()\n"
     "    def state_dict(self): return vars(self)\n    def load_state_dict(self, state): pass"),
    ("made()", "job.track(metrics=Metrics())"),
    (STEPS + ":", STEPS + ":  # here"),
    says=("job.track: the state['tracked']['metrics']['lock'] is a _thread.lock, which cannot be sent",),
)  # fmt: skip

# -- the data ----------------------------------------------------------------------------------------------------------
mistake(
    "a DataLoader is given to job.steps",
    (DATA, "DataLoader(dataset, batch_size=8)"),
    (STEPS + ":", STEPS + ":  # here"),
    says=("job.steps(DataLoader)", "job.dataloader(loader.dataset, global_batch_size=…)"),
)
mistake(
    "a DataLoader is given to job.dataloader",
    (DATA, "job.dataloader(DataLoader(dataset), global_batch_size=8)  # here"),
    says=("takes the data set", "loader.dataset"),
)
mistake("batch_size", (DATA, "job.dataloader(dataset, batch_size=8)  # here"), says=("global_batch_size=…",))
mistake("a batch size that is not whole", (DATA, DATA.replace("8", "16 / 2") + HERE), says=("8.0", "whole number"))
mistake("a misspelt option", (DATA, DATA[:-1] + ", shufle=True)  # here"), says=("shufle", "shuffle"))
mistake(
    "persistent_workers",
    (DATA, DATA[:-1] + ", num_workers=1, persistent_workers=True)  # here"),
    says=("persistent_workers", "leave it out"),
)
mistake(
    "data without a length",
    (DATA, "job.dataloader(iter(dataset), global_batch_size=8)  # here"),
    says=("neither __getitem__ and __len__", "elastrain.data.Replayed"),
)
mistake(
    "a loop over the loader",
    (STEPS + ":", "loader:  # here"),
    says=("no batches outside of a step", "for batch in job.steps(loader"),
)
mistake(
    "enumerate(loader)",
    (f"x, y in {STEPS}:", "i, (x, y) in enumerate(loader):  # here"),
    says=("for batch in job.steps(loader",),
)
mistake("no bound", (STEPS + ":", "job.steps(loader):  # here"), says=("where training ends",))
mistake("a bound that is not whole", (STEPS + ":", STEPS.replace("6", "6.5") + ":  # here"), says=("6.5", "whole"))

# -- the set-up --------------------------------------------------------------------------------------------------------
mistake(
    "no block",
    ("with elastrain.join() as job:", "job = elastrain.join()\nif True:"),
    (STEPS + ":", STEPS + ":  # here"),
    says=("with elastrain.join() as job",),
)
mistake("two jobs", ("made()", "elastrain.join()  # here"), says=("has joined already", "pass its job"))
mistake("the model is wrapped twice", ("made()", "job.wrap(net)  # here"), says=("wrapped already",))
mistake(
    "no model",
    ("job.wrap(net, optimizer=optimizer)", "job.wrap(net.parameters(), optimizer=optimizer)  # here"),
    says=("job.wrap(generator)", "takes the model"),
)
mistake(
    "the optimizer by position",
    ("job.wrap(net, optimizer=optimizer)", "job.wrap(net, optimizer)  # here"),
    says=("optimizer=optimizer",),
)
mistake("track by position", ("made()", "job.track(optimizer)  # here"), says=("job.track(optimizer=optimizer)",))
mistake(
    "the optimizer is not tracked",
    (", optimizer=optimizer)", ")"),
    ("optimizer.step()", "optimizer.step()  # here"),
    says=("SGD.step()", "not tracked", "job.track(optimizer=optimizer)"),
)
mistake(
    "the scheduler is not tracked",
    ("made()", "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)"),
    (STEPS + ":", STEPS + ":  # here"),
    ("optimizer.step()", "optimizer.step()\nscheduler.step()"),
    says=("the scheduler of SGD", "job.track(scheduler=scheduler)"),
)
mistake(
    "the optimizer has another model's parameters",
    ("before()", "net = nn.Linear(4, 1)"),
    (STEPS + ":", STEPS + ":  # here"),
    says=("parameters of no model that was given to job.wrap()", "wrap"),
)
mistake("a callback that is called", ("made()", "job.on_commit(print())  # here"), says=("None", "without calling it"))
mistake("job.every with its arguments swapped", ("made()", "job.every(print, 2)  # here"), says=("first the steps",))

# -- the loop body -----------------------------------------------------------------------------------------------------
mistake(
    "loss.backward()",
    (LOSS, "loss.backward()"),
    ("optimizer.step()", "optimizer.step()  # here"),
    says=("before a step's first backward", "job.backward(loss), which replaces loss.backward()"),
)
mistake(
    "both backwards",
    (LOSS, "loss.backward()\njob.backward(loss)  # here"),
    says=("job.backward(loss) replaces loss.backward()",),
)
mistake(
    "continue",
    ("begun()", "if job.step == 2: continue"),
    (STEPS + ":", STEPS + ":  # here"),
    says=("'continue'", "call job.backward once for each batch"),
)
mistake(
    "a hidden state that is not detached",
    ("ready()", "hidden = torch.zeros(1, requires_grad=True)"),
    ("F.mse_loss(model(x), y)", "F.mse_loss(model(x), y) + 0 * hidden.exp().sum()\nhidden = loss.exp()"),
    (LOSS, LOSS + HERE),
    says=("detach()",),
)
mistake(
    "a vector as loss",
    ("F.mse_loss(model(x), y)", "F.mse_loss(model(x), y, reduction='none')"),
    (LOSS, LOSS + HERE),
    says=("shape (8, 1)", "loss.mean()"),
)
mistake("a detached loss", (LOSS, "job.backward(loss.detach())  # here"), says=("without a graph", ".detach()"))
mistake("loss.item()", (LOSS, "job.backward(loss.item())  # here"), says=("job.backward(float)", "without .item()"))
mistake("an output", (LOSS, "job.backward({'loss': loss})  # here"), says=('output["loss"]',))
mistake("a list of losses", (LOSS, "job.backward([loss, loss])  # here"), says=("sum(losses)",))
mistake(
    "torch.no_grad()",
    ("begun()", "torch.set_grad_enabled(False)"),
    (LOSS, LOSS + HERE),
    says=("without a graph", "torch.no_grad()"),
)
mistake(
    "the model beside its wrapper",
    ("model(x)", "net(x)"),
    (LOSS, LOSS + HERE),
    says=("the model that job.wrap() returned has not computed it", "model(x)"),
)
mistake("an attribute of the model", ("begun()", "model.in_features  # here"), says=("model.module.in_features",))
mistake(
    "a parameter that has no part in the loss",
    ("before()", "net.head = nn.Linear(1, 1)"),
    (LOSS, LOSS + "  # here"),
    says=("head.weight, head.bias", "find_unused_parameters=True"),
)
mistake(
    "job.clip_grad_norm_ with parameters",
    ("optimizer.step()", "job.clip_grad_norm_(model.parameters(), 1.0)  # here"),
    says=("takes the largest norm",),
)
mistake("job.all_reduce in the loop", ("optimizer.step()", "job.all_reduce(1)  # here"), says=("job.every()",))
mistake(
    "a loop that ends before an earlier one",
    ("over()", "for _ in job.steps(loader, steps=3):  # here\n    pass"),
    says=("ends at step 3, and an earlier loop", "at step 6"),
)
mistake("job.backward after the loop", ("over()", LOSS + HERE), says=("after a loop", "for batch in job.steps"))
mistake(
    "job.evaluate with its arguments swapped",
    ("over()", "job.evaluate(lambda batch: {}, DataLoader(dataset))  # here"),
    says=("first the loader",),
)


class Alone(played_ranks.World):
    """One rank, which may fail."""

    def run(self, text: str) -> str:
        """What it prints until it ends, with its exit code in the last line."""
        path = self.folder / "train.py"
        path.write_text(text)
        self.start("a", script=path)
        rank, proposed, deadline = self.ranks["a"], False, time.monotonic() + played_ranks.PATIENCE
        while rank.process.poll() is None and time.monotonic() < deadline:
            if rank.is_ready() and not proposed:
                self.propose("a")
                proposed = True
            time.sleep(0.005)
        assert rank.process.poll() is not None, f"it does not end: {rank.log.read_text()}"
        return f"{rank.log.read_text()}\nexit code {rank.process.poll()}"


@pytest.fixture
def alone(tmp_path: Path, warm: Warm) -> Iterator[Alone]:
    world = Alone(tmp_path, warm)
    yield world
    for rank in world.ranks.values():
        rank.stop()


def test_script_trains_if_it_has_no_mistake(alone) -> None:
    assert alone.run(script()).endswith("exit code 0")


@pytest.mark.parametrize("name", MISTAKES)
def test_error_names_cause_line_and_way_out_for(alone, name) -> None:
    text, *says = MISTAKES[name]
    printed = alone.run(text)
    assert printed.endswith("exit code 1"), printed
    last = error_line(printed.rpartition("\n")[0])
    for part in says:
        assert part in last, f"{part!r} is not in {last!r}\n{printed}"
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(HERE))
    assert f"train.py:{line} in <module>" in last, printed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("made()", "if job.rank == 0: pass"), "job.rank is 0 on every worker before the first loop"),
        (("made()", "lr = 0.1 * job.world_size"), "job.world_size is 1 on every worker before the first loop"),
        (("before()", "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())"), "fixed number"),
    ],
)
def test_script_is_warned_of_a_value_that_is_not_what_it_looks_like(alone, change, says) -> None:
    printed = alone.run(script(change))
    assert printed.endswith("exit code 0"), printed
    assert says in printed
    assert re.search(r"train\.py:\d+: UserWarning", printed), printed


def test_a_process_of_multiprocessing_is_no_rank(alone) -> None:
    text = """
import multiprocessing, sys
import elastrain
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=elastrain.join)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
    assert "multiprocessing has started this process" in alone.run(text)
