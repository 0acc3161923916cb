"""Kubernetes' own scheduler and some of its controllers, beside an API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench_harness.processes import free_ports
from control_plane import ApiServer, program, running


@contextlib.contextmanager
def scheduling(server: ApiServer, home: Path, *controllers: str, gates: str = "") -> Iterator[None]:
    """Both, ended with the block; ``gates``: feature gates. Skips without the programs."""
    scheduler = program("kube-scheduler", "ELASTRAIN_KUBE_SCHEDULER")
    manager = program("kube-controller-manager", "ELASTRAIN_KUBE_CONTROLLER_MANAGER")
    ports = free_ports(2)
    with contextlib.ExitStack() as stack:
        for name, argv, port in (
            ("scheduler", [scheduler], ports[0]),
            ("controllers", [manager, f"--controllers={','.join(controllers)}"], ports[1]),
        ):
            argv += [
                f"--kubeconfig={server.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1",
                f"--secure-port={port}", f"--cert-dir={home / name}", f"--feature-gates={gates}",
            ]  # fmt: skip
            stack.enter_context(running(argv, home / f"{name}.log", home))
        yield
