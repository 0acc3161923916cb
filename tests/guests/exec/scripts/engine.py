"""Of tutorial.py: what trains."""

import os

import torch
import torch.nn.functional as F
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP


def setup():
    init_process_group(backend="gloo")


class Trainer:
    def __init__(self, model, loader, optimizer, save_every, path):
        self.rank = int(os.environ["RANK"])
        self.loader, self.optimizer, self.save_every, self.path = loader, optimizer, save_every, path
        self.epochs_run = self.batches = 0
        self.model = model
        if os.path.exists(path):
            self._resume()
        self.model = DDP(self.model)

    def _resume(self):
        snapshot = torch.load(self.path)
        self.model.load_state_dict(snapshot["MODEL"])
        self.optimizer.load_state_dict(snapshot["OPTIMIZER"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"resuming at epoch {self.epochs_run}")

    def _run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x).squeeze(1), y)
        loss.backward()
        self.optimizer.step()
        self.batches += 1

    def _run_epoch(self, epoch):
        width = next(iter(self.loader))[0].shape[1]
        self.loader.sampler.set_epoch(epoch)
        for x, y in self.loader:
            self._run_batch(x, y)
        if self.rank == 0:
            print(f"epoch {epoch} width {width} steps {len(self.loader)} batches {self.batches}", flush=True)

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and (epoch + 1) % self.save_every == 0:
                state = {"MODEL": self.model.module.state_dict(), "OPTIMIZER": self.optimizer.state_dict()}
                torch.save(state | {"EPOCHS_RUN": epoch + 1}, self.path)
                print(f"epoch {epoch} saved {sum(float(v.sum()) for v in state['MODEL'].values()):.10f}", flush=True)
