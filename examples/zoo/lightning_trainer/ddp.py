"""Handwritten digits by a LightningModule, a LightningDataModule and Lightning's Trainer."""

import argparse
import os

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        digits = load_digits()
        images, labels = torch.Tensor(digits.images).flatten(1) / 16, torch.tensor(digits.target)
        self.train_set = TensorDataset(images[:1500], labels[:1500])
        self.val_set = TensorDataset(images[1500:], labels[1500:])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=100)


class Classifier(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels), sync_dist=True, batch_size=len(labels))
        accuracy = (logits.argmax(dim=1) == labels).to(logits.dtype).mean()
        self.log("val_accuracy", accuracy, sync_dist=True, batch_size=len(labels))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        by_step = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
        by_epoch = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": by_step, "interval": "step"}, by_epoch]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32, help="samples that a rank computes at a time")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="digits.pt")
    args = parser.parse_args()
    seed_everything(args.seed)

    model = Classifier(args.lr)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=args.epochs,
        gradient_clip_val=0.5,
        callbacks=[EarlyStopping("val_loss", patience=3)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=Digits(args.batch_size))

    if trainer.is_global_zero:
        state = {"model": model.state_dict(), "step": trainer.global_step, "epoch": trainer.current_epoch}
        torch.save(state, args.out)


if __name__ == "__main__":
    main()
