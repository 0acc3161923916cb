"""Kubernetes' own scheduler and some of its controllers, beside an API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from control_plane import ApiServer, program, running


@contextlib.contextmanager
def controllers(server: ApiServer, home: Path, *names: str, more: tuple[str, ...] = ()) -> Iterator[None]:
    """The named controllers, ended with the block; ``more``: flags. Skips without the program."""
    manager = program("kube-controller-manager", "ELASTRAIN_KUBE_CONTROLLER_MANAGER")
    argv = [manager, f"--kubeconfig={server.kubeconfig}", f"--controllers={','.join(names)}", *more]
    with running([*argv, "--leader-elect=false", "--secure-port=0"], home / "controllers.log", home):
        yield


@contextlib.contextmanager
def scheduling(server: ApiServer, home: Path, *names: str, gates: str = "") -> Iterator[None]:
    """The scheduler and the named controllers, ended with the block; ``gates``: feature gates. Skips without the
    programs."""
    flags = (f"--feature-gates={gates}",)
    argv = [program("kube-scheduler", "ELASTRAIN_KUBE_SCHEDULER"), f"--kubeconfig={server.kubeconfig}", *flags]
    with (
        running([*argv, "--leader-elect=false", "--secure-port=0"], home / "scheduler.log", home),
        controllers(server, home, *names, more=flags),
    ):
        yield
