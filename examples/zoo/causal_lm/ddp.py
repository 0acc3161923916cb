"""A small causal language model on padded sentences of different lengths: a masked loss, a mean over tokens."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

PAD, IGNORED = 0, -100
ARTICLES, ADJECTIVES, NOUNS = ["the", "a"], ["small", "old"], ["cat", "dog", "bird"]
ALONE, TOGETHER, BETWEEN = ["sleeps", "runs", "sings"], ["sees", "hears", "follows"], ["and", "then"]
WORDS = ["<pad>", "<eos>", *ARTICLES, *ADJECTIVES, *NOUNS, *ALONE, *TOGETHER, *BETWEEN]


def corpus(sentences):
    """Sentences of a small grammar, as numbers."""
    rng = random.Random(0)

    def phrase():
        adjective = [rng.choice(ADJECTIVES)] if rng.random() < 0.4 else []
        return [rng.choice(ARTICLES), *adjective, rng.choice(NOUNS)]

    def clause():
        verb = [rng.choice(ALONE)] if rng.random() < 0.5 else [rng.choice(TOGETHER), *phrase()]
        return [*phrase(), *verb]

    for _ in range(sentences):
        words = clause()
        while rng.random() < 0.4:
            words += [rng.choice(BETWEEN), *clause()]
        yield torch.tensor([WORDS.index(word) for word in [*words, "<eos>"]])


def collate(sentences):
    """The prompt, the first three words of a sentence, has no loss."""
    ids = nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)
    labels = ids.masked_fill(ids == PAD, IGNORED)
    labels[:, :3] = IGNORED
    return ids, labels


class Model(nn.Module):
    def __init__(self, vocabulary, width=32, heads=2, layers=2, length=64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length))
        causal = torch.full((length, length), float("-inf")).triu(1)
        return self.head(self.layers(x, mask=causal, is_causal=True))


def loss_of(logits, labels):
    """The sum over all tokens that have a label, and their number."""
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"), (labels != IGNORED).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="causal_lm.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    dist.init_process_group("gloo")
    dataset = list(corpus(600))
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(
        dataset, batch_size=args.batch_size // dist.get_world_size(), sampler=sampler, collate_fn=collate
    )

    net = Model(len(WORDS))
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    model = DistributedDataParallel(net)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            optimizer.zero_grad()
            loss, tokens = loss_of(model(ids), labels)
            dist.all_reduce(tokens)
            (loss * dist.get_world_size() / tokens).backward()  # DDP divides by the world size
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % args.log_interval == 0:
                mean = loss.detach() / tokens
                dist.all_reduce(mean)
                if dist.get_rank() == 0:
                    print(f"step {step} loss {mean.item():.4f}")

    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
