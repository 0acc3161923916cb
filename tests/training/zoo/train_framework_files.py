"""A framework's loop with logger, checkpoints and early stopping; saves what it has left in its folder.

``--plain``: the framework alone, in one process. ``--alone 5``: rank 1 alone ends its loop behind step 5, by a
callback. ``--effects``: each loop body takes from what only the script has. Batches come in the order of the data: a
framework's own shuffle is not that of a job.
"""

import argparse
import csv
import itertools
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain

EPOCHS, BATCH = 9, 16
ALONE = 0
"""The step of ``--alone``."""
EFFECTS = None
"""With ``--effects``."""


class Effects:
    """A second DataLoader that begins again, a collator with a generator of its own, a list."""

    def __init__(self):
        self.others = itertools.cycle(DataLoader(data(), 7))
        self.noise, self.losses = torch.Generator().manual_seed(5), []

    def collate(self, rows):
        batch = torch.utils.data.default_collate(rows)
        x = batch["x" if isinstance(batch, dict) else 0]
        x += 0.1 * torch.randn(x.shape, generator=self.noise)
        return batch

    def of_body(self, loss):
        loss = loss + 0.1 * loss.detach() * next(self.others)[0].mean()
        self.losses.append(loss.item())
        return loss


def loss_of(made, labels, *, training=True):
    loss = nn.functional.mse_loss(made, labels)
    return EFFECTS.of_body(loss) if EFFECTS and training else loss


def collator():
    return {"collate_fn": EFFECTS.collate} if EFFECTS else {}


def ends_alone(job, step):
    return job is not None and job.rank == 1 and step == ALONE


def data():
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


def made():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = {path.parent for path in folder.rglob("*tfevents*")}
    found = EventAccumulator(str(run), purge_orphaned_data=True).Reload()
    clocks = ("runtime", "per_second", "flos")
    names = [name for name in found.Tags()["scalars"] if not any(clock in name for clock in clocks)]
    return {name: [(one.step, one.value) for one in found.Scalars(name)] for name in sorted(names)}


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if "tfevents" not in path.name)


