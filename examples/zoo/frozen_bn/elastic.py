"""Fine-tuning with a frozen BatchNorm backbone, whose layers are unfrozen one after the other."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import elastrain

UNFREEZE = {1: "layer3", 2: "layer2"}


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = block(1, 8)
        self.layer2 = block(8, 16)
        self.layer3 = block(16, 16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(self.layer2(self.layer1(x)), 2)
        return self.fc(self.layer3(x).mean((2, 3)))


def pretrained(images):
    """In place of downloaded weights: statistics of the images, and no trained head."""
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for _ in range(20):
            net(images)
    for param in net.parameters():
        param.requires_grad = False
    net.fc = nn.Linear(net.fc.in_features, 10)
    return net


def unfreeze(args, net, optimizer, epoch):
    if epoch not in UNFREEZE:
        return
    layer = getattr(net, UNFREEZE[epoch])
    for param in layer.parameters():
        param.requires_grad = True
    optimizer.add_param_group({"params": layer.parameters(), "lr": args.lr * 0.3**epoch})


def train(args, job, model, train_loader, optimizer, epoch):
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    for images, target in job.steps(train_loader, epochs=epoch + 1):
        loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        job.backward(loss)
        optimizer.step()
        if job.committed and job.step % args.log_interval == 0 and job.rank == 0:
            print(f"epoch {epoch} step {job.step} loss: {loss.item():.4f}")
    for group in optimizer.param_groups:
        group["lr"] *= args.decay


@torch.no_grad()
def validate(net, test_loader):
    net.eval()
    correct = sum((net(images).argmax(1) == target).sum().item() for images, target in test_loader)
    print(f"accuracy: {correct / len(test_loader.dataset):.3f}")


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=0.8)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="frozen_bn.pt")
    args = parser.parse_args()

    digits = load_digits()
    images, targets = torch.Tensor(digits.images).unsqueeze(1) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1000], targets[:1000])
    train_loader = job.dataloader(train_set, global_batch_size=args.batch_size)
    test_loader = DataLoader(TensorDataset(images[1500:], targets[1500:]), batch_size=100)

    net = pretrained(images[:500])
    optimizer = optim.SGD(net.fc.parameters(), lr=args.lr, momentum=0.9)
    model = job.wrap(net, optimizer=optimizer)
    for epoch in job.epochs(train_loader, args.epochs):
        unfreeze(args, net, optimizer, epoch)
        train(args, job, model, train_loader, optimizer, epoch)
        validate(net, test_loader)

    if job.rank == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, args.out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)
