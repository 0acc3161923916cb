"""Files of Lightning's real loggers and checkpoints, through the loss of rank 0 and of all ranks.

Processes run one after the other, each over a scripted job: one is killed, and another goes on in the same folder.
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest
import torch

from scripted_loop import Killed, ScriptedJob

STEPS = 20


@pytest.fixture
def train(fit, tmp_path, monkeypatch, clocks_behind):
    """``train(job, folder)``: four epochs of five steps; what it leaves in its folder, or None if it is killed."""
    from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    class Module(fit.module):
        def configure_optimizers(self):
            optimizers, schedules = super().configure_optimizers()
            by_epoch = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.9)
            return optimizers, [*schedules, {"scheduler": by_epoch, "interval": "epoch", "name": "by epoch"}]

        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"width": 1})
            for parameter in self.net.parameters():
                torch.nn.init.ones_(parameter)

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss, on_step=True, on_epoch=True)
            if batch_idx == 3:
                self.log("third", loss, on_epoch=False, on_step=True)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val", -torch.tensor(float(self.global_step)).sub(8).abs() + 100)

        def test_step(self, batch, batch_idx):
            self.log("tested", self.net(batch[0]).square().mean())

    def run(job, folder="own", kind=CSVLogger, killed=None, tests=False, **options):
        place, folder = tmp_path / folder, Path()  # paths are relative: another process may have another folder
        place.mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        checkpoint = ModelCheckpoint(monitor="val", save_top_k=2, save_last=True, **options)
        patience = EarlyStopping("val", patience=3, mode="max")
        if killed:
            watch(checkpoint, *killed)
        logger = kind(folder, flush_logs_every_n_steps=7) if kind is CSVLogger else kind(folder)
        module = Module()
        try:
            trainer, _ = fit(
                job, module, logger=logger, callbacks=[LearningRateMonitor(), checkpoint, patience],
                enable_checkpointing=True, max_epochs=4, log_every_n_steps=2, default_root_dir=folder,
            )  # fmt: skip
        except Killed:
            return None
        found = {
            "best": Path(checkpoint.best_model_path),
            "last": Path(checkpoint.last_model_path),
            "kept": {Path(path): float(value) for path, value in checkpoint.best_k_models.items()},
            "files": sorted(path for path in folder.rglob("*.*") if "tfevents" not in path.name),
            "wait": patience.wait_count,
            "weight": module.net.weight.detach().clone(),
        }  # fmt: skip
        if tests:
            data = torch.utils.data.TensorDataset(torch.ones(8, 2))
            loader = torch.utils.data.DataLoader(data, batch_size=4)
            found["tested"] = trainer.test(module, loader, ckpt_path="best", verbose=False)
        if kind is TensorBoardLogger:
            found["rows"] = scalars(folder)
        else:
            (metrics,) = folder.rglob("metrics.csv")
            found["rows"] = [*csv.DictReader(metrics.open(newline=""))]
        return found

    run.csv, run.tensorboard = CSVLogger, TensorBoardLogger
    return run


def watch(checkpoint, point, number):
    """End the process at the ``number``-th save: before it, half-way, or behind it."""
    original, counter = checkpoint._save_checkpoint, itertools.count(1)

    def save(trainer, path):
        if next(counter) < number:
            return original(trainer, path)
        if point == "half-way":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(b"half")
        if point == "behind":
            original(trainer, path)
        raise Killed

    checkpoint._save_checkpoint = save


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = {path.parent for path in folder.rglob("*tfevents*")}
    events = EventAccumulator(str(run), purge_orphaned_data=True).Reload()
    names = sorted(set(events.Tags()["scalars"]) - {"hp_metric"})
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def successor(dead, **script):
    """Rank 1, which is rank 0 from the execution on that follows the one in which ``dead`` has ended."""
    last = dead.step + 1
    job = ScriptedJob(*["committed"] * dead.step, "discarded", peer=dead, rank=1, **script)
    job.ranks = {last + 1: 0}
    return job


def assert_equal(found, expected):
    for name in expected.keys() - {"weight"}:
        assert found[name] == expected[name], name
    torch.testing.assert_close(found["weight"], expected["weight"], rtol=0, atol=0)


@pytest.mark.parametrize("dies_at", [1, 3, 6, 10, 17])
@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_files_are_those_of_an_undisturbed_run_if_rank_0_is_lost_in_a_step(train, kind, dies_at):
    kind = getattr(train, kind)
    dead = ScriptedJob()
    dead.dies_at = dies_at
    assert train(dead, kind=kind) is None
    assert_equal(train(successor(dead), kind=kind), train(ScriptedJob(), "undisturbed", kind=kind))


@pytest.mark.parametrize("killed", [(p, n) for p in ("before", "half-way", "behind") for n in (1, 3, 4)])
def test_files_are_those_of_an_undisturbed_run_if_rank_0_is_lost_in_a_save(train, killed):
    dead = ScriptedJob()
    assert train(dead, killed=killed) is None
    dead.step += 1  # the others have committed the step whose body has ended so
    job = successor(dead)
    assert_equal(train(job, tests=True), train(ScriptedJob(), "undisturbed", tests=True))


@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
@pytest.mark.parametrize(("saved", "lost"), [(1, 4), (3, 9), (10, 12), (11, 19), (20, 21)])
def test_files_are_those_of_an_undisturbed_run_if_all_are_lost_and_the_job_resumes(train, kind, saved, lost):
    kind = getattr(train, kind)
    dead = ScriptedJob()
    dead.dies_at = lost
    assert (train(dead, kind=kind) is None) == (lost <= STEPS)
    resumed = train(ScriptedJob(start=saved, peer=dead), kind=kind)
    undisturbed = train(ScriptedJob(), "undisturbed", kind=kind)
    assert_equal(resumed, undisturbed)


@pytest.mark.parametrize("last", [1, 4, 5, 10, 20])
@pytest.mark.parametrize("leaves", [False, True])
def test_rank_0_writes_nothing_in_a_step_behind_which_the_generation_changes(train, last, leaves):
    """Its rank 0 may leave, and still be in its loop when another one goes on with the files."""
    undisturbed = train(ScriptedJob(), "undisturbed")
    first = ScriptedJob()
    first.switch_behind = {last}
    if not leaves:
        return assert_equal(train(first), undisturbed)
    first.dies_at = last + 1
    train(first)
    second = ScriptedJob(peer=first, rank=1)
    second.ranks, second.rank_at_end, second.switch_behind = {last + 1: 0}, 0, {last}
    return assert_equal(train(second), undisturbed)


@pytest.mark.parametrize("missed", [0, 4, 7, 19])
@pytest.mark.parametrize("lost", [False, True])
def test_files_are_those_of_an_undisturbed_run_if_a_step_is_received_from_a_peer(train, missed, lost):
    """Its events are this rank's own, as ``lost`` also as those of the new rank 0."""
    peer = ScriptedJob()
    undisturbed = train(peer, "undisturbed")
    outcomes = ["committed"] * missed + ["adopted"]
    if not lost:
        job = ScriptedJob(*outcomes, peer=peer)
    else:
        first = ScriptedJob()
        first.dies_at = missed + 2
        assert (train(first) is None) == (missed + 2 <= STEPS)
        job = ScriptedJob(*outcomes, peer=peer, rank=1)
        job.ranks, job.rank_at_end = {missed + 2: 0}, 0
    assert_equal(train(job), undisturbed)


@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_files_are_those_of_lightning_alone(train, kind):
    options = {"kind": getattr(train, kind), "tests": True}
    job = ScriptedJob("committed", "discarded", "committed", "discarded", "discarded")
    assert_equal(train(job, **options), train(None, "alone", **options))


@pytest.mark.parametrize("start", [4, 5, 7])
def test_joiner_counts_rows_as_the_others(train, start):
    """It becomes rank 0 later, and cuts off what the last one has written behind the last step of all."""
    first = ScriptedJob()
    first.dies_at = 14
    assert train(first) is None
    joiner = ScriptedJob(*["committed"] * (first.step - 1 - start), "discarded", start=start, peer=first, rank=1)
    joiner.ranks = {first.step - start + 1: 0}
    assert_equal(train(joiner), train(ScriptedJob(), "undisturbed"))


def test_second_process_opens_no_folder_of_its_own(train, tmp_path):
    first = ScriptedJob()
    train(first)
    train(ScriptedJob(peer=first, rank=1))
    assert [path.name for path in (tmp_path / "own/lightning_logs").iterdir()] == ["version_0"]
