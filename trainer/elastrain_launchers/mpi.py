"""``mpirun`` in an elastic job, with restart semantics: ``python -m elastrain_launchers.mpi mpirun CMD...``.

The worker with rank 0 runs mpirun. The others run a *node*, which starts mpirun's processes in place of ssh: images
need neither sshd nor keys. The next generation ends and restarts all of them.

Every worker maintains the folder ``$ELASTRAIN_MPI_DIR``: ``hostfile`` (Open MPI's format) and ``discover_hosts.sh``,
which prints ``host:slots`` lines. mpirun finds the hostfile and the nodes by ``OMPI_MCA_*``.

A node accepts requests with the token of its generation. The token is a record of the job in etcd: only clients with
access to these records can start programs in the job's workers.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elastrain import listening
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.tether import tethered
from elastrain_launchers.keeper import command_of
from elastrain_launchers.restart import Restarted, World

ENV_DIRECTORY = "ELASTRAIN_MPI_DIR"
_ENV_NODES = "ELASTRAIN_MPI_NODES"
_ENV_TOKEN = "ELASTRAIN_MPI_TOKEN"  # noqa: S105 - the name of a variable
_SECONDS = 60.0
"""Seconds to wait for a node, or for its token."""
_LINE = 1 << 20


def hostfile(generation: Generation, slots: int) -> str:
    """Open MPI's hostfile, one line for each host. Pure."""
    return "".join(f"{host} slots={n}\n" for host, n in _slots(generation, slots).items())


def discovery_script(generation: Generation, slots: int) -> str:
    """A script that prints ``host:slots`` lines, for Horovod Elastic's ``--host-discovery-script``. Pure."""
    return "#!/bin/sh\ncat <<END\n" + "".join(f"{h}:{n}\n" for h, n in _slots(generation, slots).items()) + "END\n"


def _slots(generation: Generation, slots: int) -> dict[str, int]:
    hosts: dict[str, int] = {}
    for member in generation.members:
        hosts[member.address] = hosts.get(member.address, 0) + slots
    return hosts


def write_hosts(directory: Path, generation: Generation, slots: int) -> None:
    """Replace both files, each atomically."""
    for name, text in (
        ("hostfile", hostfile(generation, slots)),
        ("discover_hosts.sh", discovery_script(generation, slots)),
    ):
        partial = directory / f".{name}"
        partial.write_text(text)
        partial.chmod(0o755 if name.endswith(".sh") else 0o644)
        partial.rename(directory / name)


def start_of(
    command: Sequence[str], directory: Path, slots: int
) -> Callable[[World], tuple[list[str], dict[str, str]]]:
    """The program of a member in a world: ``command`` (mpirun) for the first, a node for the others."""

    def start(world: World) -> tuple[list[str], dict[str, str]]:
        write_hosts(directory, world.generation, slots)
        me = [sys.executable, "-m", "elastrain_launchers.mpi"]
        common = {ENV_DIRECTORY: str(directory), "ELASTRAIN_MPI_GENERATION": str(world.generation.number)}
        if world.rank != 0:
            return [*me, "--node", f"{world.place.address}:{world.place.store_port}"], common
        nodes = [(m.address, m.store_port) for m in world.generation.members[1:]]
        variables = {
            **common,
            _ENV_NODES: json.dumps(nodes),
            "OMPI_MCA_orte_default_hostfile": str(directory / "hostfile"),
            "OMPI_MCA_plm_rsh_agent": f"{shlex.join(me)} --shell",
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",  # only this worker has the nodes' addresses
        }
        return [*me, "--first", *command], variables

    return start


# ---- the token -------------------------------------------------------------------------------------------------------
def _token_key(environ: Mapping[str, str]) -> str:
    keys = JobKeys(environ.get(names.ENV_NAMESPACE) or "default", environ[names.ENV_JOB], environ[names.ENV_JOB_UID])
    return f"{keys.prefix}mpi/{int(environ['ELASTRAIN_MPI_GENERATION']):010d}"


