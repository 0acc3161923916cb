"""What a framework's own loop needs: where it begins, which body runs, and the end of a body without the next one.

The ranks are threads. The loop of the tests counts its steps by itself, as frameworks do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastrain.elastic.body.bodies import Body
from elastrain.elastic.contract import Call
from elastrain.elastic.job import Job
from threaded_world import RankThread, ThreadWorld

STEPS = 8


class Framework:
    """A loop with a counter of its own, which begins where the job is."""

    def __init__(
        self, job: Job, rank: RankThread, *, commits: bool, until: int = STEPS, micro: int | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(96, 4, generator=generator, dtype=torch.float64))
        self.net = nn.Linear(4, 1).double()
        for parameter in self.net.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.model = job.wrap(self.net, optimizer=self.optimizer)
        loader = job.dataloader(data, global_batch_size=8, seed=3, micro_batch_size=micro)
        self.job, self.rank, self.commits, self.until = job, rank, commits, until
        self.bodies: list[Body] = []
        self.refused: list[str] = []
        self.events: list[tuple[str, int]] = []
        self.batches = job.steps(loader, steps=STEPS, warm_up=self.execute)

    def execute(self, batch: tuple[torch.Tensor]) -> None:
        assert self.job.body is not None
        self.bodies.append(self.job.body)
        self.rank.body()
        self.job.backward(self.model(batch[0]).square().mean())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self) -> dict[str, Any]:
        assert next(self.batches) is None
        count = self.boundary("enters")
        while count < self.until:
            batch = next(self.batches)
            while batch is not None:
                self.execute(batch)
                if self.job.acts(Call.UPDATE, "the loop"):
                    break
                batch = next(self.batches)
            if self.commits:
                self.job.commit(self.batches)
                count = self.boundary("commits")
            else:
                count += 1
        assert self.commits or next(self.batches, None) is None
        self.batches.close()
        state = [*self.net.state_dict().values()]
        return {"state": state, "step": self.job.step, "bodies": self.bodies, "events": self.events}

    def boundary(self, event: str) -> int:
        """Between two bodies: what this rank knows, and may not do."""
        job = self.job
        assert job.body is None and not job.committed
        self.events.append((event, job.step))
        for call in (self.optimizer.step, lambda: job.all_reduce(1), lambda: job.backward(self.net.weight.sum())):
            with pytest.raises(RuntimeError, match="at a step boundary"):
                call()
        self.rank.at("boundary")
        return job.step


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., ThreadWorld]]:
    """``world(**options)``: of ranks with the framework's loop."""
    worlds: list[ThreadWorld] = []

    def make(**options: Any) -> ThreadWorld:
        made = ThreadWorld(
            tmp_path / f"{len(worlds)}", lambda job, rank: Framework(job, rank, **{"commits": True, **options}).run()
        )
        worlds.append(made)
        return made

    yield make
    for made in worlds:
        made.close()


@pytest.fixture
def alone(world) -> Callable[..., dict[str, Any]]:
    """The result of one rank."""

    def run(**options: Any) -> dict[str, Any]:
        made = world(**options)
        made.train("a")
        made.serve("a")
        assert made.error("a") is None, made.ranks["a"].log.read_text()
        return made.result("a")

    return run


def assert_equal(result: dict[str, Any], other: dict[str, Any]) -> None:
    assert result["step"] == other["step"]
    for mine, its in zip(result["state"], other["state"], strict=True):
        assert torch.allclose(mine, its, rtol=0, atol=1e-12)


def test_loop_knows_where_it_begins_before_a_body_runs_and_runs_each_once_if_nothing_happens(alone) -> None:
    result = alone()
    assert not any(body.warm_up for body in result["bodies"])
    assert result["events"] == [("enters", 0), *(("commits", step) for step in range(1, STEPS + 1))]
    assert [body.step for body in result["bodies"]] == [*range(STEPS)]


def test_model_is_the_same_if_bodies_end_by_the_next_one(alone) -> None:
    assert_equal(alone(commits=False), alone())


def test_micro_batches_of_one_execution_are_told_from_those_of_another(alone) -> None:
    bodies = [body for body in alone(micro=3)["bodies"] if not body.warm_up]
    assert [(body.step, body.micro_batch) for body in bodies] == [(s, m) for s in range(STEPS) for m in range(3)]
    assert len({body.execution for body in bodies}) == STEPS


def test_last_step_is_the_one_that_was_committed_if_all_ranks_leave_at_a_boundary(world, alone) -> None:
    made = world(until=5)
    made.train("a", "b")
    made.serve("a", "b")
    for rank in ("a", "b"):
        assert made.error(rank) is None, made.ranks[rank].log.read_text()
        assert_equal(made.result(rank), alone(until=5))


def test_joiner_begins_its_loop_at_the_jobs_step(world, alone) -> None:
    made = world()
    made.allow(4)
    made.train("a")
    made.hold("a", step=4)
    made.begin("b")
    made.propose("a", "b")
    made.connected("a")
    made.allow(STEPS)
    made.lead()
    joined = made.result("b")
    assert joined["events"][0] == ("enters", 5), "the step that was held carries the switch"
    assert [body.step for body in joined["bodies"][1:]] == [5, 6, 7]
    for rank in ("a", "b"):
        assert_equal(made.result(rank), alone())


@pytest.mark.parametrize("least", [0, 3])
def test_others_go_on_if_a_rank_is_lost_at_a_boundary(world, alone, least) -> None:
    made = world()
    made.kills["b"] = ("boundary", least)
    made.train("a", "b")
    made.lead()
    assert made.error("a") is None, made.ranks["a"].log.read_text()
    assert_equal(made.result("a"), alone())


def test_commit_is_refused_before_a_step_has_a_result(world) -> None:
    def early(job: Job, rank: RankThread) -> None:
        loop = Framework(job, rank, commits=True)
        assert next(loop.batches) is None
        next(loop.batches)
        with pytest.raises(
            RuntimeError, match=r"job.commit\(\) before a step's first backward: .* call it behind that"
        ):
            job.commit(loop.batches)
        loop.rank.die()

    made = world()
    made.threads.script = early
    made.train("a")
    made.wait("it ends", lambda: not made.alive("a"))
    assert made.error("a") is None, made.ranks["a"].log.read_text()
