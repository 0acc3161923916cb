"""Each parameter is updated as soon as its gradient is there."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model = job.wrap(net)
    each = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in net.parameters()}
    job.track(**{f"optimizer{i}": optimizer for i, optimizer in enumerate(each.values())})

    def update(p):
        each[p].step()
        each[p].zero_grad()

    for p in each:
        p.register_post_accumulate_grad_hook(update)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        job.backward(F.mse_loss(model(x), y))
