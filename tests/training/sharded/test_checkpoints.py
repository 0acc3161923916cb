"""Checkpoints of a sharded model: every rank writes its part, and any world loads the whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from elastrain.api.settings import CheckpointSpec, RankSettings
from elastrain_audit.judge import verify
from sharded_model import STEPS, alone, assert_same_model
from warm import Warm

EVERY = 5
IN_TWO_PROCESSES = """
import os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
path, store, rank = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = {"tracked/model/0.weight": distribute_tensor(torch.zeros(8, 6).double(), mesh, [Shard(0)])}
dcp.load(state, checkpoint_id=path)
torch.save(state["tracked/model/0.weight"].to_local(), f"{store}.{rank}")
dist.destroy_process_group()
"""


@pytest.fixture
def volume(tmp_path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def spec(volume) -> CheckpointSpec:
    return CheckpointSpec(path=str(volume), every_steps=EVERY)


def steps_in(volume: Path) -> list[int]:
    return sorted(int(path.name[5:14]) for path in volume.glob("step-*"))


def has_saved(job, volume: Path, after: int = 0) -> int:
    """Wait for a complete checkpoint of more than ``after`` steps; its step."""
    job.wait(f"a checkpoint after step {after}", lambda: max(steps_in(volume), default=0) > after)
    return steps_in(volume)[-1]


def resumed(job, *workers: str) -> list[str]:
    """What ranks say of it."""
    lines = [line for w in workers for line in job[w].out().splitlines()]
    return [line for line in lines if "resumed from checkpoint" in line]


def train_to_a_checkpoint(job, volume: Path, spec: CheckpointSpec, *workers: str) -> int:
    job.want(len(workers))
    job.start(*workers, checkpoint=spec)
    job.together(*workers)
    return has_saved(job, volume)


@pytest.mark.parametrize(
    ("workers", "shards"),
    [
        pytest.param("x", 2, id="fewer groups", marks=pytest.mark.nightly),
        pytest.param("xyz", 2, id="more groups", marks=pytest.mark.nightly),
        pytest.param("x", 3, id="three shards", marks=pytest.mark.nightly),
        pytest.param("x", 1, id="whole models", marks=pytest.mark.nightly),
    ],
)
def test_job_resumes_with_other_groups_and_shards_if_all_processes_are_killed(
    job, volume, spec, workers, shards
) -> None:
    train_to_a_checkpoint(job, volume, spec, "a", "b")
    job.kill_all()
    saved = steps_in(volume)[-1]
    job.want(len(workers))
    job.nproc = shards
    job.start(*workers, checkpoint=spec)
    ends = job.finish(*workers)
    assert_same_model(ends)
    assert f"step={saved}" in resumed(job, *workers)[0]
    assert all(end["commits"][0] > saved for parts in ends.values() for end in parts)
    verdict = verify(job.audit)
    assert verdict.ok, verdict.problems


@pytest.mark.nightly
def test_job_of_a_sharded_model_resumes_from_a_checkpoint_of_whole_models(job, volume, spec) -> None:
    job.want(2)
    job.nproc = 1
    job.start("a", "b", checkpoint=spec)
    job.together("a", "b")
    has_saved(job, volume)
    job.kill_all()
    job.nproc = 2
    job.start("x", "y", checkpoint=spec)
    assert_same_model(job.finish("x", "y"))
    assert resumed(job, "x", "y")


def assert_plain_torch_reads(path: Path, shards: list[dict], warm: Warm, tmp_path: Path) -> None:
    """Each byte is written once, by the ranks of two groups; one process reads the whole, two read their parts."""
    assert len(list(path.glob("__*.distcp"))) == 4
    expected, _ = alone(STEPS)
    dcp_to_torch_save(path, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    for name, value in expected.items():
        assert torch.allclose(whole[f"tracked/model/{name}"], value, rtol=0, atol=1e-10), name
    of_moments = 2 * sum(p.nbytes for p in expected.values())
    assert sum(v.nbytes for k, v in whole.items() if "exp_avg" in k) == of_moments
    store = tmp_path / "store"
    script, out = tmp_path / "read.py", tmp_path / "read.out"
    script.write_text(IN_TWO_PROCESSES)
    commands = [[sys.executable, str(script), str(path), str(store), str(rank)] for rank in range(2)]
    ranks = [warm.start(command, os.environ, out.open("ab")) for command in commands]
    assert [rank.wait(60) for rank in ranks] == [0, 0], out.read_text()
    read = torch.cat([torch.load(f"{store}.{rank}") for rank in range(2)])
    assert torch.equal(read, torch.cat([end["state"]["0.weight"] for end in shards]))


def test_training_goes_on_from_the_checkpoint_if_a_shard_has_no_holder_left(job, volume, spec) -> None:
    train_to_a_checkpoint(job, volume, spec, "a")
    first = job.generation().number
    job.kill("a", 1)
    job.wait("a state to be loaded", lambda: resumed(job, "a"))
    job.together("a", after=first)
    ends = job.finish("a")
    assert_same_model(ends)
    assert ends["a"][0]["commits"][0] > EVERY
    verdict = verify(job.audit)
    assert verdict.ok, verdict.problems


@pytest.mark.parametrize("what", ["die-in-save", pytest.param("die-before-commit", marks=pytest.mark.nightly)])
def test_a_checkpoint_of_which_a_writer_died_is_never_taken_and_the_next_one_is_complete(
    job, warm, volume, spec, tmp_path, what
) -> None:
    before = train_to_a_checkpoint(job, volume, spec, "a", "b")
    first = job.generation()
    leader = first.members[0].worker
    (other,) = {"a", "b"} - {leader}
    victim = (leader, 0) if what == "die-before-commit" else (other, 1)
    job.order(what, victim)
    job.together("a", "b", after=first.number)
    saved = has_saved(job, volume, job.last_step())
    assert saved > before
    job.wait("the partial one to be swept", lambda: not list(volume.glob(".step-*")))
    job.kill_all()
    job.start("x", "y", checkpoint=spec)
    ends = job.finish("x", "y")
    assert_same_model(ends)
    assert resumed(job, "x", "y")
    assert_plain_torch_reads(volume / f"step-{STEPS:09d}", ends["x"], warm, tmp_path)


@pytest.mark.nightly
def test_status_tells_of_a_full_disk_on_any_rank_and_the_next_save_is_complete(job, volume, spec) -> None:
    train_to_a_checkpoint(job, volume, spec, "a", "b")
    leader = job.generation().members[0].worker
    (other,) = {"a", "b"} - {leader}
    job.order("disk-full", (other, 1))

    def error() -> str:
        progress = job.progress()
        return progress.checkpoint.error if progress and progress.checkpoint else ""

    job.wait("the error to be reported", lambda: "No space left on device" in error())
    has_saved(job, volume, job.last_step())
    job.wait("the error to be over", lambda: not error())
    assert_same_model(job.finish("a", "b"))


# -- one copy of the model over all ranks ------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", ["xyz", *(pytest.param(w, marks=pytest.mark.nightly) for w in ("x", "xy"))])
def test_job_of_one_copy_resumes_with_any_number_of_ranks_and_plain_torch_reads_its_checkpoint(
    one_copy, volume, spec, tmp_path, workers
) -> None:
    job = one_copy
    train_to_a_checkpoint(job, volume, spec, "a", "b")
    job.kill_all()
    saved = steps_in(volume)[-1]
    path = volume / f"step-{saved:09d}"
    assert len(list(path.glob("__*.distcp"))) == 2
    dcp_to_torch_save(path, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    for name, value in alone(saved)[0].items():
        assert torch.allclose(whole[f"tracked/model/{name}"], value, rtol=0, atol=1e-10), name
    job.want(len(workers))
    job.start(*workers, checkpoint=spec)
    ends = job.parts(*workers)
    assert_same_model({"all": ends})
    assert all(end["commits"][0] == saved + 1 for end in ends)
    assert job.redone() <= EVERY


@pytest.mark.nightly
def test_a_job_of_whole_models_resumes_from_a_checkpoint_of_one_copy(one_copy, volume, spec) -> None:
    job = one_copy
    train_to_a_checkpoint(job, volume, spec, "a", "b", "c")
    job.kill_all()
    job.want(1)
    job.settings = lambda: RankSettings(shards=1)
    job.start("x", checkpoint=spec)
    assert_same_model(job.finish("x"))
    assert resumed(job, "x")


@pytest.mark.nightly
def test_training_goes_on_from_the_checkpoint_if_two_neighbours_are_lost_at_once(one_copy, volume, spec) -> None:
    job = one_copy
    saved = train_to_a_checkpoint(job, volume, spec, "a", "b", "c")
    first = job.generation().number
    job.order("die-in-backward", ("b", 0), ("c", 0))
    job.together("a", "b", "c", after=first + 1)
    ends = job.parts("a", "b", "c")
    assert_same_model({"all": ends})
    assert min(end["commits"][0] for end in ends) > saved
    assert job.redone() <= EVERY + job.max_redone_steps
