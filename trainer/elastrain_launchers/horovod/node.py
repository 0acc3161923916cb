"""A worker's node: takes the place of a rank, and outlives generations.

A generation is the list of Horovod's hosts. Its first member runs the launcher, and the other nodes obey that launcher.
While the first member stays the same, processes go on over joins and losses of others. With another first member, or
another launcher of the same one, all processes start anew: Horovod's state was in the launcher's memory and theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from elastrain.agent.core.restart import may_restart
from elastrain.agent.process.supervisor import split_exit_code
from elastrain.api.messages import Abort, Adopted, Finished, Proposed
from elastrain.api.records import Generation
from elastrain.etcd import EtcdClient
from elastrain.tether import tethered
from elastrain_launchers.horovod.channel import token_key
from elastrain_launchers.horovod.programs import Programs
from elastrain_launchers.keeper import Keeper, end

log = structlog.get_logger(__name__)

LAUNCHER = (sys.executable, "-m", "elastrain_launchers.horovod.launcher")
"""Without its arguments: the member's id, and the number of slots."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of a process."""

    exit_code: int
    """Negative: a signal."""
    by_itself: bool = True
    """Neither the launcher nor this node ended it."""
    launcher: subprocess.Popen[bytes] | None = None
    """None: a Horovod process."""


@dataclass(frozen=True, slots=True)
class _Done:
    """The launcher reports that training is complete."""


