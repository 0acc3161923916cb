"""Checkpoints in object stores, on servers of each kind: killed uploads, damaged objects, a server that is down."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conditions import eventually
from elastrain.api.job import CheckpointSpec
from elastrain.elastic.checkpoint import CheckpointKeeper, levels_of, tier_at
from elastrain.elastic.checkpoint.objects import ObjectStore
from object_servers import S3, SECRET, Azure, ObjectServer

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'elastrain[objects]'")
pytestmark = pytest.mark.nightly
UPLOAD = """
import sys, torch
from elastrain.elastic.checkpoint import tier_at
tier = tier_at(sys.argv[1], 2)
tier.save({"w": torch.zeros(60_000_000)}, step=7, generation=1, lineage=tier.lineage)
"""


@pytest.fixture(params=[S3, Azure], ids=["S3", "Azure"])
def server(request, tmp_path, monkeypatch) -> Iterator[ObjectServer]:
    request.param.require()
    server = request.param(tmp_path / "store")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.start()
    server.make_bucket()
    yield server
    server.stop()


def tree(step: int) -> dict[str, Any]:
    return {"w": torch.arange(3_000_000.0) + step}


def start(**spec: Any) -> tuple[CheckpointKeeper, list[Any]]:
    keeper, loaded = CheckpointKeeper(levels_of(CheckpointSpec(every_steps=1, **spec))), []
    keeper.resume(loaded.append, saved_step=0, reached=0, partial_state="")
    return keeper, loaded


def test_job_resumes_after_all_processes_are_gone(server) -> None:
    keeper, loaded = start(path=server.url)
    assert not loaded
    keeper.after_step(5, 1, lambda: tree(5))
    keeper.finish(60)
    assert keeper.result.error == ""
    again, loaded = start(path=server.url)
    assert torch.equal(loaded[0]["w"], tree(5)["w"])
    assert (again.result.resumed.tier, again.result.resumed.step) == ("object store", 5)


@pytest.mark.parametrize("server", [S3], ids=["S3"], indirect=True)
def test_nothing_of_an_upload_that_was_killed_is_taken_and_the_next_save_is_complete(server) -> None:
    tier = tier_at(server.url, 2)
    lineage = tier.begin_lineage(None)
    tier.save(tree(5), step=5, generation=1, lineage=lineage)
    writer = subprocess.Popen([sys.executable, "-c", UPLOAD, tier.where])
    eventually(lambda: server.parts() or writer.poll() is not None, what="an upload is under way", within=90)
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(10) == -signal.SIGKILL
    assert [c.step for c in tier.complete()] == [5]
    tier.save(tree(8), step=8, generation=1, lineage=lineage)
    assert [c.step for c in tier.complete()] == [8, 5]
    assert tier._store.listing().partial == []
    assert torch.equal(tier.load(tier.complete()[0])["w"], tree(8)["w"])


def test_the_checkpoint_before_is_taken_if_an_object_has_changed(server) -> None:
    keeper, _ = start(path=server.url)
    for step in (5, 8):
        keeper.after_step(step, 1, lambda step=step: tree(step))
        keeper.finish(60)
    store = ObjectStore(server.url)
    (newest,) = (name for name in store.listing().complete if name.startswith("step-000000008"))
    (file,) = (file for file in store.files(newest) if file.endswith(".distcp"))
    content = bytearray(store.read(f"{newest}/{file}"))
    content[5000] ^= 1
    store.replace(f"{newest}/{file}", bytes(content))
    keeper, loaded = start(path=server.url)
    assert torch.equal(loaded[0]["w"], tree(5)["w"])
    assert keeper.result.path.startswith(f"{server.url}/step-000000005.")


def test_training_goes_on_and_says_so_while_the_server_is_down(server) -> None:
    keeper, _ = start(path=server.url)
    server.stop()
    keeper.after_step(5, 1, lambda: tree(5))
    keeper.finish(90)
    assert keeper.result.error.startswith(f"saving step 5 to {server.url}")
    assert SECRET not in keeper.result.error
    server.start()
    keeper.after_step(6, 1, lambda: tree(6))
    keeper.finish(60)
    assert (keeper.result.step, keeper.result.error) == (6, "")


def test_job_resumes_from_the_store_if_its_volume_is_lost(server, tmp_path) -> None:
    spec = {"path": str(tmp_path / "volume"), "archive": {"path": server.url}}
    keeper, _ = start(**spec)
    keeper.after_step(5, 1, lambda: tree(5))
    keeper.finish(60)
    assert keeper.result.archived_step == 5
    (tmp_path / "volume").rename(tmp_path / "lost")
    keeper, loaded = start(**spec)
    assert torch.equal(loaded[0]["w"], tree(5)["w"])
    assert keeper.result.resumed.tier == "object store"
