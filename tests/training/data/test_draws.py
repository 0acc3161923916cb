"""What the script draws at each point of a loop body: by its samples, or by the step alone."""

import random

import numpy as np
import pytest
import torch

from elastrain.data.draws import Draws
from elastrain.data.order import Order
from elastrain.data.rng import Kept, Randomness

ORDER = Order(64, 16)


def draw(more: int = 0) -> tuple[float, ...]:
    """Of all generators. ``more``: numbers that are drawn besides."""
    torch.rand(more), np.random.rand(more), [random.random() for _ in range(more)]
    return (float(torch.rand(1)), np.random.rand(), random.random())


def begun(draws: Draws, randomness: Randomness | None) -> None:
    """A loop has begun."""
    draws._randomness = randomness


def body(rank: int, size: int, *, seen: int | None = 1, optimizers: int = 2, backwards: int = 1) -> dict[str, tuple]:
    """A loop body on ``rank``, whose forwards draw as many numbers as it has samples; what it draws, by place."""
    draws, part = Draws(), ORDER.slice(3, rank, size)
    draws.announced = seen is None
    begun(draws, Randomness(ORDER))
    with Kept(), draws.body(0, part):
        for _ in range(seen or 1):
            draws.summed()
    drawn = {}
    with Kept(), draws.kept(), draws.body(3, part):
        for n in range(backwards):
            drawn[f"inputs {n}"] = draw()
            draws.samples()  # the wrapped model's forward
            drawn[f"forward {n}"] = draw(len(part.indices))
            draws.samples()  # job.backward()
            draws.summed()
            drawn[f"gradients {n}"] = draw()
            for k in range(optimizers):
                with draws.update():
                    drawn[f"update {n}.{k}"] = draw()
        drawn["end"] = draw()
    return drawn


def same(one: dict, other: dict) -> set[str]:
    return {place for place in one if one[place] == other[place]}


@pytest.mark.parametrize("backwards", [1, 3])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_updates_draw_the_same_on_all_ranks_and_samples_do_not(rank, backwards) -> None:
    one, other = body(0, 1, seen=backwards, backwards=backwards), body(rank, 3, seen=backwards, backwards=backwards)
    updates = {place for place in one if place.split()[0] in ("gradients", "update", "end")}
    samples_of_the_first = {place for place in one if place.startswith("inputs")} if rank == 0 else set()
    assert same(one, other) == updates | samples_of_the_first
    assert len(set(one.values())) == len(one), "two places draw the same numbers"


@pytest.mark.parametrize("seen", [1, 2, 5, None])
def test_updates_draw_the_same_if_ranks_have_seen_other_warm_ups(seen) -> None:
    one, other = body(0, 2, seen=3, backwards=3), body(0, 2, seen=seen, backwards=3)
    assert {place for place in one if place.startswith(("gradients", "update"))} <= same(one, other)


def test_a_forward_between_backward_and_update_moves_no_number_of_the_update() -> None:
    def drawn(forward: int) -> tuple:
        draws = Draws()
        begun(draws, Randomness(ORDER))
        with Kept(), draws.kept(), draws.body(3, ORDER.slice(3, 0, 1)):
            draws.summed()
            draws.samples()
            draw(forward)
            with draws.update():
                return draw()

    assert drawn(0) == drawn(5)


def test_callbacks_draw_by_their_step_and_leave_no_trace() -> None:
    draws, found = Draws(), []
    begun(draws, Randomness(ORDER))
    step = 4
    callbacks = [draws.of_step("commit", lambda: found.append(draw()), lambda: step) for _ in range(2)]
    with Kept():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        expected = draw()
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        for callback in (*callbacks, *callbacks):
            callback()
        step = 5
        callbacks[0]()
        assert draw() == expected
    assert found[:2] == found[2:4]
    assert len(set(found)) == 3


def test_own_streams_go_on_alike_behind_a_loop_if_ranks_have_drawn_differently_before() -> None:
    draws = Draws()
    begun(draws, Randomness(ORDER))
    with Kept():
        found = []
        for more in (0, 3):
            with draws.loop(Randomness(ORDER), lambda: 7):
                draw(more)
            found.append(draw())
    assert found[0] == found[1]


def test_nothing_is_seeded_if_the_script_keeps_its_own_randomness() -> None:
    draws = Draws()
    begun(draws, None)
    with Kept():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        expected = [draw() for _ in range(4)]
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        found = []
        with draws.kept(), draws.body(3, ORDER.slice(3, 0, 1)):
            found.append(draw())
            draws.summed()
            with draws.update():
                found.append(draw())
        draws.of_step("commit", lambda: found.append(draw()), lambda: 3)()
        with draws.loop(None, lambda: 4):
            pass
        found.append(draw())
    assert found == expected
