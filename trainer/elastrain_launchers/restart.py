"""Runs programs that cannot change their world: one process per generation (restart semantics).

The next generation ends and restarts the program, which resumes from its last checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from elastrain.agent.process.supervisor import split_exit_code
from elastrain.api.messages import Abort, Adopted, Finished, Proposed
from elastrain.api.records import Generation, GenerationMember
from elastrain.tether import tethered
from elastrain_launchers.keeper import Keeper, command_of, end

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class World:
    """The generation's parameters for a program."""

    generation: Generation
    place: GenerationMember
    """Id of the member that runs the program."""

    @property
    def rank(self) -> int:
        """Rank of the member, from 0; the program counts as one process per member."""
        return [m.id for m in self.generation.members].index(self.place.id)

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each member, in rank order: a port that its keeper found free for the program."""
        return [f"{m.address}:{m.store_port}" for m in self.generation.members]


Start = Callable[[World], tuple[Sequence[str], Mapping[str, str]]]
"""The command of a world, and the variables that the program gets in addition to the keeper's own."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A program ended by itself, or was killed by another process."""

    generation: int
    code: int
    signum: int


class Restarted(Keeper):
    """Starts the program with the world of each generation."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self._start = start
        self._program: subprocess.Popen[bytes] | None = None
        self._world: World | None = None
        self._adopted = 0

    def handle(self, message: Any) -> int | None:
        match message:
            case Proposed(generation=generation) if generation.number > self._adopted:
                self.blamed = None
                self._enter(generation)
            case Abort(generation=number) if number == self._adopted:
                log.info("generation is over", generation=number, why=message.reason)
                self.blamed = None
                self.stop()
            case _Ended(generation=number) if number == self._adopted and self._world is not None:
                if message.code == message.signum == 0:
                    self.link.send(Finished(step=0))
                    return 0
                log.warning("the program failed", code=message.code, signal=message.signum)
                self.blamed = message.code or 128 + message.signum, time.monotonic()
        return None

    def stop(self) -> None:
        program, self._program, self._world = self._program, None, None
        if program is not None:
            end(program)

    def _enter(self, generation: Generation) -> None:
        self.stop()
        place = generation.member(self.link.welcome.member)
        self._adopted = generation.number
        self.link.send(Adopted(generation=generation.number, step=0))
        if place is None:
            return
        self._world = World(generation, place)
        command, variables = self._start(self._world)
        log.info("starting the program", generation=generation.number, rank=self._world.rank, world=generation.size)
        self._program = subprocess.Popen(
            tethered(command, signal.SIGKILL), env={**os.environ, **variables}, start_new_session=True
        )
        threading.Thread(target=self._await, args=(self._program, generation.number), daemon=True).start()

    def _await(self, program: subprocess.Popen[bytes], generation: int) -> None:
        code = program.wait()
        exited, signum = split_exit_code(code)
        self.inbox.put(_Ended(generation, exited, signum))


def of_torch(world: World) -> dict[str, str]:
    """The variables for ``torch.distributed.init_process_group("env://")``, for a program of one process per member."""
    first = world.generation.members[0]
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.generation.size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(first.store_port),
    }


def main() -> int:
    """Run a program of one process per member that reads torch's environment."""
    command = command_of(sys.argv[1:], "restart")
    return Restarted(lambda world: (command, of_torch(world))).keep(os.environ)


if __name__ == "__main__":
    sys.exit(main())
