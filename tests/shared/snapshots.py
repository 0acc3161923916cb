"""Backups of a played etcd, by etcd's own programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from control_plane import etcd_program
from elastrain_cli.etcd_server import EtcdServer


def save(server: EtcdServer, path: Path) -> Path:
    """`etcdctl snapshot save`."""
    _run("etcdctl", f"--endpoints={server.endpoint}", "snapshot", "save", str(path))
    return path


def restore(server: EtcdServer, path: Path, *options: str) -> None:
    """`etcdutl snapshot restore` in place of the server's data, as after its loss; the server runs again afterwards."""
    server.kill()
    shutil.rmtree(server.data_dir / "data")
    peer = server.command()[server.command().index("--initial-advertise-peer-urls") + 1]
    where = ("--data-dir", str(server.data_dir / "data"), "--name", "local", "--initial-cluster", f"local={peer}")
    _run("etcdutl", "snapshot", "restore", str(path), *where, "--initial-advertise-peer-urls", peer, *options)
    server.start()


def _run(program: str, *arguments: str) -> None:
    etcd = Path(etcd_program())
    found = etcd.with_name(etcd.name.replace("etcd", program, 1))
    subprocess.run([str(found), *arguments], check=True, capture_output=True, timeout=60)
