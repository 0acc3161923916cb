"""A minimal DCGAN on handwritten digits: two networks, two optimizers, three backwards in each step."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import Dataset

import elastrain


class NoisyImages(Dataset):
    """The noise belongs to the sample: it is the same at any number of ranks."""

    def __init__(self, images, nz):
        self.images, self.nz = images, nz

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], torch.randn(self.nz, 1, 1)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 2, bias=False), nn.GroupNorm(4, ngf * 2), nn.ReLU(),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.GroupNorm(4, ngf), nn.ReLU(),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.GroupNorm(4, ndf * 2), nn.LeakyReLU(0.2),
            nn.Conv2d(ndf * 2, 1, 2, bias=False),
        )  # fmt: skip

    def forward(self, images):
        return self.main(images).flatten()


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--nz", type=int, default=16, help="size of the noise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="dcgan.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    images = torch.Tensor(load_digits().images).unsqueeze(1) / 8 - 1
    loader = job.dataloader(NoisyImages(images, args.nz), global_batch_size=args.batch_size, seed=args.seed)

    generator, discriminator = Generator(args.nz, 16), Discriminator(16)
    optimizer_g = optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    optimizer_d = optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    net_g = job.wrap(generator, optimizer=optimizer_g)
    net_d = job.wrap(discriminator, optimizer=optimizer_d, name="discriminator")
    criterion = nn.BCEWithLogitsLoss()
    for epoch in job.epochs(loader, args.epochs):
        for real, noise in job.steps(loader, epochs=epoch + 1):
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))

            discriminator.zero_grad()
            loss_real = criterion(net_d(real), ones)
            job.backward(loss_real)
            fake = net_g(noise)
            loss_fake = criterion(net_d(fake.detach()), zeros)
            job.backward(loss_fake)
            optimizer_d.step()

            generator.zero_grad()
            loss_g = criterion(net_d(fake), ones)
            job.backward(loss_g)
            optimizer_g.step()
        if job.rank == 0:
            print(f"epoch {epoch}: loss of G {job.loss}")

    if job.rank == 0:
        state = {"model": generator.state_dict(), "discriminator": discriminator.state_dict()}
        state |= {"optimizer_g": optimizer_g.state_dict(), "optimizer_d": optimizer_d.state_dict()}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)
