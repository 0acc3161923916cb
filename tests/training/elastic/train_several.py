"""A training script for the tests with several backwards in a loop body: the shape is ``MODE`` in the environment.

A rank halts after its n-th backward and what follows it, as long as the file ``halt-<n>-<rank>`` exists.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, generator=generator)
noise = torch.randn(203, 4, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)


def halt(point: int) -> None:
    """The rank, as long as the test says so."""
    told = out / f"halt-{point}-{job.rank}"
    if told.exists() and job.committed:
        (out / f"halted-{point}-{job.rank}").touch()
        while told.exists():
            time.sleep(0.01)


def gan():
    """Two models, two optimizers, three backwards; a scaler, an average, statistics that forward changes."""
    d = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    g = nn.Sequential(nn.Linear(4, 8), nn.SyncBatchNorm(8), nn.Tanh(), nn.Linear(8, 6))
    d_optimizer, g_optimizer = (torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.5, 0.9)) for net in (d, g))
    d_model, g_model = job.wrap(d, optimizer=d_optimizer), job.wrap(g, optimizer=g_optimizer, name="generator")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=9)
    average = AveragedModel(g, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    schedule = torch.optim.lr_scheduler.StepLR(d_optimizer, step_size=7, gamma=0.9)
    job.track(scaler=scaler, average=average, schedule=schedule)

    def body(x, z, y):
        real, fake = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        d.zero_grad()
        job.backward(scaler.scale(loss_of(d_model(x), real)))
        halt(1)
        made = g_model(z)
        job.backward(scaler.scale(loss_of(d_model(made.detach()), fake)))
        scaler.unscale_(d_optimizer)
        nn.utils.clip_grad_norm_(d.parameters(), 0.5)
        scaler.step(d_optimizer)
        schedule.step()
        halt(2)
        g.zero_grad()
        job.backward(scaler.scale(loss_of(d_model(made), real)))
        scaler.step(g_optimizer)
        scaler.update()
        average.update_parameters(g)
        halt(3)

    loss_of = nn.functional.binary_cross_entropy_with_logits
    return body, {"d": d, "g": g, "average": average, "dopt": d_optimizer, "gopt": g_optimizer, "scaler": scaler}


def epochs_on_a_rollout():
    """One model; updates until the loss over the global batch is low, on targets computed before the first one."""
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    model = job.wrap(net, optimizer=optimizer)

    def body(x, z, y):
        with torch.no_grad():
            before = model(x)
        for number in range(1, 6):
            optimizer.zero_grad()
            output = model(x)
            loss = nn.functional.cross_entropy(output, y) + (output - before).pow(2).mean()
            loss = job.backward(loss, retain_graph=True)
            optimizer.step()
            halt(number)
            if loss < 1.05 and number > 2:
                break
        counts.append(number)

    return body, {"net": net, "opt": optimizer}


def accumulate():
    """Two backwards over one graph before a step, and one that reaches only a part of the model."""
    net = nn.ModuleDict({"trunk": nn.Linear(6, 8), "one": nn.Linear(8, 3), "other": nn.Linear(8, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    job.wrap(net, optimizer=optimizer)

    def body(x, z, y):
        optimizer.zero_grad()
        trunk = net["trunk"](x).tanh()
        job.backward(nn.functional.cross_entropy(net["one"](trunk), y), retain_graph=True)
        halt(1)
        job.backward(net["other"](trunk).pow(2).mean())
        optimizer.step()
        halt(2)
        optimizer.zero_grad(set_to_none=False)
        job.backward(net["other"](x @ torch.ones(6, 8)).abs().mean())
        optimizer.step()
        halt(3)

    return body, {"net": net, "opt": optimizer}


def lbfgs():
    """A closure that the optimizer evaluates as often as its line search needs."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, history_size=4, line_search_fn="strong_wolfe")
    model = job.wrap(net, optimizer=optimizer)

    def body(x, z, y):
        evaluations = 0

        def closure():
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            loss = job.backward(
                nn.functional.cross_entropy(model(x), y) + 1e-3 * sum(p.pow(2).sum() for p in net.parameters())
            )
            halt(evaluations)
            return loss

        loss = optimizer.step(closure)
        assert loss.item() > 0
        counts.append(evaluations)

    return body, {"net": net, "opt": optimizer}


def closure_once():
    """A closure that the optimizer evaluates once."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model = job.wrap(net, optimizer=optimizer)

    def body(x, z, y):
        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            job.backward(loss)
            return loss

        optimizer.step(closure)
        halt(1)

    return body, {"net": net, "opt": optimizer}


def uneven():
    """One rank runs another number of backwards than its peers, if the test says so."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)

    def body(x, z, y):
        for number in range(3):
            if number == 2 and (out / f"less-{job.rank}").exists():
                break
            optimizer.zero_grad()
            job.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()

    return body, {"net": net}


def late():
    """The warm-up has one backward, later bodies have two."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)

    def body(x, z, y):
        for _ in range(2 if job.step >= 3 else 1):
            optimizer.zero_grad()
            job.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()

    return body, {"net": net}


def outside():
    """A temperature is trained beside the model."""
    net, temperature = nn.Linear(6, 3), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([*net.parameters(), temperature], lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    if "WRAPPED" in os.environ:
        job.wrap(nn.ParameterList([temperature]))

    def body(x, z, y):
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x) * temperature.exp(), y))
        optimizer.step()

    return body, {"net": net, "temperature": optimizer}


with elastrain.join() as job:
    counts: list[int] = []
    body, objects = globals()[os.environ["MODE"]]()
    losses = {}
    job.on_commit(lambda: losses.update({job.step: job.loss}))
    options = json.loads(os.environ.get("LOADER", "{}"))
    loader = job.dataloader(TensorDataset(inputs, noise, labels), global_batch_size=24, seed=3, **options)
    for batch in job.steps(loader, epochs=epochs, several_backwards="SEVERAL" in os.environ):
        if not (out / "run-free").exists():
            time.sleep(delay)
        body(*batch)

state = {
    **{name: obj.state_dict() for name, obj in objects.items()},
    "losses": losses,
    "step": job.step,
    "counts": counts,
}
torch.save(state, out / f"final-{os.getpid()}.pt")
