"""The resources of a local job: its directories, its etcd, and the start of its workers."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from elastrain.agent.logs import ENV_AGENT_LOG
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdConfig
from elastrain_cli.etcd_server import EtcdServer
from elastrain_cli.local.spec import LocalSpec, worker_environment
from elastrain_cli.local.worker import LocalWorker

log = structlog.get_logger()

ETCD_STARTS = 5
"""Number of starts of etcd in one run; ports and data stay the same."""


class Site:
    """One run of a job. At most one thread at a time may call its methods."""

    def __init__(
        self,
        spec: LocalSpec,
        keys: JobKeys,
        *,
        etcd: str | Path | None,
        lease_ttl: int,
        on_line: Callable[[str, str], None] | None,
        start: Callable[..., Any] | None = None,
    ) -> None:
        """``start``: of agents, as ``subprocess.Popen``.

        ``etcd``: the binary, if it is not on PATH. ``on_line(worker, line)`` gets the workers' output, from threads
        of the workers. Raises ``EtcdNotFound``."""
        self._spec = spec
        self._keys = keys
        self._etcd = EtcdServer(etcd)
        self._etcd_starts = 0
        self._lease_ttl = lease_ttl
        self._on_line = on_line
        self._start = start

    @property
    def logs_dir(self) -> Path:
        """The workers' output, ``<worker>.log``, and the agents' logs, ``<worker>.agent.log``."""
        return self._spec.state_dir / "logs"

    @property
    def audit_dir(self) -> Path:
        """The audit log of this run: the samples that each rank consumed."""
        return self._spec.state_dir / "audit" / self._keys.uid

    @property
    def _terminations(self) -> Path:
        return self._spec.state_dir / "terminations" / self._keys.uid

    @property
    def etcd(self) -> EtcdConfig:
        """The connection to etcd, valid after its first start."""
        return EtcdConfig.of(self._etcd.endpoint)

    def prepare(self) -> None:
        """Create the directories and start etcd. Raises ``OSError``, and ``RuntimeError`` if etcd cannot be started."""
        for directory in (self.logs_dir, self.audit_dir, self._terminations):
            directory.mkdir(parents=True, exist_ok=True)
        if self._spec.state_dir.parent.name == ".elastrain":
            (self._spec.state_dir.parent / ".gitignore").write_text("*\n")
        self.keep_etcd()

    def keep_etcd(self) -> None:
        """Restart etcd if it has ended. Raises ``RuntimeError`` if it cannot be started or has ended too often."""
        if self._etcd.pid is not None:
            return
        self._etcd_starts += 1
        if self._etcd_starts > ETCD_STARTS:
            raise RuntimeError(f"etcd ended {ETCD_STARTS} times; see {self._etcd.log_path}")
        if self._etcd_starts > 1:
            log.warning("etcd has ended; restarting it", log=str(self._etcd.log_path))
        self._etcd.start()

    def start_worker(self, ordinal: int, on_end: Callable[[], None]) -> LocalWorker:
        """Start a worker. ``on_end``: see :class:`LocalWorker`. Raises ``OSError``."""
        name = f"{self._spec.name}-{ordinal}"
        termination_log = self._terminations / f"{name}.json"
        own = {
            **self.etcd.to_environment(),
            names.ENV_NAMESPACE: self._spec.namespace,
            names.ENV_JOB: self._spec.name,
            names.ENV_JOB_UID: self._keys.uid,
            names.ENV_WORKER: name,
            names.ENV_NODE: socket.gethostname(),
            names.ENV_ADDRESS: self._etcd.address,
            names.ENV_NPROC: str(self._spec.nproc),
            names.ENV_LEASE_TTL: str(self._lease_ttl),
            **self._spec.ranks.model_copy(update={"audit_dir": str(self.audit_dir)}).to_environment(),
            names.ENV_TERMINATION_LOG: str(termination_log),
            ENV_AGENT_LOG: str(self.logs_dir / f"{name}.agent.log"),
        }
        return LocalWorker(
            name,
            ordinal,
            self._spec.command,
            environment=worker_environment(self._spec, os.environ, own),
            directory=self._spec.directory,
            termination_log=termination_log,
            on_line=self._line,
            on_end=on_end,
            start=self._start,
        )

    def tail(self, worker: LocalWorker, lines: int) -> str:
        """The last lines of an ended worker's output."""
        if worker.ended is None:
            return ""
        path = self._log_of(worker.name)
        text = path.read_text(encoding="utf-8") if path.exists() else worker.ended.log_tail
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """End etcd, and release the memory of workers that were killed."""
        self._etcd.close()
        shutil.rmtree(names.node_memory(self._keys.uid), ignore_errors=True)

    def _log_of(self, worker: str) -> Path:
        return self.logs_dir / f"{worker}.log"

    def _line(self, worker: str, line: str) -> None:
        with self._log_of(worker).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if self._on_line is not None:
            self._on_line(worker, line)
