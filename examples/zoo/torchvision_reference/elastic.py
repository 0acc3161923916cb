"""Label smoothing, mixup, warm-up, cosine and an average of the weights, in the shape of torchvision's references."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset, default_collate

import elastrain


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


def train_one_epoch(job, model, net, criterion, optimizer, data_loader, device, epoch, args, model_ema):
    model.train()
    for image, target in job.steps(data_loader, epochs=epoch + 1):
        image, target = image.to(device), target.to(device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        job.backward(loss)
        job.clip_grad_norm_(args.clip_grad_norm)
        optimizer.step()
        if job.step % args.model_ema_steps == 0:
            model_ema.update_parameters(net)
            if epoch < args.lr_warmup_epochs:
                model_ema.n_averaged.fill_(0)  # it begins after the warm-up
        if job.committed and job.step % args.print_freq == 0 and job.rank == 0:
            print(f"epoch [{epoch}] step {job.step} loss: {loss.item():.4f}")


def evaluate(job, model, criterion, data_loader, device, log_suffix=""):
    def metrics(batch):
        image, target = batch[0].to(device), batch[1].to(device)
        output = model(image)
        return {
            "loss": (criterion(output, target), len(target)),
            "correct": (output.argmax(dim=1) == target).sum(),
        }

    total = job.evaluate(data_loader, metrics)
    acc1 = 100 * total["correct"] / len(data_loader.dataset)
    if job.rank == 0:
        print(f"test: {log_suffix} acc@1 {acc1:.3f} loss {total['loss']:.4f}")
    return acc1


def main(job):
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

    device = job.device
    digits = load_digits()
    images, targets = torch.Tensor(digits.images).unsqueeze(1) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1500], targets[:1500])
    test_set = TensorDataset(images[1500:], targets[1500:])
    data_loader = job.dataloader(
        train_set, global_batch_size=args.batch_size, micro_batches=4, seed=args.seed,
        collate_fn=RandomMixup(10, args.mixup_alpha),
    )  # fmt: skip
    data_loader_test = DataLoader(test_set, batch_size=args.batch_size)

    net = Net().to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    warmup = LinearLR(optimizer, start_factor=args.lr_warmup_decay, total_iters=args.lr_warmup_epochs)
    cosine = CosineAnnealingLR(optimizer, T_max=args.epochs - args.lr_warmup_epochs)
    lr_scheduler = SequentialLR(optimizer, [warmup, cosine], milestones=[args.lr_warmup_epochs])
    model = job.wrap(net, optimizer=optimizer)
    model_ema = ExponentialMovingAverage(net, decay=args.model_ema_decay)
    job.track(lr_scheduler=lr_scheduler, model_ema=model_ema)
    for epoch in job.epochs(data_loader, args.epochs):
        train_one_epoch(job, model, net, criterion, optimizer, data_loader, device, epoch, args, model_ema)
        lr_scheduler.step()
        evaluate(job, model, criterion, data_loader_test, device)
        acc1 = evaluate(job, model_ema, criterion, data_loader_test, device, log_suffix="EMA")

    if job.rank == 0:
        checkpoint = {
            "model": net.state_dict(),
            "model_ema": model_ema.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "acc1": acc1,
        }
        torch.save(checkpoint, args.out)


if __name__ == "__main__":
    with elastrain.join(numerics="bitwise") as job:  # a micro-batch mixes the same samples at any number of ranks
        main(job)
