"""Image classification with repeated augmentation, Mixup, an average of the weights and accumulation, in the shape of
timm's train.py."""

import argparse
import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastrain
from elastrain.data import Shuffled


class Digits(Dataset):
    def __init__(self, train):
        digits = load_digits()
        part = slice(0, 1500) if train else slice(1500, None)
        self.images, self.targets = torch.Tensor(digits.images[part]).unsqueeze(1) / 16, digits.target[part]
        self.train = train

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            image = torch.roll(image, torch.randint(-1, 2, (2,)).tolist(), (1, 2)) + 0.1 * torch.randn_like(image)
        return image, self.targets[index]


class RepeatAugSampler:
    """Repeated augmentation: a sample comes several times in a row, augmented in another way each time."""

    def __init__(self, dataset, repeats=3, seed=0):
        self.samples, self.repeats, self.order = len(dataset), repeats, Shuffled(len(dataset), seed=seed)

    def __len__(self):
        return self.samples

    def indices(self, epoch, start, stop):
        first = start // self.repeats
        drawn = self.order.indices(epoch, first, -(-stop // self.repeats))
        return [drawn[position // self.repeats - first] for position in range(start, stop)]


class Mixup:
    def __init__(self, alpha, smoothing, classes):
        self.alpha, self.smoothing, self.classes = alpha, smoothing, classes

    def __call__(self, x, target):
        weight = float(np.random.beta(self.alpha, self.alpha))
        target = F.one_hot(target, self.classes) * (1 - self.smoothing) + self.smoothing / self.classes
        return x * weight + x.flip(0) * (1 - weight), target * weight + target.flip(0) * (1 - weight)


class ModelEma(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for average, value in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            average.lerp_(value, 1 - self.decay)


class CosineLRScheduler:
    def __init__(self, optimizer, updates, warmup):
        self.optimizer, self.updates, self.warmup = optimizer, updates, warmup
        self.base = [group["lr"] for group in optimizer.param_groups]
        self.step_update(0)

    def step_update(self, num_updates):
        cosine = 0.5 * (1 + math.cos(math.pi * num_updates / self.updates))
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base * min(1, (num_updates + 1) / self.warmup) * cosine


def create_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 16, 3, stride=2), nn.GELU(),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10),
    )  # fmt: skip


def param_groups_weight_decay(model, weight_decay):
    decay = [p for p in model.parameters() if p.ndim > 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": [p for p in model.parameters() if p.ndim <= 1]}]


def train_one_epoch(args, job, model, loader, mixup, optimizer, ema, epoch):
    model.train()
    for x, target in job.steps(loader, epochs=epoch + 1):
        x, target = mixup(x, target)
        loss = torch.sum(-target * F.log_softmax(model(x), dim=1), dim=1).mean()
        job.backward(loss)
        job.clip_grad_norm_(args.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model.module)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = sum(model(x).argmax(1).eq(target).sum().item() for x, target in loader)
    return 100 * correct / len(loader.dataset)


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks and micro-batches")
    parser.add_argument("--micro-batches", type=int, default=4, help="of each batch, at any number of ranks")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--mixup", type=float, default=0.2)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--model-ema-decay", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", default="timm_loop.pt")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_set = Digits(train=True)
    sampler = RepeatAugSampler(train_set, seed=args.seed)
    sizes = {"global_batch_size": args.batch_size, "micro_batches": args.micro_batches, "drop_last": True}
    loader = job.dataloader(train_set, sampler=sampler, seed=args.seed, **sizes)
    loader_eval = DataLoader(Digits(train=False), batch_size=100)
    mixup = Mixup(args.mixup, args.smoothing, 10)

    net = create_model()
    optimizer = torch.optim.AdamW(param_groups_weight_decay(net, args.weight_decay), lr=args.lr)
    model = job.wrap(net, optimizer=optimizer)
    ema = ModelEma(net, args.model_ema_decay)
    scheduler = CosineLRScheduler(optimizer, args.epochs * len(loader), warmup=10)
    job.track(ema=ema)
    job.on_commit(lambda: scheduler.step_update(job.step))
    for epoch in job.epochs(loader, args.epochs):
        train_one_epoch(args, job, model, loader, mixup, optimizer, ema, epoch)
        accuracy, accuracy_ema = validate(net, loader_eval), validate(ema.module, loader_eval)
        if job.rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.1f} %, of the average {accuracy_ema:.1f} %")

    if job.rank == 0:
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema.state_dict()}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join(numerics="bitwise") as job:  # Mixup and dropout draw the same at any number of ranks
        main(job)
