"""A real etcd for local mode and tests: found, started on loopback, stopped by its pid."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from elastrain import listening
from elastrain.tether import tethered

ENV_ETCD_BINARY = "ELASTRAIN_ETCD"
ENV_CACHE = "ELASTRAIN_CACHE"
MINIMUM_VERSION = (3, 4)
"""The first release whose watches answer progress requests."""
PORT_CHOICES = 3
"""Attempts to choose ports for a new server."""


class EtcdNotFound(Exception):
    """No usable etcd binary; the message names the searched places and how to get one."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$ELASTRAIN_CACHE``, else ``~/.cache/elastrain``; it need not exist."""
    return Path(environ.get(ENV_CACHE) or Path.home() / ".cache" / "elastrain")


def find_etcd(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The etcd binary: ``path``, else ``$ELASTRAIN_ETCD``, else from PATH, else the newest in the cache.

    Raises ``EtcdNotFound`` if there is none, or if the named one is not etcd 3.4 or newer.
    """
    cache = cache_folder(environ) / "bin"
    help_text = (
        "Install one (Debian and Ubuntu: apt install etcd-server; else a release of etcd-io/etcd), or name one in "
        f"${ENV_ETCD_BINARY}; a checkout of elastrain has scripts/get-etcd --local."
    )
    named = path or environ.get(ENV_ETCD_BINARY)
    if named:
        _check(Path(named), help_text)
        return Path(named)
    found = shutil.which("etcd", path=environ.get("PATH"))
    for candidate in [*([Path(found)] if found else []), *sorted(cache.glob("etcd-*"), reverse=True)]:
        try:
            _check(candidate, help_text)
        except EtcdNotFound:
            continue  # an old etcd on PATH does not hide a newer one in the cache
        return candidate
    raise EtcdNotFound(f"no etcd {_dotted(MINIMUM_VERSION)} or newer on PATH or in {cache}. {help_text}")


def _check(binary: Path, help_text: str) -> None:
    if not binary.is_file() or not os.access(binary, os.X_OK):
        raise EtcdNotFound(f"etcd: {str(binary)!r} is not an executable file. {help_text}")
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=False)
    match = re.search(r"etcd Version: (\d+)\.(\d+)", answer.stdout)
    if match is None:
        raise EtcdNotFound(f"etcd: {str(binary)!r} reports no version; is it etcd? {help_text}")
    version = (int(match[1]), int(match[2]))
    if version < MINIMUM_VERSION:
        raise EtcdNotFound(
            f"etcd: {str(binary)!r} is version {_dotted(version)}; it must be {_dotted(MINIMUM_VERSION)} or newer. "
            f"{help_text}"
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


class EtcdServer:
    """One etcd member on free loopback ports; a context manager.

    Ports and data survive :meth:`stop` and :meth:`kill`; a later :meth:`start` restarts the same server.
    """

    def __init__(self, binary: str | Path | None = None, data_dir: Path | None = None) -> None:
        """``data_dir``: owned by the caller; None: a temporary directory, removed by :meth:`close`."""
        self.binary = find_etcd(binary)
        self._own_dir = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="elastrain-etcd-"))
        self.address = listening.loopback()
        self.client_port, self._peer_port = _free_ports(self.address, 2)
        self._process: subprocess.Popen[bytes] | None = None
        self._served = False

    @property
    def endpoint(self) -> str:
        return f"{listening.bracketed(self.address)}:{self.client_port}"

    @property
    def pid(self) -> int | None:
        """None while etcd does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log_path(self) -> Path:
        return self.data_dir / "etcd.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, timeout: float = 20.0) -> None:
        """Start etcd and wait until it serves. It ends with the calling thread, for any cause of that end.

        ``timeout``: seconds. Raises ``RuntimeError`` with the last lines of its log if it does not serve in time.
        """
        if self.pid is not None:
            return
        for left in reversed(range(PORT_CHOICES)):
            try:
                self._launch(timeout)
            except RuntimeError as error:
                # Another process took a port after its choice. Once etcd has served, clients hold the ports.
                if self._served or not left or "address already in use" not in str(error):
                    raise
                self.log_path.unlink()
                self.client_port, self._peer_port = _free_ports(self.address, 2)
            else:
                self._served = True
                return

    def _launch(self, timeout: float) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self.log_path.open("ab") as log:
            # Its own session: Ctrl-C in a terminal addresses the job, which needs etcd to drain.
            self._process = subprocess.Popen(
                tethered(self.command(), signal.SIGKILL),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._await_healthy(timeout)

    def command(self) -> list[str]:
        """The command line."""
        client, peer = f"http://{self.endpoint}", f"http://{listening.bracketed(self.address)}:{self._peer_port}"
        return [
            str(self.binary),
            *("--name", "local", "--data-dir", str(self.data_dir / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"local={peer}"),
            *("--log-level", "warn"),
            # Its data serves processes that end with this machine, so it need not survive a power loss.
            "--unsafe-no-fsync",
        ]

    @property
    def health_url(self) -> str:
        """The URL answers ``{"health": "true"}`` once etcd serves."""
        return f"http://{self.endpoint}/health"

    def _await_healthy(self, timeout: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"etcd ended with code {self._process.returncode}:\n{self._log_tail()}")
            try:
                with opener.open(self.health_url, timeout=1.0) as answer:
                    if b'"true"' in answer.read():
                        return
            except (urllib.error.URLError, OSError):
                pass  # not listening yet
            time.sleep(0.05)
        raise RuntimeError(f"etcd was not healthy within {timeout:g} s:\n{self._log_tail()}")

    def stop(self, timeout: float = 10.0) -> None:
        """Send SIGTERM; SIGKILL after ``timeout`` seconds."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """``kill -9``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open without answers. Returns once the process has stopped."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop etcd and remove the files of this object."""
        self.resume()
        self.stop()
        if self._own_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:]


def _free_ports(address: str, count: int) -> list[int]:
    with contextlib.ExitStack() as held:  # together, so that they differ
        return [int(held.enter_context(listening.on(address)).getsockname()[1]) for _ in range(count)]
