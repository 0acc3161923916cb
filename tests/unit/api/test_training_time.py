"""The split of a job's paid time by cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.records import PHASES
from elastrain_resource.job import AcceleratorSeconds
from elastrain_resource.job.training_time import CAUSE_OF_PHASE, CAUSES, effective, in_words, split

SECONDS = st.floats(0, 1e9)
USAGES = st.builds(
    AcceleratorSeconds,
    training=SECONDS, rescaling=SECONDS, waiting=SECONDS, redone=SECONDS, spare=SECONDS,
    rescaling_phases=st.dictionaries(st.sampled_from([*PHASES, "of_a_newer_operator"]), SECONDS),
)  # fmt: skip


@given(USAGES)
def test_the_parts_are_never_negative_and_add_up_to_what_was_held(usage) -> None:
    found = split(usage)
    assert found.keys() == {"training", *CAUSES}
    assert min(found.values()) >= 0
    held = usage.training + usage.rescaling + usage.waiting + usage.redone + usage.spare
    assert sum(found.values()) == pytest.approx(held)


def test_each_phase_has_a_cause() -> None:
    assert set(CAUSE_OF_PHASE) == set(PHASES)
    assert set(CAUSE_OF_PHASE.values()) <= set(CAUSES)


def test_a_pause_is_split_by_its_phases_and_its_rest_is_named_rescaling() -> None:
    usage = AcceleratorSeconds(
        training=90, rescaling=10, rescaling_phases={"detect": 3, "decide": 1, "connect": 2, "transfer": 1}
    )
    found = split(usage)
    assert (found["detection"], found["rendezvous"], found["state"], found["rescaling"]) == (3, 3, 1, 3)


def test_a_pause_counts_only_as_far_as_it_is_booked() -> None:
    found = split(AcceleratorSeconds(training=99, rescaling=1, rescaling_phases={"detect": 3, "first_step": 1}))
    assert (found["detection"], found["start"], found["rescaling"]) == (0.75, 0.25, 0)


def test_the_effective_part_counts_spares_and_is_unknown_before_anything_is_held() -> None:
    assert effective(AcceleratorSeconds(training=3, spare=1)) == 0.75
    assert effective(AcceleratorSeconds()) is None
    assert effective(None) is None


def test_the_words_name_the_largest_loss_first_and_leave_out_what_is_none() -> None:
    usage = AcceleratorSeconds(training=970, waiting=20, rescaling=10, rescaling_phases={"detect": 10})
    assert in_words(usage) == "paid time: 97.00 % trains, 2.00 % waiting, 1.00 % detection"
    assert in_words(AcceleratorSeconds()) == ""
