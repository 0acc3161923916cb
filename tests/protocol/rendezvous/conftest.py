"""Members of a job on a real etcd."""

from __future__ import annotations

import pytest

from elastrain.api.records import Target
from elastrain.etcd import EtcdClient
from players import TTL, Player


@pytest.fixture
def play(client, job_keys):
    """``play("a", "b", ...)`` starts members that form the first generation; their number is desired."""
    players: list[Player] = []

    def start(
        *names: str, desired: int | None = None, most: int = 8, with_client: EtcdClient = client, ttl: int = TTL
    ) -> list[Player]:
        if not players:
            target = Target(min=1, max=most, desired=desired or len(names))
            with_client.put(job_keys.target, target.encode())
        new = [Player(with_client, job_keys, name, ttl) for name in names]
        players.extend(new)
        for player in new:
            player.ready()
        return new

    yield start
    for player in players:
        player.member.leave()