def _publish_token(environ: Mapping[str, str]) -> str:
    token = secrets.token_hex(32)
    with EtcdClient(EtcdConfig.from_environment(environ)) as client:
        client.put(_token_key(environ), token.encode())
    return token


def _await_token(environ: Mapping[str, str]) -> str:
    end = time.monotonic() + _SECONDS
    with EtcdClient(EtcdConfig.from_environment(environ)) as client:
        while time.monotonic() < end:
            if held := client.get(_token_key(environ)):
                return held.value.decode()
            time.sleep(0.2)
    raise TimeoutError(f"the worker with rank 0 has not published its token within {_SECONDS:g} s")


# ---- a node ----------------------------------------------------------------------------------------------------------
def serve(address: str, token: str) -> int:
    """Start mpirun's processes until mpirun reports its end; returns the exit code."""
    host, _, port = address.rpartition(":")
    with listening.on(host.strip("[]"), int(port)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(_SECONDS)
                request = _read(connection)
                if not hmac.compare_digest(str(request.get("token")), token):
                    continue
                if request.get("done"):
                    return 0
                # Its output joins this node's output; orted reports its ranks over its own channels.
                shell = ["sh", "-c", str(request["command"])]
                subprocess.Popen(tethered(shell, signal.SIGTERM), stdin=subprocess.DEVNULL)
                connection.sendall(b"{}\n")


def _read(connection: socket.socket) -> dict[str, object]:
    """One JSON object; empty if the peer sent none."""
    data = b""
    while not data.endswith(b"\n") and len(data) < _LINE:
        try:
            chunk = connection.recv(65536)
        except OSError:
            return {}
        if not chunk:
            break
        data += chunk
    try:
        request = json.loads(data)
    except ValueError:
        return {}
    return request if isinstance(request, dict) else {}


def ask(host: str, port: int, **request: object) -> None:
    """Send a request to a node, and wait while it starts. Raises ``TimeoutError`` with the node's address."""
    end = time.monotonic() + _SECONDS
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.sendall(json.dumps(request).encode() + b"\n")
                _read(connection)
                return
        except OSError as error:
            if time.monotonic() >= end:
                raise TimeoutError(f"node {host}:{port} did not answer within {_SECONDS:g} s: {error}") from error
            time.sleep(0.2)


# ---- the worker with rank 0 ------------------------------------------------------------------------------------------
def run_first(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run mpirun; after its success, tell all nodes to end. Returns the exit code."""
    token = _publish_token(environ)
    # mpirun ends all its processes at SIGTERM, so two generations never overlap.
    code = subprocess.run(tethered(command, signal.SIGTERM), env={**environ, _ENV_TOKEN: token}, check=False).returncode
    if code == 0:
        for host, port in json.loads(environ[_ENV_NODES]):
            ask(host, port, token=token, done=True)
    return code if code >= 0 else 128 - code


def shell(host: str, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """mpirun's replacement for ssh: ``HOST COMMAND...``."""
    nodes: dict[str, int] = dict(json.loads(environ[_ENV_NODES]))
    if host not in nodes:
        sys.stderr.write(f"{host}: not a worker of this generation; its workers: {', '.join(nodes) or 'none'}\n")
        return 1
    ask(host, nodes[host], token=environ[_ENV_TOKEN], command=" ".join(arguments))
    return 0


def main() -> int:
    """Run the module's command line; returns the exit code."""
    arguments = sys.argv[1:]
    match arguments:
        case ["--node", address]:
            return serve(address, _await_token(os.environ))
        case ["--first", *command]:
            return run_first(command, os.environ)
        case ["--shell", host, *command]:
            return shell(host, command, os.environ)
    command = command_of(arguments, "mpi")
    slots = int(os.environ.get("ELASTRAIN_MPI_SLOTS") or "1")
    with tempfile.TemporaryDirectory(prefix="elastrain-mpi-") as directory:
        return Restarted(start_of(command, Path(directory), slots)).keep(os.environ)


if __name__ == "__main__":
    sys.exit(main())
