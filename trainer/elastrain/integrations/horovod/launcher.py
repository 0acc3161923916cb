"""Horovod's elastic driver over the nodes of a job: ``launcher.py MEMBER SLOTS``, started by that member's node.

The node writes the members of each generation to stdin. They are Horovod's hosts, by member id: a worker that starts
again is another host, so Horovod's list of bad hosts never names its replacement.

A world forms only of members of the newest generation. If a node's connection breaks, the driver learns of the loss
when the next generation has no such member, not before: a launcher that is cut off from the job cannot train on alone.

Horovod's own rendezvous server has no authentication. Here it answers only the addresses of the job's workers.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from elastrain.etcd import EtcdClient
from elastrain.etcd.errors import EtcdUnavailable
from elastrain.integrations.horovod.channel import ANSWER_SECONDS, Channel, Request, ask, token_key

log = structlog.get_logger(__name__)

COOLDOWN = (1, 60)
"""Horovod's range, in seconds: a failed process starts again after 2 to 3 s; the pause doubles with each failure."""
SLOTS_SECONDS = 600
"""Horovod's bound of the wait for a host that is not in such a pause."""
ANNOUNCE_SECONDS = 5.0
"""Time after which a change that the running processes have not followed is announced to them again."""
AGAIN_SECONDS = 0.2
ETCD_SECONDS = 60.0


class Members(HostDiscovery):  # type: ignore[misc] # Horovod has no annotations
    """Horovod's discovery: the members of the newest generation.

    Horovod announces a change once, and drops the announcement if the process with rank 0 starts or resets at that
    time: a second joiner would be forgotten while the first one starts. Changes that were not followed are therefore
    withdrawn for one poll, and announced again.
    """

    def __init__(self, slots: int) -> None:
        self.driver: ElasticDriver | None = None
        self._slots = slots
        self._lock = threading.Condition()
        self._places: dict[str, tuple[str, int]] = {}
        self._active: dict[str, tuple[str, int]] = {}
        self._announced_at = 0.0
        self._answer: frozenset[str] = frozenset()

    def replace(self, places: Mapping[str, tuple[str, int]]) -> None:
        """The newest generation: address and port of each member's node."""
        with self._lock:
            self._places = dict(places)
            self._lock.notify_all()

    def place(self, member: str) -> tuple[str, int] | None:
        """Address and port of a member's node; None: it is not in the newest generation."""
        with self._lock:
            return self._places.get(member)

    def places(self) -> list[tuple[str, int]]:
        """Of all members."""
        with self._lock:
            return [*self._places.values()]

    def await_first(self) -> int:
        """Wait for the first generation; returns its number of members."""
        with self._lock:
            self._lock.wait_for(lambda: bool(self._places))
            return len(self._places)

    def active(self, member: str, place: tuple[str, int] | None) -> None:
        """A process of the member runs at ``place``; None: it has ended."""
        with self._lock:
            if place is None:
                self._active.pop(member, None)
            else:
                self._active[member] = place

    def admits(self, address: str) -> bool:
        """Whether the address is a member's, or that of a process that has not left yet."""
        with self._lock:
            return any(address == known for known, _ in [*self._places.values(), *self._active.values()])

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Called by the driver once a second."""
        with self._lock:
            wanted, active = frozenset(self._places), frozenset(self._active)
        self._answer = self._next_answer(wanted, active, time.monotonic())
        return dict.fromkeys(self._answer, self._slots)

    def _next_answer(self, wanted: frozenset[str], active: frozenset[str], now: float) -> frozenset[str]:
        assigned = frozenset(self.driver.host_assignments) if self.driver else frozenset()
        if not assigned or assigned == wanted or self.driver is None:
            return wanted
        before = assigned & (wanted | active)  # as it is now, without what is gone
        first = self.driver.get_coordinator_info()
        if first is None or self.driver.get_worker_client(first) is None:
            return before  # it has not started yet, and could not be told
        if self._answer != wanted:
            self._announced_at = now
            return wanted
        return before if now - self._announced_at >= ANNOUNCE_SECONDS else wanted


class Launcher:
    """Asks nodes for processes on behalf of Horovod's driver."""

    def __init__(self, me: str, members: Members, token: str) -> None:
        self._me, self._members, self._token = me, members, token

    def execute(self, slot: Any, variables: Mapping[str, str], events: Iterable[threading.Event]) -> tuple[int, float]:
        """Run the process of a slot on its host until it has ended or an event is set; returns its exit code and the
        time. Called in a thread of its own."""
        member, stops = slot.hostname, [*events]
        request = Request(
            launcher=self._me, slot=slot.local_rank, variables={**variables, **create_slot_env_vars(slot)}
        )
        code = 1
        while not _any(stops) and (place := self._members.place(member)) is not None:
            try:
                channel = ask(*place, request, self._token)
            except OSError as error:
                log.warning("a node does not answer", member=member, why=str(error))
                time.sleep(AGAIN_SECONDS)
                continue
            self._members.active(member, place)
            try:
                started, code = self._attend(channel, member, stops)
            finally:
                channel.close()
                self._members.active(member, None)
            if started:
                break
            time.sleep(AGAIN_SECONDS)
        return code, time.time()

    def _attend(self, channel: Channel, member: str, stops: list[threading.Event]) -> tuple[bool, int]:
        """Whether the process was started, and its exit code when it has ended."""
        started = False
        try:
            started = (channel.receive(ANSWER_SECONDS) or {}).get("pid") is not None
            while started and not _any(stops):
                if (message := channel.receive(AGAIN_SECONDS)) is not None:
                    return True, int(message.get("code", 1))
        except OSError as error:
            if started:
                log.warning("a node's connection broke", member=member, why=str(error))
                self._confirm_loss(member, stops)
        return started, 1

    def _confirm_loss(self, member: str, stops: list[threading.Event]) -> None:
        """Return when the member is in no generation any more, or its node answers: then it has ended the process."""
        while not _any(stops) and (place := self._members.place(member)) is not None:
            try:
                ask(*place, Request(launcher=self._me, slot=-1), self._token).close()
                return
            except OSError:
                time.sleep(AGAIN_SECONDS)

    def report_done(self) -> None:
        """Tell all other nodes that training is complete."""
        with ThreadPoolExecutor(max_workers=16) as pool:
            places = [p for p in self._members.places() if p != self._members.place(self._me)]
            for _ in pool.map(self._report_done, places):
                pass

    def _report_done(self, place: tuple[str, int]) -> None:
        try:
            channel = ask(*place, Request(launcher=self._me, done=True), self._token)
            channel.receive(ANSWER_SECONDS)
            channel.close()
        except OSError as error:
            log.warning("a node was not told that training is complete", address=place[0], why=str(error))


def _any(events: Iterable[threading.Event]) -> bool:
    return any(event.is_set() for event in events)


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
    launcher = Launcher(me, members, publish_token(me))
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
    driver.start(count * slots, lambda slot, events: launcher.execute(slot, variables, events))
    results = driver.get_results()
    driver.stop()
    codes = [code for code, _ in results.worker_results.values()]
    if not codes or any(codes):
        log.error("Horovod's driver gave up", why=results.error_message or f"exit codes {codes}")
        # As a shell has it; the node restarts what a signal has ended.
        return next((code if code > 0 else 128 - code for code in codes if code), 1)
    launcher.report_done()
    return 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1], int(sys.argv[2])))
