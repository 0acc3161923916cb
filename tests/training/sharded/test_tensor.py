"""Ranks of a group compute layers together (tensor parallelism), and the rest of it is sharded over them.

Promises 1, 2, 4 and 5.
"""

from __future__ import annotations

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from elastrain.api.settings import CheckpointSpec
from sharded_model import STEPS, TOLERANCE, alone, assert_same_model, whole

WIDTH = 14
"""Of the layer: it must be a multiple of the ranks that compute it together."""


def test_groups_train_as_one_process_does_while_ranks_are_lost_and_groups_join(tensor_job) -> None:
    job = tensor_job
    job.want(1)
    job.start("a", MICRO="4", EVALUATE="10")
    first = job.together("a")
    survivors = job.pids("a")
    job.start("b", MICRO="4", EVALUATE="10")
    job.want(2)
    second = job.together("a", "b", after=first)
    mates = job.pids("b")
    job.order("die-in-backward", ("b", 1))
    job.together("a", "b", after=second)
    assert job.pids("b")["0"] == mates["0"], "the process of the lost rank's mate changed"
    ends = job.finish("a", "b")
    assert_same_model(ends, tensor=2, width=WIDTH)
    for end in ends["a"]:
        assert end["norms"] == pytest.approx(alone(STEPS, WIDTH)[1], rel=1e-9)
        assert [step["seen"] for step in end["evaluations"].values()] == [203] * (STEPS // 10)
    assert job.pids("a") == survivors, "a survivor's process changed"
    job.verdict()


def test_ranks_begin_with_one_model_if_each_has_built_another(tensor_job) -> None:
    """Of what they hold alike, that of the first of them; of a layer that is cut, each its part."""
    job = tensor_job
    job.want(1)
    job.start("a", steps=2, OWN_MODEL="1")
    shards = job.finish("a")["a"]
    for name in shards[0]["state"]:
        whole(shards, name, tensor=2)


@pytest.mark.nightly
def test_groups_of_two_by_two_ranks_lose_ranks_keep_votes_and_resume_in_other_shapes(tensor_job, tmp_path) -> None:
    job, volume, steps = tensor_job, tmp_path / "checkpoints", 60
    options = {"checkpoint": CheckpointSpec(path=str(volume), every_steps=5), "steps": steps, "WIDTH": str(WIDTH)}

    def newest() -> int:
        return max((int(path.name[5:14]) for path in volume.glob("step-*")), default=0)

    def saves_more(than: int) -> None:
        job.wait(f"a checkpoint after step {than}", lambda: newest() > than)

    job.nproc = 4
    job.want(2)
    job.start("a", "b", **options)
    first = job.together("a", "b")
    pids = job.pids("a")
    job.order("die-in-forward", ("b", 2))
    second = job.together("a", "b", after=first)
    job.order("cut-after-vote", ("a", 1), ("b", 1), step=job.last_step() + 2)
    job.together("a", "b", after=second)
    assert job.pids("a") == pids, "a survivor's process changed"
    saves_more(0)
    for workers, job.nproc, job.tensor in (("c", 2, 2), ("de", 4, 2), ("f", 2, 1)):
        job.kill_all()
        job.workers.clear()
        saved = newest()
        job.want(len(workers))
        job.start(*workers, **options)
        saves_more(saved)
        assert any(f"step={saved}" in line for w in workers for line in resumed(job[w].out()))
    assert_same_model(job.finish("f"), steps, width=WIDTH)


def test_a_checkpoint_of_layers_that_are_cut_is_read_by_plain_torch(tensor_job, tmp_path) -> None:
    job, volume, steps = tensor_job, tmp_path / "checkpoints", 6
    job.want(1)
    job.start("a", steps=steps, checkpoint=CheckpointSpec(path=str(volume)))
    job.finish("a")
    (path,) = volume.glob("step-*")
    dcp_to_torch_save(path, tmp_path / "whole.pt")
    read = torch.load(tmp_path / "whole.pt", weights_only=False)
    expected = alone(steps, WIDTH)[0]
    for name, value in expected.items():
        assert torch.allclose(read[f"tracked/model/{name}"], value, rtol=0, atol=TOLERANCE), name
    moments = {name: value for name, value in read.items() if "exp_avg" in name}
    assert sum(v.nbytes for v in moments.values()) == 2 * sum(p.nbytes for p in expected.values())


def resumed(out: str) -> list[str]:
    return [line for line in out.splitlines() if "resumed from checkpoint" in line]
