"""Changes at a step: once in each process, in order, and as the state has them."""

from hypothesis import given
from hypothesis import strategies as st

from elastrain.data.changes import Changes


def changes(log: list, *steps: int) -> Changes:
    found = Changes()
    for number, step in enumerate(steps):
        found.add(step, lambda step=step, number=number: log.append((step, number)))
    return found


def test_changes_run_in_order_before_the_first_step_at_or_behind_theirs() -> None:
    log: list = []
    made = changes(log, 7, 3, 7, 0)
    for step, expected in ((0, [(0, 3)]), (0, []), (2, []), (4, [(3, 1)]), (7, [(7, 0), (7, 2)]), (8, [])):
        log.clear()
        made.before_step(step)
        assert log == expected, step


def test_a_change_is_made_again_if_an_older_state_is_loaded() -> None:
    log: list = []
    made = changes(log, 2, 5)
    made.before_step(5)
    made.before_load(4)
    assert log == [(2, 0), (5, 1)]
    made.before_step(4)
    made.before_step(5)
    assert log[2:] == [(5, 1)]


@given(st.lists(st.integers(0, 20), max_size=5), st.integers(0, 25), st.integers(0, 25))
def test_a_joiner_has_made_what_the_others_have_made_in_the_same_order(steps, joined, until) -> None:
    one, other = [], []
    trained, joiner = changes(one, *steps), changes(other, *steps)
    for step in range(joined):
        trained.before_step(step)
    joiner.before_load(trained.seen)
    assert other == one
    for step in range(joined, joined + until):
        trained.before_step(step)
        joiner.before_step(step)
    assert other == one
