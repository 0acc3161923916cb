"""etcd's data is saved and restored by etcd's own programs, under members that train."""

from __future__ import annotations

import pytest

import snapshots
from elastrain.api.records import Generation, Target
from elastrain.etcd import EtcdClient, EtcdConfig, EtcdError
from players import workers

BUMPED = ("--bump-revision", "1000000", "--mark-compacted")


@pytest.mark.parametrize("options", [(), BUMPED], ids=["as saved", "revision bumped"])
def test_an_old_snapshot_takes_nothing_back_if_it_is_restored_under_training(
    play, etcd_factory, job_keys, tmp_path, eventually, options
):
    """It was saved when two members were desired; the job has grown to three since."""
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as own:
        a, b = play("a", "b", with_client=own)
        a.enter(), b.enter()
        snapshot = snapshots.save(server, tmp_path / "snapshot.db")
        asked = Target(min=1, max=8, desired=3, reason="Grow").encode()
        own.put(job_keys.target, asked)
        (c,) = play("c", with_client=own)
        grown = a.enter()
        assert len(grown.members) == 3
        for player in (b, c):
            player.sees(lambda v: v.generation == grown)
            player.member.update(generation=grown.number)

        snapshots.restore(server, snapshot, *options)

        def held() -> tuple[int, bytes] | None:
            try:
                return Generation.decode(own.get(job_keys.generation).value).number, own.get(job_keys.target).value
            except EtcdError:
                return None

        eventually(lambda: held() == (grown.number, asked), within=20.0, what="the newest records to be there again")
        for player in (a, b, c):
            view = player.sees(lambda v: v.generation and v.generation.number == grown.number)
            assert view.target.desired == 3
        eventually(lambda: len(own.get_prefix(job_keys.members)[0]) == 3, what="all members to be registered again")
        c.member.leave()
        following = a.enter()
        assert (following.number, workers(following)) == (grown.number + 1, ["a", "b"]), "none was formed meanwhile"
        a.member.leave(), b.member.leave()
