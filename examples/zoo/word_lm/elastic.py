"""An LSTM with tied weights that learns to predict words, in the shape of PyTorch's word language model.

With DDP a rank owns columns of the corpus and carries their hidden state from batch to batch, which ties each column to
its rank. Here a sample is a window of the corpus with the window before it; the hidden state is computed from that one,
by the present weights. A window can be on any rank in any step.
"""

import argparse
import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

PHRASES = (
    ("the worker", "a rank", "the agent", "one node"),
    ("waits for", "joins", "leaves", "sends to"),
    ("the others", "its peers", "the leader", "a new member"),
    ("at once <eos>", "after a step <eos>", "in each epoch <eos>", "<eos>"),
)


def corpus(sentences, seed):
    draw = random.Random(seed)
    words = " ".join(draw.choice(phrases) for _ in range(sentences) for phrases in PHRASES).split()
    vocabulary = sorted(set(words))
    return torch.tensor([vocabulary.index(word) for word in words]), len(vocabulary)


class RNNModel(nn.Module):
    def __init__(self, words, size, layers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(words, size)
        self.rnn = nn.LSTM(size, size, layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(size, words)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, words, hidden=None):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)), hidden


def batchify(data, columns):
    return data[: len(data) // columns * columns].view(columns, -1)


def windows(data, bptt):
    return data.unfold(0, 2 * bptt + 1, bptt)


def train(args, job, net, model, loader, optimizer, epoch):
    model.train()
    for (window,) in job.steps(loader, epochs=epoch + 1):
        before, words, targets = window[:, : args.bptt], window[:, args.bptt : -1], window[:, args.bptt + 1 :]
        optimizer.zero_grad()
        with torch.no_grad():
            _, hidden = net(before)
        output, _ = model(words, hidden)
        loss = F.cross_entropy(output.flatten(0, 1), targets.flatten())
        job.backward(loss)
        job.clip_grad_norm_(args.clip)
        optimizer.step()
        if job.committed and job.step % args.log_interval == 0 and job.rank == 0:
            print(f"epoch {epoch} step {job.step} loss {loss.item():.2f} perplexity {math.exp(loss.item()):.1f}")


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        output, _ = model(data[:, :-1])
        return F.cross_entropy(output.flatten(0, 1), data[:, 1:].flatten()).item()


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emsize", type=int, default=24)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=20.0)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=20, help="over all ranks")
    parser.add_argument("--bptt", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="word_lm.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    data, words = corpus(1000, args.seed)
    valid = batchify(data[-1000:], 10)
    train_set = TensorDataset(windows(data[:-1000], args.bptt))
    loader = job.dataloader(train_set, global_batch_size=args.batch_size, micro_batches=4, seed=args.seed)
    net = RNNModel(words, args.emsize, args.layers, args.dropout)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    model = job.wrap(net, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
    job.track(scheduler=scheduler)
    for epoch in job.epochs(loader, args.epochs):
        train(args, job, net, model, loader, optimizer, epoch)
        loss = evaluate(net, valid)
        scheduler.step(loss)
        if job.rank == 0:
            print(f"end of epoch {epoch}: valid loss {loss:.2f}, lr {optimizer.param_groups[0]['lr']}")

    if job.rank == 0:
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join(numerics="bitwise") as job:  # dropout draws the same masks at any number of ranks
        main(job)
