"""The number of ranks of ``nprocPerNode: auto`` on this machine."""

from __future__ import annotations

import pytest

from elastrain.api.shape import Shape
from elastrain_cli.local import spec as local
from elastrain_cli.local.devices import cuda_devices
from elastrain_resource.manifest import load

TWO = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")


@pytest.mark.parametrize(
    ("visible", "there", "devices"),
    [(None, TWO, 2), (None, (), 0), ("", TWO, 0), ("1", TWO, 1), ("0,1", TWO, 2), ("0,-1,1", TWO, 1), ("0,7", TWO, 1),
     ("GPU-8f2a,GPU-11", TWO, 2), ("0,1", (), 0)],
)  # fmt: skip
def test_devices_are_those_that_cuda_would_show(visible, there, devices):
    assert cuda_devices({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, there) == devices


@pytest.mark.parametrize(("devices", "ranks"), [(0, 1), (4, 4)])
def test_auto_is_one_rank_for_each_device_and_one_without(manifest, tmp_path, monkeypatch, devices, ranks):
    monkeypatch.setattr(local, "cuda_devices", lambda _: devices)
    assert local.local_spec(load(manifest(nprocPerNode="auto")), tmp_path).nproc == ranks


def test_a_group_of_several_workers_is_one_worker_with_all_their_ranks(manifest, tmp_path):
    found = local.local_spec(load(manifest(nprocPerNode=2, parallelism={"shards": 6})), tmp_path)
    assert (found.nproc, found.ranks.shape, found.desired) == (6, Shape.of(6), load(manifest()).spec.desired_replicas)
