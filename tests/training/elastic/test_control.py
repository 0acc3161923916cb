"""Agreement by sums: all ranks switch at the same step, to the same generation, or none does."""

from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.commit import control


@given(st.integers(1, 100), st.data())
def test_ranks_agree_on_a_generation_if_and_only_if_all_are_connected_to_it(current, data) -> None:
    proposals = st.frozensets(st.integers(current + 1, current + control.SLOTS - 1))
    ranks = data.draw(st.lists(proposals, min_size=1, max_size=6))
    sums = [sum(column) for column in zip(*(control.encode(c) for c in ranks), strict=True)]
    decisions = {control.Summed(sums, c).agreed(current) for c in ranks}
    common = frozenset.intersection(*ranks)
    assert decisions == {max(common, default=None)}


def test_nothing_is_agreed_if_the_slot_belongs_to_an_older_generation() -> None:
    assert control.Summed(control.encode({4}), {4}).agreed(4) is None


def test_nothing_is_agreed_if_all_are_connected_to_an_older_generation_only() -> None:
    assert control.Summed(control.encode({3}), {3}).agreed(4) is None
