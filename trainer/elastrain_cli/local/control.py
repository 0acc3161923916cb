"""The control socket of a local job. Each connection carries one JSON request and one JSON answer.

The socket lies in a directory that only its user can enter. Its file name is the job's name.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastrain import threads

REQUEST_SECONDS = 5.0
MAX_BYTES = 1 << 20


class ControlError(Exception):
    """The job is unreachable or refused the request; the message is for the user."""


def control_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of the sockets: ``$XDG_RUNTIME_DIR/elastrain``, else ``~/.cache/elastrain/run``. Created with mode
    0700."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    directory = Path(runtime) / "elastrain" if runtime else Path.home() / ".cache" / "elastrain" / "run"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


def running_jobs(directory: Path) -> list[str]:
    """Names of the jobs that answer. Removes stale sockets."""
    jobs = []
    for path in sorted(directory.glob("*.sock")):
        if _answers(path):
            jobs.append(path.stem)
        else:
            path.unlink(missing_ok=True)
    return jobs


def ask(directory: Path, job: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send ``request`` to the job and return its answer. Raises :class:`ControlError`."""
    path = directory / f"{job}.sock"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(REQUEST_SECONDS)
            sock.connect(str(path))
            sock.sendall(json.dumps(request).encode() + b"\n")
            answer = sock.makefile("rb").readline(MAX_BYTES)
    except TimeoutError:
        raise ControlError(f"job {job}: no answer within {REQUEST_SECONDS:g} s; is its process stopped?") from None
    except OSError:
        others = running_jobs(directory)
        known = f"running here: {', '.join(others)}" if others else "no local job is running"
        raise ControlError(f"job {job}: not running on this machine ({known})") from None
    if not answer:
        raise ControlError(f"job {job}: ended before it answered")
    reply: dict[str, Any] = json.loads(answer)
    if "error" in reply:
        raise ControlError(str(reply["error"]))
    return reply


class ControlServer:
    """Serves one job's socket from a thread. ``handle`` returns the answer, or raises ``ValueError`` for the user."""

    def __init__(self, directory: Path, job: str, handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Raises :class:`ControlError` if a job of this name already runs, or the name is too long for a socket."""
        self.path = directory / f"{job}.sock"
        self._handle = handle
        if self.path.exists() and _answers(self.path):
            raise ControlError(
                f"metadata.name: {job}: a local job of this name already runs; see `elastrain status {job}`, "
                "or use --set name=OTHER"
            )
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(self.path))
        except OSError as error:
            raise ControlError(
                f"control socket {self.path}: {error}: set XDG_RUNTIME_DIR to a short path of a directory of your own"
            ) from None
        self._socket.listen(8)
        threads.start(self._serve, name="control")

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # shutdown wakes accept(); an unconnected socket raises
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # the socket was closed
                return
            with connection, contextlib.suppress(OSError):  # a client that disconnects loses only its own answer
                connection.settimeout(REQUEST_SECONDS)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        line = connection.makefile("rb").readline(MAX_BYTES)
        if not line:
            return  # a probe: the client only tests whether the job answers
        try:
            reply = self._handle(json.loads(line))
        except ValueError as error:
            reply = {"error": str(error)}
        connection.sendall(json.dumps(reply).encode() + b"\n")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(REQUEST_SECONDS)
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True
