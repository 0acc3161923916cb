"""Members of a job on a real etcd; the test simulates their ranks."""

from __future__ import annotations

from elastrain.api.records import Generation, Phase
from elastrain.rendezvous.decide import Timing
from elastrain.rendezvous.membership import Membership
from elastrain.rendezvous.view import View

TTL = 2


class Player:
    """A member whose ranks execute everything at once."""

    def __init__(self, client, keys, worker: str, ttl: int = TTL) -> None:
        self.entered = 0
        self.member = Membership(
            client,
            keys,
            worker=worker,
            address="127.0.0.1",
            lease_ttl=ttl,
            timing=Timing(settle=0.3),
        )
        self.member.start()

    def ready(self) -> None:
        self.member.update(phase=Phase.READY, store_port=1)

    def sees(self, condition, within: float = 30.0) -> View:
        """The first view that meets ``condition``."""
        assert self.member.wait_for(condition, within), self.member.view
        return self.member.view

    def enter(self, within: float = 30.0) -> Generation:
        """Adopt the next generation."""
        generation = self.sees(lambda v: v.generation and v.generation.number > self.entered, within).generation
        self.entered = generation.number
        self.member.update(generation=generation.number)
        return generation

    def ended(self, number: int) -> str:
        """The cause of a generation's end, as soon as the leader has written it."""
        return self.sees(lambda v: number in v.notified).notified[number]

    def die(self) -> None:
        """As by kill -9: no message, the lease expires."""
        self.member.close()


def leader(*players: Player) -> View | None:
    """The leader's view."""
    return next((v for p in players if (v := p.member.view).leader == v.self_id and v.complete), None)


def workers(generation: Generation) -> list[str]:
    return [m.worker for m in generation.members]
