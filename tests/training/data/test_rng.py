"""Random numbers by position: the same in every process, and without a trace in the user's own streams."""

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastrain.data.order import Order
from elastrain.data.rng import Kept, Keys, Probe, Randomness, seed_all


def draw() -> list[float]:
    return [*torch.rand(2).tolist(), *np.random.rand(2).tolist(), random.random(), random.gauss(0, 1)]


@given(st.integers(), st.integers(0, 2**40), st.sets(st.integers(0, 2**31), min_size=2, max_size=50))
def test_keys_are_distinct_in_the_half_that_generators_use_for_any_seed(seed, base, counters) -> None:
    keys = Keys(seed, "step")
    assert len({keys(base + c) % 2**32 for c in counters}) == len(counters)


@given(st.integers(0, 2**63), st.integers(0, 2**40))
def test_keys_differ_if_seed_or_purpose_differs(seed, counter) -> None:
    keys = {Keys(seed, "step")(counter), Keys(seed, "sample")(counter), Keys(seed + 1, "step")(counter)}
    assert len(keys) == 3


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 40))
def test_numbers_belong_to_the_micro_batch_if_ranks_share_it_out_differently(world, other, step) -> None:
    order = Order(64, 16, micro_batches=6)
    randomness = Randomness(order)

    def numbers(size: int) -> list[list[float]]:
        found = []
        for rank in range(size):
            for part in order.micro_slices(step, rank, size):
                randomness.seed_body(step, part)
                found += [draw()] if part.indices else []
        return found

    with Kept():
        assert numbers(world) == numbers(other)


def test_own_streams_continue_as_if_nothing_was_drawn_inside() -> None:
    randomness, part, kept = Randomness(Order(8, 4)), Order(8, 4).slice(0, 0, 1), Kept()
    with Kept():
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        expected = [draw() for _ in range(4)]
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        found = []
        for step in range(4):
            with kept:
                randomness.seed_body(step, part)
                draw()
            found.append(draw())
    assert found == expected


def test_a_draw_from_any_generator_is_detected() -> None:
    draws = {
        "nothing": lambda: torch.ones(3),
        "torch": lambda: torch.rand(1),
        "numpy": lambda: np.random.rand(),
        "numpy normal": lambda: np.random.randn(),
        "random": lambda: random.random(),
        "a seed of torch's": lambda: torch.manual_seed(3),
        "a seed of random's": lambda: random.seed(3),
    }
    for name, what in draws.items():
        probe = Probe()
        for _ in range(3):  # it detects nothing without draws inside, for any draws and seeds in between
            with Kept():
                with probe:
                    assert not probe.drawn()
                seed_all(7)
                draw()
        with Kept(), probe:
            what()
            assert probe.drawn() == (name != "nothing"), name


def test_generators_of_devices_are_keyed_and_put_back_like_the_others_if_cuda_is_in_use(monkeypatch) -> None:
    devices = [torch.Generator().manual_seed(7), torch.Generator().manual_seed(8)]

    def put_back(states: list[torch.Tensor]) -> None:
        for generator, state in zip(devices, states, strict=True):
            generator.set_state(state)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [g.get_state() for g in devices])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put_back)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda key: [g.manual_seed(key) for g in devices])
    expected = [torch.rand(3, generator=torch.Generator().manual_seed(seed)) for seed in (7, 8)]
    drawn = []
    for _ in range(2):
        with Kept():
            seed_all(5)
            drawn.append([torch.rand(3, generator=g) for g in devices])
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    assert all(torch.equal(torch.rand(3, generator=g), e) for g, e in zip(devices, expected, strict=True))