def huggingface(job, folder):
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

    from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

    class Ends(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop |= ends_alone(job, state.global_step)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = made()

        def forward(self, x, labels):
            made = self.layers(x)
            return {"loss": loss_of(made, labels, training=self.training), "logits": made}

    rows = [{"x": x, "labels": y} for x, y in data()]
    trainer_class, arguments = (ElasticTrainer, ElasticTrainingArguments) if job else (Trainer, TrainingArguments)
    options = {} if job is None else {"job": job}
    trainer = trainer_class(
        model=Net(), train_dataset=rows, eval_dataset=rows[:32], data_collator=EFFECTS and EFFECTS.collate,
        callbacks=[EarlyStoppingCallback(1, 0.02), Ends()],
        args=arguments(
            output_dir=str(folder / "out"), per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS,
            train_sampling_strategy="sequential", learning_rate=0.05, lr_scheduler_type="cosine", logging_steps=1,
            eval_strategy="epoch", save_strategy="epoch", save_total_limit=2, metric_for_best_model="loss",
            load_best_model_at_end=True, report_to=["tensorboard"], use_cpu=True, disable_tqdm=True,
        ),
        **options,
    )  # fmt: skip
    trainer.train()
    clocks = ("runtime", "per_second", "flos")
    logged = [{k: v for k, v in row.items() if not any(c in k for c in clocks)} for row in trainer.state.log_history]
    best = Path(trainer.state.best_model_checkpoint).name
    return trainer.is_world_process_zero(), trainer.model, {
        "logged": logged, "best": best, "events": events(folder / "out"),
        "files": [name for name in files(folder / "out") if not name.endswith("training_args.bin")],
    }  # fmt: skip


def lightning(job, folder):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    from elastrain.integrations.lightning_trainer import ElasticTrainerStrategy

    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = made()

        def training_step(self, batch, batch_idx):
            loss = loss_of(self.layers(batch[0]), batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            self.log("samples", float(len(batch[0])), reduce_fx="sum", on_step=True, on_epoch=True)
            self.losses = [*getattr(self, "losses", []), loss.item()]
            return loss

        def on_train_batch_end(self, *_):
            self.trainer.should_stop |= ends_alone(job, self.trainer.global_step)

        def validation_step(self, batch, batch_idx):
            self.log("val", nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

        test_step = validation_step

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    checkpoint = ModelCheckpoint(monitor="val", save_top_k=2, save_last=True)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, log_every_n_steps=2, logger=CSVLogger(folder),
        strategy=ElasticTrainerStrategy(job, global_batch_size=BATCH) if job else "auto",
        callbacks=[checkpoint, LearningRateMonitor(), EarlyStopping("val", patience=1, min_delta=0.02)],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    net = Net()
    size = 5 if job and not EFFECTS else BATCH  # in micro-batches
    trainer.fit(net, DataLoader(data(), size, **collator()), DataLoader(data(), 32))
    tested = trainer.test(net, DataLoader(data(), 40), ckpt_path="best", verbose=False)
    return trainer.is_global_zero, net, {
        "rows": columns(folder), "files": files(folder / "lightning_logs"), "tested": tested,
        "best": Path(checkpoint.best_model_path).name, "last": Path(checkpoint.last_model_path).name,
        **({"losses": net.losses} if EFFECTS else {}),
    }  # fmt: skip


def columns(folder):
    """The rows of the only file: by name and step, the numbers."""
    found = {}
    (path,) = folder.rglob("metrics.csv")
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:
                    found.setdefault(f"{name} of {row['step']}", []).append(float(value))
    return found


def fabric(job, folder):
    from lightning.fabric import Fabric
    from lightning.fabric.loggers import CSVLogger

    from elastrain.integrations.lightning import ElasticStrategy

    one = Fabric(
        accelerator="cpu", devices=1, strategy=ElasticStrategy(job) if job else "auto", loggers=CSVLogger(folder)
    )
    net = made()
    model, optimizer = one.setup(net, torch.optim.Adam(net.parameters(), lr=0.05))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)

    def save(epoch):
        one.save(folder / "saved" / f"{epoch}.ckpt", {"model": model, "optimizer": optimizer})

    if job:
        job.track(schedule=schedule)
        loader = job.dataloader(data(), global_batch_size=BATCH, shuffle=False, **collator())
    else:
        loader = DataLoader(data(), BATCH, **collator())

    def backward(loss):
        one.backward(loss)
        one.clip_gradients(model, optimizer, max_norm=0.5)

    loop(job, loader, model, optimizer, schedule, backward, one.log_dict, save)
    one.logger.finalize("success")
    return one.is_global_zero, net, {"rows": columns(folder), "files": files(folder / "saved")}


def own(job, folder):
    rows, net = [], made()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    if job:
        model = job.wrap(net, optimizer=optimizer)
        job.track(schedule=schedule)
        loader = job.dataloader(data(), global_batch_size=BATCH, shuffle=False, **collator())
    else:
        model, loader = net, DataLoader(data(), BATCH, **collator())
    backward = job.backward if job else lambda loss: loss.backward()
    loop(job, loader, model, optimizer, schedule, backward, lambda row, step: rows.append((row, step)), lambda _: None)
    return not job or job.rank == 0, net, {"rows": rows}


def accelerate(job, folder):
    from accelerate import Accelerator

    from elastrain.integrations.accelerate import ElasticAccelerator

    options = {"cpu": True, "log_with": "tensorboard", "project_dir": folder}
    one = ElasticAccelerator(job, **options) if job else Accelerator(**options)
    net = made()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    model, optimizer, loader, schedule = one.prepare(
        net,
        optimizer,
        DataLoader(data(), BATCH, **collator()),
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98),
    )
    one.init_trackers("run")

    def save(epoch):
        (folder / "saved").mkdir(exist_ok=True)
        one.save(one.unwrap_model(model).state_dict(), folder / "saved" / f"{epoch}.pt")

    loop(job, loader, model, optimizer, schedule, one.backward, one.log, save)
    one.end_training()
    return one.is_main_process, net, {"rows": events(folder), "files": files(folder / "saved")}


def loop(job, loader, model, optimizer, schedule, backward, log, save):
    """The script's own: early stopping by the loss over all data, two rows and a file for each epoch."""
    kept = job.variables(best=1e9, bad=0, step=0) if job else SimpleNamespace(best=1e9, bad=0, step=0)
    for epoch in job.epochs(loader, EPOCHS) if job else range(EPOCHS):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        for x, y in loader if hasattr(loader, "set_epoch") or not job else job.steps(loader, epochs=epoch + 1):
            loss = loss_of(model(x), y)
            backward(loss)
            kept.step += 1
            log({"loss": job.loss if job else loss.item(), "rate": schedule.get_last_lr()[0]}, step=kept.step)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if ends_alone(job, kept.step):
                break
        with torch.no_grad():
            x, y = data().tensors
            whole = nn.functional.mse_loss(model(x), y).item()
        log({"whole": whole}, step=kept.step)
        save(epoch)
        kept.bad = 0 if whole < kept.best - 0.02 else kept.bad + 1
        kept.best = min(whole, kept.best)
        if kept.bad:
            break


def main(job, arguments):
    zero, model, found = globals()[arguments.framework](job, arguments.out.parent)
    if EFFECTS:
        found |= {"taken": EFFECTS.losses, "next": next(EFFECTS.others)[0], "noise": EFFECTS.noise.get_state()}
    if zero:
        torch.save({"model": model.state_dict(), **found}, arguments.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--framework")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--effects", action="store_true")
    parser.add_argument("--alone", type=int, default=0)
    arguments = parser.parse_args()
    ALONE, EFFECTS = arguments.alone, Effects() if arguments.effects else None
    if arguments.plain:
        main(None, arguments)
    else:
        with elastrain.join() as job:
            main(job, arguments)
