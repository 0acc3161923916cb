"""A small convolutional network on handwritten digits, in the shape of PyTorch's MNIST example."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import elastrain


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(args, job, model, device, train_loader, optimizer, epoch):
    model.train()
    for data, target in job.steps(train_loader, epochs=epoch + 1):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        job.backward(loss)
        optimizer.step()
        if job.committed and job.step % args.log_interval == 0 and job.rank == 0:
            print(f"train epoch {epoch} step {job.step} loss: {loss.item():.6f}")


def test(job, model, device, test_loader):
    def metrics(batch):
        data, target = batch[0].to(device), batch[1].to(device)
        output = model(data)
        loss = F.nll_loss(output, target, reduction="sum")
        return {"loss": loss, "correct": output.argmax(dim=1).eq(target).sum()}

    total = job.evaluate(test_loader, metrics)
    samples = len(test_loader.dataset)
    if job.rank == 0:
        print(f"test: average loss: {total['loss'] / samples:.4f}, accuracy: {total['correct']}/{samples}")


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="mnist.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    device = job.device
    digits = load_digits()
    images, targets = torch.Tensor(digits.images).unsqueeze(1) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1500], targets[:1500])
    train_loader = job.dataloader(train_set, global_batch_size=args.batch_size, micro_batches=4, seed=args.seed)
    test_loader = DataLoader(TensorDataset(images[1500:], targets[1500:]), batch_size=100)

    net = Net().to(device)
    optimizer = optim.Adadelta(net.parameters(), lr=args.lr)
    model = job.wrap(net, optimizer=optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    job.track(scheduler=scheduler)
    for epoch in job.epochs(train_loader, args.epochs):
        train(args, job, model, device, train_loader, optimizer, epoch)
        test(job, model, device, test_loader)
        scheduler.step()

    if job.rank == 0:
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join(numerics="bitwise") as job:  # dropout draws the same masks at any number of ranks
        main(job)
