"""From a worker's environment to its part in the measurements."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from types import FrameType

from elastrain.agent.settings import BadSettings, Settings
from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient
from elastrain_pairs.records import Participant
from elastrain_pairs.rounds import Check, Verdict, by_process


def measured(environ: Mapping[str, str], backend: str, wait: float) -> Verdict:
    """Take part for the worker that ``environ`` (the agent's variables) describes, over ``backend``.

    SIGTERM ends the process; the first process of a container would otherwise ignore it.
    """
    try:
        settings = Settings.from_environment(environ)
        client = EtcdClient.from_environment(environ)
    except (BadSettings, ValueError) as error:
        return Verdict(unknown=str(error))
    signal.signal(signal.SIGTERM, _end)
    with client, closing(reserved(settings.address)) as port:
        me = Participant(
            id=f"{settings.worker}.{secrets.token_hex(4)}",
            worker=settings.worker,
            node=settings.node,
            address=settings.address,
            port=port.getsockname()[1],
        )
        keys = JobKeys(settings.namespace, settings.job, settings.job_uid)
        return Check(client, keys, me, wait, by_process(backend)).run()


def reserved(address: str) -> socket.socket:
    """A bound socket on a free port of ``address`` that does not listen: it reserves the port, at which a trial can
    listen."""
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    port = socket.socket(family, socket.SOCK_STREAM)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("", 0))
    return port


def _end(signum: int, _: FrameType | None) -> None:
    sys.exit(128 + signum)
