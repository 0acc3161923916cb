"""Horovod's elastic driver over the nodes of a job: ``launcher MEMBER SLOTS``, started by that member's node.

The node writes the members of each generation to stdin. They are Horovod's hosts, by member id: a worker that starts
again is another host, so Horovod's list of bad hosts never names its replacement.

Horovod's own rendezvous server has no authentication. Here it answers only the addresses of the job's workers.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from typing import Any

import structlog
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from elastrain.etcd import EtcdClient
from elastrain.etcd.errors import EtcdUnavailable
from elastrain_launchers.horovod.channel import token_key
from elastrain_launchers.horovod.members import Members
from elastrain_launchers.horovod.nodes import Nodes

log = structlog.get_logger(__name__)

COOLDOWN = (1, 60)
"""Horovod's range, in seconds: a failed process starts again after 2 to 3 s; the pause doubles with each failure."""
SLOTS_SECONDS = 600
"""Horovod's bound of the wait for a host that is not in such a pause."""
ETCD_SECONDS = 60.0
"""Patience with an etcd that is away when the launcher starts."""


def read_members(members: Members) -> None:
    """Follow stdin; ends the process with it."""
    for line in sys.stdin:
        members.replace({member: (address, port) for member, (address, port) in json.loads(line).items()})
    os._exit(1)  # the node is gone


@retry(
    retry=retry_if_exception_type(EtcdUnavailable),
    stop=stop_after_delay(ETCD_SECONDS),
    wait=wait_fixed(1),
    reraise=True,
)
def publish_token(me: str) -> str:
    """A new token, which makes this the launcher that other nodes obey."""
    token = secrets.token_hex(32)
    with EtcdClient.from_environment(os.environ) as client:
        client.put(token_key(os.environ, me), token.encode())
    return token


def launch(me: str, slots: int) -> int:
    """Run Horovod's driver; returns 0 if training is complete, else the exit code of a process that failed."""
    members = Members(slots)
    threading.Thread(target=read_members, args=(members,), daemon=True).start()
    count = members.await_first()
    nodes = Nodes(me, members, publish_token(me))
    rendezvous = RendezvousServer()
    driver = ElasticDriver(
        rendezvous, members, 1, None, timeout=SLOTS_SECONDS, reset_limit=None, cooldown_range=COOLDOWN
    )

    class Handler(create_rendezvous_handler(driver)):  # type: ignore[misc]
        def handle(self) -> None:
            if members.admits(self.client_address[0]):
                super().handle()
            else:
                log.warning("refused: not the address of a worker", address=self.client_address[0])

    own = members.place(me)
    assert own is not None  # the first member of its generation
    variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": own[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous.start(Handler)),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_ELASTIC": "1",
    }
    members.driver = driver

    def run(slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        return nodes.run(slot.hostname, slot.local_rank, {**variables, **create_slot_env_vars(slot)}, events)

    driver.start(count * slots, run)
    results = driver.get_results()
    driver.stop()
    codes = [code for code, _ in results.worker_results.values()]
    if not codes or any(codes):
        log.error("Horovod's driver gave up", why=results.error_message or f"exit codes {codes}")
        # As a shell has it; the node restarts what a signal has ended.
        return next((code if code > 0 else 128 - code for code in codes if code), 1)
    nodes.report_done()
    return 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1], int(sys.argv[2])))
