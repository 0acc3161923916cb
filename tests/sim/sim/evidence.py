"""Evidence that is wrong: connections between live workers are reset on one side or both, results of a sum reach only
some ranks, and the network parts workers from each other or from etcd, in any direction.

At no time may two generations commit. No live member that holds its lease may be passed over with a step that it has
committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrain_operator import clock as operator_clock
from sim import etcd
from sim.invariants import Invariants, Violation
from sim.run import _until, quiet
from sim.world import World

if TYPE_CHECKING:
    from sim.comm import Comm
    from sim.ranks import Rank

BEGIN, LASTS, AFTER = 15.0, 30.0, 40.0
"""Seconds before the first lie, of lies, and after them."""


class Lies:
    """Of one schedule; some workers are also killed, so that there is something to lie about."""

    def __init__(self, world: World) -> None:
        self.world, self.resets, self.kills = world, 0, 0
        self.redone: list[str] = []
        honest = world.ledger.committed

        def committed(rank: Rank, comm: Comm, parts: dict[int, object]) -> None:
            honest(rank, comm, parts)
            only_one_commits(world, rank, comm)

        world.ledger.committed = committed  # type: ignore[method-assign]
        for _ in range(world.rng.randint(2, 6)):
            lie = world.rng.choice(
                (self.reset, self.reset, self.one_has_the_result, self.part, self.kill, self.no_etcd)
            )
            world.clock.at(BEGIN + world.rng.uniform(0.0, LASTS), self._cause, lie)

    def _cause(self, lie: object) -> None:
        trains = [r for r in self.world.ranks if r.process.runs and r.comm is not None and r.comm.size > 1]
        if trains:
            self.world.ledger.harm_ends = self.world.clock.now + 20.0
            lie(self.world.rng.choice(trains))  # type: ignore[operator]

    def reset(self, rank: Rank) -> None:
        """This rank sees a reset, and closes its connections."""
        assert rank.comm is not None
        self.resets += 1
        rank.broken(rank.comm, "connection reset by peer")

    def one_has_the_result(self, rank: Rank) -> None:
        """The next sums reach this rank only, which then hears nothing of the others; they see resets."""
        assert rank.comm is not None
        comm, mine = rank.comm, rank.rank
        self.resets += 1
        comm.deaf = set(comm.members) - {mine}
        self.part(rank)

    def part(self, rank: Rank) -> None:
        """No packet passes between this rank's node and the others, for a while; etcd answers all of them."""
        world, here = self.world, rank.process.place
        for there in sorted(world.nodes):
            if there != here:
                world.network.cut(here, there)
                world.clock.after(world.rng.choice((1.0, 4.0, 15.0)), world.network.heal, here, there)

    def no_etcd(self, rank: Rank) -> None:
        """One node is cut off from etcd, beyond the TTL or not."""
        network, here = self.world.network, rank.process.place
        network.cut(here, etcd.PLACE)
        self.world.clock.after(self.world.rng.choice((2.0, 7.0, 15.0)), network.heal, here, etcd.PLACE)

    def kill(self, rank: Rank) -> None:
        self.kills += 1
        container = next(c for n in self.world.nodes.values() for c in n.containers.values() if c.agent is rank.agent)
        container.kill()


def only_one_commits(world: World, rank: Rank, comm: Comm) -> None:
    """Raises ``Violation`` if another generation could commit now, or this step is another one's of a live member."""
    now = world.clock.now
    for other in world._comms.values():
        if other is comm or other.over or not other.members:
            continue
        inside = [r for r in other.members.values() if r.comm is other and r.process.runs]
        vouched = all(
            r.agent.vouching.vouch.covers(other.generation.number, other.generation.size, now) for r in inside
        )
        if len(inside) == other.size and vouched:
            numbers = comm.generation.number, other.generation.number
            raise Violation(6, f"generation {numbers[0]} commits a step while generation {numbers[1]} can")
    for r in world.ranks:
        outside = r.process.runs and r.has_state and r not in comm.members.values()
        if outside and r.step >= rank.step and world.ledger._was_member(r, comm.generation.number):
            raise Violation(5, f"step {rank.step} is committed again, which {r.process.name} holds with a live lease")


def lied(seed: int) -> Lies:
    """Run the world of ``seed`` through it. Raises ``Violation``."""
    with quiet():
        world = World(seed)
        operator_clock.now = world.time_of_day
        invariants, lies = Invariants(world), Lies(world)
        _until(world, invariants, BEGIN + LASTS + AFTER)
        return lies
