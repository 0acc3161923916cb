"""Image classification with repeated augmentation, Mixup, an average of the weights and accumulation, in the shape of
timm's train.py."""

import argparse
import contextlib
import copy
import math

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


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


class RepeatAugSampler(Sampler):
    """Repeated augmentation: a sample comes several times in a row, and each time on another rank."""

    def __init__(self, dataset, repeats=3, seed=0):
        self.dataset, self.repeats, self.seed, self.epoch = dataset, repeats, seed, 0
        self.samples = len(dataset) // dist.get_world_size()

    def __len__(self):
        return self.samples

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(self.seed + self.epoch))
        own = order.repeat_interleave(self.repeats)[dist.get_rank() :: dist.get_world_size()]
        return iter(own[: self.samples].tolist())


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


def train_one_epoch(args, model, loader, mixup, optimizer, ema, scheduler, num_updates):
    model.train()
    for number, (x, target) in enumerate(loader):
        last = (number + 1) % args.grad_accum_steps == 0
        x, target = mixup(x, target)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = torch.sum(-target * F.log_softmax(model(x), dim=1), dim=1).mean()
            (loss / args.grad_accum_steps).backward()
        if not last:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model.module)
        num_updates += 1
        scheduler.step_update(num_updates)
    return num_updates


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = sum(model(x).argmax(1).eq(target).sum().item() for x, target in loader)
    return 100 * correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks and accumulated batches")
    parser.add_argument("--grad-accum-steps", type=int, default=2)
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

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed + dist.get_rank())
    np.random.seed(args.seed + dist.get_rank())
    train_set = Digits(train=True)
    sampler = RepeatAugSampler(train_set, seed=args.seed)
    batch_size = args.batch_size // dist.get_world_size() // args.grad_accum_steps
    loader = DataLoader(train_set, batch_size=batch_size, sampler=sampler, drop_last=True)
    loader_eval = DataLoader(Digits(train=False), batch_size=100)
    mixup = Mixup(args.mixup, args.smoothing, 10)

    net = create_model()
    optimizer = torch.optim.AdamW(param_groups_weight_decay(net, args.weight_decay), lr=args.lr)
    model = DistributedDataParallel(net)
    ema = ModelEma(net, args.model_ema_decay)
    scheduler = CosineLRScheduler(optimizer, args.epochs * len(loader) // args.grad_accum_steps, warmup=10)
    num_updates = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        num_updates = train_one_epoch(args, model, loader, mixup, optimizer, ema, scheduler, num_updates)
        accuracy, accuracy_ema = validate(net, loader_eval), validate(ema.module, loader_eval)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.1f} %, of the average {accuracy_ema:.1f} %")

    if dist.get_rank() == 0:
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema.state_dict()}
        torch.save(state, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
