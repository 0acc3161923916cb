"""Data that a script changes: a labelled set that grows with each round, a sampler within a loop."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, WeightedRandomSampler

from conditions import eventually
from elastrain.elastic.job import Job
from elastrain_audit.judge import verify
from threaded_world import RankThread, thread_world

SAMPLES, BATCH = (12, 20, 28), 2
ENDS = [6, 16, 30]
"""Committed steps behind each round."""


def script(data, *, again: bool = False):
    """Rounds over ``data(samples)``. ``again``: by the same loader."""

    def train(job: Job, rank: RankThread) -> tuple[list[int], Counter[tuple[int, int]]]:
        net = nn.Linear(1, 1, bias=False).double()
        nn.init.zeros_(net.weight)
        model = job.wrap(net, optimizer=(optimizer := torch.optim.SGD(net.parameters(), lr=1e-3)))
        seen, ends, growing = Counter[tuple[int, int]](), [], data(SAMPLES[0])
        loader = job.dataloader(growing, global_batch_size=BATCH)
        for number, samples in enumerate(SAMPLES):
            if again:
                growing[:] = data(samples)
            else:
                loader = job.dataloader(data(samples), global_batch_size=BATCH)
            for (x,) in job.steps(loader, epochs=number + 1):
                rank.body()
                optimizer.zero_grad()
                job.backward(model(x).mean())
                optimizer.step()
                if job.committed and job._loop.step.parts[0].weight:
                    seen.update((number, int(value)) for value in x[:, 0])
            ends.append(job.step)
        return ends, seen

    return train


def labelled(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples, dtype=torch.float64)[:, None])


@pytest.mark.parametrize(
    ("data", "again"),
    [(labelled, False), (lambda samples: [*labelled(samples)], True)],
    ids=["a loader each", "the same loader"],
)
def test_each_round_has_each_sample_once_if_its_data_grow_and_a_rank_joins(tmp_path: Path, data, again) -> None:
    with thread_world(tmp_path, script(data, again=again)) as world:
        world.allow(9)
        world.train("a", "b")
        world.hold("a", "b", step=9)
        world.begin("c")
        world.propose("a", "b", "c")
        world.connected("a", "b")
        world.allow(1 << 30)
        world.wait("all end", lambda: not world.alive())
        results = [world.result(rank) for rank in "abc"]
    assert [ends for ends, _ in results] == [ENDS, ENDS, [*results[2][0][:1], *ENDS[1:]]]
    seen = sum((seen for _, seen in results), Counter())
    assert seen == Counter({(number, i): 1 for number, samples in enumerate(SAMPLES) for i in range(samples)})
    verdict = verify(tmp_path / "audit")
    assert (verdict.ok, verdict.epochs, verdict.samples) == (True, 3, sum(SAMPLES)), verdict


def refused(tmp_path: Path, play) -> str:
    with thread_world(tmp_path, play) as world:
        world.begin("a")
        world.propose("a")
        eventually(lambda: not world.alive(), 20, "it ends")
        return str(world.error("a"))


def test_a_round_behind_a_loop_that_was_left_is_refused_if_its_epochs_have_another_length(tmp_path: Path) -> None:
    def play(job: Job, rank: RankThread) -> None:
        model = job.wrap(nn.Linear(1, 1).double())
        for number, samples in enumerate(SAMPLES):
            for (x,) in job.steps(job.dataloader(labelled(samples), global_batch_size=BATCH), epochs=number + 1):
                job.backward(model(x).mean())
                if job.step == 3:
                    break

    text = refused(tmp_path, play)
    assert "10 steps an epoch, and others of the script 6: a worker that joins could not count these epochs" in text
    assert "since a loop was left at step 4 of 6. Give each loop steps=…" in text


@pytest.mark.parametrize("first", [True, False])
def test_epochs_of_another_length_are_refused_if_a_joiner_could_not_count_them(tmp_path: Path, first) -> None:
    def play(job: Job, rank: RankThread) -> None:
        model = job.wrap(nn.Linear(1, 1).double())
        one, other = (job.dataloader(labelled(n), global_batch_size=BATCH) for n in SAMPLES[:2])
        for epoch in job.epochs(one, 2) if first else range(2):
            for (x,) in job.steps(one, epochs=epoch + 1):
                job.backward(model(x).mean())
        list(job.steps(other, epochs=3) if first else job.epochs(other, 3))

    text = refused(tmp_path, play)
    assert "10 steps an epoch, and others of the script 6" in text
    assert "since job.epochs() leaves some out" in text


def test_joiners_fail_by_name_and_the_others_go_on_if_their_sampler_has_other_indices(tmp_path: Path) -> None:
    """They are more, and have the same job up to the sampler: the others have changed it within the loop."""

    def play(job: Job, rank: RankThread) -> int:
        net = nn.Linear(1, 1).double()
        model = job.wrap(net, optimizer=(optimizer := torch.optim.SGD(net.parameters(), lr=1e-3)))
        sampler = WeightedRandomSampler([1.0] * 12, 12)
        job.on_commit(lambda: setattr(sampler, "weights", torch.ones(12) + torch.arange(12) * (job.step < 9)))
        for (x,) in job.steps(job.dataloader(labelled(12), sampler=sampler, global_batch_size=BATCH), epochs=3):
            rank.body()
            job.backward(model(x).mean())
            optimizer.step()
        return job.step

    with thread_world(tmp_path, play) as world:
        world.allow(8)
        world.train("a", "b")
        world.hold("a", "b", step=8)
        world.begin("c", "d", "e")
        world.propose(*"abcde")
        world.connected("a", "b")
        world.allow(1 << 30)
        eventually(lambda: not world.alive("c", "d", "e"), 20, "the joiners fail")
        text = str(world.error("c"))
        world.propose("a", "b")
        eventually(lambda: not world.alive(), 20, "the others end")
        assert [world.result(rank) for rank in "ab"] == [18, 18]
    assert "this script has indices=" in text
    assert "the job's state of step 9 was computed with indices=" in text
