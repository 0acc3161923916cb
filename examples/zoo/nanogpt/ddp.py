"""A GPT on characters, in the shape of nanoGPT: gradient accumulation, clipping, cosine schedule, tied weights."""

import argparse
import inspect
import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Blocks(Dataset):
    """Runs of ``length`` characters, and the same ones shifted by one."""

    def __init__(self, data, length):
        self.data, self.length = data, length

    def __len__(self):
        return (len(self.data) - 1) // self.length

    def __getitem__(self, i):
        chunk = self.data[i * self.length : (i + 1) * self.length + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attn, self.attn_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.fc, self.fc_proj = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.attn(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, width=32, heads=2, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer_for(net, args):
    decay = [p for p in net.parameters() if p.dim() >= 2]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))


def get_lr(it, args):
    if it < args.warmup_iters:
        return args.lr * (it + 1) / (args.warmup_iters + 1)
    ratio = (it - args.warmup_iters) / (args.max_iters - args.warmup_iters)
    return args.min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (args.lr - args.min_lr)


@torch.no_grad()
def estimate_loss(net, val_set):
    net.eval()
    losses = [net(x, y)[1].item() for x, y in DataLoader(val_set, batch_size=16)]
    net.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=48, help="over all ranks")
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--max-iters", type=int, default=60)
    parser.add_argument("--eval-interval", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--min-lr", type=float, default=3e-4)
    parser.add_argument("--warmup-iters", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out", default="nanogpt.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    dist.init_process_group("gloo")
    accumulation = args.batch_size // (args.micro_batch_size * dist.get_world_size())
    text = inspect.getsource(argparse)[:40_000]
    characters = sorted(set(text))
    data = torch.tensor([characters.index(c) for c in text])
    train_set, val_set = Blocks(data[:36_000], 32), Blocks(data[36_000:], 32)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.micro_batch_size, sampler=sampler, drop_last=True)

    net = GPT(len(characters), 32)
    optimizer = optimizer_for(net, args)
    model = DistributedDataParallel(net)

    def endless():
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from loader
            epoch += 1

    batches = endless()
    for it in range(args.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, args)
        for micro_step in range(accumulation):
            x, y = next(batches)
            with model.no_sync() if micro_step < accumulation - 1 else nullcontext():
                _, loss = model(x, y)
                (loss / accumulation).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (it + 1) % args.eval_interval == 0 and dist.get_rank() == 0:
            print(f"iter {it + 1}: train {loss.item():.4f}, val {estimate_loss(net, val_set):.4f}")

    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
