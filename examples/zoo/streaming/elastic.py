"""A small transformer on a corpus of tar shards that is streamed, in the shape of scripts for webdataset."""

import argparse
import contextlib
import io
import os
import random
import tarfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import elastrain
from elastrain_readers import Shards


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


def decode(sample):
    return torch.tensor([*sample["txt"]])


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


def main(job):
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

    folder = Path(args.out).with_suffix(".corpus")
    if not folder.exists():
        write_corpus(folder, args.shards, args.samples, args.length, args.seed)
    corpus = Shards.tar(sorted(folder.glob("*.tar")), decode=decode, lanes=4)
    loader = job.dataloader(corpus, global_batch_size=args.batch_size, seed=args.seed, num_workers=args.workers)

    net = LanguageModel(args.length - 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    model = job.wrap(net, optimizer=optimizer)
    for epoch in job.epochs(loader, args.epochs):
        for text in job.steps(loader, epochs=epoch + 1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            job.backward(loss)
            optimizer.step()
        if job.rank == 0:
            print(f"epoch {epoch}: loss {job.loss:.3f}")

    if job.rank == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, args.out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)
