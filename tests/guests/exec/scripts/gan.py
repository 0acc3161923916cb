"""Statements of a module: two models, two optimizers, three backwards in a body, a list of all losses."""

import torch
import torch.distributed as dist
import torch.nn as nn
from data import Points
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
dataset = Points(160, 3)
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=16 // world_size, sampler=sampler)
netG = DDP(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 12)).double())
netD = DDP(nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid()).double())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
losses = []

for epoch in range(6):
    sampler.set_epoch(epoch)
    for i, (real, _) in enumerate(dataloader):
        netD.zero_grad()
        ones, zeros = (torch.full((len(real),), v, dtype=torch.float64) for v in (1.0, 0.0))
        error = criterion(netD(real).view(-1), ones)
        error.backward()
        fake = netG(real.flip(1))
        error_fake = criterion(netD(fake.detach()).view(-1), zeros)
        error_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        error_g = criterion(netD(fake).view(-1), ones)
        error_g.backward()
        optimizerG.step()
        losses.append(error.item() + error_fake.item())
        if i % 5 == 0 and rank == 0:
            print(f"[{epoch}/6][{i}/{len(dataloader)}] {len(losses)}", flush=True)
    if rank == 0:
        torch.save({"g": netG.module.state_dict(), "d": netD.module.state_dict()}, "nets.pth")
if rank == 0:
    print(f"{len(losses)} losses", flush=True)
dist.destroy_process_group()
