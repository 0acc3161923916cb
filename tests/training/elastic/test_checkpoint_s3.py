"""Checkpoints in S3, on a real server (``scripts/get-s3``): killed uploads, damaged objects, a server that is down."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conditions import eventually
from elastrain.api.job import CheckpointSpec
from elastrain.elastic.checkpoint import CheckpointKeeper, levels_of, tier_at

SERVER = Path(os.environ.get("ELASTRAIN_CACHE", Path.home() / ".cache/elastrain")) / "bin/versitygw"
pytest.importorskip("obstore", reason="obstore is not installed: pip install 'elastrain[objects]'")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not SERVER.exists(), reason="no S3 server: scripts/get-s3 builds it"),
]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "of-the-test", "AWS_REGION": "us-east-1"}
UPLOAD = """
import sys, torch
from elastrain.elastic.checkpoint import tier_at
tier = tier_at(sys.argv[1], 2)
tier.save({"w": torch.zeros(60_000_000)}, step=7, generation=1, lineage=tier.lineage)
"""


class Server:
    """An S3 server over a directory with one bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bucket").mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def start(self) -> None:
        own = {"ROOT_ACCESS_KEY": "test", "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
        command = [str(SERVER), "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder)]
        self.process = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.DEVNULL)
        eventually(self.answers, what="the S3 server answers", within=30)

    def answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def parts(self) -> list[Path]:
        """Parts of uploads that are not complete."""
        return [p for p in (self.folder / "bucket/.sgwtmp/multipart").rglob("*") if p.is_file()]


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[Server]:
    server = Server(tmp_path / "s3")
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}"}.items():
        monkeypatch.setenv(name, value)
    server.start()
    yield server
    server.stop()


def tree(step: int) -> dict[str, Any]:
    return {"w": torch.arange(3_000_000.0) + step}


def start(**spec: Any) -> tuple[CheckpointKeeper, list[Any]]:
    keeper, loaded = CheckpointKeeper(levels_of(CheckpointSpec(every_steps=1, **spec))), []
    keeper.resume(loaded.append, saved_step=0, reached=0, torn=False)
    return keeper, loaded


def test_job_resumes_from_s3_after_all_processes_are_gone_and_plain_torch_reads_it(server) -> None:
    keeper, loaded = start(path="s3://bucket/job")
    assert not loaded
    keeper.after_step(5, 1, lambda: tree(5))
    keeper.finish(60)
    assert keeper.result.error == ""
    again, loaded = start(path="s3://bucket/job")
    assert torch.equal(loaded[0]["w"], tree(5)["w"])
    assert (again.result.resumed.tier, again.result.resumed.step) == ("object store", 5)


def test_nothing_of_an_upload_that_was_killed_is_taken_and_the_next_save_is_complete(server) -> None:
    tier = tier_at("s3://bucket/job", 2)
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
    keeper, _ = start(path="s3://bucket/job")
    for step in (5, 8):
        keeper.after_step(step, 1, lambda step=step: tree(step))
        keeper.finish(60)
    (damaged,) = (server.folder / "bucket/job").glob("step-000000008*/*.distcp")
    content = bytearray(damaged.read_bytes())
    content[5000] ^= 1
    damaged.write_bytes(content)
    keeper, loaded = start(path="s3://bucket/job")
    assert torch.equal(loaded[0]["w"], tree(5)["w"])
    assert keeper.result.path.startswith("s3://bucket/job/step-000000005.")


def test_training_goes_on_and_says_so_while_the_server_is_down(server) -> None:
    keeper, _ = start(path="s3://bucket/job")
    server.stop()
    keeper.after_step(5, 1, lambda: tree(5))
    keeper.finish(90)
    assert keeper.result.error.startswith("saving step 5 to s3://bucket/job")
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in keeper.result.error
    server.start()
    keeper.after_step(6, 1, lambda: tree(6))
    keeper.finish(60)
    assert (keeper.result.step, keeper.result.error) == (6, "")


def test_job_resumes_from_s3_if_its_volume_is_lost(server, tmp_path) -> None:
    spec = {"path": str(tmp_path / "volume"), "archive": {"path": "s3://bucket/job"}}
    keeper, _ = start(**spec)
    keeper.after_step(5, 1, lambda: tree(5))
    keeper.finish(60)
    assert keeper.result.archived_step == 5
    (tmp_path / "volume").rename(tmp_path / "lost")
    keeper, loaded = start(**spec)
    assert torch.equal(loaded[0]["w"], tree(5)["w"])
    assert keeper.result.resumed.tier == "object store"