class Node(Keeper):
    """Keeps the Horovod processes of a worker, and the launcher of the first one."""

    def __init__(self, command: Sequence[str], slots: int, launcher: Sequence[str] = LAUNCHER) -> None:
        """``command``: of a Horovod process. ``slots``: processes of this worker. ``launcher``: its command."""
        super().__init__()
        self._command, self._slots, self._launcher_command = command, slots, launcher
        self._generation: Generation | None = None
        """The newest one that was proposed."""
        self._adopted = 0
        self._launcher: subprocess.Popen[bytes] | None = None
        self._deaths: list[float] = []
        """When processes of this worker failed."""
        self._lost_at = float("-inf")
        """When a peer was last reported lost."""

    def keep(self, environ: Mapping[str, str]) -> int:
        """Run until training is complete, a process has failed for good, or the worker leaves; returns the exit code.

        Raises ``RuntimeError`` if no agent started this process, if it is one of several ranks, if its address is
        IPv6, or if the agent's messages cannot be read; ``OSError`` if no network interface has the worker's address.
        """
        if (ranks := environ.get("LOCAL_WORLD_SIZE", "1")) != "1":
            raise RuntimeError(
                f"nprocPerNode: {ranks}: a worker has one Horovod node. Set nprocPerNode to 1, and for {ranks} "
                f"processes in each worker ELASTRAIN_HOROVOD_SLOTS={ranks}."
            )
        return super().keep(environ)

    @contextlib.contextmanager
    def opened(self, environ: Mapping[str, str]) -> Iterator[int]:
        address = self.link.welcome.address
        if ":" in address:
            raise RuntimeError(f"the worker's address is {address}: Horovod's rendezvous knows IPv4 only")
        with EtcdClient.from_environment(environ) as etcd:

            def token_of(launcher: str) -> str:
                held = etcd.get(token_key(environ, launcher))
                return held.value.decode() if held else ""

            self._programs = Programs(
                self._command,
                self._slots,
                address,
                token_of=token_of,
                on_end=lambda code, by_itself: self.inbox.put(_Ended(code, by_itself)),
                on_done=lambda: self.inbox.put(_Done()),
            )
            with contextlib.closing(self._programs):
                yield self._programs.port

    # ---- what happens ------------------------------------------------------------------------------------------------
    def handle(self, message: Any) -> int | None:
        match message:
            case Proposed(generation=generation) if self._generation is None or (
                generation.number > self._generation.number
            ):
                self._enter(generation)
            case Abort(generation=number) if self._generation is not None and number == self._generation.number:
                self._note_loss(message.reason)
                if self._generation.size == 1:
                    self.stop()  # cut off from etcd, it may not go on: another generation may form without it
            case _Ended() if message.launcher is None or message.launcher is self._launcher:
                return self._ended(message)
            case _Done():
                self.link.send(Finished(step=0))
                return 0
        return None

    def _enter(self, generation: Generation) -> None:
        if generation.roster is not None:
            raise RuntimeError(
                f"a generation of {generation.size} workers: Horovod's launcher supports 64. Lower maxReplicas, "
                "and use more slots (ELASTRAIN_HOROVOD_SLOTS)."
            )
        if self._generation is not None and self._generation.number in generation.ended:
            self._note_loss(generation.why)
        first = generation.first.id if generation.first else ""
        if self._programs.launcher not in ("", first):
            self.stop()
        self._generation = generation
        if generation.member(self.link.welcome.member) is not None:
            if self._programs.launcher != first:
                self._programs.obey(first)
            if first == self.link.welcome.member:
                self._lead(generation, self.link.welcome.member)
        self._adopt()

    def _adopt(self) -> None:
        """Adopt the newest generation. A node that is not in it first waits for its processes: the launcher removes
        them at the others' next commit. The agent bounds this wait by its drain timeout."""
        generation = self._generation
        if generation is None or generation.number == self._adopted:
            return
        if generation.member(self.link.welcome.member) is None:
            self._programs.pause(True)
            if not self._programs.idle:
                return
            self.stop()
        self._adopted = generation.number
        self.link.send(Adopted(generation=self._adopted, step=0))

    def _ended(self, ended: _Ended) -> int | None:
        """React to the end of a process; returns the node's exit code if it must end."""
        if ended.launcher is not None:
            self._launcher = None
            if ended.exit_code == 0:
                self.link.send(Finished(step=0))
                return 0
        generation = self._generation
        if generation is None or generation.member(self.link.welcome.member) is None:
            self._adopt()
            return None  # removed from Horovod's world, which ends a process by SIGABRT
        code, signum = split_exit_code(ended.exit_code)
        if code == signum == 0 or not ended.by_itself:
            return None  # the launcher reports when all are done
        now = time.monotonic()
        log.warning("a process failed", launcher=ended.launcher is not None, code=code, signal=signum)
        if not may_restart(self._deaths, now):
            return code or 128 + signum
        self._deaths.append(now)
        if code and now - self._lost_at > self.patience:
            if generation.size == 1:
                return code  # there is no peer whose loss could explain it
            self.blamed = self.blamed or (code, now)
            self._programs.pause(True)
        elif self.blamed is None:
            self._revive()
        return None

    # ---- reactions ---------------------------------------------------------------------------------------------------
    def _note_loss(self, why: str) -> None:
        """A peer is lost, which explains failures of the last and the next seconds."""
        log.info("a peer is lost", why=why)
        self._lost_at, self.blamed = time.monotonic(), None
        self._programs.pause(False)

    def _revive(self) -> None:
        """Start the launcher again if this node leads and has none. It asks for the processes by itself."""
        generation, me = self._generation, self.link.welcome.member
        if generation is not None and generation.first is not None and generation.first.id == me:
            self._lead(generation, me)

    def _lead(self, generation: Generation, me: str) -> None:
        """Run the launcher, and give it the members."""
        if self._launcher is None:
            if self.blamed is not None:
                return  # its failure is not explained yet
            log.info("starting Horovod's launcher", generation=generation.number)
            own = [*self._launcher_command, me, str(self._slots)]
            launcher = subprocess.Popen(
                tethered(own, signal.SIGKILL), env=os.environ, stdin=subprocess.PIPE, start_new_session=True
            )
            threading.Thread(target=self._await, args=(launcher,), daemon=True).start()
            self._launcher = launcher
        members = {m.id: (m.address, m.store_port) for m in generation.members}
        assert self._launcher.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is reported separately
            self._launcher.stdin.write(json.dumps(members).encode() + b"\n")
            self._launcher.stdin.flush()

    def _await(self, launcher: subprocess.Popen[bytes]) -> None:
        self.inbox.put(_Ended(launcher.wait(), launcher=launcher))

    def stop(self) -> None:
        """End the launcher and all processes of this worker."""
        launcher, self._launcher, self.blamed = self._launcher, None, None
        if launcher is not None:
            end(launcher)
        self._programs.stop()
