"""Label smoothing, mixup, warm-up, cosine and an average of the weights, in the shape of torchvision's references."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate


class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(128, num_classes))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class RandomMixup:
    """Mixes each sample of a batch with the one before it."""

    def __init__(self, num_classes, alpha):
        self.num_classes, self.alpha = num_classes, alpha

    def __call__(self, batch):
        images, targets = default_collate(batch)
        targets = F.one_hot(targets, self.num_classes).to(images.dtype)
        share = float(torch.distributions.Beta(self.alpha, self.alpha).sample())
        images = images.roll(1, 0).mul(1 - share).add(images, alpha=share)
        targets = targets.roll(1, 0).mul(1 - share).add(targets, alpha=share)
        return images, targets


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay):
        super().__init__(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay), use_buffers=True)


def reduce_across_processes(val):
    t = torch.tensor(val)
    dist.barrier()
    dist.all_reduce(t)
    return t


def train_one_epoch(model, net, criterion, optimizer, data_loader, device, epoch, args, model_ema):
    model.train()
    for i, (image, target) in enumerate(data_loader):
        image, target = image.to(device), target.to(device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), args.clip_grad_norm)
        optimizer.step()
        if i % args.model_ema_steps == 0:
            model_ema.update_parameters(net)
            if epoch < args.lr_warmup_epochs:
                model_ema.n_averaged.fill_(0)  # it begins after the warm-up
        if i % args.print_freq == 0 and dist.get_rank() == 0:
            print(f"epoch [{epoch}] [{i}/{len(data_loader)}] loss: {loss.item():.4f}")


def evaluate(model, criterion, data_loader, device, log_suffix=""):
    model.eval()
    total_loss, correct, num_processed_samples = 0.0, 0, 0
    with torch.inference_mode():
        for image, target in data_loader:
            image, target = image.to(device), target.to(device)
            output = model(image)
            total_loss += criterion(output, target).item() * len(target)
            correct += (output.argmax(dim=1) == target).sum().item()
            num_processed_samples += len(target)
    num_processed_samples = reduce_across_processes(num_processed_samples).item()
    if num_processed_samples != len(data_loader.dataset) and dist.get_rank() == 0:
        print(f"{num_processed_samples} samples were evaluated of {len(data_loader.dataset)}: results are biased")
    acc1 = 100 * reduce_across_processes(correct).item() / num_processed_samples
    loss = reduce_across_processes(total_loss).item() / num_processed_samples
    if dist.get_rank() == 0:
        print(f"test: {log_suffix} acc@1 {acc1:.3f} loss {loss:.4f}")
    return acc1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--lr-warmup-epochs", type=int, default=2)
    parser.add_argument("--lr-warmup-decay", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--mixup-alpha", type=float, default=0.2)
    parser.add_argument("--clip-grad-norm", type=float, default=1.0)
    parser.add_argument("--model-ema-steps", type=int, default=4)
    parser.add_argument("--model-ema-decay", type=float, default=0.9)
    parser.add_argument("--print-freq", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="classification.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    dist.init_process_group("gloo")
    device = torch.device("cpu")
    digits = load_digits()
    images, targets = torch.Tensor(digits.images).unsqueeze(1) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1500], targets[:1500])
    test_set = TensorDataset(images[1500:], targets[1500:])
    train_sampler = DistributedSampler(train_set, seed=args.seed)
    test_sampler = DistributedSampler(test_set, shuffle=False)
    batch_size, mixup = args.batch_size // dist.get_world_size(), RandomMixup(10, args.mixup_alpha)
    data_loader = DataLoader(train_set, batch_size=batch_size, sampler=train_sampler, collate_fn=mixup)
    data_loader_test = DataLoader(test_set, batch_size=batch_size, sampler=test_sampler)

    net = Net().to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    warmup = LinearLR(optimizer, start_factor=args.lr_warmup_decay, total_iters=args.lr_warmup_epochs)
    cosine = CosineAnnealingLR(optimizer, T_max=args.epochs - args.lr_warmup_epochs)
    lr_scheduler = SequentialLR(optimizer, [warmup, cosine], milestones=[args.lr_warmup_epochs])
    model = DistributedDataParallel(net)
    model_ema = ExponentialMovingAverage(net, decay=args.model_ema_decay)
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train_one_epoch(model, net, criterion, optimizer, data_loader, device, epoch, args, model_ema)
        lr_scheduler.step()
        evaluate(model, criterion, data_loader_test, device)
        acc1 = evaluate(model_ema, criterion, data_loader_test, device, log_suffix="EMA")

    if dist.get_rank() == 0:
        checkpoint = {
            "model": net.state_dict(),
            "model_ema": model_ema.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "acc1": acc1,
        }
        torch.save(checkpoint, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
