"""Rows of Fabric's loggers and of accelerate's trackers, through the loss of rank 0 and of all ranks.

Processes run one after the other, each over a scripted job: one is killed, and another goes on in the same folder.
"""

from __future__ import annotations

import csv

import pytest
import torch

from budgets import at_night
from scripted_loop import Killed, ScriptedJob

STEPS = 8


@pytest.fixture
def train(require, tmp_path, clocks_behind):
    """``train(job, way)``: 8 steps that log their number; the rows that are in the folder, or None if it is killed.

    ``before_row``: the process ends in this step, which all ranks have committed, before it logs. ``loops``: as many,
    and behind each but the last the script logs its last step and a half.
    """
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    require("accelerate", "ELASTRAIN_REQUIRE_HUGGINGFACE")

    def run(job, way, folder="own", before_row=None, loops=1):
        folder = tmp_path / folder
        rows = {"csv": rows_of_csv, "tensorboard": rows_of_events, "accelerate": rows_of_events}[way]
        log = loop_of_accelerate if way == "accelerate" else loop_of_fabric
        try:
            for step, write in log(job, way, folder, loops):
                if step == before_row:
                    raise Killed
                write(step)
        except Killed:
            return None
        return rows(folder)

    return run


def number(job):
    """Of the step; 0 in the warm-up, which must leave no row."""
    return 0 if job.body.warm_up else job.step + 1


def loop_of_fabric(job, way, folder, loops=1):
    from lightning.fabric import Fabric
    from lightning.fabric.loggers import CSVLogger, TensorBoardLogger

    from elastrain_frameworks.lightning import ElasticStrategy

    logger = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}[way](folder)
    fabric = Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(job), loggers=logger)
    net = torch.nn.Linear(1, 1)
    model, _ = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    loader = job.dataloader(torch.utils.data.TensorDataset(torch.ones(2 * STEPS // loops, 1)), global_batch_size=2)

    def write(step):
        fabric.log_dict({"loss": torch.tensor(float(step)), "count": step}, step=int(step))

    for loop in range(1, loops + 1):
        for (x,) in job.steps(loader, epochs=loop):
            if job.body.warm_up:
                assert logger._experiment is None, "no folder before this process has a rank"
            fabric.backward(model(x).sum())
            yield number(job), write
        if loop < loops:
            yield job.step + 0.5, write


def loop_of_accelerate(job, way, folder, loops=1):
    from elastrain_frameworks.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(job, cpu=True, log_with="tensorboard", project_dir=folder)
    net = torch.nn.Linear(1, 1)
    data = torch.utils.data.TensorDataset(torch.ones(2 * STEPS // loops, 1))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), 0.1), torch.utils.data.DataLoader(data, batch_size=2)
    )
    accelerator.init_trackers("run")

    def write(step):
        accelerator.log({"loss": float(step), "count": step}, step=int(step))

    for loop in range(1, loops + 1):
        loader.set_epoch(loop - 1)
        for (x,) in loader:
            accelerator.backward(model(x).sum())
            optimizer.step()
            yield number(job), write
        if loop < loops:
            yield job.step + 0.5, write
    accelerator.end_training()


def rows_of_csv(folder):
    (path,) = folder.rglob("metrics.csv")
    return [
        (int(row["step"]), float(row["loss"]), float(row["count"])) for row in csv.DictReader(path.open(newline=""))
    ]


def rows_of_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = {path.parent for path in folder.rglob("*tfevents*")}
    events = EventAccumulator(str(run), purge_orphaned_data=True).Reload()
    losses, counts = events.Scalars("loss"), events.Scalars("count")
    return [(one.step, one.value, other.value) for one, other in zip(losses, counts, strict=True)]


WHOLE = [(step, float(step), float(step)) for step in range(1, STEPS + 1)]
WAYS = pytest.mark.parametrize("way", ["csv", "tensorboard", "accelerate"])


def successor(dead):
    """Rank 1, which is rank 0 from the execution on that follows the one in which ``dead`` has ended."""
    job = ScriptedJob(*["committed"] * dead.step, "discarded", peer=dead, rank=1)
    job.ranks = {dead.step + 2: 0}
    return job


@WAYS
def test_rows_are_those_of_committed_steps(train, way):
    assert train(ScriptedJob("committed", "discarded", "partial", "committed", "discarded"), way) == WHOLE


@WAYS
@pytest.mark.parametrize("dies_at", [1, *at_night(2, 5, 8)])
def test_rows_are_those_of_an_undisturbed_run_if_rank_0_is_lost_in_a_step(train, way, dies_at):
    dead = ScriptedJob()
    dead.dies_at = dies_at
    assert train(dead, way) is None
    assert train(successor(dead), way) == WHOLE


@WAYS
@pytest.mark.parametrize("step", [5, *at_night(1, 2)])
def test_row_of_a_rank_0_that_is_lost_before_it_has_logged_it_is_written_by_the_next(train, way, step):
    dead = ScriptedJob()
    assert train(dead, way, before_row=step) is None
    dead.step += 1  # the others have committed the step
    assert train(successor(dead), way) == WHOLE


@WAYS
@pytest.mark.parametrize(("saved", "lost"), [(3, 7), *at_night((1, 4), (5, 6), (7, 8))])
def test_rows_are_those_of_an_undisturbed_run_if_all_are_lost_and_the_job_resumes(train, way, saved, lost):
    dead = ScriptedJob()
    dead.dies_at = lost
    assert train(dead, way) is None
    assert train(ScriptedJob(start=saved, peer=dead), way) == WHOLE


@WAYS
@pytest.mark.parametrize(("saved", "lost"), [(4, 6), *at_night((3, 6), (4, 5))])
def test_row_behind_a_loop_is_there_once_if_the_job_resumes_at_the_end_of_that_loop(train, way, saved, lost):
    """The code behind it runs again, before the first loop body of the new process."""
    expected = sorted([*WHOLE, (4, 4.5, 4.5)])
    assert train(ScriptedJob(), way, "undisturbed", loops=2) == expected
    dead = ScriptedJob()
    dead.dies_at = lost
    assert train(dead, way, loops=2) is None
    assert train(ScriptedJob(start=saved, peer=dead), way, loops=2) == expected


@WAYS
def test_joiner_that_becomes_rank_0_goes_on_with_the_same_run(train, way):
    dead = ScriptedJob()
    dead.dies_at = 6
    assert train(dead, way) is None
    joiner = ScriptedJob("committed", "discarded", start=4, peer=dead, rank=1)
    joiner.ranks = {3: 0}
    assert train(joiner, way) == WHOLE


@WAYS
def test_row_before_the_backward_of_a_body_is_an_error(train, way):
    job, error = ScriptedJob(), r"(fabric|accelerator)\.log\(\) before a step's first backward"
    with pytest.raises(AssertionError, match=error):  # a RuntimeError of the real job
        for _, write in (loop_of_accelerate if way == "accelerate" else loop_of_fabric)(job, way, "none"):
            job.phase = type(job.phase).FRESH
            write(1)
