"""Stock ``torchrun`` over etcd v3.

    torchrun --rdzv-backend=etcd-v3 --rdzv-endpoint=HOST:PORT --nnodes=1:4 script.py

Each torchrun agent is a member of the job, with the same records and decisions as elastrain's own agents; see
``docs/rendezvous.md``. Differences of a stock agent: its ranks live for one generation only, so it is ``ready`` only
inside :meth:`EtcdV3RendezvousHandler.next_rendezvous`, and calling that breaks its generation for all members.

Before it becomes ready, an agent opens a *fresh* TCP store. torch's agents and the ranks meet at the store of a
generation's first member (``use_agent_store``). torch does not prefix the keys of ranks with an attempt number, so a
store from an earlier generation would give them stale addresses.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import time
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Closed, Generation, Phase, Target
from elastrain.etcd import EtcdClient, EtcdConfig, EtcdDenied, EtcdError, EtcdUnavailable
from elastrain.rendezvous.decide import Timing
from elastrain.rendezvous.membership import Membership
from elastrain.rendezvous.view import View
from elastrain_torchrun.options import BACKEND, Options

log = logging.getLogger(__name__)

TARGET_REASON = "Torchrun"
"""Marks a target that a torchrun agent wrote, not an operator."""
_NO_ID = "none"
"""torchrun's name for a run without ``--rdzv-id``."""
_CLOSED_SECONDS = 600
_WAKE_SECONDS = 1.0


def create_handler(params: RendezvousParameters) -> EtcdV3RendezvousHandler:
    """A handler for torchrun's parameters; etcd and job default to those of the surrounding worker (``ELASTRAIN_*``).
    Raises ``ValueError`` for invalid parameters; connects later."""
    options = Options.of(params.config, os.environ)
    if params.run_id == _NO_ID:
        params.run_id = os.environ.get(names.ENV_JOB) or _NO_ID
    if "/" in params.run_id:
        raise ValueError(f"--rdzv-id={params.run_id!r} must not contain '/'")
    endpoints = params.endpoint or os.environ.get(names.ENV_ETCD_ENDPOINTS, "")
    if not endpoints:
        raise ValueError(f"--rdzv-endpoint=HOST:PORT: give etcd's address, here or by ${names.ENV_ETCD_ENDPOINTS}")
    config = EtcdConfig.of(
        endpoints,
        username=options.username,
        password_file=options.password_file,
        ca=options.ca,
        cert=options.cert,
        key=options.key,
    )
    return EtcdV3RendezvousHandler(config, options, params)


