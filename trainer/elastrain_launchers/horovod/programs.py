"""The Horovod processes of one worker: started and ended as the launcher asks, each over a connection of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import psutil  # which Horovod depends on
import structlog

from elastrain import listening
from elastrain.etcd.errors import EtcdError
from elastrain.tether import tethered
from elastrain_launchers.horovod.channel import Channel, Request, Signed
from elastrain_launchers.keeper import end

log = structlog.get_logger(__name__)

TOKEN_SECONDS = 1.0
"""Least time between two reads of the token: requests with a wrong one cost etcd no more than this."""


class Programs:
    """Listens for the launcher's requests. Methods may be called from any thread."""

    def __init__(
        self,
        command: Sequence[str],
        slots: int,
        address: str,
        *,
        token_of: Callable[[str], str],
        on_end: Callable[[int, bool], None],
        on_done: Callable[[], None],
    ) -> None:
        """``token_of``: reads the token of a launcher, empty if there is none; may raise ``EtcdError``. ``on_end``:
        called with the exit code of each process (negative: a signal) and whether it ended by itself. ``on_done``:
        training is complete. Raises ``OSError`` if this machine does not have ``address``."""
        self._command, self._slots = command, slots
        self._environment = environment_of(address, os.environ)
        self._token_of, self._on_end, self._on_done = token_of, on_end, on_done
        self._lock = threading.Lock()
        self._launcher = ""
        self._token = ""
        self._token_read = 0.0
        self._open = False
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ended_by_us: set[int] = set()
        self._server = listening.on(address)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="horovod-node", daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether no process runs."""
        with self._lock:
            return not self._running

    @property
    def launcher(self) -> str:
        """Id of the member whose launcher is obeyed; empty: none."""
        return self._launcher

    def obey(self, launcher: str) -> None:
        """Accept requests of this member's launcher only; empty: of none."""
        with self._lock:
            self._launcher, self._token = launcher, ""
            self._open = bool(launcher)

    def pause(self, paused: bool) -> None:
        """Whether to start no process for now: the launcher asks again."""
        with self._lock:
            self._open = not paused and bool(self._launcher)

    def stop(self) -> None:
        """End all processes and accept no requests. Returns when they have ended."""
        self.obey("")
        self._end_all()

    def close(self) -> None:
        """Stop, and stop to listen."""
        self.stop()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    # ---- requests ----------------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(Channel(connection),), daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        """One connection. This thread starts the process and outlives it (:func:`tethered`)."""
        try:
            request = self._admitted(Signed.arriving_on(channel))
            if request is None:
                return
            if request.kind == "done":
                self._on_done()
            if request.kind != "run":
                channel.send(ok=True)
            elif (program := self._start(request)) is not None:
                threading.Thread(target=self._end_with, args=(channel, program), daemon=True).start()
                with contextlib.suppress(OSError):  # the launcher has hung up: the thread above ends the process
                    channel.send(pid=program.pid)
                self._attend(request.slot, program, channel)
        except OSError as error:
            log.info("a launcher's connection ended", why=str(error))
        finally:
            channel.close()

    def _admitted(self, signed: Signed) -> Request | None:
        """The request, if the launcher that this node obeys has signed it."""
        request = signed.by(self._token)
        if request is None:
            with self._lock:
                launcher, due = self._launcher, time.monotonic() - self._token_read >= TOKEN_SECONDS
                self._token_read = time.monotonic() if due else self._token_read
            token = self._read_token(launcher) if launcher and due else ""
            request = signed.by(token)
            if request is None:
                return None
            self._end_all()  # processes of the launcher before it, which has died
            with self._lock:
                if self._launcher != launcher:
                    return None
                self._token = token
        return request if request.launcher == self._launcher else None

    def _read_token(self, launcher: str) -> str:
        try:
            return self._token_of(launcher)
        except EtcdError as error:
            log.warning("the launcher's token cannot be read", why=str(error))
            return ""

    # ---- processes ---------------------------------------------------------------------------------------------------
    def _start(self, request: Request) -> subprocess.Popen[bytes] | None:
        """The new process; None if none may start now."""
        if foreign := [name for name in request.variables if not name.startswith("HOROVOD_")]:
            log.warning("a launcher may set Horovod's variables only", refused=foreign)
            return None
        with self._lock:
            if not self._open or request.slot in self._running or not 0 <= request.slot < self._slots:
                return None
            program = subprocess.Popen(
                tethered(self._command, signal.SIGKILL),
                env={**self._environment, **request.variables},
                start_new_session=True,
            )
            self._running[request.slot] = program
        log.info("starting a Horovod process", slot=request.slot, pid=program.pid)
        return program

    def _attend(self, slot: int, program: subprocess.Popen[bytes], channel: Channel) -> None:
        """Wait for the process to end, and report it."""
        code = program.wait()
        with self._lock:
            self._running.pop(slot)
            asked = program.pid in self._ended_by_us
            self._ended_by_us.discard(program.pid)
        log.info("a Horovod process has ended", slot=slot, code=code, by_request=asked)
        self._on_end(code, not asked)
        if not asked:
            channel.send(code=code)

    def _end_with(self, channel: Channel, program: subprocess.Popen[bytes]) -> None:
        """End the process when the launcher hangs up."""
        channel.await_end()
        self._end(program)

    def _end_all(self) -> None:
        with self._lock:
            running = [*self._running.values()]
        ending = [threading.Thread(target=self._end, args=(program,)) for program in running]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def _end(self, program: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if program not in self._running.values():
                return
            self._ended_by_us.add(program.pid)
        end(program)


def environment_of(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Horovod process without the launcher's variables: the network interface with ``address``.

    Raises ``OSError`` if no interface has it.
    """
    found = [name for name, held in psutil.net_if_addrs().items() if address in {a.address for a in held}]
    interface = environ.get("HOROVOD_GLOO_IFACE") or next(iter(found), "")
    if not interface:
        raise OSError(f"no network interface has the address {address}: set HOROVOD_GLOO_IFACE to the one to use")
    own = {"HOROVOD_GLOO_IFACE": interface}
    defaults = {"NCCL_SOCKET_IFNAME": interface, "PYTHONUNBUFFERED": "1"}
    return {**defaults, **environ, **own}
