"""The reference in this process."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastrain.elastic.job import Job
from elastrain_verify.rank.reference import Reference
from elastrain_verify.rank.variables import of_script


def test_reference_has_every_public_name_of_a_job() -> None:
    """Adapters of frameworks use them in a reference too. One that is missing makes that reference fail, and a script
    whose batches it should have cut is blamed."""
    assert [name for name in dir(Job) if not name.startswith("_") and name not in dir(Reference())] == []


def test_reference_trains_as_plain_torch_if_the_optimizer_takes_a_closure() -> None:
    x = torch.arange(8.0, dtype=torch.float64).reshape(8, 1)
    models = []
    for plain in (True, False):
        net = nn.Linear(1, 1, dtype=torch.float64)
        nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
        job = Reference()
        model = net if plain else job.wrap(net, optimizer=optimizer)
        loader = job.dataloader(TensorDataset(x, 3 * x + 1), global_batch_size=8, shuffle=False)
        batches = [(x, 3 * x + 1)] * 3 if plain else job.steps(loader, epochs=3)
        for a, b in batches:

            def closure(a=a, b=b, net=net, model=model, optimizer=optimizer, plain=plain, job=job):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(a), b)
                loss.backward() if plain else job.backward(loss)
                return loss

            optimizer.step(closure)
        models.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*models), models


def test_reference_counts_the_epochs_of_each_loader_if_the_data_grow() -> None:
    job, net = Reference(), nn.Linear(1, 1)
    model, ends = job.wrap(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1)), []
    for number, samples in enumerate((48, 80, 112), start=1):
        loader = job.dataloader(TensorDataset(torch.ones(samples, 1)), global_batch_size=8)
        for (x,) in job.steps(loader, epochs=number):
            job.backward(model(x).mean())
        ends.append(job.step)
    assert ends == [6, 16, 30]


def test_variables_of_the_script_are_plain_values_and_what_its_own_objects_hold() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1))
    scope = {"__name__": "__main__", "net": net, "data": torch.zeros(9_999), "kept": [1.5], "frame": sys._getframe}
    exec("class Own: pass\nown = Own(); own.good = 3\nhere = frame()", scope)
    found = of_script(scope["here"], {"model": net})
    plain = {"net.0.p": 0.5, "len(kept)": 1, "kept[0]": 1.5, "own.good": 3}
    assert found.items() >= plain.items()
    assert not {"data", "net.1.weight"} & found.keys(), "it is large, or tracked"
