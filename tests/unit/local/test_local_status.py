"""Facts about a local job that decisions are made of."""

from __future__ import annotations

from elastrain.api.records import Generation, GenerationMember, Member
from elastrain.cli.local.status import in_generation


def test_a_worker_is_not_in_a_generation_if_its_ranks_were_started_again_since():
    members = [
        GenerationMember(id=f"w-{i}.a", worker=f"w-{i}", address="127.0.0.1", store_port=1, rank_offset=i)
        for i in range(3)
    ]
    generation = Generation(number=4, members=tuple(members), reason="Grow", leader="w-0.a")
    present = [Member(id=id, worker=id.split(".")[0], address="127.0.0.1") for id in ("w-0.b", "w-1.a", "w-3.a")]
    assert in_generation(generation, present) == {"w-1"}
    assert in_generation(None, present) == set()
