"""Facts about a local job that decisions use."""

from __future__ import annotations

import builders
from elastrain.api.records import Member
from elastrain.cli.local.status import in_generation


def test_a_worker_is_not_in_a_generation_if_its_ranks_have_restarted_since():
    generation = builders.generation(4, "w-0.a", "w-1.a", "w-2.a")
    present = [Member(id=id, worker=id.split(".")[0], address="127.0.0.1") for id in ("w-0.b", "w-1.a", "w-3.a")]
    assert in_generation(generation, present) == {"w-1"}
    assert in_generation(None, present) == set()
