"""The launcher's side of the channel: runs processes on the workers' nodes. Imports no Horovod.

A world forms only of members of the newest generation. If the connection of a node breaks, its process counts as lost
as soon as the newest generation has no such member, or the node answers that it still obeys this launcher. A launcher
that is cut off from the job therefore cannot train on alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import structlog

from elastrain_launchers.horovod.channel import ANSWER_SECONDS, Channel, Request, ask
from elastrain_launchers.horovod.members import Members

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 0.2
"""Pause between two requests to a node that cannot start the process yet, and bound for noticing an event."""


class Nodes:
    """Asks nodes for processes on behalf of Horovod's driver, which calls from many threads."""

    def __init__(self, me: str, members: Members, token: str) -> None:
        self._me, self._members, self._token = me, members, token

    def run(
        self, member: str, slot: int, variables: Mapping[str, str], stops: Sequence[threading.Event]
    ) -> tuple[int, float]:
        """Run the process of a member's slot until it has ended or an event is set; returns its exit code (negative: a
        signal) and the time. A process that was ended by an event, or was lost, has the code 1."""
        request = Request(launcher=self._me, slot=slot, variables=dict(variables))
        said = ""
        while not _any(stops) and (place := self._members.place(member)) is not None:
            why = "it cannot start the process yet"
            try:
                channel = ask(*place, request, self._token)
            except OSError as error:
                why = str(error)
            else:
                self._members.active(member, slot, place)
                try:
                    started, code = self._attend(channel, member, stops)
                finally:
                    channel.close()
                    self._members.active(member, slot, None)
                if started:
                    return code, time.time()
            if why != said:
                log.warning("waiting for a node", member=member, why=why)
                said = why
            time.sleep(AGAIN_SECONDS)
        return 1, time.time()

    def _attend(self, channel: Channel, member: str, stops: Sequence[threading.Event]) -> tuple[bool, int]:
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

    def _confirm_loss(self, member: str, stops: Sequence[threading.Event]) -> None:
        """Return when the member is in no generation any more, or its node still obeys this launcher: then only the
        process has ended."""
        while not _any(stops) and (place := self._members.place(member)) is not None:
            with contextlib.suppress(OSError):  # the wait was logged; the job decides whether the member is lost
                if self._tell(place, "ping"):
                    return
            time.sleep(AGAIN_SECONDS)

    def _tell(self, place: tuple[str, int], kind: Literal["ping", "done"]) -> bool:
        """Whether the node obeys this launcher. Raises ``OSError`` if it does not, or cannot be reached."""
        channel = ask(*place, Request(launcher=self._me, kind=kind), self._token)
        try:
            return bool(channel.receive(ANSWER_SECONDS))
        finally:
            channel.close()

    def report_done(self) -> None:
        """Tell all other nodes that training is complete."""
        with ThreadPoolExecutor(max_workers=16) as pool:
            places = [p for p in self._members.places() if p != self._members.place(self._me)]
            for _ in pool.map(self._report_done, places):
                pass

    def _report_done(self, place: tuple[str, int]) -> None:
        try:
            self._tell(place, "done")
        except OSError as error:
            log.warning("a node was not told that training is complete", address=place[0], why=str(error))


def _any(events: Iterable[threading.Event]) -> bool:
    return any(event.is_set() for event in events)
