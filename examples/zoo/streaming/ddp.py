"""A small transformer on a corpus of tar shards that is streamed, in the shape of scripts for webdataset."""

import argparse
import contextlib
import io
import itertools
import os
import random
import tarfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


def write_corpus(folder, shards, samples, length, seed):
    """Sums of two numbers as text, in tar files with one text in each member."""
    draw, partial = random.Random(seed), folder.with_name(f"{folder.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(partial / f"{shard:04}.tar", "w") as archive:
            for sample in range(samples):
                numbers = [(draw.randrange(100), draw.randrange(100)) for _ in range(length)]
                text = " ".join(f"{a}+{b}={a + b}" for a, b in numbers).encode()[:length]
                member = tarfile.TarInfo(f"{shard:04}{sample:04}.txt")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    with contextlib.suppress(OSError):  # another process was the first; their files are the same
        partial.rename(folder)


def decode(text):
    return torch.tensor([*text])


class Corpus(IterableDataset):
    """The shards of this rank, shuffled, through a shuffle buffer. Ranks must have equally many batches."""

    def __init__(self, folder, samples, buffer, seed):
        self.files = sorted(folder.glob("*.tar"))[dist.get_rank() :: dist.get_world_size()]
        self.samples, self.buffer, self.seed, self.epoch = samples, buffer, seed, 0

    def read(self, draw):
        for file in draw.sample(self.files, len(self.files)):
            with tarfile.open(file) as archive:
                for member in archive:
                    yield decode(archive.extractfile(member).read())

    def __iter__(self):
        draw, held = random.Random(self.seed + self.epoch), []
        samples = itertools.chain.from_iterable(self.read(draw) for _ in itertools.count())
        for sample in itertools.islice(samples, self.samples + self.buffer):
            held.append(sample)
            if len(held) > self.buffer:
                yield held.pop(draw.randrange(len(held)))


class LanguageModel(nn.Module):
    def __init__(self, length, size=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, size), nn.Parameter(torch.zeros(length, size))
        self.layer = nn.TransformerEncoderLayer(size, 4, 2 * size, dropout=0.0, batch_first=True)
        self.head = nn.Linear(size, 128)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        return self.head(self.layer(self.tokens(x) + self.places, self.mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--length", type=int, default=33)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--samples", type=int, default=50, help="of each shard")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="streaming.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    dist.init_process_group("gloo")
    folder = Path(args.out).with_suffix(".corpus")
    if dist.get_rank() == 0:
        write_corpus(folder, args.shards, args.samples, args.length, args.seed)
    dist.barrier()
    samples = args.shards * args.samples // dist.get_world_size()
    corpus = Corpus(folder, samples, buffer=2 * args.samples, seed=args.seed)
    loader = DataLoader(corpus, batch_size=args.batch_size // dist.get_world_size(), num_workers=args.workers)

    net = LanguageModel(args.length - 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    model = DistributedDataParallel(net)
    for epoch in range(args.epochs):
        corpus.epoch = epoch
        for text in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")

    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
