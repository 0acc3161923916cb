"""A training script for the tests that asks all ranks between its loops, or in pauses of one loop.

It stops at named points until the test lets it pass: a file ``at-POINT-WORKER`` says where it is, ``pass-POINT`` lets
all ranks pass, ``run-free`` opens all points. ``LOST=n``: once, the result of exchange ``n`` after a step does not
reach this rank, as if the connection had ended in that moment. ``EXTRA``: this rank makes a call that others do not.
``HOLD=n``: it also stops in the
loop body after step ``n``. ``RANGE``: the loop over epochs begins at 0 in each process.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.elastic.group.calls import Calls

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
worker, every = os.environ["ELASTRAIN_WORKER"], int(os.environ.get("EVERY", "0"))
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, dtype=torch.float64, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)
train_set, test_set = TensorDataset(inputs[:96], labels[:96]), TensorDataset(inputs[96:], labels[96:])
results: list[dict] = []


def reach(point: str) -> None:
    (out / f"at-{point}-{worker}").touch()
    while not ((out / f"pass-{point}").exists() or (out / "run-free").exists()):
        time.sleep(0.005)


if "LOST" in os.environ:
    complete, lost = Calls.attempt, [int(os.environ["LOST"])]

    def incomplete(self, communicator, *args):
        before = self.count
        result = complete(self, communicator, *args)
        if lost and self.count == lost[0] > before:
            lost.clear()
            self.count = before
            communicator.abort("the result is lost")
            return None, None
        return result

    Calls.attempt = incomplete


with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    model = job.wrap(net, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)
    job.track(scheduler=scheduler)
    train_loader = job.dataloader(train_set, global_batch_size=24, seed=3)
    test_loader = DataLoader(test_set, batch_size=10)

    def metrics(batch):
        x, y = batch
        reach(f"batch{results[-1]['batches']}")
        results[-1]["batches"] += 1
        assert not net.training and not torch.is_grad_enabled()
        loss = nn.functional.cross_entropy(model(x), y)
        return {"loss": (loss, len(y)), "seen": len(y), "noise": torch.rand(()).double(), "x": x.sum(dim=0)}

    def between() -> None:
        results.append({"rank": job.rank, "step": job.step, "batches": 0})
        reach("evaluate")
        sums = job.evaluate(test_loader, metrics)
        assert net.training, "evaluate() has left the model in eval() mode"
        results[-1]["sums"] = {**sums, "x": sums["x"].tolist()}
        scheduler.step(sums["loss"])
        reach("reduce")
        results[-1]["reduced"] = [
            job.all_reduce(torch.ones(2, dtype=torch.int32)).tolist(),
            job.all_reduce(float(job.step), "mean"),
        ]
        reach("gather")
        results[-1]["gathered"] = job.all_gather_object({"worker": worker})
        if "EXTRA" in os.environ:
            job.all_reduce(1)
        reach("after")
        (out / f"results-{os.getpid()}").write_text(json.dumps(results))

    def train(bound: dict) -> None:
        for x, y in job.steps(train_loader, **bound):
            if not (out / "run-free").exists():
                time.sleep(delay)
            if job.step == int(os.environ.get("HOLD", "-1")):
                reach("body")
            loss = nn.functional.cross_entropy(model(x), y)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    if every:
        job.every(every, between)
        train({"epochs": epochs})
    else:
        for epoch in range(epochs) if "RANGE" in os.environ else job.epochs(train_loader, epochs):
            train({"epochs": epoch + 1})
            between()

state = {"model": net.state_dict(), "lr": optimizer.param_groups[0]["lr"], "step": job.step, "results": results}
torch.save(state, out / f"final-{os.getpid()}.pt")
