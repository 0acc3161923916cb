"""Whether live members hold the training state."""

from __future__ import annotations

from elastrain.api.records import Target


def test_members_of_an_adopted_generation_hold_state_and_ranks_that_only_saw_it_do_not(job) -> None:
    job.target = Target(min=1, max=8, desired=2)
    job.join("a", "b")
    job.run()
    assert not job.view().training, "proposed, but not entered"
    job.adopt()
    job.join("c")
    job.set("c", generation=job.generations[-1].number)  # it has stopped for a generation without itself
    assert job.view().training
    job.die("a", "b")
    assert not job.view().training
