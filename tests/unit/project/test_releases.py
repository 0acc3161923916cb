"""Released programs are taken by a pinned digest, or not at all."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import platform
import re
import socket
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def _load() -> object:
    spec = importlib.util.spec_from_file_location("fetch_release", ROOT / "scripts/fetch_release.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fetch_release = _load()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "etcd.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in ("etcd", "README"):
            entry = tarfile.TarInfo(f"etcd-v9/{name}")
            entry.size = 4
            tar.addfile(entry, io.BytesIO(b"word"))
    return path


def release(tmp_path: Path, digest: str, address: str) -> Path:
    """A table with one release for this machine."""
    processor = fetch_release.PROCESSORS.get(platform.machine(), platform.machine())
    table = tmp_path / "releases.tsv"
    table.write_text(f"# a comment\netcd-9\t{processor}\t{digest}\t{address}\tetcd\n")
    return table


def test_the_named_files_are_unpacked_if_the_digest_is_the_pinned_one(tmp_path: Path, archive: Path) -> None:
    digest = "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
    table = release(tmp_path, digest, archive.as_uri())
    assert fetch_release.main("etcd-9", tmp_path / "bin", table) == 0
    assert [p.name for p in (tmp_path / "bin").iterdir()] == ["etcd"]
    assert (tmp_path / "bin/etcd").stat().st_mode & 0o111


def test_nothing_is_kept_if_the_digest_is_another(
    tmp_path: Path, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = release(tmp_path, "sha512:" + "0" * 128, archive.as_uri())
    assert fetch_release.main("etcd-9", tmp_path / "bin", table) == 3
    assert not list((tmp_path / "bin").iterdir())
    assert "not the pinned sha512:000" in capsys.readouterr().err


@pytest.fixture
def silent() -> Iterator[str]:
    """An address whose server accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/etcd.tar.gz"


def test_the_next_way_is_taken_soon_if_the_server_does_not_answer(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch_release, "ANSWER_SECONDS", 0.2)
    began = time.monotonic()
    assert fetch_release.main("etcd-9", tmp_path / "bin", release(tmp_path, "sha256:0", silent)) == 3
    assert time.monotonic() - began < 2
    assert capsys.readouterr().err.count("\n") == 1, "one line"


def test_the_next_way_is_taken_if_no_release_is_pinned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_release.main("etcd-8", tmp_path / "bin") == 3
    assert "no release of etcd-8 is pinned" in capsys.readouterr().err


def test_pinned_releases_are_of_the_versions_that_are_built() -> None:
    modules = (ROOT / "scripts/etcd/go.mod").read_text() + (ROOT / "e2e/cluster/programs/go.mod").read_text()
    built = {
        f"{name}-{found[1]}"
        for name, module, v in (
            ("etcd", "go.etcd.io/etcd/server/v3", "v"), ("kubernetes", "k8s.io/kubernetes", ""),
            ("helm", "helm.sh/helm/v3", ""),
        )
        if (found := re.search(rf"\s{re.escape(module)} {v}(\S+)", modules))
    }  # fmt: skip
    rows = [line.split("\t") for line in fetch_release.RELEASES.read_text().splitlines() if not line.startswith("#")]
    assert {(row[0], row[1]) for row in rows} == {(name, cpu) for name in built for cpu in ("amd64", "arm64")}
    assert all(len(row) == 5 and row[0].partition("-")[2] in row[3] and row[1] in row[3] for row in rows)