class EtcdV3RendezvousHandler(RendezvousHandler):
    """One torchrun agent as a member of a job. Used by the agent's main thread only."""

    def __init__(self, config: EtcdConfig, options: Options, params: RendezvousParameters) -> None:
        self._config = config
        self._options = options
        self._run_id = params.run_id
        self._target = Target(
            min=params.min_nodes, max=params.max_nodes, desired=params.max_nodes, reason=TARGET_REASON
        )
        self._worker = os.environ.get(names.ENV_WORKER) or f"{socket.gethostname()}-{os.getpid()}"
        self._address = params.local_addr or _own_address(config.endpoints[0])
        self._keys = JobKeys(options.namespace, params.run_id, options.uid)
        self._client: EtcdClient | None = None
        self._member: Membership | None = None
        self._served: TCPStore | None = None  # the store that this agent serves in this round
        self._generation = 0  # the generation of this agent's ranks

    # ---- torch's contract ------------------------------------------------------------------------------------------
    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return str(self._run_id)

    @property
    def use_agent_store(self) -> bool:
        """True: ranks meet at the store of the generation's first member; their agent passes its address."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next generation. Returns when all its members have joined.

        Raises ``RendezvousConnectionError`` (etcd), ``RendezvousClosedError`` (the job is over) and
        ``RendezvousTimeoutError`` (naming the awaited event). An agent that is asked to leave ends the process with
        code 0: torch 2.13 fails on its own ``RendezvousGracefulExitError``.
        """
        member = self._connect()
        deadline = time.monotonic() + self._options.join_timeout
        self._served = TCPStore(self._address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        newest = member.view.generation
        included = newest is not None and newest.member(member.id) is not None
        broken = max(self._generation, newest.number if newest is not None and included else 0)
        member.update(phase=Phase.READY, store_port=self._served.port, broken=broken)
        while True:
            generation = self._await_generation(member, self._served.port, deadline)
            member.update(generation=generation.number)
            if self._await_adoption(member, generation, deadline):
                info = self._enter(member, generation)
                if info is not None:
                    return info

    def is_closed(self) -> bool:
        return self._member is not None and self._member.view.finished

    def set_closed(self) -> None:
        """End the job for all its agents."""
        self._close("Closed", "set_closed() was called")

    def num_nodes_waiting(self) -> int:
        """More than 0 makes torch restart this agent's ranks: if a member that fits waits, if one of the generation is
        lost, leaves or has ended it, if the generation was replaced, or if the job failed. Never blocks."""
        if self._member is None or not self._generation:
            return 0
        view = self._member.view
        if view.generation is None or (view.ended and not self._failed(view)):
            return 0
        if view.generation.number != self._generation or view.leavers or view.broken or self._failed(view):
            return max(1, len(view.joiners))
        return len(view.lost) or len(view.joiners)

    def shutdown(self) -> bool:
        """torch calls this when the agent ends, but not on a signal: a leave is not the end of the job.

        The job is over if the ranks have finished or failed permanently; not if this agent failed to join.
        """
        error = sys.exc_info()[1]
        if self._member is None:
            return True
        try:
            if isinstance(error, ChildFailedError):
                self._close("Failed", str(error.get_first_failure()[1].message))
            elif error is None and self._generation:
                self._close("Finished", "")
        except EtcdError as failure:
            log.warning("%s: the end of the job is not recorded: %s", self._run_id, failure)
            return False
        finally:
            self._leave()
        return True

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _connect(self) -> Membership:
        if self._member is not None:
            return self._member
        deadline = time.monotonic() + self._options.connect_timeout
        while True:
            try:
                return self._register()
            except EtcdDenied as error:
                raise RendezvousConnectionError(str(error)) from error
            except EtcdUnavailable as error:
                if time.monotonic() >= deadline:
                    raise RendezvousConnectionError(f"{error} (for {self._options.connect_timeout:g} s)") from error
                log.warning("%s; retrying", error)
                time.sleep(0.5)

    def _register(self) -> Membership:
        client = EtcdClient(self._config)
        try:
            self._publish_target(client)
            member = Membership(
                client,
                self._keys,
                worker=self._worker,
                node=os.environ.get(names.ENV_NODE) or socket.gethostname(),
                address=self._address,
                lease_ttl=self._options.lease_ttl,
                timing=Timing(settle=self._options.settle),
                sees_all=True,  # num_nodes_waiting() asks about the others
            )
            member.start()
        except EtcdError:
            client.close()
            raise
        self._client, self._member = client, member
        atexit.register(self._leave)  # a signal ends the agent without shutdown(): leave at once, not at the TTL
        return member

    def _publish_target(self, client: EtcdClient) -> None:
        """Write the target if there is none. It replaces a target of an earlier run, but never an operator's."""
        won, held = client.create(self._keys.target, self._target.encode())
        if won:
            return
        there = Target.decode(held.value)
        if there.reason != TARGET_REASON:
            log.info("%s: the operator's target is in force, not --nnodes", self._run_id)
            return
        members, _ = client.get_prefix(self._keys.members)
        if members:
            log.warning("%s runs with --nnodes=%d:%d; that stays in force", self._run_id, there.min, there.max)
            return
        client.compare_and_swap(self._keys.target, self._target.encode(), expected_mod_revision=held.mod_revision)

    def _await_generation(self, member: Membership, port: int, deadline: float) -> Generation:
        """The newest generation, once it includes this agent with its present store."""

        def news(view: View) -> bool:
            return view.ended or self._asked_to_leave(view, member) or self._fresh(view, member, port) is not None

        while True:
            member.wait_for(news, _WAKE_SECONDS)
            view = member.view
            if view.ended:
                raise RendezvousClosedError(self._why_closed(member))
            if self._asked_to_leave(view, member):
                log.info("%s: asked to leave", self._run_id)
                self._leave()
                sys.exit(0)
            generation = self._fresh(view, member, port)
            if generation is not None:
                return generation
            newest = view.generation
            if newest is not None and newest.member(member.id) is not None and newest.number > member.record.broken:
                member.update(broken=newest.number)  # it names this agent's former store and can never be entered
            if time.monotonic() >= deadline:
                raise RendezvousTimeoutError(self._timeout_message(member, "a generation with this agent"))

    @staticmethod
    def _fresh(view: View, member: Membership, port: int) -> Generation | None:
        generation = view.generation
        place = generation.member(member.id) if generation is not None else None
        if generation is None or place is None or place.store_port != port:
            return None
        return generation if generation.number > member.record.broken else None

    def _await_adoption(self, member: Membership, generation: Generation, deadline: float) -> bool:
        """True when all its members have entered it; False if it ended before."""

        def settled(view: View) -> bool:
            return self._over(view, generation) or view.entered

        while True:
            member.wait_for(settled, _WAKE_SECONDS)
            view = member.view
            if self._over(view, generation):
                return False
            if view.entered:
                return True
            if time.monotonic() >= deadline:
                raise RendezvousTimeoutError(self._timeout_message(member, f"generation {generation.number}'s members"))

    @staticmethod
    def _over(view: View, generation: Generation) -> bool:
        return view.ended or view.generation is None or view.generation.number != generation.number or not view.intact

    def _enter(self, member: Membership, generation: Generation) -> RendezvousInfo | None:
        """Connect to the generation's store; None if that fails because its host is gone."""
        first = generation.members[0]
        try:
            if first.id == member.id:
                assert self._served is not None
                store = self._served
            else:
                # The first member serves the store; this agent's own one is unused in this generation.
                store = TCPStore(first.address, first.store_port, is_master=False, timeout=timedelta(seconds=60))
        except (RuntimeError, TimeoutError) as error:
            log.warning("%s: store of generation %d: %s", self._run_id, generation.number, error)
            member.update(broken=generation.number)
            return None
        member.update(phase=Phase.WARMING, generation=generation.number)
        self._generation = generation.number
        rank = [m.id for m in generation.members].index(member.id)
        return RendezvousInfo(
            # The agents' keys have a prefix per generation, so that the store can serve again if this one fails early.
            store=PrefixStore(f"elastrain/{generation.number}", store),
            rank=rank,
            world_size=len(generation.members),
            bootstrap_store_info=RendezvousStoreInfo(first.address, first.store_port),
        )

    def _close(self, reason: str, message: str) -> None:
        client, member = self._client, self._member
        if client is None or member is None:
            return
        closed = Closed(member=member.id, reason=reason, message=message)
        client.create(self._keys.closed, closed.encode(), lease=client.lease_grant(_CLOSED_SECONDS))

    def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.leave()
        if self._client is not None:
            self._client.close()

    @staticmethod
    def _asked_to_leave(view: View, member: Membership) -> bool:
        return view.target is not None and member.record.worker in view.target.leaving

    @staticmethod
    def _failed(view: View) -> bool:
        return view.closed is not None and view.closed.reason != "Finished"

    def _why_closed(self, member: Membership) -> str:
        closed = member.view.closed
        how = f"{closed.reason} {closed.message}".strip() if closed is not None else "finished"
        return (
            f"job {self._run_id!r} is over ({how}). For another run choose another --rdzv-id, wait "
            f"{_CLOSED_SECONDS // 60} minutes, or delete the keys under {self._keys.prefix}"
        )

    def _timeout_message(self, member: Membership, what: str) -> str:
        view, options = member.view, self._options
        least = view.target.min if view.target is not None else self._target.min
        ready = [m.record.worker for m in view.alive.values() if m.record.phase is Phase.READY]
        etcd = "" if member.reachable else "; etcd does not answer"
        return (
            f"job {self._run_id!r}: waited {options.join_timeout:g} s (join_timeout) for {what}: "
            f"{len(ready)} agents are ready ({', '.join(ready)}), at least {least} are needed{etcd}"
        )


def _own_address(endpoint: str) -> str:
    """The address of the interface that leads to etcd: most likely other members can reach this machine by it."""
    host, _, port = endpoint.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # UDP: chooses a route, sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.getfqdn()  # etcd's name does not resolve (yet): the connection reports it
