"""Evaluations in pauses and after epochs determine the learning rate."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(16, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    model = job.wrap(net, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    job.track(scheduler=scheduler)

    def loss(batch):
        return {"loss": (F.mse_loss(model(batch[0]), batch[1]), len(batch[0]))}

    def evaluate():
        sums = job.evaluate(DataLoader(data, batch_size=5), loss)
        scheduler.step(sums["loss"])

    job.every(3, evaluate)
    loader = job.dataloader(data, global_batch_size=8)
    for epoch in job.epochs(loader, 7):
        for x, y in job.steps(loader, epochs=epoch + 1):
            optimizer.zero_grad()
            job.backward(F.mse_loss(model(x), y))
            optimizer.step()
        evaluate()
