"""Fine-tuning with a frozen BatchNorm backbone, whose layers are unfrozen one after the other."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    for i, (images, target) in enumerate(train_loader):
        loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.log_interval == 0 and dist.get_rank() == 0:
            print(f"epoch {epoch} [{i}/{len(train_loader)}] loss: {loss.item():.4f}")
    for group in optimizer.param_groups:
        group["lr"] *= args.decay


@torch.no_grad()
def validate(net, test_loader):
    net.eval()
    correct = sum((net(images).argmax(1) == target).sum().item() for images, target in test_loader)
    print(f"accuracy: {correct / len(test_loader.dataset):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=0.8)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="frozen_bn.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    digits = load_digits()
    images, targets = torch.Tensor(digits.images).unsqueeze(1) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1000], targets[:1000])
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=args.batch_size // dist.get_world_size(), sampler=sampler)
    test_loader = DataLoader(TensorDataset(images[1500:], targets[1500:]), batch_size=100)

    net = pretrained(images[:500])
    optimizer = optim.SGD(net.fc.parameters(), lr=args.lr, momentum=0.9)
    model = DistributedDataParallel(net)
    for epoch in range(args.epochs):
        unfreeze(args, net, optimizer, epoch)
        if epoch in UNFREEZE:
            model = DistributedDataParallel(net)  # it sums only the parameters that it has found
        sampler.set_epoch(epoch)
        train(args, model, train_loader, optimizer, epoch)
        validate(net, test_loader)

    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
