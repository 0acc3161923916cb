"""All agents of a job are stopped beyond the TTL of their leases, their ranks are not, and a further worker begins: of
two generations that share no member only one trains."""

from __future__ import annotations

from elastrain_operator import clock as operator_clock
from sim.invariants import Invariants
from sim.run import _until, quiet
from sim.world import World

BEGIN, STOPPED, AFTER = 20.0, 25.0, 20.0
"""Seconds before the stop, of the stop, and after it."""


def stopped(seed: int) -> bool:
    """Run the world of ``seed`` through it; returns whether a generation has followed meanwhile. Raises ``Violation``
    if the old one trains beside it."""
    with quiet():
        world = World(seed)
        operator_clock.now = world.time_of_day
        invariants = Invariants(world)
        _until(world, invariants, BEGIN)
        agents = [a for a in world.agents if a.process.runs]
        before = len(world.ledger.generations)
        for agent in agents:
            agent.process.stop()
        world.change_spec(maxReplicas=len(agents) + 1, replicas=len(agents) + 1)
        _until(world, invariants, BEGIN + STOPPED)
        followed = len(world.ledger.generations) > before
        for agent in agents:
            agent.process.go_on()
        _until(world, invariants, BEGIN + STOPPED + AFTER)
        return followed
