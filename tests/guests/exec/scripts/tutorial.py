"""A Trainer class in another file, with a snapshot and its own resume; the first batch is looked at."""

import sys

import torch
from data import Points
from engine import Trainer, setup
from torch.distributed import destroy_process_group
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(epochs, save_every):
    setup()
    torch.manual_seed(0)
    dataset = Points(160, 1)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(dataset, batch_size=8, shuffle=False, sampler=DistributedSampler(dataset))
    Trainer(model, loader, optimizer, save_every, "snapshot.pt").train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), 2)
